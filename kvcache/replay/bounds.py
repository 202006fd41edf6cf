"""What no eviction policy can beat: block hits with infinite memory, and those of a clairvoyant."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcache.replay.trace import Request

__all__ = ["clairvoyant_hits", "gap_closed", "infinite_hits", "trace_paths"]

_NEVER = 1 << 62


def trace_paths(requests: Iterable[Request], block_tokens: int) -> list[list[int]]:
    """Each prompt as numbers of blocks, equal where all tokens up to the block's end are.

    A block that the prompt does not fill is its own: it is equal only in an equal prompt.
    """
    numbers: dict[tuple[int, bytes], int] = {}
    paths = []
    for request in requests:
        prompt = request.prompt()
        path, parent = [], -1
        for start in range(0, prompt.size, block_tokens):
            key = (parent, prompt[start : start + block_tokens].tobytes())
            parent = numbers.setdefault(key, len(numbers))
            path.append(parent)
        paths.append(path)
    return paths


def infinite_hits(paths: Sequence[Sequence[int]]) -> list[int]:
    """Blocks found by each request when nothing is ever evicted."""
    seen: set[int] = set()
    hits = []
    for path in paths:
        hits.append(_prefix(path, seen))
        seen.update(path)
    return hits


def clairvoyant_hits(paths: Sequence[Sequence[int]], capacity: int) -> list[int]:
    """Blocks found by each request when what is needed last is evicted first (Belady, 1966).

    Blocks may be dropped as soon as they were computed, and of blocks with the same next use the
    deepest goes first: a block without those before it serves nobody.

    Args:
        paths: blocks of each prompt, from `trace_paths`.
        capacity: blocks that are kept from one request to the next.
    """
    following = _next_uses(paths)
    kept: dict[int, int] = {}  # block -> its next use
    order: list[tuple[int, int, int]] = []  # (-next use, -depth, block), some of them outdated
    hits = []
    for path, uses in zip(paths, following, strict=True):
        hits.append(_prefix(path, kept))
        for depth, (block, use) in enumerate(zip(path, uses, strict=True)):
            kept[block] = use
            heapq.heappush(order, (-use, -depth, block))
        while len(kept) > capacity:
            use, _, block = heapq.heappop(order)
            if kept.get(block) == -use:
                del kept[block]
    return hits


def _prefix(path: Sequence[int], kept: set[int] | dict[int, int]) -> int:
    return next((index for index, block in enumerate(path) if block not in kept), len(path))


def _next_uses(paths: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each block of each path, the number of the next request that has it."""
    latest: dict[int, int] = {}
    following: list[list[int]] = []
    for number in range(len(paths) - 1, -1, -1):
        following.append([latest.get(block, _NEVER) for block in paths[number]])
        latest.update(dict.fromkeys(paths[number], number))
    following.reverse()
    return following


def gap_closed(hits: float, lru: float, clairvoyant: float) -> float:
    """Share of what a clairvoyant finds beyond LRU that a policy finds; NaN when it is nothing."""
    return (hits - lru) / (clairvoyant - lru) if clairvoyant > lru else float(np.nan)
