"""The index of llama.cpp states against a search through all of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvcache.integrations.llama_cpp.token_trie import TokenTrie, common_length

Tokens = tuple[int, ...]
# Few tokens, so that paths are shared, divided and joined.
keys = st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple)


def array(tokens: Tokens) -> np.ndarray:
    return np.asarray(tokens, np.int32)


def shared(left: Tokens, right: Tokens) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
        min(len(left), len(right)),
    )


def check_against(held: set[Tokens], trie: TokenTrie[Tokens], query: Tokens) -> None:
    found = trie.nearest(array(query))
    most = max((shared(key, query) for key in held), default=0)
    if most == 0:
        assert found is None
    else:
        assert found is not None
        length, key = found
        assert length == most == shared(key, query)
        assert len(key) == min(len(each) for each in held if shared(each, query) == most)
    whole = [key for key in held if key == query[: len(key)]]
    longest = max(whole, key=len, default=None)
    assert trie.longest_whole(array(query)) == (longest and (len(longest), longest))


@given(st.lists(st.tuples(st.booleans(), keys), max_size=30), st.lists(keys, max_size=10))
def test_a_walk_finds_what_a_search_through_all_finds(
    changes: list[tuple[bool, Tokens]], queries: list[Tokens]
) -> None:
    held: set[Tokens] = set()
    trie: TokenTrie[Tokens] = TokenTrie()
    for is_insert, key in changes:
        expected = key if key in held else None
        if is_insert:
            assert trie.insert(array(key), key) == expected
            held.add(key)
        else:
            assert trie.remove(array(key)) == expected
            held.discard(key)
        assert len(trie) == len(held)
        assert set(trie) == held
        for query in [*queries, key, (*key, 0)]:
            check_against(held, trie, query)
    for key in list(held):
        trie.remove(array(key))
    assert not trie._root.children


@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 3000))
def test_common_length_is_the_first_difference(left: int, right: int, at: int) -> None:
    one, other = np.zeros(left, np.int32), np.zeros(right, np.int32)
    other[at : at + 1] = 1
    assert common_length(one, other) == min(left, right, at)


def test_removed_tokens_leave_no_memory_behind() -> None:
    trie: TokenTrie[str] = TokenTrie()
    long = np.arange(100_000, dtype=np.int32)
    trie.insert(long[:10], "short")
    trie.insert(long, "long")
    trie.remove(long)
    (node,) = trie._root.children.values()
    assert node.edge.base is None
    assert len(node.edge) == 10
