"""Public bug reports on prompt lookup, draft tokens and hidden rows for drafters, one test each."""

from __future__ import annotations

import numpy as np
import pytest
from support.tiny_model import DELTA, FULL, SLIDING, Reference, TinyModel, feed, verify

import kvcache
from kvcache import AcceptStash, HiddenCapture, InvalidArgumentError, PromptLookupIndex

MODEL = TinyModel((DELTA, FULL, SLIDING))
PROMPT = [4, 2, 7, 1, 9, 3, 6, 0, 5, 8]


def greedy(prompt: list[int], tokens: int) -> list[int]:
    """Plain decoding, one token at a time."""
    reference = Reference(MODEL)
    pick = [reference.step(token) for token in prompt][-1]
    output = [pick]
    while len(output) < tokens:
        output.append(reference.step(output[-1]))
    return output


def test_ngram_drafts_change_no_token_of_a_recurrent_model() -> None:
    """vllm-project/vllm#39273: n-gram drafts corrupted greedy output of GDN models."""
    drafted = 0
    for first in range(20):
        prompt = [first % 11, first // 11, *PROMPT]
        sequence = MODEL.cache().open(prompt)
        output = [feed(MODEL, sequence, [])]
        sequence.extend(output)
        index = PromptLookupIndex(min_match=1, max_match=3, max_pause=0)
        while len(output) < 40:
            index.observe(sequence.tokens)
            drafts = index.propose(3)
            accepted, pick = verify(MODEL, sequence, drafts.tolist())
            if drafts.size:
                index.settle(accepted - 1)
            drafted += accepted - 1
            sequence.extend([pick])
            output = sequence.tokens[len(prompt) :].tolist()
        assert output[:40] == greedy(prompt, 40)
    assert drafted > 0


def test_drafts_stay_within_the_room_that_is_left() -> None:
    """vllm-project/vllm#42533: n-gram drafts went past the longest sequence of the model."""
    index = PromptLookupIndex(max_drafts=8)
    longest = 13
    index.extend([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2])
    assert index.find().size == 8
    assert index.find(longest - index.length).tolist() == [3, 4]
    assert index.propose(longest - index.length).tolist() == [3, 4]
    index.settle(2)
    index.extend([3, 4])
    assert index.propose(longest - index.length).size == 0
    assert index.in_flight == 0


def test_lengths_that_make_every_proposal_slow_are_refused() -> None:
    """vllm-project/vllm#16883: n-grams of 10 to 500 tokens made proposals slower than decoding."""
    with pytest.raises(InvalidArgumentError, match="max_match <= 64"):
        PromptLookupIndex(min_match=10, max_match=500)
    with pytest.raises(InvalidArgumentError, match=r"at most 16 lengths .* raise min_match"):
        PromptLookupIndex(min_match=10, max_match=64)
    index = PromptLookupIndex(min_match=49, max_match=64)
    index.extend([*range(100), *range(60)])
    assert index.find(3).tolist() == [60, 61, 62]


def test_accepted_drafts_leave_their_own_hidden_rows() -> None:
    """vllm-project/vllm#14649: a drafter went on from its approximations of accepted positions."""
    sequence = MODEL.cache().open(PROMPT)
    pick = feed(MODEL, sequence, [])
    truth = greedy(PROMPT, 3)
    sequence.extend([pick])
    accepted, _ = verify(MODEL, sequence, truth[1:3])
    assert accepted == 3
    hidden = np.random.default_rng(0).standard_normal((accepted, 4)).astype(np.float32)
    stash = AcceptStash(1, 4, "float32", catch_up=4)
    stash.store([sequence], hidden, [accepted - 1], catch_up=[range(accepted - 1)])
    hidden_before = hidden.copy()
    hidden[:] = 0  # the propose overwrites the rows of the forward pass
    np.testing.assert_array_equal(stash.row(0), hidden_before[2:])
    np.testing.assert_array_equal(stash.catch_up(0), hidden_before[:2])


def test_hidden_rows_of_another_width_are_refused() -> None:
    """sgl-project/sglang#10547: rows three times as wide as the buffer were captured."""
    sequence = MODEL.cache().open(PROMPT)
    capture = HiddenCapture(len(PROMPT), 4, "float32")
    capture.begin(sequence)
    with pytest.raises(InvalidArgumentError, match="expected rows of 4 f32, got 12 f32"):
        capture.write(0, np.zeros((2, 12), np.float32))
    assert capture.captured == 0
    assert capture.write(0, np.ones((2, 4), np.float32)) == 2


def test_a_stash_row_is_a_copy() -> None:
    """sgl-project/sglang#7192: hidden rows that a drafter reads were modified in place."""
    cache = kvcache.Cache(
        kvcache.StatePlan(MODEL.declarations(), memory="1MiB", block_tokens=4, sequences=2)
    )
    sequence = cache.open(PROMPT)
    hidden = np.ones((3, 4), np.float32)
    stash = AcceptStash(1, 4, "float32")
    stash.store([sequence], hidden, [2])
    hidden += 1
    np.testing.assert_array_equal(stash.rows(1), np.ones((1, 4)))
    with pytest.raises(ValueError, match="read-only"):
        stash.rows(1)[:] = 0
