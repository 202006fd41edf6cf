"""Counters of a cache in the text format that Prometheus scrapes.

Names follow its conventions: a prefix, the unit last, ``_total`` for what only grows.
Source: https://prometheus.io/docs/instrumenting/exposition_formats/ and /docs/practices/naming/.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvcache._arguments import as_text
from kvcache.errors import InvalidArgumentError

if TYPE_CHECKING:
    from kvcache.stats import CacheStats

__all__ = ["prometheus_text"]

# Field of CacheStats -> metric, type, help. A test checks that no field is missing.
_METRICS: dict[str, tuple[str, str, str]] = {
    "budget_bytes": ("budget_bytes", "gauge", "Bytes that pages, slots and snapshots may take."),
    "committed_bytes": ("committed_bytes", "gauge", "Bytes taken from the budget."),
    "peak_bytes": ("committed_peak_bytes", "gauge", "Most bytes ever taken from the budget."),
    "used_bytes": ("used_bytes", "gauge", "Bytes of live pages, slots and snapshots."),
    "idle_bytes": ("idle_bytes", "gauge", "Bytes taken from the budget that hold nothing."),
    "max_bytes": ("budget_max_bytes", "gauge", "Most bytes that the budget can be made."),
    "epoch": ("weight_epochs_total", "counter", "Times that the weights have changed."),
    "open_sequences": ("open_sequences", "gauge", "Sequences that are open."),
    "pages": ("live_pages", "gauge", "Pages in use, of all groups."),
    "slots": ("live_slots", "gauge", "Slots of fixed-size state in use."),
    "snapshots": ("live_snapshots", "gauge", "Snapshots in use."),
    "lossy_snapshots": ("lossy_snapshots", "gauge", "Snapshots in use that are not exact."),
    "ring_snapshots": ("ring_snapshots", "gauge", "Snapshots in the decode rings of sequences."),
    "indexed_blocks": ("indexed_blocks", "gauge", "Blocks that the prefix index holds."),
    "indexed_tokens": ("indexed_tokens", "gauge", "Positions that the prefix index holds."),
    "indexed_snapshots": ("indexed_snapshots", "gauge", "Snapshots that the index holds."),
    "evicted_blocks": ("evicted_blocks_total", "counter", "Blocks evicted."),
    "evicted_snapshots": ("evicted_snapshots_total", "counter", "Snapshots evicted."),
    "pins": ("pins", "gauge", "Pins that are held."),
    "pinned_pages": ("pinned_pages", "gauge", "Pages that pins keep, of all groups."),
    "pinned_bytes": ("pinned_bytes", "gauge", "Bytes of pages and snapshots that pins keep."),
    "lapsed_leases": ("lapsed_leases_total", "counter", "Pins that ended with their lease."),
    "opens": ("opens_total", "counter", "Sequences opened."),
    "hits": ("hits_total", "counter", "Sequences opened with cached tokens."),
    "asked_tokens": ("asked_tokens_total", "counter", "Prompt tokens of opened sequences."),
    "cached_tokens": ("cached_tokens_total", "counter", "Prompt tokens that were cached."),
    "hit_blocks": (
        "hit_blocks_total",
        "counter",
        "Blocks found (price_list alone counts).",
    ),
    "lru_hit_blocks": (
        "lru_hit_blocks_total",
        "counter",
        "Blocks LRU would have found.",
    ),
}
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def _label_text(labels: Mapping[str, str]) -> str:
    if not isinstance(labels, Mapping):
        raise InvalidArgumentError(f"labels: expected names and values, got {labels!r}")
    pairs = []
    for name, value in labels.items():
        if not isinstance(name, str) or not _LABEL.fullmatch(name) or name.startswith("__"):
            raise InvalidArgumentError(f"labels: {name!r} is no name of a Prometheus label")
        as_text(value, f"labels[{name!r}]")
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
        pairs.append(f'{name}="{escaped}"')
    return "{" + ",".join(pairs) + "}" if pairs else ""


def prometheus_text(stats: CacheStats, labels: Mapping[str, str] | None = None) -> str:
    """Every counter of ``stats`` as one sample, each after its help and type.

    Args:
        stats: from `Cache.stats`.
        labels: names and values that every sample carries, such as the model's name.

    Raises:
        InvalidArgumentError: a label's name or value that Prometheus would refuse.
    """
    text = _label_text({} if labels is None else labels)
    lines = []
    for field in type(stats).__slots__:
        name, kind, summary = _METRICS[field]
        metric = f"kvcache_{name}"
        lines += [
            f"# HELP {metric} {summary}",
            f"# TYPE {metric} {kind}",
            f"{metric}{text} {getattr(stats, field)}",
        ]
    return "\n".join(lines) + "\n"
