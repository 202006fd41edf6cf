"""Random trees of drafts, and what a proposer that is sometimes right puts in them."""

from __future__ import annotations

import os

import numpy as np

from kvcache import TokenTree

__all__ = ["SESSIONS", "drafts_for", "random_parents"]

#: Sessions of the long run of each oracle test; every stride-th of them else.
SESSIONS = 10_000 // int(os.environ.get("KVCACHE_SWEEP_STRIDE", "64"))


def random_parents(rng: np.random.Generator, nodes: int) -> list[int]:
    """Any tree: wide, deep, or in between."""
    reach = int(rng.integers(1, nodes + 1))
    return [-1, *(int(rng.integers(max(0, i - reach), i)) for i in range(1, nodes))]


def drafts_for(
    rng: np.random.Generator, tree: TokenTree, following: list[int], right: float, vocabulary: int
) -> list[int]:
    """A token for each node: of those whose ancestors are right, some are right as well."""
    tokens, good = [], [True]
    for node in range(1, tree.nodes):
        depth, parent = int(tree.depths[node]), int(tree.parents[node])
        is_right = good[parent] and depth <= len(following) and bool(rng.random() < right)
        good.append(is_right)
        tokens.append(following[depth - 1] if is_right else int(rng.integers(0, vocabulary)))
    return tokens
