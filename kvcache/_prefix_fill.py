"""Making a prefix resident whose state comes from elsewhere, with windows that start inside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcache._rows import empty_parts
from kvcache.errors import InternalError, NotFoundError, OutOfCapacityError
from kvcache.snapshot import SnapshotFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from kvcache._arguments import Media
    from kvcache.cache import Cache
    from kvcache.plan import Group, StatePlan
    from kvcache.sequence import Sequence

_CHUNK_TOKENS = 1024  # of windows at a time: more is memory that is given back at once

Ranges = tuple[tuple[int, int], ...]


def needed_rows(plan: StatePlan, layer: int, stop: int, block_tokens: int | None = None) -> Ranges:
    """Positions of a prefix of ``stop`` tokens whose rows must be true, ascending.

    All of them, or of a layer with a window those of every page that stays when the window has
    passed the others: earlier prefixes may be resumed by what is in them.
    """
    block = plan.block_tokens if block_tokens is None else block_tokens
    groups = [
        group
        for group in plan.groups
        if group.record_tokens == 1 and any(part.layer == layer for part in group.components)
    ]
    if any(group.window == 0 for group in groups):
        return ((0, stop),)
    first = min(_first_needed(group, stop, block) for group in groups)
    sinks = min(max(-(-group.sinks // block) * block for group in groups), stop)
    if sinks >= first:
        return ((0, stop),)
    return tuple(part for part in ((0, sinks), (first, stop)) if part[0] < part[1])


def _first_needed(group: Group, stop: int, block: int) -> int:
    if group.chunked:
        seen = stop // group.window * group.window
    elif group.window == 1:  # no query sees what is stored
        return stop
    else:
        seen = max(0, stop - (group.window - 1))
    return seen // block * block


def windowed_layers(plan: StatePlan, stop: int) -> dict[int, Ranges]:
    """Layers that do not need every position, with those they need."""
    layers = sorted({part.layer for group in plan.groups for part in group.components})
    paged = [layer for layer in layers if plan.paged_components(layer)]
    needed = {layer: needed_rows(plan, layer, stop) for layer in paged}
    return {layer: ranges for layer, ranges in needed.items() if ranges != ((0, stop),)}


def complete(
    sequence: Sequence, stop: int, write: Callable[[Sequence, int, int, int], None]
) -> None:
    """Complete the positions up to ``stop``, of which one more token must be known.

    Rows of layers without a window and all records are written already. Of the others
    ``write(sequence, layer, start, end)`` writes what `needed_rows` names; the rest is passed over,
    and its pages are given back before anybody could share them.
    """
    plan = sequence.plan
    windows = windowed_layers(plan, stop)
    if not windows:
        sequence.advance(stop - sequence.length)
        return
    edges = {edge for ranges in windows.values() for part in ranges for edge in part}
    start = sequence.length
    while start < stop:
        end = min(stop, start + _CHUNK_TOKENS, *(edge for edge in edges if edge > start))
        sequence.prepare(end - start)
        for layer, ranges in windows.items():
            if any(first <= start and end <= last for first, last in ranges):
                write(sequence, layer, start, end)
        sequence.advance(end - start, in_place=True)
        start = end
    _drop_passed(sequence, stop, windows)


def _drop_passed(sequence: Sequence, stop: int, windows: dict[int, Ranges]) -> None:
    """Give back the pages that no query from ``stop`` on sees, as any `Sequence.write` there does.

    Nobody may find them: their rows were never written.
    """
    plan = sequence.plan
    layer = next(iter(windows))
    rows = empty_parts(plan, layer, 1, "float32")
    for part in rows:
        part[...] = 0
    sequence.write(layer, stop, *rows)
    sequence.truncate(stop)
    block = plan.block_tokens
    for index, group in enumerate(plan.groups):
        ranges = windows.get(group.components[0].layer)
        if group.record_tokens > 1 or ranges is None:
            continue
        held = {each for first, last in ranges for each in range(first // block, -(-last // block))}
        table = sequence.block_table(index)[: stop // block]
        if any(page >= 0 and number not in held for number, page in enumerate(table)):
            raise InternalError(f"group {index} keeps pages that its window has passed")


def add_prefix(
    cache: Cache,
    tokens: NDArray[np.int32],
    fill: Callable[[Sequence], None],
    *,
    namespace: str | bytes,
    adapter: str | tuple[str, str] | None,
    salt: bytes | str,
    media: Iterable[Media],
    ttl: float | None,
) -> None:
    """Make ``tokens`` resident whole, resumable at the last of them, or nothing of them.

    ``fill`` completes the positions of the sequence it is given, and its fixed-size state.

    Raises:
        OutOfCapacityError: no room, even after evicting. NotFoundError: the weights have changed
            meanwhile. In both cases nothing was kept.
    """
    space: dict[str, Any] = {
        "namespace": namespace,
        "adapter": adapter,
        "salt": salt,
        "media": list(media),
    }
    count = len(tokens)
    check_budget(cache, count)
    longer = np.append(tokens, np.int32(0))  # so that a hit may end at the last token
    with cache.open(longer, ttl=ttl, **space) as sequence:
        known = cache.explain(longer, **space)
        exact = known.snapshot_format in (None, SnapshotFormat.EXACT)
        if sequence.cached_tokens == count and exact:
            return
        fill(sequence)
        sequence.snapshot()
        sequence.publish()
        kept = cache.explain(longer, **space).cached_tokens
    if kept < count:
        raise NotFoundError(
            f"load: of {count} positions {kept} were kept; the weights have changed meanwhile"
        )


def check_budget(cache: Cache, count: int) -> None:
    """Refuse what no eviction can make room for."""
    wanted, budget = cache.plan.hit_bytes(count), cache.stats().budget_bytes
    if wanted > budget:
        raise OutOfCapacityError(
            f"load: {count} positions take {wanted} bytes, the budget is {budget}; raise the "
            "plan's memory"
        )
