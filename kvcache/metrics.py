"""Counters of a cache in the text format that Prometheus scrapes.

Names follow its conventions: a prefix, the unit last, ``_total`` for what only grows; what adds up
to a whole is one metric with a label.
Source: https://prometheus.io/docs/instrumenting/exposition_formats/ and /docs/practices/naming/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcache._arguments import as_text
from kvcache.errors import InvalidArgumentError
from kvcache.tenants import tenant_samples

if TYPE_CHECKING:
    from kvcache.stats import CacheStats
    from kvcache.tenants import TenantUsage
    from kvcache.tiers.disk import CacheDisk, DiskTierStats
    from kvcache.tiers.remote import CacheRemote, RemoteTierStats

__all__ = ["prometheus_text"]


@dataclass(frozen=True, slots=True)
class _Metric:
    """One metric and the fields of `CacheStats` that it shows.

    ``fields``: one field; or a field by value of the label; a field of one number for each group
    has the label ``group``.
    """

    name: str
    summary: str
    fields: str | Mapping[str, str]
    label: str = ""

    def names(self) -> list[str]:
        return [self.fields] if isinstance(self.fields, str) else list(self.fields.values())

    def samples(
        self, stats: CacheStats | DiskTierStats | RemoteTierStats
    ) -> Iterator[tuple[str, int]]:
        """Text of the own label, and value."""
        if not isinstance(self.fields, str):
            for value, field in self.fields.items():
                yield f'{self.label}="{value}"', getattr(stats, field)
        elif self.label:
            for group, number in enumerate(getattr(stats, self.fields)):
                yield f'{self.label}="{group}"', number
        else:
            yield "", getattr(stats, self.fields)


# A test checks that every field is shown, once or as part of one that adds up to it.
_METRICS = (
    _Metric("budget_bytes", "Bytes that pages, slots and snapshots may take.", "budget_bytes"),
    _Metric("reserved_bytes", "Bytes of the budget for memory elsewhere.", "reserved_bytes"),
    _Metric("committed_bytes", "Bytes taken from the budget.", "committed_bytes"),
    _Metric("committed_peak_bytes", "Most bytes ever taken from the budget.", "peak_bytes"),
    _Metric("used_bytes", "Bytes of live pages, slots and snapshots.", "used_bytes"),
    _Metric("idle_bytes", "Bytes taken from the budget that hold nothing.", "idle_bytes"),
    _Metric("budget_max_bytes", "Most bytes that the budget can be made.", "max_bytes"),
    _Metric("weight_epochs_total", "Times that the weights have changed.", "epoch"),
    _Metric("open_sequences", "Sequences that are open.", "open_sequences"),
    _Metric("live_pages", "Pages in use, by group.", "group_pages", "group"),
    _Metric("live_slots", "Slots of fixed-size state in use.", "slots"),
    _Metric("live_snapshots", "Snapshots in use.", "snapshots"),
    _Metric("lossy_snapshots", "Snapshots in use that are not exact.", "lossy_snapshots"),
    _Metric("ring_snapshots", "Snapshots in the decode rings of sequences.", "ring_snapshots"),
    _Metric("indexed_blocks", "Blocks that the prefix index holds.", "indexed_blocks"),
    _Metric("indexed_tokens", "Positions that the prefix index holds.", "indexed_tokens"),
    _Metric("indexed_snapshots", "Snapshots that the index holds.", "indexed_snapshots"),
    _Metric(
        "removed_blocks_total",
        "Blocks that left the index, by reason.",
        {
            "evicted": "evicted_blocks",
            "expired": "expired_blocks",
            "erased": "erased_blocks",
            "dropped": "dropped_blocks",
        },
        "reason",
    ),
    _Metric(
        "removed_snapshots_total",
        "Snapshots that left the index, by reason.",
        {
            "evicted": "evicted_snapshots",
            "thinned": "thinned_snapshots",
            "erased": "erased_snapshots",
            "dropped": "dropped_snapshots",
        },
        "reason",
    ),
    _Metric(
        "window_pages_evicted_total",
        "Pages of sliding groups given up inside prefixes that stay, by group.",
        "window_pages_evicted",
        "group",
    ),
    _Metric("pins", "Pins that are held.", "pins"),
    _Metric("pinned_pages", "Pages that pins keep, of all groups.", "pinned_pages"),
    _Metric("pinned_bytes", "Bytes of pages and snapshots that pins keep.", "pinned_bytes"),
    _Metric("lapsed_leases_total", "Pins that ended with their lease.", "lapsed_leases"),
    _Metric(
        "opens_total",
        "Sequences opened, by what limited the hit.",
        {
            "last token": "limited_by_none",
            "tokens": "limited_by_tokens",
            "snapshot": "limited_by_snapshot",
            "window": "limited_by_window",
        },
        "limit",
    ),
    _Metric("hits_total", "Sequences opened with cached tokens.", "hits"),
    _Metric("asked_tokens_total", "Prompt tokens of opened sequences.", "asked_tokens"),
    _Metric("cached_tokens_total", "Prompt tokens that were cached.", "cached_tokens"),
    _Metric(
        "missed_tokens_total",
        "Prompt tokens not cached, but for last ones, by what was missing.",
        {
            "tokens": "unknown_tokens",
            "snapshot": "lost_snapshot_tokens",
            "window": "lost_window_tokens",
        },
        "limit",
    ),
    _Metric("waiting_events", "Blocks and snapshots in events not taken.", "waiting_events"),
    _Metric("event_losses_total", "Times that events were lost.", "event_losses"),
    _Metric("hit_blocks_total", "Blocks found (price_list alone counts).", "hit_blocks"),
    _Metric("lru_hit_blocks_total", "Blocks LRU would have found.", "lru_hit_blocks"),
)
_DISK_METRICS = (
    _Metric("disk_is_writer", "1 when this cache writes the directory.", "is_writer"),
    _Metric("disk_segments", "Segments of the disk tier.", "segments"),
    _Metric("disk_records", "Records of the disk tier.", "records"),
    _Metric("disk_bytes", "Bytes of the disk tier's files.", "bytes"),
    _Metric("disk_max_bytes", "Bytes that its files may take.", "max_bytes"),
    _Metric("disk_queued_bytes", "Bytes that wait to be written.", "queued_bytes"),
    _Metric("disk_written_records_total", "Records written.", "written_records"),
    _Metric("disk_written_bytes_total", "Bytes written.", "written_bytes"),
    _Metric("disk_syncs_total", "Times that files were synchronised.", "syncs"),
    _Metric("disk_dropped_records_total", "Records not written.", "dropped_records"),
    _Metric("disk_skipped_snapshots_total", "Snapshots that could not go.", "skipped_snapshots"),
    _Metric("disk_evicted_segments_total", "Segments removed for the cap.", "evicted_segments"),
    _Metric("disk_kept_records_total", "Records written again in time.", "kept_records"),
    _Metric("disk_erased_records_total", "Records erased.", "erased_records"),
    _Metric("disk_fetches_total", "Lookups that brought something back.", "fetches"),
    _Metric("disk_fetched_tokens_total", "Positions brought back.", "fetched_tokens"),
    _Metric("disk_read_records_total", "Records that fetches read.", "read_records"),
    _Metric("disk_read_bytes_total", "Bytes that fetches read.", "read_bytes"),
    _Metric(
        "disk_failures_total",
        "What went wrong in the disk tier, by cause; each is a miss.",
        {
            "damaged segment": "damaged_segments",
            "torn segment": "torn_segments",
            "damaged record": "damaged_records",
            "read": "read_errors",
            "write": "write_errors",
            "no room": "no_room",
        },
        "cause",
    ),
)
_REMOTE_METRICS = (
    _Metric("remote_is_suspended", "1 while a server is not tried.", "is_suspended"),
    _Metric("remote_servers", "Primaries that are known.", "servers"),
    _Metric("remote_connects_total", "Connections made or tried.", "connects"),
    _Metric("remote_redirections_total", "Answers that another node has it.", "redirections"),
    _Metric("remote_lookups_total", "Prompts that the server was asked for.", "lookups"),
    _Metric("remote_round_trips_total", "Round trips of lookups and writes.", "round_trips"),
    _Metric("remote_queued_bytes", "Bytes that wait to be written.", "queued_bytes"),
    _Metric("remote_written_records_total", "Records written.", "written_records"),
    _Metric("remote_written_bytes_total", "Bytes written.", "written_bytes"),
    _Metric("remote_present_records_total", "Records others had written.", "present_records"),
    _Metric("remote_dropped_records_total", "Records not written.", "dropped_records"),
    _Metric("remote_skipped_snapshots_total", "Snapshots that could not go.", "skipped_snapshots"),
    _Metric("remote_erased_records_total", "Records erased.", "erased_records"),
    _Metric("remote_fetches_total", "Lookups that brought something back.", "fetches"),
    _Metric("remote_fetched_tokens_total", "Positions brought back.", "fetched_tokens"),
    _Metric("remote_read_records_total", "Records that fetches read.", "read_records"),
    _Metric("remote_read_bytes_total", "Bytes that fetches read.", "read_bytes"),
    _Metric("remote_missing_records_total", "Records dropped before a read.", "missing_records"),
    _Metric("remote_timeouts_total", "Failures for which time ran out.", "timeouts"),
    _Metric("remote_refused_operations_total", "Not tried after a failure.", "refused_operations"),
    _Metric(
        "remote_failures_total",
        "What went wrong in the remote tier, by cause; each is a miss.",
        {
            "server": "failures",
            "damaged record": "damaged_records",
            "read": "read_errors",
            "write": "write_errors",
            "no room": "no_room",
        },
        "cause",
    ),
)
_OWN_LABELS = {
    "tenant",
    *(metric.label for metric in (*_METRICS, *_DISK_METRICS, *_REMOTE_METRICS)),
} - {""}
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def _kind(name: str) -> str:
    return "counter" if name.endswith("_total") else "gauge"


def _label_text(name: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return f'{name}="{escaped}"'


def _label_texts(labels: Mapping[str, str]) -> list[str]:
    if not isinstance(labels, Mapping):
        raise InvalidArgumentError(f"labels: expected names and values, got {labels!r}")
    pairs = []
    for name, value in labels.items():
        if not isinstance(name, str) or not _LABEL.fullmatch(name) or name.startswith("__"):
            raise InvalidArgumentError(f"labels: {name!r} is no name of a Prometheus label")
        if name in _OWN_LABELS:
            raise InvalidArgumentError(f"labels: {name!r} is a label of the metrics themselves")
        as_text(value, f"labels[{name!r}]")
        pairs.append(_label_text(name, value))
    return pairs


def prometheus_text(
    stats: CacheStats,
    labels: Mapping[str, str] | None = None,
    tenants: Mapping[str, TenantUsage] | None = None,
    disk: CacheDisk | None = None,
    remote: CacheRemote | None = None,
) -> str:
    """Every counter of ``stats``, each metric after its help and type.

    Args:
        stats: from `Cache.stats`.
        labels: names and values that every sample carries, such as the model's name.
        tenants: from `Cache.tenants`; those with a quota are shown.
        disk: `Cache.disk`; None for a cache without a disk tier.
        remote: `Cache.remote`; None for a cache without a remote tier.

    Raises:
        InvalidArgumentError: a label's name or value that Prometheus would refuse, or a name that
            the metrics use themselves: ``cause``, ``group``, ``limit``, ``reason``,
            ``tenant``.
    """
    shared = _label_texts({} if labels is None else labels)
    lines = []
    whole = [(metric.name, metric.summary, list(metric.samples(stats))) for metric in _METRICS]
    for tier, metrics in ((disk, _DISK_METRICS), (remote, _REMOTE_METRICS)):
        if tier is not None:
            counted = tier.stats()
            whole += [(each.name, each.summary, list(each.samples(counted))) for each in metrics]
    for_each = [
        (name, summary, [(_label_text("tenant", tenant), value) for tenant, value in samples])
        for name, summary, samples in tenant_samples(tenants or {})
    ]
    for metric_name, summary, samples in whole + for_each:
        name, kind = f"kvcache_{metric_name}", _kind(metric_name)
        lines += [f"# HELP {name} {summary}", f"# TYPE {name} {kind}"]
        for own, value in samples:
            pairs = ",".join([*shared, own] if own else shared)
            lines.append(f"{name}{{{pairs}}} {int(value)}" if pairs else f"{name} {int(value)}")
    return "\n".join(lines) + "\n"
