"""Pooled state: records that stand for several positions, written and read by their index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.declarations import paged, recurrent

import kvcache
from kvcache import Batch, Cache, Sequence, StateDecl, StatePlan
from kvcache.errors import InvalidArgumentError, NonFiniteError, NotFoundError

KEYS, POOLED, PENDING = "attention.keys", "state.pooling.0.pooled", "state.pooling.0.pending_values"
RATIO, BLOCK = 4, 8


def declarations(*, int8: bool = False) -> list[StateDecl]:
    return [
        paged(0, KEYS, 1, 4, window=6, int8=int8),
        paged(0, POOLED, 1, 6, record_tokens=RATIO, int8=int8),
        recurrent(0, PENDING, RATIO - 1, 6),
    ]


def make_cache(block_tokens: int = BLOCK, *, int8: bool = False, **options: Any) -> Cache:
    plan = StatePlan(declarations(int8=int8), memory="1MiB", block_tokens=block_tokens)
    return Cache(plan, **options)


def rows(tokens: np.ndarray, start: int, stop: int) -> np.ndarray:
    return np.repeat(tokens[start:stop, None, None], 4, axis=2).astype(np.float16)


def records(tokens: np.ndarray, first: int, stop: int) -> np.ndarray:
    """What a model would pool: here the sum of the tokens of each record."""
    sums = tokens[first * RATIO : stop * RATIO].reshape(-1, RATIO).sum(axis=1)
    return np.repeat(sums[:, None, None], 6, axis=2).astype(np.float16)


def run(sequence: Sequence, stop: int) -> None:
    """An engine's step up to `stop`: rows, complete records, what is pending."""
    start, tokens = sequence.length, sequence.tokens
    sequence.write(0, start, rows(tokens, start, stop))
    first, last = start // RATIO, stop // RATIO
    sequence.write_records(0, POOLED, first, records(tokens, first, last))
    pending = sequence.state(0, PENDING)
    pending[:] = 0
    pending[: stop % RATIO] = tokens[last * RATIO : stop, None]
    sequence.advance(stop - start)


def check(sequence: Sequence) -> None:
    count = sequence.length // RATIO
    got = sequence.read_records(0, POOLED, 0, count)
    np.testing.assert_array_equal(got, records(sequence.tokens, 0, count))
    pending = sequence.state(0, PENDING)[: sequence.length % RATIO, 0]
    np.testing.assert_array_equal(pending, sequence.tokens[count * RATIO : sequence.length])


def publish(cache: Cache, tokens: np.ndarray, *stops: int) -> None:
    with cache.open(tokens) as sequence:
        for stop in stops:
            run(sequence, stop)
            sequence.snapshot()
        sequence.publish()


TOKENS = np.arange(1, 60, dtype=np.int32)


def test_a_page_holds_the_records_of_its_block() -> None:
    plan = make_cache().plan
    group = next(group for group in plan.groups if group.record_tokens == RATIO)
    assert group.page_bytes == BLOCK // RATIO * 6 * 2
    assert group.token_bytes == 6 * 2
    assert [part.component for part in plan.streams(0)] == [POOLED]
    assert [part.component for part in plan.paged_components(0)] == [KEYS]
    assert plan.streams(7) == ()
    assert plan.hit_bytes(11) == 2 * 12 + 5 * 8 + plan.slot_bytes
    assert plan.sequence_bytes(11) > 0


@pytest.mark.parametrize("block_tokens", [1, 2, 6, 10])
def test_blocks_hold_whole_records(block_tokens: int) -> None:
    with pytest.raises(InvalidArgumentError, match="records of 4; set block_tokens to a multiple"):
        make_cache(block_tokens)


def test_a_model_with_pooled_state_gets_blocks_that_suit_it() -> None:
    config = {
        "model_type": "deepseek_v4",
        "num_hidden_layers": 3,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "index_head_dim": 4,
        "sliding_window": 16,
        "compress_ratios": [0, 4, 128],
    }
    model = kvcache.models.from_config(config)
    assert StatePlan.for_model(model, memory="1MiB").block_tokens == 128
    assert StatePlan.for_model(model, memory="1MiB", block_tokens=256).block_tokens == 256
    with pytest.raises(InvalidArgumentError, match="set block_tokens to a multiple"):
        StatePlan.for_model(model, memory="1MiB", block_tokens=64)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("chunk", [1, 3, 8, 50])
def test_what_is_pooled_does_not_depend_on_the_steps(chunk: int, int8: bool) -> None:
    with make_cache(int8=int8).open(TOKENS[:50]) as sequence:
        while sequence.length < 50:
            run(sequence, min(50, sequence.length + chunk))
        got = sequence.read_records(0, POOLED, 0, 12, "float32")
        np.testing.assert_allclose(got, records(TOKENS, 0, 12), rtol=0.01 if int8 else 0)
        assert sequence.written_records(0, POOLED) == 12


def test_advance_asks_for_every_complete_record() -> None:
    with make_cache().open(TOKENS) as sequence:
        sequence.write(0, 0, rows(TOKENS, 0, 9))
        sequence.advance(3)
        with pytest.raises(InvalidArgumentError, match="has 0 records of 'state"):
            sequence.advance(1)
        sequence.write_records(0, POOLED, 0, records(TOKENS, 0, 1))
        with pytest.raises(InvalidArgumentError, match="has 1 records"):
            sequence.advance(6)
        sequence.advance(4)
        assert sequence.length == 7


def test_records_are_written_in_order_and_of_known_tokens() -> None:
    with make_cache().open(TOKENS[:11]) as sequence:
        with pytest.raises(InvalidArgumentError, match=r"at record 0\.\.0 .*, got 1"):
            sequence.write_records(0, POOLED, 1, records(TOKENS, 1, 2))
        with pytest.raises(InvalidArgumentError, match="11 known tokens make 2 records of 4"):
            sequence.write_records(0, POOLED, 0, records(TOKENS, 0, 3))
        run(sequence, 9)
        with pytest.raises(InvalidArgumentError, match=r"at record 2\.\.2 .*, got 1"):
            sequence.write_records(0, POOLED, 1, records(TOKENS, 1, 2))
        sequence.write_records(0, POOLED, 2, records(TOKENS, 2, 2))  # none is fine
        check(sequence)


def test_wrong_arguments_are_refused_and_change_nothing() -> None:
    with make_cache(int8=True).open(TOKENS) as sequence:
        run(sequence, 4)
        with pytest.raises(NotFoundError, match="it keeps: state"):
            sequence.write_records(0, "state.pooling.1.pooled", 1, records(TOKENS, 1, 2))
        with pytest.raises(NotFoundError, match="no pooled state"):
            sequence.read_records(3, POOLED, 0, 0)
        with pytest.raises(InvalidArgumentError, match=r"expected \[1, 1, 6\], got \[1, 1, 5\]"):
            sequence.write_records(0, POOLED, 1, records(TOKENS, 1, 2)[..., :5])
        with pytest.raises(InvalidArgumentError, match="keeps 1 components"):
            sequence.write(0, 4, rows(TOKENS, 4, 5), rows(TOKENS, 4, 5))
        with pytest.raises(NonFiniteError):
            sequence.write_records(0, POOLED, 1, np.full((1, 1, 6), np.inf, np.float32))
        for first, stop in ((1, 0), (0, 2), (2, 2)):
            with pytest.raises(InvalidArgumentError, match="not within the 1 written"):
                sequence.read_records(0, POOLED, first, stop)
        with pytest.raises(InvalidArgumentError, match="dtype"):
            sequence.read_records(0, POOLED, 0, 1, "int8")
        junk: Any
        for junk in (-1, 1.5, "0", None, 2**70):
            with pytest.raises(InvalidArgumentError):
                sequence.write_records(0, POOLED, junk, records(TOKENS, 1, 2))
        assert sequence.written_records(0, POOLED) == 1
    with pytest.raises(InvalidArgumentError, match="closed"):
        sequence.write_records(0, POOLED, 1, records(TOKENS, 1, 2))
    with pytest.raises(InvalidArgumentError, match="closed"):
        sequence.written_records(0, POOLED)


@pytest.mark.parametrize("stop", [3, 4, 7, 8, 10, 11, 15, 16, 17, 24])
def test_a_hit_restores_complete_records_and_what_is_pending(stop: int) -> None:
    cache = make_cache()
    publish(cache, TOKENS[:30], stop)
    with cache.open(TOKENS[:40]) as sequence:
        assert sequence.cached_tokens == stop
        check(sequence)
        run(sequence, 33)
        check(sequence)


@pytest.mark.parametrize("at", [9, 10, 11, 12, 13])
def test_branches_inside_a_record_keep_their_own(at: int) -> None:
    cache = make_cache()
    publish(cache, TOKENS[:30], at, 24)
    other = np.concatenate([TOKENS[:at], TOKENS[:20] + 200]).astype(np.int32)
    publish(cache, other, at, 25)
    for tokens, stop in ((TOKENS, 24), (other, 25)):
        with cache.open(tokens[:29]) as sequence:
            assert sequence.cached_tokens == stop
            check(sequence)


def test_a_fork_shares_records_and_writes_its_own() -> None:
    cache = make_cache()
    with cache.open(TOKENS) as parent:
        run(parent, 10)
        with parent.fork() as child:
            child.truncate(10)
            run(parent, 17)
            child.extend([500] * 20)
            run(child, 21)
            check(parent)
            check(child)


def test_truncate_keeps_whole_records() -> None:
    cache = make_cache()
    with cache.open(TOKENS) as sequence:
        for stop in (9, 12, 14):
            run(sequence, stop)
            sequence.snapshot()
        sequence.publish()
        sequence.truncate(9)
        assert sequence.written_records(0, POOLED) == 2
        check(sequence)
        sequence.extend(TOKENS[:20] + 300)
        run(sequence, 23)
        check(sequence)
    with cache.open(TOKENS) as sequence:
        assert sequence.cached_tokens == 14
        check(sequence)


@pytest.mark.parametrize("accepted", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("start", [8, 9, 10, 11])
def test_a_verify_keeps_the_records_of_accepted_rows(start: int, accepted: int) -> None:
    with make_cache().open(TOKENS[: start + 1]) as sequence:
        run(sequence, start)
        drafts = TOKENS[start + 1 : start + accepted].tolist() + [900] * (6 - accepted)
        with sequence.begin_verify(drafts) as session:
            tokens = np.concatenate([TOKENS[:start], session.tokens])
            session.write(0, rows(tokens, start, start + 6))
            first, last = start // RATIO, (start + 6) // RATIO
            with pytest.raises(InvalidArgumentError, match=f"completes {last - first} records"):
                session.write_records(0, POOLED, records(TOKENS, 0, 9))
            for row in range(6):
                stop = start + row + 1
                pending = session.state(row, 0, PENDING)
                pending[: stop % RATIO] = tokens[stop // RATIO * RATIO : stop, None]
            with pytest.raises(InvalidArgumentError, match="records of 'state"):
                session.commit(accepted)
            session.write_records(0, POOLED, records(tokens, first, last))
            session.commit(accepted)
        assert sequence.length == start + accepted
        check(sequence)
        sequence.extend(TOKENS[start + accepted : 40])
        run(sequence, 40)
        check(sequence)


def test_a_rolled_back_verify_leaves_no_record() -> None:
    with make_cache().open(TOKENS[:8]) as sequence:
        run(sequence, 7)
        with sequence.begin_verify([1, 2, 3]) as session:
            tokens = np.concatenate([TOKENS[:7], session.tokens])
            session.write_records(0, POOLED, records(tokens, 1, 2))
        assert sequence.written_records(0, POOLED) == 1
        run(sequence, 8)
        check(sequence)


def test_a_verify_waits_for_records_written_ahead() -> None:
    with make_cache().open(TOKENS[:8]) as sequence:
        run(sequence, 7)
        sequence.write_records(0, POOLED, 1, records(TOKENS, 1, 2))
        with pytest.raises(InvalidArgumentError, match="has 2 records"):
            sequence.begin_verify([1])


@pytest.mark.parametrize("step", [1, 3, 4, 11])
def test_pages_prepared_for_positions_are_those_of_their_records(step: int) -> None:
    cache = make_cache()
    with cache.open(TOKENS) as sequence, cache.open(TOKENS) as twin:
        while sequence.length + step <= 40:
            sequence.prepare(step)
            tables = [sequence.block_table(group) for group in range(2)]
            run(sequence, sequence.length + step)
            for group, table in enumerate(tables):  # nothing was left to take
                assert len(sequence.block_table(group)) == len(table)
            check(sequence)
            run(twin, twin.length + step)
        sequence.extend(TOKENS[:20])
        twin.extend(TOKENS[:20])
        sequence.prepare(step)
        sequence.advance(step, in_place=True)  # records too are taken as the pages have them
        assert sequence.written_records(0, POOLED) == sequence.length // RATIO
        with pytest.raises(InvalidArgumentError, match="prepare"):
            twin.advance(step + 8, in_place=True)


def test_a_batch_advances_only_with_its_records() -> None:
    cache = make_cache()
    with cache.open(TOKENS[:8]) as one, cache.open(TOKENS[:8]) as other:
        batch = Batch([one, other])
        for sequence in (one, other):
            sequence.write(0, 0, rows(TOKENS, 0, 8))
        one.write_records(0, POOLED, 0, records(TOKENS, 0, 1))
        with pytest.raises(InvalidArgumentError, match=r"sequences\[1\].*has 0 records"):
            batch.advance([4, 4])
        other.write_records(0, POOLED, 0, records(TOKENS, 0, 1))
        batch.advance([4, 4])
        assert (one.length, other.length) == (4, 4)


def test_a_ledger_counts_pages_of_records() -> None:
    cache = make_cache(backing=False)
    with cache.open(TOKENS) as sequence:
        sequence.advance(30)
        assert sequence.written_records(0, POOLED) == 7
        # Positions of the window, and the records of 28 positions.
        assert cache.stats().pages == 4 + 4
        sequence.publish()
        with pytest.raises(kvcache.UnsupportedError):
            sequence.read_records(0, POOLED, 0, 1)


@pytest.mark.parametrize("block_tokens", [4, 8, 16, 64])
@pytest.mark.parametrize("stop", [3, 17, 24, 31])
def test_saved_records_come_back_in_blocks_of_another_length(
    tmp_path: Any, stop: int, block_tokens: int
) -> None:
    cache = make_cache()
    publish(cache, TOKENS[:40], stop)
    assert cache.save(tmp_path / "prefix", TOKENS[:stop]) == stop
    other = make_cache(block_tokens)
    try:
        assert other.load(tmp_path / "prefix") == stop
    except kvcache.UnsupportedError:
        if block_tokens <= BLOCK:  # rows of its window fill blocks up to these
            raise
        return
    with other.open(TOKENS[:50]) as sequence:
        assert sequence.cached_tokens == stop
        check(sequence)
        run(sequence, 45)
        check(sequence)
