"""What no eviction policy can beat: block hits with infinite memory, and those of a clairvoyant."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache.replay.prefix_tree import Span, TracePaths

__all__ = ["clairvoyant_hits", "gap_closed", "infinite_hits"]

_NEVER = 1 << 62


def infinite_hits(paths: TracePaths) -> list[int]:
    """Blocks found by each request when nothing is ever evicted."""
    seen: dict[Span, int] = {}
    hits = []
    for asked, stored, tail in zip(paths.asked, paths.stored, paths.tails, strict=True):
        hits.append(_prefix(asked, seen) + tail)
        for span in (*asked, *stored):
            seen[span] = span.size
    return hits


def clairvoyant_hits(paths: TracePaths, capacity: int) -> list[int]:
    """Blocks found by each request when what is needed last is evicted first (Belady, 1966).

    Blocks may be dropped as soon as they were computed, and of blocks with the same next use the
    deepest goes first: a block without those before it serves nobody. A partial block that is the
    begin of a known one is found without a place of its own, if its prompt fits at all: which of
    the blocks that begin with it is best kept would be another question.

    Args:
        paths: of the whole trace, from `trace_paths`.
        capacity: blocks that are kept from one request to the next.
    """
    following = _next_uses(paths)
    kept: dict[Span, int] = {}  # span -> blocks of it, its first ones
    latest: dict[Span, int] = {}  # span -> its next use
    order: list[tuple[int, int, int, Span]] = []  # (-next use, -end, tie, span), some outdated
    total = tie = 0
    hits = []
    each = zip(paths.asked, paths.stored, paths.tails, paths.blocks, following, strict=True)
    for asked, stored, tail, blocks, uses in each:
        hits.append(_prefix(asked, kept) + (tail and blocks <= capacity))
        for span in dict.fromkeys((*asked, *stored)):
            use = uses[span]
            total += span.size - kept.get(span, 0)
            kept[span], latest[span] = span.size, use
            tie += 1
            heapq.heappush(order, (-use, -span.end, tie, span))
        while total > capacity:
            use, _, _, span = order[0]
            if span not in kept or latest[span] != -use:
                heapq.heappop(order)
                continue
            dropped = min(kept[span], total - capacity)
            total -= dropped
            kept[span] -= dropped
            if not kept[span]:
                del kept[span], latest[span]
                heapq.heappop(order)
    return hits


def _prefix(path: Sequence[Span], kept: dict[Span, int]) -> int:
    found = 0
    for span in path:
        blocks = kept.get(span, 0)
        found += blocks
        if blocks < span.size:
            break
    return found


def _next_uses(paths: TracePaths) -> list[dict[Span, int]]:
    """For each request, the number of the next one that asks for each of its spans."""
    latest: dict[Span, int] = {}
    following: list[dict[Span, int]] = []
    for number in range(len(paths.asked) - 1, -1, -1):
        asked, stored = paths.asked[number], paths.stored[number]
        following.append({span: latest.get(span, _NEVER) for span in (*asked, *stored)})
        latest.update(dict.fromkeys(asked, number))
    following.reverse()
    return following


def gap_closed(hits: float, lru: float, clairvoyant: float) -> float | None:
    """Share of what a clairvoyant finds beyond LRU that a policy finds; None when it is nothing."""
    return (hits - lru) / (clairvoyant - lru) if clairvoyant > lru else None
