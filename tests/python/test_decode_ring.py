"""The decode ring: recording the state of a position, and rolling back to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.declarations import paged, recurrent
from support.tiny_model import (
    DELTA,
    FULL,
    VOCABULARY,
    Reference,
    TinyModel,
    assert_equals,
    feed,
    verify,
)

from kvcache import (
    Cache,
    CacheInputs,
    InvalidArgumentError,
    OutOfCapacityError,
    StateKind,
    StatePlan,
    UnsupportedError,
    VerifyRule,
    cache_terms,
    declare_caches,
)

HYBRID = TinyModel(layers=(DELTA, FULL))


def reference(model: TinyModel, tokens: list[int]) -> Reference:
    twin = Reference(model)
    for token in tokens:
        twin.step(token)
    return twin


def some_tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()


def test_decoding_after_a_rollback_is_as_if_the_rest_had_never_run() -> None:
    cache = HYBRID.cache(ring_depth=3)
    with cache.open(some_tokens(1)) as seq:
        for round_ in range(12):
            feed(HYBRID, seq, some_tokens(5, round_))
            assert seq.record() == seq.length
            boundary = seq.length
            feed(HYBRID, seq, some_tokens(1 + round_, 100 + round_))
            seq.rollback(boundary)
            assert_equals(seq, reference(HYBRID, seq.tokens.tolist()))
        assert len(seq.recorded) == 3
        for position in reversed(seq.recorded):
            seq.rollback(position)
            assert_equals(seq, reference(HYBRID, seq.tokens.tolist()))
    assert cache.stats().used_bytes == 0


def test_a_rollback_undoes_committed_drafts() -> None:
    cache = HYBRID.cache(ring_depth=1)
    with cache.open(some_tokens(4)) as seq:
        pick = feed(HYBRID, seq, [])
        boundary = seq.record()
        for _ in range(4):
            seq.extend([pick])
            _, pick = verify(HYBRID, seq, [pick, 3])
        seq.rollback(boundary)
        assert_equals(seq, reference(HYBRID, some_tokens(4)))


def test_a_hit_and_a_fork_start_with_an_empty_ring() -> None:
    cache = HYBRID.cache(ring_depth=2)
    with cache.open(some_tokens(9)) as first:
        feed(HYBRID, first, [])
        first.snapshot()
        first.record()
        first.publish()
        with first.fork() as child:
            assert (first.recorded, child.recorded) == ([9], [])
    with cache.open([*some_tokens(9), 1]) as second:
        assert second.cached_tokens == 9
        assert second.recorded == []
        with pytest.raises(UnsupportedError, match="the decode ring holds nothing"):
            second.rollback(9)


@pytest.mark.parametrize("depth", [0, 2])
def test_a_model_of_attention_alone_rolls_back_anywhere(depth: int) -> None:
    model = TinyModel(layers=(FULL,))
    cache = model.cache(ring_depth=depth)
    with cache.open(some_tokens(11)) as seq:
        feed(model, seq, [])
        for position in (11, 10, 7, 1):
            seq.rollback(position)
            assert_equals(seq, reference(model, seq.tokens.tolist()))
            seq.record()
        assert seq.recorded == []


def test_what_it_declines_changes_nothing() -> None:
    cache = HYBRID.cache(ring_depth=2)
    with cache.open(some_tokens(8)) as seq:
        feed(HYBRID, seq, [])
        seq.record()
        feed(HYBRID, seq, [1, 2])
        before = cache.stats()
        with pytest.raises(UnsupportedError, match=r"rollback to 9: the decode ring holds 8;"):
            seq.rollback(9)
        with pytest.raises(InvalidArgumentError, match="rollback to 11: the sequence is at 10"):
            seq.rollback(11)
        for wrong in (-1, 1.5, None, 2**64):
            with pytest.raises(InvalidArgumentError):
                seq.rollback(wrong)  # type: ignore[arg-type]
        assert cache.stats() == before
        assert_equals(seq, reference(HYBRID, seq.tokens.tolist()))
    for call in (seq.record, lambda: seq.rollback(0), lambda: seq.recorded):
        with pytest.raises(InvalidArgumentError, match="closed"):
            call()


def test_without_a_depth_the_ring_is_disabled() -> None:
    with HYBRID.cache().open([1, 2]) as seq:
        for call in (seq.record, lambda: seq.rollback(0)):
            with pytest.raises(UnsupportedError, match="ring_depth"):
                call()


@pytest.mark.parametrize("depth", [-1, 4097, 2**32, "8", None])
def test_a_depth_that_no_ring_has_is_refused(depth: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="ring_depth"):
        HYBRID.cache(ring_depth=depth)


def test_full_rings_take_what_the_plan_the_terms_and_the_ledger_say() -> None:
    state = (recurrent(1, "state.recurrent", 4, 8), recurrent(1, "state.convolution.0", 3, 8))
    rules = (VerifyRule.H_STEPS, VerifyRule.CONV_STEPS)
    decls = [replace(decl, verify=rule) for decl, rule in zip(state, rules, strict=True)]
    plan = StatePlan(decls, memory="1MiB", sequences=3, ring_depth=4)
    caches = declare_caches(plan.declarations, hidden_size=8)
    terms = cache_terms(caches, CacheInputs(ring=(plan.ring_depth, plan.sequences)))
    planned = sum(term.bytes for term in terms if term.kind is StateKind.RING_SNAPSHOT)
    assert plan.ring_bytes == planned == 4 * 3 * plan.slot_bytes
    cache = Cache(plan)
    sequences = [cache.open([1]) for _ in range(3)]
    opened = cache.stats().used_bytes
    for _ in range(9):
        for seq in sequences:
            seq.record()
    stats = cache.stats()
    assert stats.used_bytes - opened == planned
    assert stats.ring_snapshots == 12


def test_a_lone_sequence_with_its_ring_fits_what_the_plan_says_it_takes() -> None:
    large = [paged(0, "attention.keys", 2, 64), recurrent(1, "state.recurrent", 64, 200)]
    plan = StatePlan(large, memory="64MiB", block_tokens=4, ring_depth=3)
    exact = StatePlan(large, memory=plan.sequence_bytes(9, 9), block_tokens=4, ring_depth=3)
    seq = Cache(exact).open(list(range(9)))
    seq.write(0, 0, np.zeros((9, 2, 64), np.float16))
    for _ in range(9):
        seq.advance(1)
        seq.record()
    assert seq.recorded == [7, 8, 9]
    with pytest.raises(OutOfCapacityError):
        seq.snapshot()


def test_a_record_without_room_leaves_the_ring_as_it_was() -> None:
    large = [recurrent(1, "state.recurrent", 64, 200)]
    plan = StatePlan(large, memory=6 * 53_248, sequences=3, ring_depth=2)  # OS pages
    cache = Cache(plan)
    first, second = cache.open([1]), cache.open([1])
    for seq in (first, first, second):
        seq.record()
    with (
        cache.open([1]) as third,
        pytest.raises(OutOfCapacityError, match=r"decode ring.*lower its ring_depth of 2"),
    ):
        third.record()
    first.record()  # takes the place of its own first copy
    second.record()
    assert (first.recorded, second.recorded) == ([0, 0], [0, 0])
