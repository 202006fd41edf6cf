"""Prompt lookup against a scan of the history."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvcache import PromptLookupIndex

Match = tuple[int, int]  # matched tokens, and the position behind them

TOKENS = st.lists(st.integers(-1, 2), max_size=12)
STEPS = st.lists(st.tuples(st.none() | st.integers(0, 40), TOKENS), max_size=12)
LENGTHS = st.tuples(st.integers(1, 4), st.integers(0, 3)).map(lambda two: (two[0], sum(two)))


def matches(history: list[int], least: int, most: int) -> list[Match]:
    """Every earlier occurrence of the longest end that has one, in order."""
    size = len(history)
    for length in range(min(most, size), least - 1, -1):
        end = history[size - length :]
        found = [(length, at) for at in range(length, size) if history[at - length : at] == end]
        if found:
            return found
    return []


def proposal(history: list[int], match: Match) -> list[int]:
    return history[match[1] :][:16]


@given(LENGTHS, STEPS)
def test_a_growing_history_is_continued_as_a_scan_continues_it(
    lengths: tuple[int, int], steps: list[tuple[int | None, list[int]]]
) -> None:
    options = {"min_match": lengths[0], "max_match": lengths[1]}
    latest = PromptLookupIndex(**options)
    earliest = PromptLookupIndex(**options, occurrence="earliest")
    repeating = PromptLookupIndex(**options, occurrence="repeating")
    history: list[int] = []
    for _, tokens in steps:
        history += tokens
        latest.extend(tokens)
        repeating.extend(tokens)
        earliest.observe(np.array(history, np.int32))
        found = matches(history, *lengths)
        for index, match in ((latest, -1), (earliest, 0)):
            expected = proposal(history, found[match]) if found else []
            assert index.find().tolist() == expected
            assert index.length == len(history)
        expected = history[found[-1][1] :] if found else []
        most = min(16, len(history))
        assert repeating.find().tolist() == (expected * most)[:most]


@given(LENGTHS, STEPS)
def test_after_truncations_a_proposal_still_follows_a_longest_match(
    lengths: tuple[int, int], steps: list[tuple[int | None, list[int]]]
) -> None:
    index = PromptLookupIndex(
        min_match=lengths[0], max_match=lengths[1], history_tokens=4096, reserve=True
    )
    history: list[int] = []
    for cut, tokens in steps:
        if cut is not None:
            history = history[:cut]
            index.truncate(cut)
        history += tokens
        index.extend(tokens)
        possible = [proposal(history, match) for match in matches(history, *lengths)]
        assert index.find().tolist() in (possible or [[]])


@given(STEPS)
def test_tokens_that_change_behind_the_index_are_never_proposed(
    steps: list[tuple[int | None, list[int]]],
) -> None:
    index = PromptLookupIndex(min_match=1, max_match=3)
    history: list[int] = []
    for cut, tokens in steps:
        if cut is not None:
            history = history[:cut]
        history += tokens
        index.observe(np.array(history, np.int32))
        drafts = index.find().tolist()
        allowed = [
            proposal(history, match)
            for length in (1, 2, 3)
            for match in matches(history, length, length)
        ]
        assert not drafts or drafts in allowed
