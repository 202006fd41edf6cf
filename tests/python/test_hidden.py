"""Hidden rows for drafters: what is stored is what is read, and only while it is good."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from support.forked import in_child
from support.tiny_model import DELTA, FULL, TinyModel, VerifyStore, feed, verify

import kvcache
from kvcache import (
    AcceptStash,
    Batch,
    Bfloat16Array,
    HiddenBands,
    HiddenCapture,
    InvalidArgumentError,
    OutOfCapacityError,
    UnsupportedError,
)

MODEL = TinyModel((DELTA, FULL))
PROMPT = [4, 2, 7, 1, 9]
WIDTH = 6


def hidden(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, WIDTH)).astype(np.float32)


def opened(cache: kvcache.Cache, count: int) -> list[kvcache.Sequence]:
    found = [cache.open([*PROMPT, i]) for i in range(count)]
    for sequence in found:
        sequence.extend([feed(MODEL, sequence, [])])
    return found


def committed(sequence: kvcache.Sequence, drafts: int = 3) -> int:
    """One verify with its verdict; the rows that it accepted. A token waits afterwards."""
    accepted, pick = verify(MODEL, sequence, [0] * drafts)
    sequence.extend([pick])
    return accepted


def bfloat16(rows: np.ndarray) -> Bfloat16Array:
    return Bfloat16Array((rows.view(np.uint32) >> 16).astype(np.uint16))


class TestAcceptStash:
    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
    def test_rows_are_those_that_were_named_bit_for_bit(self, dtype: str) -> None:
        sequences = opened(MODEL.cache(), 3)
        rows = hidden(12)
        given: Any = bfloat16(rows) if dtype == "bfloat16" else rows.astype(dtype)
        stash = AcceptStash(4, WIDTH, dtype, catch_up=2)
        accepted = np.array([committed(sequence) for sequence in sequences])
        offsets = np.array([0, 4, 8])
        named = offsets + accepted - 1
        before = [
            np.arange(n - min(n - offset, 2), n) for n, offset in zip(named, offsets, strict=True)
        ]
        stash.store(sequences, given, named, catch_up=before)
        plain = np.asarray(given)
        np.testing.assert_array_equal(np.asarray(stash.rows(3)), plain[named])
        for index in range(3):
            np.testing.assert_array_equal(np.asarray(stash.row(index)), plain[named[index]][None])
            np.testing.assert_array_equal(np.asarray(stash.catch_up(index)), plain[before[index]])
        assert stash.stored == 3

    def test_strided_rows_are_copied_as_they_are_seen(self) -> None:
        [sequence] = opened(MODEL.cache(), 1)
        wide = hidden(8)
        stash = AcceptStash(1, WIDTH - 2, "float32")
        stash.store([sequence], wide[::2, 1:-1], [3])
        np.testing.assert_array_equal(stash.rows(1), wide[6:7, 1:-1])
        with pytest.raises(InvalidArgumentError, match="last axis must be contiguous"):
            stash.store([sequence], wide[:, ::2][:, : WIDTH - 2], [3])

    def test_a_view_is_read_only_and_outlives_the_stash(self) -> None:
        [sequence] = opened(MODEL.cache(), 1)
        stash = AcceptStash(1, WIDTH, "float32")
        rows = hidden(1)
        stash.store([sequence], rows, [0])
        view = stash.rows(1)
        assert not view.flags.writeable
        del stash
        np.testing.assert_array_equal(view, rows)

    def test_rows_are_not_stored_before_the_verdict(self) -> None:
        sequences = opened(MODEL.cache(), 2)
        stash = AcceptStash(2, WIDTH, "float32")
        first = hidden(2, 1)
        stash.store(sequences, first, [0, 1])
        session = sequences[1].begin_verify([1, 2])
        with pytest.raises(InvalidArgumentError, match="sequence 1: its verify is open"):
            stash.store(sequences, hidden(2), [1, 0])
        session.rollback()
        np.testing.assert_array_equal(stash.row(0), first[:1])

    @pytest.mark.parametrize(
        ("end", "why"),
        [
            (
                lambda s: s.begin_verify([1]).rollback(),
                "when the next verify of its sequence began",
            ),
            (lambda s: s.close(), "when its sequence was closed"),
            (lambda s: feed(MODEL, s, []), "went from position 6 to 7"),
            (lambda s: s.truncate(6), "when its sequence went back"),
        ],
    )
    def test_a_row_ends_and_says_how(self, end: Any, why: str) -> None:
        cache = MODEL.cache()
        sequences = opened(cache, 2)
        for sequence in sequences:
            sequence.snapshot()
        stash = AcceptStash(2, WIDTH, "float32", catch_up=1)
        rows = hidden(2)
        stash.store(sequences, rows, [0, 1], catch_up=[[1], [0]])
        assert stash.rows(2).shape == (2, WIDTH)
        end(sequences[1])
        for read in (lambda: stash.rows(2), lambda: stash.row(1), lambda: stash.catch_up(1)):
            with pytest.raises(InvalidArgumentError, match=f"stash row 1 ended .*{why}"):
                read()
        np.testing.assert_array_equal(stash.row(0), rows[:1])

    def test_a_sequence_that_is_gone_has_no_rows(self) -> None:
        sequences = opened(MODEL.cache(), 1)
        stash = AcceptStash(1, WIDTH, "float32")
        stash.store(sequences, hidden(1), [0])
        sequences.clear()
        with pytest.raises(InvalidArgumentError, match="sequence was closed"):
            stash.rows(1)

    def test_what_was_not_stored_is_not_read(self) -> None:
        stash = AcceptStash(3, WIDTH)
        assert len(np.asarray(stash.rows(0))) == 0
        with pytest.raises(InvalidArgumentError, match="stash row 0 was not stored"):
            stash.row(0)
        with pytest.raises(InvalidArgumentError, match="stash row 2 was not stored"):
            stash.rows(3)

    def test_wrong_rows_are_refused_and_nothing_changes(self) -> None:
        sequences = opened(MODEL.cache(), 2)
        stash = AcceptStash(2, WIDTH, "float32", catch_up=1)
        first = hidden(2, 1)
        stash.store(sequences, first, [0, 1])
        rows = hidden(4)
        closed = MODEL.cache().open(PROMPT)
        closed.close()
        wrong: list[tuple[Any, Any, Any, Any, str]] = [
            (sequences, rows, [0, 4], None, r"rows\[1\]: there are 4 hidden rows, got 4"),
            (sequences, rows, [0], None, "2 sequences, 1 rows"),
            (sequences, rows, [0, -1], None, "negative"),
            (sequences, rows, None, None, "got None"),
            ([*sequences, sequences[0]], rows, [0, 1, 2], None, "up to 2 sequences"),
            (sequences, rows[:, :-1], [0, 1], None, "expected rows of 6 f32, got 5 f32"),
            (sequences, rows.astype(np.float16), [0, 1], None, "got 6 f16"),
            (sequences, rows[0], [0, 1], None, r"expected \[rows, width\]"),
            (sequences, "rows", [0, 1], None, "hidden"),
            (sequences, rows, [0, 1], [[1, 2], []], "sequence 0: at most 1 catch-up rows, got 2"),
            (sequences, rows, [0, 1], [[1]], "1 counts"),
            (sequences, rows, [0, 1], [[9], []], r"catch_up\[0\]: there are 4"),
            (sequences, rows, [0, 1], 7, "list of lists"),
            ([sequences[0], closed], rows, [0, 1], None, "sequence 1: the sequence is closed"),
            ([sequences[0], None], rows, [0, 1], None, r"sequences\[1\]"),
        ]
        for handles, given, named, catch_up, why in wrong:
            with pytest.raises(InvalidArgumentError, match=why):
                stash.store(handles, given, named, catch_up=catch_up)
            np.testing.assert_array_equal(stash.rows(2), first)


class TestHiddenCapture:
    def test_a_prompt_is_captured_by_chunks_and_consumed(self) -> None:
        cache = MODEL.cache()
        sequence = cache.open(PROMPT)
        capture = HiddenCapture(8, WIDTH, "float32")
        rows = hidden(5)
        capture.begin(sequence)
        assert capture.write(0, rows[:2]) == 2
        assert capture.write(2, rows[2:]) == 3
        with pytest.raises(InvalidArgumentError, match=r"up to position 5 .* the sequence is at 0"):
            capture.rows()
        feed(MODEL, sequence, [])
        np.testing.assert_array_equal(capture.rows(), rows)
        assert (capture.position, capture.captured) == (0, 5)
        capture.consume()
        assert (capture.position, capture.captured) == (5, 0)
        assert capture.rows().shape == (0, WIDTH)
        assert capture.write(5, rows[:1]) == 1

    def test_rows_past_the_capacity_are_not_kept(self) -> None:
        sequence = MODEL.cache().open(PROMPT)
        capture = HiddenCapture(3, WIDTH, "float32")
        rows = hidden(5)
        capture.begin(sequence)
        assert capture.write(0, rows[:2]) == 2
        assert capture.write(2, rows[2:4]) == 1
        assert capture.write(4, rows[4:]) == 0
        feed(MODEL, sequence, [])
        np.testing.assert_array_equal(capture.rows(), rows[:3])

    def test_a_resumed_prompt_is_captured_from_where_it_runs(self) -> None:
        cache = MODEL.cache()
        first = cache.open(PROMPT)
        feed(MODEL, first, [])
        first.snapshot()
        first.publish()
        second = cache.open([*PROMPT, 3, 3])
        assert second.cached_tokens == 5
        capture = HiddenCapture(8, WIDTH, "float32")
        capture.begin(second)
        with pytest.raises(InvalidArgumentError, match="that of position 5, got 0"):
            capture.write(0, hidden(1))
        assert capture.write(5, hidden(2)) == 2
        assert capture.position == 5

    def test_one_sequence_at_a_time(self) -> None:
        cache = MODEL.cache()
        first, second = cache.open(PROMPT), cache.open(PROMPT)
        capture = HiddenCapture(8, WIDTH, "float32")
        with pytest.raises(InvalidArgumentError, match=r"begin\(\) a capture first"):
            capture.write(0, hidden(1))
        capture.begin(first)
        capture.write(0, hidden(1))
        with pytest.raises(InvalidArgumentError, match="another sequence holds 1 rows"):
            capture.begin(second)
        capture.release()
        capture.begin(second)
        capture.release()
        capture.begin(first)
        first.close()
        with pytest.raises(InvalidArgumentError, match="when its sequence was closed"):
            capture.rows()
        capture.begin(second)

    def test_rows_end_when_the_sequence_goes_back(self) -> None:
        sequence = MODEL.cache(ring_depth=2).open(PROMPT[:3])
        capture = HiddenCapture(8, WIDTH, "float32")
        feed(MODEL, sequence, [])
        sequence.record()
        capture.begin(sequence)
        capture.write(3, hidden(2))
        feed(MODEL, sequence, PROMPT[3:])
        assert capture.rows().shape == (2, WIDTH)
        sequence.rollback(3)
        feed(MODEL, sequence, [1, 1])
        with pytest.raises(InvalidArgumentError, match="the capture ended when its sequence went"):
            capture.rows()
        sequence.extend([1])
        capture.begin(sequence)
        session = sequence.begin_verify([])
        with pytest.raises(InvalidArgumentError, match="the verify of its sequence is open"):
            capture.write(5, hidden(1))
        session.rollback()


class TestHiddenBands:
    def test_the_rows_of_a_band_that_count_are_those_accepted(self) -> None:
        sequences = opened(MODEL.cache(), 2)
        bands = HiddenBands(2, 4, WIDTH, "float32")
        rows = hidden(7)
        first = sequences[0].begin_verify([0, 0, 0])
        second = sequences[1].begin_verify([0, 0])
        bands.store(sequences, rows, [0, 4, 7])
        with pytest.raises(InvalidArgumentError, match=r"band 0: the verify .* open; commit\(\)"):
            bands.accepted(0)
        first.rollback()
        second.rollback()
        for band in (0, 1):
            with pytest.raises(InvalidArgumentError, match="ended when its verify was rolled back"):
                bands.accepted(band)

    def test_a_band_follows_its_verify(self) -> None:
        [sequence] = opened(MODEL.cache(), 1)
        bands = HiddenBands(1, 4, WIDTH, "float32")
        rows = hidden(9)
        for round_ in range(4):
            with pytest.raises(InvalidArgumentError, match="no verify of it is open"):
                bands.store([sequence], rows, [0, 1])
            with sequence.begin_verify([0, 0, 0]) as session:
                picks = MODEL.run(session.tokens, sequence.length, VerifyStore(sequence, session))
                accepted = 1 + round_ % 4
                bands.store([sequence], rows, [round_, round_ + 4])
                session.commit(accepted)
            sequence.extend([picks[accepted - 1]])
            np.testing.assert_array_equal(bands.accepted(0), rows[round_ : round_ + accepted])
        feed(MODEL, sequence, [1, 1, 1, 1])
        with pytest.raises(InvalidArgumentError, match="band 0 ended when its sequence went"):
            bands.accepted(0)
        sequence.extend([1])
        sequence.begin_verify([]).rollback()
        with pytest.raises(InvalidArgumentError, match="when the next verify"):
            bands.accepted(0)

    def test_steps_after_a_verify_are_not_rows_of_its_band(self) -> None:
        [sequence] = opened(MODEL.cache(), 1)
        bands = HiddenBands(1, 4, WIDTH, "float32")
        with sequence.begin_verify([0, 0, 0]) as session:
            picks = MODEL.run(session.tokens, sequence.length, VerifyStore(sequence, session))
            bands.store([sequence], hidden(4), [0, 4])
            session.commit(2)
        feed(MODEL, sequence, [picks[1]])
        with pytest.raises(InvalidArgumentError, match="went from position"):
            bands.accepted(0)

    def test_a_band_has_a_row_for_each_of_its_verify(self) -> None:
        sequences = opened(MODEL.cache(), 2)
        bands = HiddenBands(2, 6, WIDTH, "float32")
        rows = hidden(6)
        with Batch(sequences).begin_verify([1, 2, 3, 4], [2, 2]) as session:
            for offsets, why in (
                ([0, 2, 6], r"sequence 0: its verify has 3 rows, but its band would have 2"),
                (
                    [0, 3, 5],
                    r"sequence 1: its verify has 3 rows, .* have 2 \(3\.\.5\)",
                ),
                ([0, 3, 3], r"band would have 0"),
            ):
                with pytest.raises(InvalidArgumentError, match=why):
                    bands.store(sequences, rows, offsets)
            assert bands.stored == 0
            bands.store(sequences, rows, session.offsets)
        assert bands.stored == 2

    def test_a_sequence_has_one_band(self) -> None:
        first, second = opened(MODEL.cache(), 2)
        bands = HiddenBands(3, 1, WIDTH, "float32")
        with Batch([first, second]).begin_verify([], [0, 0]):
            with pytest.raises(InvalidArgumentError, match="sequences 0 and 2 are the same"):
                bands.store([first, second, first], hidden(3), [0, 1, 2, 3])
            assert bands.stored == 0

    def test_a_band_of_a_tree_is_refused(self) -> None:
        [sequence] = opened(MODEL.cache(), 1)
        bands = HiddenBands(1, 4, WIDTH, "float32")
        with (
            sequence.begin_verify([0, 1], parents=[-1, 0, 0]),
            pytest.raises(UnsupportedError, match="drafts are a tree"),
        ):
            bands.store([sequence], hidden(3), [0, 3])

    def test_wrong_bands_are_refused(self) -> None:
        [sequence] = opened(MODEL.cache(), 1)
        bands = HiddenBands(1, 2, WIDTH, "float32")
        rows = hidden(4)
        with sequence.begin_verify([0]):
            for offsets, why in (
                ([0, 3], r"up to 2 of the 4 rows, got 0\.\.3"),
                ([3, 5], r"got 3\.\.5"),
                ([2, 1], r"got 2\.\.1"),
                ([0], "an offset more, got 1 and 1"),
                (None, "got None"),
            ):
                with pytest.raises(InvalidArgumentError, match=why):
                    bands.store([sequence], rows, offsets)
            assert bands.stored == 0
            with pytest.raises(InvalidArgumentError, match="band 0 was not stored"):
                bands.accepted(0)


def made(kind: type, cache: kvcache.Cache | None) -> Any:
    return kind(2, 64, WIDTH, cache=cache) if kind is HiddenBands else kind(128, WIDTH, cache=cache)


@pytest.mark.parametrize("kind", [AcceptStash, HiddenCapture, HiddenBands])
def test_memory_counts_against_the_caches_budget(kind: type) -> None:
    cache = MODEL.cache("1MiB")
    before = cache.stats()
    rows = made(kind, cache)
    assert rows.bytes == 128 * WIDTH * 2
    after = cache.stats()
    assert after.reserved_bytes == rows.bytes
    assert after.budget_bytes == before.budget_bytes
    del rows
    assert cache.stats().reserved_bytes == 0
    with pytest.raises(OutOfCapacityError, match=r"reserve \d+ bytes: one position"):
        kind(*([1] if kind is HiddenBands else []), 100_000, WIDTH, cache=cache)
    assert cache.stats().reserved_bytes == 0


@pytest.mark.parametrize("kind", [AcceptStash, HiddenCapture, HiddenBands])
def test_impossible_sizes_are_refused(kind: type) -> None:
    head = [1] if kind is HiddenBands else []
    for rows, width, dtype, why in (
        (0, 1, "float32", "must not be 0"),
        (1, 0, "float32", "must not be 0"),
        (-1, 1, "float32", "rows"),
        (2**62, 2**62, "float32", "more than 2\\^46"),
        (1, 1, "int8", "dtype"),
        ("many", 1, "float32", "rows"),
    ):
        with pytest.raises(InvalidArgumentError, match=why):
            kind(*head, rows, width, dtype)
    wrong: Any = "cache"
    with pytest.raises(InvalidArgumentError, match="expected a Cache"):
        kind(*head, 1, 1, cache=wrong)


def test_a_child_process_is_refused() -> None:
    [sequence] = opened(MODEL.cache(), 1)
    stash = AcceptStash(1, WIDTH, "float32")
    stash.store([sequence], hidden(1), [0])
    capture = HiddenCapture(4, WIDTH, "float32")
    capture.begin(sequence)
    bands = HiddenBands(1, 2, WIDTH, "float32")

    def child() -> None:
        for call in (
            lambda: stash.store([sequence], hidden(1), [0]),
            lambda: stash.rows(1),
            lambda: stash.row(0),
            lambda: stash.catch_up(0),
            lambda: capture.begin(sequence),
            lambda: capture.write(0, hidden(1)),
            lambda: capture.rows(),
            lambda: capture.consume(),
            lambda: capture.release(),
            lambda: bands.store([sequence], hidden(1), [0, 1]),
            lambda: bands.accepted(0),
        ):
            with pytest.raises(InvalidArgumentError, match="made before fork"):
                call()
        for read in (
            lambda: stash.bytes,
            lambda: stash.stored,
            lambda: capture.bytes,
            lambda: capture.captured,
            lambda: capture.position,
            lambda: bands.bytes,
            lambda: bands.stored,
        ):
            with pytest.raises(InvalidArgumentError, match="made before fork"):
                read()
        assert repr(stash) == "<AcceptStash of another process>"
        assert repr(capture) == "<HiddenCapture of another process>"
        assert repr(bands) == "<HiddenBands of another process>"
        own = AcceptStash(1, WIDTH, "float32")
        with pytest.raises(InvalidArgumentError, match="made before fork"):
            own.store([sequence], hidden(1), [0])

    assert in_child(child) == ""
    assert stash.rows(1).shape == (1, WIDTH)


def test_a_sequence_is_stashed_once() -> None:
    first, second = opened(MODEL.cache(), 2)
    stash = AcceptStash(4, WIDTH, "float32")
    stash.store([second], hidden(1), [0])
    with pytest.raises(InvalidArgumentError, match="sequences 1 and 2 are the same"):
        stash.store([second, first, first], hidden(3), [0, 1, 2])
    assert stash.stored == 1


@pytest.mark.parametrize("kind", [AcceptStash, HiddenCapture, HiddenBands])
def test_a_view_keeps_the_budget_that_its_memory_takes(kind: type) -> None:
    cache = MODEL.cache()
    [sequence] = opened(cache, 1)
    held = made(kind, cache)
    if kind is AcceptStash:
        held.store([sequence], bfloat16(hidden(1)), [0])
        view = held.rows(1)
    elif kind is HiddenCapture:
        held.begin(sequence)
        view = held.rows()
    else:
        with sequence.begin_verify([]) as session:
            held.store([sequence], bfloat16(hidden(1)), [0, 1])
            MODEL.run(session.tokens, sequence.length, VerifyStore(sequence, session))
            session.commit(1)
        view = held.accepted(0)
    taken = held.bytes
    assert cache.stats().reserved_bytes == taken > 0
    del held
    gc.collect()
    assert cache.stats().reserved_bytes == taken
    del view
    gc.collect()
    assert cache.stats().reserved_bytes == 0
