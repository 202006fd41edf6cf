"""Verify strategies replay and carry: state equal, bit for bit, to decoding one by one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from support.recurrences import CONV, H
from support.speculation import Oracle, cache_of, decode, make_layers, run, run_layer, stacked

from kvcache import Cache, DType, InvalidArgumentError, Sequence, TokenTree

SESSIONS = 10_000 // int(os.environ.get("KVCACHE_SWEEP_STRIDE", "64"))
STRATEGIES = ["steps", "replay", "carry"]


def random_tree(rng: np.random.Generator, rows: int) -> list[int]:
    return [-1, *(int(rng.integers(max(0, row - 3), row)) for row in range(1, rows))]


def one_session(
    rng: np.random.Generator, sequence: Sequence, oracle: Oracle, strategy: str
) -> None:
    """Begin, run, and one of: commit of a path, rollback, an exception, bad inputs first."""
    layers = oracle.layers
    tokens = [int(x) for x in rng.integers(0, 64, rng.integers(1, 9))]
    rows = len(tokens)
    parents = random_tree(rng, rows) if rng.integers(3) == 0 else None
    sequence.extend(tokens[:1])
    declined = {i for i in range(len(layers)) if rng.integers(12) == 0}
    end = rng.integers(8)
    try:
        with sequence.begin_verify(tokens[1:], parents, strategy=strategy) as session:
            if end == 0 and strategy != "steps":
                with pytest.raises(InvalidArgumentError):
                    session.stash(0, H, gate=np.ones((rows + 1, 6)), right=np.ones((rows, 6, 7)))
            run(session, layers, parents, declined)
            if end == 1:
                raise InterruptedError
            if end == 2:
                session.rollback()
                raise InterruptedError
            if parents is None:
                kept = list(range(rng.integers(1, rows + 1)))
                session.commit(len(kept))
            else:
                kept = TokenTree(parents).path(int(rng.integers(rows))).tolist()
                session.commit(kept)
    except InterruptedError:
        sequence.truncate(sequence.length)
        return
    for row in kept:
        oracle.step(tokens[row])


def other_reader(
    rng: np.random.Generator, cache: Cache, sequence: Sequence, oracle: Oracle
) -> None:
    """Something that reads or replaces the state, whatever waits to be folded."""
    length = sequence.length
    match int(rng.integers(8)):
        case 0:
            oracle.check(sequence)
        case 1:
            sequence.snapshot()
            token = int(rng.integers(0, 64))
            decode(sequence, oracle.layers, token)
            sequence.truncate(length)
        case 2 if length:
            sequence.record()
            decode(sequence, oracle.layers, 3)
            sequence.rollback(length)
        case 3 if length:
            with sequence.fork() as child:
                other = oracle.fork()
                other.check(child)
                one_session(rng, child, other, "carry")
                other.check(child)
        case 4 if length:
            sequence.snapshot()
            sequence.publish()
            with cache.open([*oracle.tokens, 5]) as again:
                assert again.cached_tokens == length
                again.truncate(length)
                oracle.check(again)
        case 5:
            token = int(rng.integers(0, 64))
            decode(sequence, oracle.layers, token)
            oracle.step(token)
        case 6 if length > 1:
            sequence.truncate(0)
            oracle.truncate(0)
            decode(sequence, oracle.layers, 1)
            oracle.step(1)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
@pytest.mark.parametrize("strategy", [*STRATEGIES, "any"])
def test_random_sessions_equal_sequential_decoding(strategy: str, dtype: DType) -> None:
    sessions = max(24, SESSIONS // 8)
    for seed in range(max(1, sessions // 24)):
        rng = np.random.default_rng((seed, len(strategy)))
        layers = make_layers(dtype, seed)
        cache = cache_of(layers, stash_rows=int(rng.choice([8, 9, 16, 40])))
        with cache.open([1]) as sequence:
            oracle = Oracle(layers)
            sequence.truncate(0)
            decode(sequence, layers, 1)
            oracle.step(1)
            for _ in range(min(sessions, 24)):
                chosen = strategy if strategy != "any" else STRATEGIES[rng.integers(3)]
                one_session(rng, sequence, oracle, chosen)
                assert sequence.length == len(oracle.tokens)
                if rng.integers(4) == 0:
                    other_reader(rng, cache, sequence, oracle)
            oracle.check(sequence)
        assert cache.stats().slots == 0


# ---- One thing at a time ---------------------------------------------------------------------


@pytest.fixture
def started() -> Iterator[tuple[Cache, Sequence, Oracle]]:
    layers = make_layers()
    cache = cache_of(layers)
    with cache.open([7]) as sequence:
        oracle = Oracle(layers)
        sequence.truncate(0)
        decode(sequence, layers, 7)
        oracle.step(7)
        yield cache, sequence, oracle


def verify(
    sequence: Sequence, oracle: Oracle, tokens: list[int], accepted: int, strategy: str = "carry"
) -> None:
    sequence.extend(tokens[:1])
    with sequence.begin_verify(tokens[1:], strategy=strategy) as session:
        assert session.strategy == strategy
        run(session, oracle.layers)
        session.commit(accepted)
    for token in tokens[:accepted]:
        oracle.step(token)


def waiting(sequence: Sequence, layer: int = 0, name: str = H) -> int:
    """Rows that wait, seen without folding them."""
    sequence.extend([1])
    with sequence.begin_verify([], strategy="carry") as session:
        count = session.pending(layer, name).count
    sequence.truncate(sequence.length)
    return count


def test_carry_leaves_the_state_alone_until_it_is_read(
    started: tuple[Cache, Sequence, Oracle],
) -> None:
    _, sequence, oracle = started
    live = sequence.state(0, H)
    before = live.copy()
    verify(sequence, oracle, [3, 4, 5], 2)
    verify(sequence, oracle, [6], 1)  # a decode step
    np.testing.assert_array_equal(live, before)
    assert waiting(sequence) == 3
    assert waiting(sequence, 5, CONV + "0") == 3
    oracle.check(sequence)
    assert waiting(sequence) == 0
    assert not np.array_equal(live, before)


def test_pending_rows_are_the_inputs_that_were_stashed(
    started: tuple[Cache, Sequence, Oracle],
) -> None:
    _, sequence, oracle = started
    layer = oracle.layers[0]
    sequence.extend([3])
    with sequence.begin_verify([4, 5], strategy="carry") as session:
        inputs = run_layer(session, layer, [-1, 0, 1], stash=True)
        run(session, oracle.layers)
        session.commit(2)
    sequence.extend([6])
    with sequence.begin_verify([], strategy="carry") as session:
        pending = session.pending(0, H)
        assert pending.count == 2
        np.testing.assert_array_equal(pending.gate, stacked(inputs, H)["gate"][:2])
        shared = np.repeat(stacked(inputs, H)["left"][:2], 3, axis=1)
        np.testing.assert_array_equal(pending.left, shared)
        np.testing.assert_array_equal(pending.right, stacked(inputs, H)["right"][:2])
        rows = session.pending(0, CONV + "0")
        assert rows.gate is None
        np.testing.assert_array_equal(rows.rows, stacked(inputs, CONV + "0")["rows"][:2])
        assert session.pending(4, H).left is None
        with pytest.raises(ValueError, match="read-only"):
            pending.gate[:] = 0
        with pytest.raises(ValueError, match="read-only"):
            session.live(0, H)[:] = 0


def test_rows_that_do_not_fit_are_folded_first(started: tuple[Cache, Sequence, Oracle]) -> None:
    _, sequence, oracle = started
    verify(sequence, oracle, [1, 2, 3, 4, 5], 5)
    assert waiting(sequence) == 5
    verify(sequence, oracle, [1, 2, 3], 1)
    assert waiting(sequence) == 6
    verify(sequence, oracle, [1, 2, 3], 2)  # 6 + 3 rows: more than 8
    assert waiting(sequence) == 2
    oracle.check(sequence)


@pytest.mark.parametrize("strategy", ["steps", "replay"])
def test_another_strategy_folds_what_waits(
    started: tuple[Cache, Sequence, Oracle], strategy: str
) -> None:
    _, sequence, oracle = started
    verify(sequence, oracle, [1, 2, 3], 3)
    verify(sequence, oracle, [4, 5], 1, strategy)
    assert waiting(sequence) == 0
    oracle.check(sequence)


def test_a_rolled_back_verify_keeps_what_waited(started: tuple[Cache, Sequence, Oracle]) -> None:
    _, sequence, oracle = started
    verify(sequence, oracle, [1, 2, 3], 3)
    sequence.extend([4])
    with sequence.begin_verify([5, 6], strategy="carry") as session:
        run(session, oracle.layers)
    sequence.truncate(sequence.length)
    assert waiting(sequence) == 3
    oracle.check(sequence)


def test_a_layer_that_declines_fills_the_state_after_each_row(
    started: tuple[Cache, Sequence, Oracle],
) -> None:
    _, sequence, oracle = started
    verify(sequence, oracle, [1, 2], 2)
    sequence.extend([3])
    with sequence.begin_verify([4, 5], strategy="carry") as session:
        run(session, oracle.layers, declined={0, 5})
        session.commit(2)
    oracle.step(3)
    oracle.step(4)
    assert waiting(sequence, 0) == 0
    assert waiting(sequence, 1) == 4
    oracle.check(sequence)


def test_a_fork_has_nothing_to_fold_and_folds_its_parent(
    started: tuple[Cache, Sequence, Oracle],
) -> None:
    _, sequence, oracle = started
    verify(sequence, oracle, [1, 2, 3], 2)
    with sequence.fork() as child:
        assert waiting(child) == 0
        assert waiting(sequence) == 0
        oracle.check(child)
        oracle.check(sequence)
