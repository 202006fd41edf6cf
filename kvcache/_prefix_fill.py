"""Making a prefix resident whose state comes from elsewhere, with windows that start inside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from kvcache._rows import empty_parts
from kvcache.errors import InternalError, NotFoundError, OutOfCapacityError
from kvcache.snapshot import SnapshotFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from kvcache.cache import Cache
    from kvcache.explanation import Explanation
    from kvcache.plan import Group, StatePlan
    from kvcache.sequence import Sequence as LiveSequence

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


def windowed_layers(plan: StatePlan, stops: Sequence[int]) -> dict[int, Ranges]:
    """Layers that do not need every position, with those that any of ``stops`` needs."""
    layers = sorted({part.layer for group in plan.groups for part in group.components})
    return {
        layer: tuple(part for stop in stops for part in needed_rows(plan, layer, stop))
        for layer in layers
        if plan.paged_components(layer) and needed_rows(plan, layer, stops[-1]) != ((0, stops[-1]),)
    }


def complete(
    sequence: LiveSequence,
    stops: Sequence[int],
    write: Callable[[LiveSequence, int, int, int], None],
    settle: Callable[[LiveSequence, int], None],
) -> None:
    """Complete the positions up to the last stop, with a snapshot at each that is still ahead.

    One more token than that must be known. Rows of layers without a window and all records are
    written already. Of the others ``write(sequence, layer, start, end)`` writes what `needed_rows`
    names; the rest is passed over, and its pages are given back before anybody could share them.
    ``settle(sequence, stop)`` makes the fixed-size state that of ``stop``.
    """
    windows = windowed_layers(sequence.plan, stops)
    for stop in stops:
        start = sequence.length
        if start > stop or (start == stop and stop != stops[-1]):
            continue
        if windows:
            _pass_windows(sequence, stop, windows, write)
        else:
            sequence.advance(stop - start)
        if windows and start < stop == stops[-1]:
            _drop_passed(sequence, start, stop, windows)
        settle(sequence, stop)
        sequence.snapshot()


def _pass_windows(
    sequence: LiveSequence,
    stop: int,
    windows: dict[int, Ranges],
    write: Callable[[LiveSequence, int, int, int], None],
) -> None:
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


def _drop_passed(sequence: LiveSequence, start: int, stop: int, windows: dict[int, Ranges]) -> None:
    """Give back the pages that no query from ``stop`` on sees, as any `Sequence.write` there does.

    Nobody may find those from ``start`` on: their rows were never written.
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
        passed = range(-(-start // block), len(table))
        if any(table[number] >= 0 and number not in held for number in passed):
            raise InternalError(f"group {index} keeps pages that its window has passed")


class Prefix:
    """A sequence by which tokens become resident whole, resumable at the last one, or not at all.

    Until `publish` nothing of it is found. Closed by ``with``.

    Args:
        cache: where to.
        tokens: of the prefix.
        space: namespace, adapter, salt and media, as `Cache.open` takes them.
        ttl: as there.

    Attributes:
        sequence: to be completed, unless the prefix `is_resident`.
    """

    def __init__(
        self, cache: Cache, tokens: NDArray[np.int32], space: dict[str, Any], ttl: float | None
    ) -> None:
        check_budget(cache, len(tokens))
        self._cache, self._space, self._count = cache, space, len(tokens)
        self._longer = np.append(tokens, np.int32(0))  # so that a hit may end at the last token
        self.sequence = cache.open(self._longer, ttl=ttl, **space)
        exact = self._explain().snapshot_format in (None, SnapshotFormat.EXACT)
        self.is_resident = self.sequence.cached_tokens == self._count and exact

    def _explain(self) -> Explanation:
        return self._cache.explain(self._longer, **self._space)

    def publish(self) -> None:
        """Let it be found.

        Raises:
            NotFoundError: the cache was cleared, or told of other weights, meanwhile.
        """
        if self.is_resident:
            return
        self.sequence.publish()
        kept = self._explain().cached_tokens
        if kept < self._count:
            raise NotFoundError(
                f"load: {kept} of {self._count} positions were kept; the cache was cleared or told "
                "of other weights meanwhile"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sequence.close()


def check_budget(cache: Cache, count: int) -> None:
    """Refuse what no eviction can make room for."""
    wanted, budget = cache.plan.hit_bytes(count), cache.stats().budget_bytes
    if wanted > budget:
        raise OutOfCapacityError(
            f"load: {count} positions take {wanted} bytes, the budget is {budget}; raise the "
            "plan's memory"
        )
