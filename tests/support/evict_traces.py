"""Traces made to hurt an eviction policy, as requests of whole blocks with times."""

from __future__ import annotations

import itertools

import numpy as np

from kvcache.replay import Request

BLOCK = 512


def _requests(paths, gaps_ms, rng, *, partial=False):
    now = 0
    for number, (path, gap) in enumerate(zip(paths, gaps_ms, strict=False)):
        now += int(gap)
        cut = int(rng.integers(BLOCK)) if partial else 0
        yield Request(
            number=number,
            timestamp_ms=now,
            input_length=BLOCK * len(path) - cut,
            output_length=int(rng.integers(200)),
            source=np.array(path, np.uint64),
        )


def branching(rng, count):
    """Prompts that leave an earlier one at a block and end in a new, partial block."""
    paths, fresh = [[0]], itertools.count(1)
    for _ in range(count):
        path = paths[int(rng.integers(max(0, len(paths) - 60), len(paths)))]
        path = path[: int(rng.integers(1, max(2, len(path))))]  # a partial block is not extended
        paths.append(path + [next(fresh) for _ in range(int(rng.integers(1, 6)))])
    gaps = rng.exponential(3000, count)
    return list(_requests(paths[1:], gaps, rng, partial=True))


def loop(rng, count):
    """The same 60 documents over and over: LRU with less than all of them finds nothing."""
    documents = [[100 * d + b for b in range(4)] for d in range(60)]
    paths = [documents[i % len(documents)] for i in range(count)]
    return list(_requests(paths, [500] * count, rng))


def phases(rng, count):
    """Every 300 requests the working set is another, and what used to return no longer does."""
    paths = []
    for i in range(count):
        document = 1000 * (i // 300) + int(rng.integers(30 if i // 300 % 2 else 300))
        paths.append([10 * document + b for b in range(4)])
    return list(_requests(paths, rng.exponential(1000, count), rng))


def lru_stack(rng, count):
    """Each request repeats the k-th latest, small k most often: LRU is the best there is."""
    stack, paths, fresh = [], [], itertools.count()
    for _ in range(count):
        depth = int(rng.geometric(0.03))
        if depth <= len(stack):
            path = stack.pop(-depth)
        else:
            document = next(fresh)
            path = [4 * document + b for b in range(4)]
        stack.append(path)
        paths.append(path)
    return list(_requests(paths, rng.exponential(1000, count), rng))


def tree_search(rng, count):
    """Branches of a few live trees, each continued from a recent node."""
    fresh = itertools.count()
    nodes = [[[next(fresh)]] for _ in range(8)]
    paths = []
    for _ in range(count):
        tree = nodes[int(rng.integers(len(nodes)))]
        parent = tree[-1 - int(min(len(tree) - 1, rng.geometric(0.2) - 1))]
        tree.append([*parent, next(fresh)])
        if len(tree) > 40:
            tree[:] = [[next(fresh)]]
        paths.append(tree[-1])
    return list(_requests(paths, rng.exponential(300, count), rng))


ADVERSARIAL = {"loop": loop, "phases": phases, "lru_stack": lru_stack, "tree_search": tree_search}
