"""Token trees against what a plain walk from each node to the root says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from support.drafts import random_parents

import kvcache
from kvcache import InvalidArgumentError, TokenTree, cache_terms

# Medusa's paper draws it so: two guesses for the first token, three for the second.
MEDUSA = [-1, 0, 0, 1, 1, 1, 2, 2, 2]


def ancestors(parents: list[int], node: int) -> list[int]:
    """From the root to the node itself."""
    path = [node]
    while parents[path[0]] != -1:
        path.insert(0, parents[path[0]])
    return path


def expected_mask(parents: list[int], prefix: int = 0) -> NDArray[np.uint8]:
    mask = np.zeros((len(parents), prefix + len(parents)), np.uint8)
    for node in range(len(parents)):
        mask[node, [*range(prefix), *(prefix + a for a in ancestors(parents, node))]] = 1
    return mask


TREES = [
    [-1],
    [-1, 0, 1, 2],
    [-1, 0, 0, 0],
    MEDUSA,
    *(random_parents(np.random.default_rng(seed), 1 + 7 * seed) for seed in range(12)),
]


@pytest.mark.parametrize("parents", TREES, ids=[f"{len(p)}-{i}" for i, p in enumerate(TREES)])
def test_a_tree_is_what_its_parents_say(parents: list[int]) -> None:
    tree = TokenTree(parents)
    paths = [ancestors(parents, node) for node in range(len(parents))]
    assert tree.parents.tolist() == parents
    assert len(tree) == tree.nodes == len(parents)
    assert tree.depths.tolist() == [len(path) - 1 for path in paths]
    assert tree.depth == max(tree.depths)
    assert tree.positions(100).tolist() == [100 + len(path) - 1 for path in paths]
    assert [tree.path(node).tolist() for node in range(len(parents))] == paths
    leaves = [node for node in range(len(parents)) if node not in parents]
    assert tree.leaves == len(leaves)
    width = tree.depth + 1
    padded = [paths[leaf] + [-1] * (width - len(paths[leaf])) for leaf in leaves]
    assert tree.retrieval_indices.tolist() == padded
    for node in range(len(parents)):
        children = [child for child, parent in enumerate(parents) if parent == node]
        assert tree.children(node) == children
        assert tree.first_child[node] == (children or [-1])[0]
        for child, after in itertools.pairwise([*children, -1]):
            assert tree.next_sibling[child] == after
    assert tree.next_sibling[0] == -1


@pytest.mark.parametrize("prefix", [0, 1, 31, 32, 33, 64, 1000])
@pytest.mark.parametrize("parents", TREES, ids=[f"{len(p)}-{i}" for i, p in enumerate(TREES)])
def test_a_row_sees_the_prefix_its_ancestors_and_itself(parents: list[int], prefix: int) -> None:
    tree, expected = TokenTree(parents), expected_mask(parents, prefix)
    np.testing.assert_array_equal(tree.mask(prefix), expected)
    bias = tree.bias(prefix)
    assert bias.dtype == np.float32
    np.testing.assert_array_equal(bias, np.where(expected, np.float32(0), np.float32("-inf")))
    packed = tree.packed_mask(prefix)
    assert packed.dtype == np.uint32
    bits = np.unpackbits(packed.astype("<u4").view(np.uint8), axis=1, bitorder="little")
    np.testing.assert_array_equal(bits[:, : expected.shape[1]], expected)
    assert not bits[:, expected.shape[1] :].any()
    assert bits.shape[1] - expected.shape[1] < 32


def test_the_mask_takes_what_the_sizing_law_says() -> None:
    [decl] = [d for d in kvcache.declare_caches([], hidden_size=8) if d.kind == "token_tree_mask"]
    for nodes in (1, 16, 61):
        inputs = kvcache.CacheInputs(tree=(4, nodes))
        [term] = cache_terms([decl], inputs)
        assert 4 * TokenTree.linear(nodes).mask().nbytes == term.bytes


def test_a_linear_tree_is_causal() -> None:
    tree = TokenTree.linear(5)
    assert tree == TokenTree([-1, 0, 1, 2, 3])
    assert hash(tree) == hash(TokenTree([-1, 0, 1, 2, 3]))
    assert tree != TokenTree([-1, 0, 1, 2, 2])
    assert tree != [-1, 0, 1, 2, 3]
    np.testing.assert_array_equal(tree.mask(), np.tri(5, dtype=np.uint8))
    assert tree.leaves == 1
    assert repr(tree) == "<TokenTree of 5 nodes, 1 leaves, depth 4>"


def longest(parents: list[int], tokens: list[int], picks: list[int]) -> list[int]:
    """Of all paths whose every row is what its parent picked, the longest and lowest."""
    best = [0]
    for node in range(len(parents)):
        path = ancestors(parents, node)
        right = all(tokens[b] == picks[a] for a, b in itertools.pairwise(path))
        if right and len(path) > len(best):
            best = path
    return best


def test_the_longest_path_that_the_picks_take_is_accepted() -> None:
    lengths = set()
    for seed in range(200):
        rng = np.random.default_rng(seed)
        parents = random_parents(rng, int(rng.integers(1, 30)))
        tokens = rng.integers(0, 3, len(parents)).tolist()
        picks = rng.integers(0, 3, len(parents)).tolist()
        path, bonus = TokenTree(parents).accept(tokens, picks)
        assert path.tolist() == longest(parents, tokens, picks)
        assert bonus == picks[path[-1]]
        lengths.add(len(path))
    assert len(lengths) >= 5


def test_of_equal_guesses_the_one_that_goes_on_is_accepted() -> None:
    tree = TokenTree([-1, 0, 0, 2])
    path, bonus = tree.accept([9, 5, 5, 6], [5, 6, 6, 7])
    assert (path.tolist(), bonus) == ([0, 2, 3], 7)
    path, bonus = tree.accept([9, 5, 5, 8], [5, 6, 6, 7])
    assert (path.tolist(), bonus) == ([0, 1], 6)


@pytest.mark.parametrize(
    ("parents", "match"),
    [
        ([], r"1\.\.4096 nodes, got 0; row 0 is its root"),
        ([0], r"parents\[0\] must be -1, since row 0 is the root, got 0"),
        ([-1, -1], r"parents\[1\] must be 0\.\.0, a row before its child, got -1"),
        ([-1, 0, 2], r"parents\[2\] must be 0\.\.1, a row before its child, got 2"),
        ([-1, 0, 1, 2**31 - 1], r"parents\[3\] must be 0\.\.2"),
        ([-1, *range(4096)], r"1\.\.4096 nodes, got 4097"),
        ([-1, 0.5], "parents: expected one axis of integers"),
        ([[-1, 0]], "parents: expected one axis of integers"),
        ([-1, 2**31], "parents: ids must fit int32"),
        ("-1", "parents: expected one axis"),
    ],
)
def test_a_wrong_parent_is_named(parents: object, match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        TokenTree(parents)  # type: ignore[arg-type]


def test_wrong_arguments() -> None:
    tree = TokenTree(MEDUSA)
    for call, match in (
        (lambda: tree.path(9), r"nodes 0\.\.8, got 9"),
        (lambda: tree.path(-1), "node"),
        (lambda: tree.children(9), "node"),
        (lambda: tree.positions(2**63 - 1), r"pass 2\^63 - 1"),
        (lambda: tree.positions(-1), "start"),
        (lambda: tree.mask(2**30), "more than 1073741824 bytes"),
        (lambda: tree.mask(2**63 - 1), "more than 1073741824 bytes"),
        (lambda: tree.bias(2**28), "more than 1073741824 bytes"),
        (lambda: tree.packed_mask(2**63 - 1), "more than 1073741824 bytes"),
        (lambda: tree.mask(0.5), "prefix"),  # type: ignore[arg-type]
        (lambda: tree.accept([1] * 9, [1] * 8), "9 tokens and 8 picks for 9 nodes"),
        (lambda: tree.accept([1] * 8, [1] * 9), "8 tokens and 9 picks for 9 nodes"),
        (lambda: tree.accept([0.5] * 9, [1] * 9), "tokens"),
        (lambda: TokenTree.linear(0), r"1\.\.4096"),
        (lambda: TokenTree.linear(2**62), r"1\.\.4096"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            call()
    assert tree.positions(2**63 - 3).tolist()[-1] == 2**63 - 1
    assert TokenTree.linear(TokenTree.max_nodes).nodes == TokenTree.max_nodes
