"""What prompts of a trace share, and what no policy can beat, beside a count block by block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache.replay import Request
from kvcache.replay.bounds import clairvoyant_hits, gap_closed, infinite_hits
from kvcache.replay.demo import generate_trace
from kvcache.replay.prefix_tree import trace_paths

_NEVER = 10**9


def said(tokens, answer=None, number=0):
    return Request(
        number=number,
        timestamp_ms=number,
        input_length=len(tokens),
        output_length=len(answer or []),
        source=np.array(tokens, np.int32),
        answer=None if answer is None else np.array(answer, np.int32),
    )


def named(ids, length, number=0):
    return Request(
        number=number,
        timestamp_ms=number,
        input_length=length,
        output_length=0,
        source=np.array(ids, np.uint64),
    )


def blocks_of(tokens, block):
    """Each block as all tokens up to its end: equal only where all of them are."""
    tokens = tuple(int(token) for token in tokens)
    return [tokens[: start + block] for start in range(0, len(tokens), block)]


def brute_force(requests, block, capacity=None):
    """Hits by request, one block at a time, evicting the deepest of those needed last."""
    asked, stored, tails, earlier = [], [], [], []
    for request in requests:
        prompt = tuple(request.prompt().tolist())
        whole = prompt + (() if request.answer is None else tuple(request.answer.tolist()))
        blocks = blocks_of(prompt, block)
        fits = capacity is None or len(blocks) <= capacity
        known = any(len(e) > len(prompt) and e[: len(prompt)] == prompt for e in earlier)
        tail = bool(len(prompt) % block) and known
        tails.append(tail and fits)
        asked.append(blocks[:-1] if tail else blocks)
        stored.append([*asked[-1], *(blocks_of(whole, block) if len(whole) > len(prompt) else [])])
        earlier.append(whole)
    kept, hits = set(), []
    for number, path in enumerate(asked):
        found = next((i for i, each in enumerate(path) if each not in kept), len(path))
        hits.append(found + tails[number])
        kept.update(stored[number])
        while capacity is not None and len(kept) > capacity:

            def uses(each, number=number):
                later = (n for n in range(number + 1, len(asked)) if each in asked[n])
                return next(later, _NEVER), len(each)

            kept.remove(max(kept, key=uses))
    return hits


def any_policy(requests, block, capacity, data):
    """Hits of a cache that evicts leaves by chance, and counts what it finds as a replay does."""
    kept, hits = set(), 0
    for request in requests:
        prompt = tuple(request.prompt().tolist())
        path = blocks_of(prompt, block)
        found = next((i for i, each in enumerate(path) if each not in kept), len(path))
        rest = found == len(path) - 1 and any(each[: len(prompt)] == prompt for each in kept)
        hits += found + rest
        kept.update(path)
        while len(kept) > capacity:
            inner = {each[:end] for each in kept for end in range(block, len(each), block)}
            leaves = sorted(kept - inner)
            kept.remove(data.draw(st.sampled_from(leaves)))
    return hits


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=10)
traces = st.lists(st.tuples(prompts, st.none() | st.lists(st.integers(0, 1), max_size=4)))


@given(traces.filter(bool), st.integers(1, 4))
def test_an_infinite_cache_finds_what_any_earlier_prompt_or_answer_had(trace, block):
    requests = [said(tokens, answer, n) for n, (tokens, answer) in enumerate(trace)]
    paths = trace_paths(requests, block)
    assert paths.blocks == [-(-len(tokens) // block) for tokens, _ in trace]
    assert infinite_hits(paths) == brute_force(requests, block)


@given(st.lists(prompts, min_size=1, max_size=8), st.integers(1, 4), st.integers(0, 12))
def test_the_clairvoyant_finds_as_much_as_one_that_counts_block_by_block(trace, block, capacity):
    requests = [said(tokens, number=n) for n, tokens in enumerate(trace)]
    found = clairvoyant_hits(trace_paths(requests, block), capacity)
    assert sum(found) == sum(brute_force(requests, block, capacity))


@given(st.lists(prompts, min_size=1, max_size=8), st.integers(1, 4), st.integers(0, 8), st.data())
def test_no_policy_finds_more_blocks_than_the_bounds(trace, block, capacity, data):
    requests = [said(tokens, number=n) for n, tokens in enumerate(trace)]
    paths = trace_paths(requests, block)
    found = any_policy(requests, block, capacity, data)
    assert found <= sum(clairvoyant_hits(paths, capacity)) <= sum(infinite_hits(paths))


def test_a_partial_block_is_found_in_one_that_goes_on_behind_it():
    paths = trace_paths([said(range(100)), said(range(40)), said([*range(39), 99])], 16)
    assert paths.tails == [False, True, False]
    assert infinite_hits(paths) == clairvoyant_hits(paths, 10) == [0, 3, 2]
    assert clairvoyant_hits(paths, 2) == [0, 2, 2]


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.integers(1, 512))),
    st.sampled_from([16, 100, 512, 1024]),
)
def test_ids_of_blocks_are_compared_as_the_tokens_they_stand_for(trace, block):
    requests = [
        named(ids, 512 * (len(ids) - 1) + rest, number) for number, (ids, rest) in enumerate(trace)
    ]
    if requests:
        spelled = [said(request.prompt(), number=request.number) for request in requests]
        hits = infinite_hits(trace_paths(requests, block))
        assert hits == infinite_hits(trace_paths(spelled, block))
        assert hits == infinite_hits(trace_paths([spelled[0], *requests[1:]], block))


def test_positions_are_blocks_of_one():
    requests = generate_trace(conversations=5)
    paths = trace_paths(requests, 1)
    assert sum(paths.blocks) == sum(request.input_length for request in requests)
    assert sum(infinite_hits(paths)) > sum(infinite_hits(trace_paths(requests, 16))) * 16


@pytest.mark.parametrize(
    ("hits", "lru", "best", "gap"),
    [(5, 4, 6, 0.5), (4, 4, 6, 0), (3, 4, 6, -0.5), (4, 4, 4, None), (4, 5, 4, None)],
)
def test_a_gap_of_nothing_is_no_number(hits, lru, best, gap):
    assert gap_closed(hits, lru, best) == gap
