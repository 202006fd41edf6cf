"""Public bug reports on recurrent state, snapshots and speculation, one test each."""

from __future__ import annotations

import numpy as np
import pytest
from support.tiny_model import (
    CONV,
    DELTA,
    FULL,
    RECURRENT,
    TAPS,
    VOCABULARY,
    PlainStore,
    Reference,
    TinyModel,
    VerifyStore,
    assert_equals,
    feed,
    verify,
)

import kvcache
from kvcache import InvalidArgumentError, OutOfCapacityError, UnsupportedError

PROMPT = [4, 2, 7, 1, 9, 3, 6, 0, 5, 8]
MODEL = TinyModel((DELTA, FULL))


def decoded(prompt: list[int], steps: int, model: TinyModel = MODEL) -> Reference:
    """The prompt and ``steps`` greedy tokens, one position at a time."""
    reference = Reference(model)
    pick = [reference.step(token) for token in prompt][-1]
    for _ in range(steps):
        pick = reference.step(pick)
    return reference


def ran(cache: kvcache.Cache, prompt: list[int], model: TinyModel = MODEL) -> kvcache.Sequence:
    sequence = cache.open(prompt)
    feed(model, sequence, [])
    return sequence


def test_a_rewind_without_a_snapshot_is_refused_and_changes_nothing() -> None:
    """ggml-org/llama.cpp#28007: a refused rewind left a shorter token list with stale state."""
    sequence = ran(MODEL.cache(), PROMPT)
    for position in (7, 9, 1):
        with pytest.raises(UnsupportedError, match="nearest snapshot below is at 0"):
            sequence.truncate(position)
        assert sequence.length == len(sequence.tokens) == len(PROMPT)
        assert_equals(sequence, decoded(PROMPT, 0))


def test_the_newest_snapshot_within_the_common_prefix_is_restored() -> None:
    """ikawrakow/ik_llama.cpp#1976: a failed partial delete wiped everything, snapshots too."""
    cache = MODEL.cache()
    sequence = cache.open(PROMPT[:3])
    feed(MODEL, sequence, [])
    sequence.snapshot()
    feed(MODEL, sequence, PROMPT[3:6])
    sequence.snapshot()
    feed(MODEL, sequence, PROMPT[6:])
    sequence.publish()
    with pytest.raises(UnsupportedError, match="nearest snapshot below is at 6"):
        sequence.truncate(8)
    sequence.close()
    for common, restored in ((8, 6), (6, 6), (5, 3)):
        with cache.open([*PROMPT[:common], 10, 10]) as resumed:
            assert (resumed.matched_tokens, resumed.cached_tokens) == (common, restored)
            feed(MODEL, resumed, [])
            assert_equals(resumed, decoded([*PROMPT[:common], 10, 10], 0))


def test_a_rewind_by_one_goes_to_the_snapshot_before_it() -> None:
    """ggml-org/llama.cpp#20955: a refused rewind was taken for corruption and cleared all."""
    sequence = MODEL.cache().open(PROMPT)
    for token_count in (6, len(PROMPT)):
        while sequence.length < token_count:
            at = sequence.length
            MODEL.run(sequence.tokens[at : at + 1], at, PlainStore(sequence))
            sequence.advance(1)
        if token_count == 6:
            sequence.snapshot()
    with pytest.raises(UnsupportedError, match="nearest snapshot below is at 6"):
        sequence.truncate(len(PROMPT) - 1)
    sequence.truncate(6)
    assert_equals(sequence, decoded(PROMPT[:6], 0))
    feed(MODEL, sequence, PROMPT[6:9])
    assert_equals(sequence, decoded(PROMPT[:9], 0))


def test_a_restored_snapshot_survives_a_refused_rewind() -> None:
    """ggml-org/llama.cpp#22534: the snapshot just restored was wiped by an unconditional clear."""
    cache = MODEL.cache()
    sequence = ran(cache, PROMPT[:6])
    sequence.snapshot()
    sequence.publish()
    feed(MODEL, sequence, PROMPT[6:])
    sequence.truncate(6)
    with pytest.raises(UnsupportedError):
        sequence.truncate(5)
    assert_equals(sequence, decoded(PROMPT[:6], 0))
    feed(MODEL, sequence, [10, 10])
    sequence.truncate(6)
    assert_equals(sequence, decoded(PROMPT[:6], 0))
    assert cache.explain([*PROMPT[:6], 1]).cached_tokens == 6


def test_the_next_turn_resumes_at_the_end_of_the_last() -> None:
    """ggml-org/llama.cpp#14625: a hybrid model ran its whole prompt again each turn."""
    cache, prompt = MODEL.cache(), PROMPT
    for _ in range(4):
        done = decoded(prompt, 3)
        with cache.open(prompt) as turn:
            assert turn.cached_tokens == (0 if prompt == PROMPT else len(prompt) - 2)
            feed(MODEL, turn, [])
            feed(MODEL, turn, done.tokens[len(prompt) :])
            assert_equals(turn, done)
            turn.snapshot()
            turn.publish()
        prompt = [*done.tokens, 1, 2]


def ngram_drafts(history: list[int], count: int) -> list[int]:
    """What followed the latest earlier occurrence of the last token."""
    for at in range(len(history) - 2, -1, -1):
        if history[at] == history[-1]:
            return history[at + 1 : at + 1 + count]
    return []


def test_ngram_drafts_do_not_change_greedy_output() -> None:
    """vllm-project/vllm#39273: n-gram drafts corrupted the output of hybrids at temperature 0."""
    cache, accepted_drafts = MODEL.cache(), 0
    for seed in range(20):
        prompt = np.random.default_rng(seed).integers(0, VOCABULARY, 6).tolist()
        reference = decoded(prompt, 30)
        with cache.open(prompt) as sequence:
            pick = feed(MODEL, sequence, [])
            while sequence.length < 30:
                sequence.extend([pick])
                accepted, pick = verify(MODEL, sequence, ngram_drafts(sequence.tokens.tolist(), 3))
                accepted_drafts += accepted - 1
                assert_equals(sequence, reference)
    assert accepted_drafts > 0


def test_a_step_without_drafts_continues_from_the_accepted_state() -> None:
    """vllm-project/vllm#52942: a step without drafts read slot 0, the state sat in slot n - 1."""
    reference = decoded(PROMPT, 12)
    sequence = ran(MODEL.cache(), PROMPT)
    at = len(PROMPT)
    for _ in range(2):
        sequence.extend([reference.tokens[at]])
        right = reference.tokens[at + 1 : at + 3]
        wrong = (reference.tokens[at + 3] + 1) % VOCABULARY
        accepted, pick = verify(MODEL, sequence, [*right, wrong])
        assert accepted == 3
        sequence.extend([pick])
        assert verify(MODEL, sequence, [])[0] == 1
        assert_equals(sequence, reference)
        feed(MODEL, sequence, [reference.tokens[at + 4]])
        assert_equals(sequence, reference)
        at += 5


def test_the_convolution_keeps_the_taps_of_accepted_tokens() -> None:
    """vllm-project/vllm#50272: the short convolution's window kept rejected tokens."""
    assert TAPS == 3
    sequence = ran(MODEL.cache(), PROMPT)
    reference = decoded(PROMPT, 2)
    sequence.extend([reference.tokens[10]])
    with sequence.begin_verify([reference.tokens[11], 10, 10]) as session:
        MODEL.run(session.tokens, 10, VerifyStore(sequence, session))
        session.commit(2)  # one draft of three
    embedded = MODEL.weights["embed"][reference.tokens[9:12]]
    np.testing.assert_array_equal(sequence.state(DELTA, CONV), embedded.T)


def test_step_slots_count_against_the_budget() -> None:
    """vllm-project/vllm#41233: slots for drafts were in no block table and in no memory figure."""
    cache = MODEL.cache(memory=256 * 1024)
    sequence = ran(cache, PROMPT)
    sequence.extend([1])
    before = cache.stats()
    with sequence.begin_verify([1]):  # inside the last block of 4: no new page
        during = cache.stats()
        assert during.used_bytes - before.used_bytes == 2 * cache.plan.slot_bytes
        assert during.committed_bytes <= during.budget_bytes
    with pytest.raises(OutOfCapacityError):
        sequence.begin_verify([1] * 2000)
    assert cache.stats().used_bytes == before.used_bytes


def test_a_rejected_chunk_never_adopts_what_was_not_written() -> None:
    """kekzl/imp#1503: a chunk rejected whole adopted a slot that was never written."""
    sequence = ran(MODEL.cache(), PROMPT)
    reference = decoded(PROMPT, 1)
    sequence.extend([reference.tokens[10]])
    with sequence.begin_verify([1, 2, 3]) as poison:
        for row in range(poison.rows):
            for name in (RECURRENT, CONV):
                poison.state(row, DELTA, name)[:] = np.nan
    assert_equals(sequence, decoded(PROMPT, 0))
    rows = np.zeros((4, 2, 6), np.float32)
    with sequence.begin_verify([1, 2, 3]) as session:
        session.write(FULL, rows, rows)
        for accepted in range(1, 5):
            with pytest.raises(InvalidArgumentError, match="was never taken"):
                session.commit(accepted)
    assert_equals(sequence, decoded(PROMPT, 0))
    with sequence.begin_verify([1, 2, 3]) as session:
        MODEL.run(session.tokens, len(PROMPT), VerifyStore(sequence, session))
        session.commit(1)
    assert_equals(sequence, reference)


def test_a_snapshot_is_of_its_own_sequence_at_that_moment() -> None:
    """ml-explore/mlx-lm#976: a late-bound variable made each checkpoint copy the wrong cache."""
    cache = MODEL.cache()
    prompts = [[first, *PROMPT[1:6]] for first in range(4)]
    sequences = [ran(cache, prompt) for prompt in prompts]
    for sequence in sequences:
        sequence.snapshot()
    for sequence in sequences:
        sequence.state(DELTA, RECURRENT)[:] = -1
        sequence.state(DELTA, CONV)[:] = -1
        sequence.publish()
    for prompt in prompts:
        with cache.open([*prompt, 10]) as found:
            assert found.cached_tokens == len(prompt)
            assert_equals(found, decoded(prompt, 0))


def test_rejecting_two_of_four_equals_running_the_rest() -> None:
    """EricLBuehler/mistral.rs#2377: the delta net's state was wrong after a rejection."""
    reference = decoded(PROMPT, 4)
    sequence = ran(MODEL.cache(), PROMPT)
    sequence.extend([reference.tokens[10]])
    wrong = [(token + 1) % VOCABULARY for token in reference.tokens[12:14]]
    accepted, _ = verify(MODEL, sequence, [reference.tokens[11], *wrong])
    assert accepted == 2
    replayed = ran(MODEL.cache(), reference.tokens[:12])
    for name in (RECURRENT, CONV):
        np.testing.assert_array_equal(sequence.state(DELTA, name), replayed.state(DELTA, name))
    assert_equals(sequence, reference)


# ---- What else goes wrong with fixed-size state -----------------------------------------------


def test_a_slot_is_clean_when_it_is_used_again() -> None:
    cache = MODEL.cache(sequences=1)
    for _ in range(3):
        with cache.open(PROMPT) as sequence:
            for name in (RECURRENT, CONV):
                assert not sequence.state(DELTA, name).any()
                sequence.state(DELTA, name)[:] = np.nan


def test_a_child_updates_its_own_state() -> None:
    parent = ran(MODEL.cache(), PROMPT)
    child = parent.fork()
    feed(MODEL, child, [3, 3])
    child.state(DELTA, RECURRENT)[:] = 7
    assert_equals(parent, decoded(PROMPT, 0))
    feed(MODEL, parent, [1])
    assert_equals(parent, decoded([*PROMPT, 1], 0))


def test_a_hit_updates_its_own_state_and_not_the_snapshot() -> None:
    cache = MODEL.cache()
    first = ran(cache, PROMPT[:6])
    first.snapshot()
    first.publish()
    for token in (1, 2, 3):
        with cache.open([*PROMPT[:6], token]) as again:
            assert again.cached_tokens == 6
            feed(MODEL, again, [])
            assert_equals(again, decoded([*PROMPT[:6], token], 0))
            again.state(DELTA, RECURRENT)[:] = -1


def test_a_snapshot_of_a_position_that_was_rewound_is_not_found() -> None:
    cache = MODEL.cache()
    sequence = ran(cache, PROMPT[:4])
    sequence.snapshot()
    feed(MODEL, sequence, [1, 1])
    sequence.snapshot()  # at 6, of a continuation that is taken back
    sequence.truncate(4)
    feed(MODEL, sequence, [2, 2])
    sequence.publish()
    assert cache.explain([*PROMPT[:4], 1, 1, 9]).cached_tokens == 4
    assert cache.explain([*PROMPT[:4], 2, 2, 9]).cached_tokens == 4
    assert cache.explain([*PROMPT[:4], 2, 2, 9]).matched_tokens == 6


def test_a_hit_goes_as_far_as_both_kinds_of_state() -> None:
    """Rows may reach further than state does, and the other way round."""
    cache = MODEL.cache()
    sequence = ran(cache, PROMPT[:5])
    sequence.snapshot()
    feed(MODEL, sequence, PROMPT[5:])
    sequence.publish()
    said = cache.explain([*PROMPT, 1])
    assert (said.matched_tokens, said.cached_tokens) == (len(PROMPT), 5)
    assert said.limited_by == "snapshot"
