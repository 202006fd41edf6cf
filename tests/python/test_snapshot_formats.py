"""Snapshots that keep less than all of the state: what they store, lose, refuse and restore."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.declarations import paged, recurrent
from support.int8_oracle import bfloat16_bits, decode, encode, from_bfloat16_bits

from kvcache import (
    Cache,
    DType,
    InvalidArgumentError,
    NonFiniteError,
    Sequence,
    SnapshotFormat,
    StatePlan,
    UnsupportedError,
    VerifyRule,
)

TOKENS = list(range(1, 22))
MATRIX, CONV, HALF, BFLOAT, COUNTS = (
    "state.recurrent",
    "state.convolution.0",
    "state.half",
    "state.bfloat",
    "state.counts",
)
DECLS = [
    paged(0, "attention.keys", 1, 4),
    recurrent(1, MATRIX, 2, 3, 20),
    replace(recurrent(1, CONV, 6, 32), verify=VerifyRule.CONV_STEPS),
    recurrent(1, HALF, 5, 33, dtype=DType.F16),
    recurrent(2, BFLOAT, 16, dtype=DType.BF16),
    recurrent(2, "state.narrow", 4, 15),
    recurrent(2, COUNTS, 3, 40, dtype=DType.I32),
]
ELEMENTS = {MATRIX: 120, CONV: 192, HALF: 165, BFLOAT: 16, "state.narrow": 60, COUNTS: 120}
LOSSY = {
    "f16": {MATRIX: DType.F16, CONV: DType.F16, "state.narrow": DType.F16},
    "int8": {MATRIX: DType.I8, HALF: DType.I8, BFLOAT: DType.I8},
}


def make_cache(memory: str = "4MiB") -> Cache:
    return Cache(StatePlan(DECLS, memory=memory, block_tokens=4))


def set_state(sequence: Sequence, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Fills the state; a copy by name, bfloat16 as its bits."""
    rng = np.random.default_rng(seed)
    filled = {}
    for part in StatePlan(DECLS, memory="1MiB").fixed:
        view = sequence.state(part.layer, part.name)
        values = rng.standard_normal(part.shape).astype(np.float32) * 3
        if part.dtype is DType.BF16:
            view[...] = values.view(np.uint32) >> 16
        elif part.dtype is DType.I32:
            view[...] = rng.integers(-(2**31), 2**31, part.shape)
        else:
            view[...] = values
        filled[part.name] = view.copy()
    return filled


def get_state(sequence: Sequence) -> dict[str, np.ndarray[Any, Any]]:
    fixed = StatePlan(DECLS, memory="1MiB").fixed
    return {part.name: sequence.state(part.layer, part.name).copy() for part in fixed}


def run_to(sequence: Sequence, length: int) -> None:
    rows = np.zeros((length - sequence.length, 1, 4), np.float16)
    sequence.write(0, sequence.length, rows)
    sequence.advance(len(rows))


def widened(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if values.dtype == np.uint16:
        return from_bfloat16_bits(values)
    return values.astype(np.float32)


def expected(name: str, values: np.ndarray[Any, Any], kept: str) -> np.ndarray[Any, Any]:
    """What a format restores of a tensor, by its definition."""
    stored = LOSSY.get(kept, {}).get(name)
    if stored is None:
        return values
    if stored is DType.F16:
        return values.astype(np.float16).astype(values.dtype)
    floats = decode(*encode(widened(values)))
    if values.dtype == np.uint16:
        return bfloat16_bits(floats)
    return floats.astype(values.dtype)


def publish(cache: Cache, at: dict[int, str], tokens: list[int] = TOKENS) -> dict[int, Any]:
    """Runs a prompt with a snapshot of each format at its position; the states there."""
    states = {}
    with cache.open(tokens) as sequence:
        for position, kept in at.items():
            run_to(sequence, position)
            states[position] = set_state(sequence, position)
            assert sequence.snapshot(kept) == position
        run_to(sequence, len(tokens))
        set_state(sequence, 99)
        sequence.publish()
    return states


def check(sequence: Sequence, state: dict[str, np.ndarray[Any, Any]], kept: str) -> None:
    for name, got in get_state(sequence).items():
        assert got.tobytes() == expected(name, state[name], kept).tobytes(), name


@pytest.mark.parametrize("kept", SnapshotFormat)
class TestEveryFormat:
    def test_a_hit_restores_what_the_format_keeps(self, kept: SnapshotFormat) -> None:
        cache = make_cache()
        states = publish(cache, {10: kept.value})
        found = cache.explain(TOKENS)
        assert (found.cached_tokens, found.snapshot_format) == (10, kept)
        with cache.open(TOKENS) as hit:
            assert hit.cached_tokens == 10
            check(hit, states[10], kept)

    def test_truncate_restores_it_before_and_after_publish(self, kept: SnapshotFormat) -> None:
        for published in (False, True):
            with make_cache().open(TOKENS) as sequence:
                run_to(sequence, 6)
                state = set_state(sequence)
                sequence.snapshot(kept)
                run_to(sequence, 9)
                set_state(sequence, 1)
                if published:
                    sequence.publish()
                with sequence.fork() as child:
                    for one in (sequence, child):
                        one.truncate(6)
                        check(one, state, kept)

    def test_verify_runs_on_what_was_restored(self, kept: SnapshotFormat) -> None:
        cache = make_cache()
        publish(cache, {10: kept.value})
        with cache.open(TOKENS[:11]) as hit:
            before = get_state(hit)
            with hit.begin_verify([4, 5]) as session:
                session.write(0, np.zeros((3, 1, 4), np.float16))
            assert get_state(hit)[MATRIX].tobytes() == before[MATRIX].tobytes()

    def test_bytes_are_those_of_the_plan_and_return(self, kept: SnapshotFormat) -> None:
        cache = make_cache()
        plan = cache.plan
        with cache.open(TOKENS) as sequence:
            run_to(sequence, 4)
            used = cache.stats().used_bytes
            sequence.snapshot(kept)
            stats = cache.stats()
            assert stats.used_bytes - used == plan.snapshot_bytes(kept)
            assert (stats.snapshots, stats.lossy_snapshots) == (1, kept is not kept.EXACT)
            sequence.snapshot(kept)  # again here: one replaces the other
            assert cache.stats().used_bytes - used == plan.snapshot_bytes(kept)
        assert cache.stats().used_bytes == cache.stats().snapshots == 0

    def test_it_is_evicted_when_memory_runs_out(self, kept: SnapshotFormat) -> None:
        cache = make_cache("256KiB")
        for prompt in range(150):
            publish(cache, {8: kept.value}, [1000 + prompt, *TOKENS])
        stats = cache.stats()
        assert stats.evicted_snapshots > 0
        assert stats.committed_bytes <= stats.budget_bytes
        cache.clear()
        assert cache.stats().used_bytes == 0


def test_bytes_by_the_law() -> None:
    plan = StatePlan(DECLS, memory="4MiB")
    matrix, conv, half, bfloat, narrow, counts = (
        ELEMENTS[name] for name in (MATRIX, CONV, HALF, BFLOAT, "state.narrow", COUNTS)
    )
    rest = 4 * counts
    assert plan.snapshot_bytes() == plan.slot_bytes
    assert plan.slot_bytes == 4 * (matrix + conv + narrow) + 2 * (half + bfloat) + rest
    f16 = 2 * (matrix + conv + narrow) + 2 * (half + bfloat) + rest
    assert plan.snapshot_bytes("f16") == f16
    rows = matrix // 20 + half // 33 + bfloat // 16  # a scale for each combination of other axes
    int8 = matrix + half + bfloat + 4 * rows + 4 * (conv + narrow) + rest
    assert plan.snapshot_bytes(SnapshotFormat.INT8) == int8


@pytest.mark.parametrize("kept", ["f16", "int8"])
def test_the_error_is_reported_by_tensor(kept: str) -> None:
    with make_cache().open(TOKENS) as sequence:
        run_to(sequence, 5)
        state = set_state(sequence)
        sequence.snapshot(kept)
        errors = sequence.snapshot_errors
        assert {error.name: error.stored for error in errors} == LOSSY[kept]
        for error in errors:
            x = widened(state[error.name]).astype(np.float64)
            y = widened(expected(error.name, state[error.name], kept)).astype(np.float64)
            assert error.max_abs == pytest.approx(np.abs(x - y).max(), rel=1e-5)
            rms = np.sqrt(((x - y) ** 2).sum() / (x**2).sum())
            assert error.relative_rms == pytest.approx(rms, rel=1e-4)
            assert 0 < error.relative_rms < (0.01 if kept == "int8" else 0.001)
            assert error.layer == (2 if error.name in (BFLOAT, "state.narrow") else 1)
        sequence.snapshot()
        assert sequence.snapshot_errors == ()


@pytest.mark.parametrize("kept", ["f16", "int8"])
def test_zeros_lose_nothing(kept: str) -> None:
    with make_cache().open(TOKENS) as sequence:
        run_to(sequence, 5)
        sequence.snapshot(kept)
        assert [(e.max_abs, e.relative_rms) for e in sequence.snapshot_errors] == [(0, 0)] * 3


@pytest.mark.parametrize("kept", ["f16", "int8"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 65520.0, -1e30])
def test_what_is_not_finite_is_refused_and_nothing_changes(kept: str, bad: float) -> None:
    cache = make_cache()
    with cache.open(TOKENS) as sequence:
        run_to(sequence, 5)
        state = set_state(sequence)
        sequence.snapshot(kept)
        before, errors = cache.stats(), sequence.snapshot_errors
        sequence.state(1, MATRIX)[1, 2, 19] = bad
        with pytest.raises(NonFiniteError, match=rf"{kept} snapshot of layer 1 {MATRIX}.*row"):
            sequence.snapshot(kept)
        assert cache.stats() == before
        assert sequence.snapshot_errors == errors
        run_to(sequence, 6)
        sequence.truncate(5)  # the first snapshot is as it was
        check(sequence, state, kept)


def test_exact_keeps_what_is_not_finite_and_so_does_an_exact_tensor() -> None:
    with make_cache().open(TOKENS) as sequence:
        run_to(sequence, 5)
        sequence.state(1, MATRIX)[...] = np.nan
        sequence.snapshot()
        sequence.state(1, MATRIX)[...] = 0
        sequence.state(1, CONV)[...] = np.inf  # INT8 keeps the inputs of a convolution as they are
        sequence.snapshot("int8")


@pytest.mark.parametrize("first", ["exact", "f16", "int8"])
@pytest.mark.parametrize("second", ["exact", "f16", "int8"])
@pytest.mark.parametrize("together", [True, False])
def test_the_most_precise_at_a_position_is_used(first: str, second: str, together: bool) -> None:
    best = min(first, second, key=["exact", "f16", "int8"].index)
    cache = make_cache()
    with cache.open(TOKENS) as sequence:
        run_to(sequence, 10)
        state = set_state(sequence)
        sequence.snapshot(first)
        if not together:
            sequence.publish()
        sequence.snapshot(second)
        run_to(sequence, 11)
        sequence.truncate(10)
        check(sequence, state, best)
        set_state(sequence, 5)
        sequence.publish()
    assert cache.stats().indexed_snapshots == 1
    assert cache.explain(TOKENS).snapshot_format == best
    with cache.open(TOKENS) as hit:
        check(hit, state, best)


def test_a_file_holds_exact_state_only(tmp_path: Path) -> None:
    cache = make_cache()
    states = publish(cache, {10: "exact", 20: "int8"})
    with pytest.raises(UnsupportedError, match="the snapshot at 20 is int8"):
        cache.save(tmp_path / "saved", TOKENS)
    assert not (tmp_path / "saved").exists()
    assert cache.save(tmp_path / "saved", TOKENS[:19]) == 10
    again = make_cache()
    publish(again, {10: "f16"})  # less precise than the file: loading makes it exact
    assert again.load(tmp_path / "saved") == 10
    assert again.explain(TOKENS[:19]).snapshot_format == "exact"
    with again.open(TOKENS[:19]) as hit:
        check(hit, states[10], "exact")


def test_without_fixed_state_there_is_nothing_to_take() -> None:
    cache = Cache(StatePlan([paged(0, "attention.keys", 1, 4)], memory="1MiB"))
    assert cache.plan.snapshot_bytes("int8") == 0
    with cache.open(TOKENS) as sequence:
        run_to(sequence, 3)
        assert sequence.snapshot("int8") == 3
        assert sequence.snapshot_errors == ()
    assert cache.explain(TOKENS).snapshot_format is None


def test_a_ledger_counts_them_without_bytes() -> None:
    plan = StatePlan(DECLS, memory="4MiB", block_tokens=4)
    cache = Cache(plan, backing=False)
    with cache.open(TOKENS) as sequence:
        sequence.advance(5)
        used = cache.stats().used_bytes
        assert sequence.snapshot("int8") == 5
        assert cache.stats().used_bytes - used == plan.snapshot_bytes("int8")


@pytest.mark.parametrize("wrong", ["", "fp16", "INT8", None, 2])
@pytest.mark.parametrize(
    "call",
    [
        lambda wrong: StatePlan(DECLS, memory="1MiB").snapshot_bytes(wrong),
        lambda wrong: make_cache().open(TOKENS).snapshot(wrong),
    ],
)
def test_what_is_no_format_is_refused(call: Callable[[Any], object], wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"format: expected one of 'exact', 'f16'"):
        call(wrong)
