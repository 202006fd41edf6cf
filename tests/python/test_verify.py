"""Verify sessions against sequential decoding: state, rows and tokens equal bit for bit."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
from support.tiny_model import (
    CONV,
    DELTA,
    FULL,
    RECURRENT,
    SLIDING,
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
from kvcache import InvalidArgumentError, NonFiniteError, NotFoundError, OutOfCapacityError

PROMPT = [1, 5, 2, 8, 3, 9, 4]
MODELS = {
    "hybrid": (DELTA, FULL, SLIDING),
    "attention": (FULL,),
    "sliding": (SLIDING,),
    "recurrent": (DELTA,),
}


def started(model: TinyModel, prompt: list[int] = PROMPT) -> tuple[Any, Any, Reference, int]:
    """A cache, a sequence with its prompt run, the reference likewise, and the next token."""
    cache = model.cache()
    sequence = cache.open(prompt)
    reference = Reference(model)
    expected = [reference.step(token) for token in prompt][-1]
    pick = feed(model, sequence, [])
    assert pick == expected
    return cache, sequence, reference, pick


def sequential(model: TinyModel, steps: int) -> Reference:
    """Greedy decoding of the prompt, one position at a time."""
    reference = Reference(model)
    pick = [reference.step(token) for token in PROMPT][-1]
    for _ in range(steps):
        pick = reference.step(pick)
    return reference


def footprint(cache: kvcache.Cache, sequence: kvcache.Sequence) -> tuple[object, ...]:
    stats = cache.stats()
    return (
        sequence.length,
        sequence.tokens.tolist(),
        (stats.used_bytes, stats.pages, stats.slots, stats.snapshots),
    )


def draft(rng: np.random.Generator, reference: Reference, at: int, count: int) -> list[int]:
    """Drafts for the positions from ``at`` on, right up to a random one."""
    right = int(rng.integers(0, count + 1))
    tokens = reference.tokens[at : at + count]
    return [
        token if i < right else int(rng.integers(0, VOCABULARY)) for i, token in enumerate(tokens)
    ]


@pytest.mark.parametrize("storage", ["f16", "int8"])
@pytest.mark.parametrize("layers", MODELS.values(), ids=MODELS)
def test_speculation_equals_sequential_decoding(layers: tuple[int, ...], storage: str) -> None:
    seen: set[tuple[int, int]] = set()
    for seed in range(4):
        model = TinyModel(layers, storage, seed=seed)
        reference = sequential(model, 60)
        _, sequence, _, pick = started(model)
        rng = np.random.default_rng(seed)
        while sequence.length < 50:
            sequence.extend([pick])
            drafts = draft(rng, reference, sequence.length + 1, int(rng.integers(0, 6)))
            accepted, pick = verify(model, sequence, drafts)
            seen.add((accepted, len(drafts) + 1))
            assert_equals(sequence, reference)
            assert pick == reference.tokens[sequence.length]
            if rng.integers(0, 4) == 0:  # a step without drafts and without a session
                pick = feed(model, sequence, [pick])
                assert_equals(sequence, reference)
    assert any(1 == accepted < rows for accepted, rows in seen), "some chunk rejects every draft"
    assert any(accepted == rows > 1 for accepted, rows in seen), "some chunk accepts every draft"
    assert any(1 < accepted < rows for accepted, rows in seen), "some chunk accepts a part"


@pytest.mark.parametrize("accepted", [1, 2, 3, 4])
def test_every_accepted_count_adopts_its_own_row(accepted: int) -> None:
    model = TinyModel()
    reference = sequential(model, 20)
    _, sequence, _, pick = started(model)
    sequence.extend([pick])
    at = sequence.length
    drafts = [*reference.tokens[at + 1 : at + accepted], *[0] * (4 - accepted)]
    with sequence.begin_verify(drafts) as session:
        assert session.rows == 4
        assert session.positions.tolist() == [at, at + 1, at + 2, at + 3]
        assert session.tokens.tolist() == [pick, *drafts]
        model.run(session.tokens, at, VerifyStore(sequence, session))
        assert session.commit(accepted) == at + accepted
    assert sequence.length == at + accepted
    assert_equals(sequence, reference)


@pytest.mark.parametrize("layers", MODELS.values(), ids=MODELS)
def test_rollback_leaves_the_sequence_as_it_was(layers: tuple[int, ...]) -> None:
    model = TinyModel(layers)
    reference = sequential(model, 20)
    cache, sequence, _, pick = started(model)
    sequence.extend([pick])
    before = footprint(cache, sequence)
    for drafts in ([], [0, 0, 0], [1] * 9):
        session = sequence.begin_verify(drafts)
        model.run(session.tokens, int(session.positions[0]), VerifyStore(sequence, session))
        session.rollback()
        assert footprint(cache, sequence) == before
        assert_equals(sequence, reference)
    feed(model, sequence, [])
    assert_equals(sequence, reference)


def test_an_exception_anywhere_leaves_the_last_committed_position() -> None:
    model = TinyModel()
    reference = sequential(model, 20)
    cache, sequence, _, pick = started(model)
    sequence.extend([pick])
    before = footprint(cache, sequence)

    class Failing(VerifyStore):
        left = 0

        def _count(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise InterruptedError

        def state(self, row: int, layer: int, name: str) -> Any:
            self._count()
            return super().state(row, layer, name)

        def write(self, layer: int, start: int, keys: Any, values: Any) -> None:
            self._count()
            super().write(layer, start, keys, values)

    for calls in range(8):  # 3 rows of 2 tensors, and 2 layers of rows
        session = sequence.begin_verify([3, 3])
        store = Failing(sequence, session)
        store.left = calls
        with pytest.raises(InterruptedError), session:
            model.run(session.tokens, int(session.positions[0]), store)
        assert not session.is_open
        assert footprint(cache, sequence) == before
        assert_equals(sequence, reference)
    assert verify(model, sequence, [])[0] == 1
    assert_equals(sequence, reference)


def test_a_dropped_session_rolls_back() -> None:
    model = TinyModel()
    cache, sequence, _, pick = started(model)
    sequence.extend([pick])
    before = footprint(cache, sequence)
    session = sequence.begin_verify([1, 2])
    assert footprint(cache, sequence) != before
    del session
    gc.collect()
    assert footprint(cache, sequence) == before
    sequence.begin_verify([1]).rollback()


def test_other_changes_wait_for_the_session() -> None:
    model = TinyModel()
    cache, sequence, _, pick = started(model)
    sequence.extend([pick])
    rows = np.zeros((1, 2, 6), np.float32)
    calls: dict[str, Any] = {
        "write": lambda: sequence.write(FULL, sequence.length, rows, rows),
        "advance": lambda: sequence.advance(1),
        "extend": lambda: sequence.extend([1]),
        "truncate": lambda: sequence.truncate(0),
        "publish": sequence.publish,
        "snapshot": sequence.snapshot,
        "fork": sequence.fork,
        "begin_verify": lambda: sequence.begin_verify([1]),
        "state": lambda: sequence.state(DELTA, RECURRENT),
    }
    with sequence.begin_verify([1, 2]) as session:
        before = footprint(cache, sequence)
        for name, call in calls.items():
            with pytest.raises(InvalidArgumentError, match=f"{name}: a verify session of 3 rows"):
                call()
        assert footprint(cache, sequence) == before
        assert session.is_open
    sequence.state(DELTA, RECURRENT)


def test_an_ended_session_is_an_error() -> None:
    model = TinyModel()
    _, sequence, _, pick = started(model)
    rows = np.zeros((1, 2, 6), np.float32)
    ended = []
    for _ in range(2):  # committed, rolled back
        sequence.extend([pick])
        session = sequence.begin_verify([])
        model.run(session.tokens, int(session.positions[0]), VerifyStore(sequence, session))
        ended.append(session)
        if len(ended) == 1:
            session.commit(1)
        else:
            session.rollback()
    newer = sequence.begin_verify([])
    for session in ended:
        assert not session.is_open
        for call in (
            lambda s: s.write(FULL, rows, rows),
            lambda s: s.state(0, DELTA, RECURRENT),
            lambda s: s.commit(1),
            lambda s: s.rollback(),
        ):
            with pytest.raises(InvalidArgumentError, match="the verify session has ended"):
                call(session)
    assert newer.is_open
    sequence.close()
    with pytest.raises(InvalidArgumentError, match=r"has ended; its sequence is closed"):
        newer.commit(1)
    assert repr(newer) == "<VerifySession ended>"


def test_close_gives_back_what_the_session_holds() -> None:
    model = TinyModel()
    cache, sequence, _, pick = started(model)
    sequence.extend([pick])
    session = sequence.begin_verify([1, 2])
    kept = session.state(1, DELTA, RECURRENT)
    sequence.close()
    assert not session.is_open
    kept[:] = 7  # a view outlives both; its slot is not handed out meanwhile
    assert cache.stats().snapshots == 1
    assert (kept == 7).all()
    del kept
    gc.collect()
    assert cache.stats().used_bytes == 0


def test_wrong_arguments_change_nothing() -> None:
    model = TinyModel(storage="int8")
    reference = sequential(model, 20)
    cache, sequence, _, pick = started(model)
    with pytest.raises(InvalidArgumentError, match="0 known tokens have not run, expected 1"):
        sequence.begin_verify([1])
    sequence.extend([pick])
    for drafts in ([1.5], [[1]], [2**31]):
        with pytest.raises(InvalidArgumentError, match="tokens"):
            sequence.begin_verify(drafts)
    session = sequence.begin_verify([0, 0])
    at = sequence.length
    with pytest.raises(InvalidArgumentError, match="layer 1 is written up to"):
        session.commit(1)
    bad = np.full((3, 2, 6), np.nan, np.float32)
    for keys, error, match in (
        (bad, NonFiniteError, "finite"),
        (bad[:2], InvalidArgumentError, "has 3 rows, got 2"),
        (bad[:, :1], InvalidArgumentError, "expected"),
    ):
        with pytest.raises(error, match=match):
            session.write(FULL, keys, keys)
    with pytest.raises(InvalidArgumentError, match="keeps no pages"):
        session.write(DELTA, bad, bad)
    with pytest.raises(InvalidArgumentError, match=r"rows 0\.\.2, got 3"):
        session.state(3, DELTA, RECURRENT)
    with pytest.raises(NotFoundError, match=r"state\.convolution"):
        session.state(0, DELTA, "state.nothing")
    with pytest.raises(InvalidArgumentError, match="row"):
        session.state(-1, DELTA, RECURRENT)
    model.run(session.tokens, at, VerifyStore(sequence, session))
    before = footprint(cache, sequence)
    for accepted in (0, 4, -1, 2**62, True + 3):
        with pytest.raises(InvalidArgumentError, match="accepted"):
            session.commit(accepted)
        assert footprint(cache, sequence) == before
    session.commit(1)
    assert_equals(sequence, reference)


def test_a_started_position_must_be_finished_before() -> None:
    model = TinyModel()
    _, sequence, _, pick = started(model)
    sequence.extend([pick])
    rows = np.zeros((1, 2, 6), np.float32)
    sequence.write(FULL, sequence.length, rows, rows)
    with pytest.raises(InvalidArgumentError, match="layer 1 is written up to position 8"):
        sequence.begin_verify([1])
    sequence.close()
    with pytest.raises(InvalidArgumentError, match="closed"):
        sequence.begin_verify([1])


def test_rows_of_shared_blocks_are_not_damaged() -> None:
    """Prefixes published or forked before a session read the same after rejected rows."""
    model = TinyModel()
    reference = sequential(model, 30)
    cache, sequence, _, pick = started(model)  # 7 positions: the second block of 4 is shared
    sequence.snapshot()
    sequence.publish()
    child = sequence.fork()
    reader = cache.open([*PROMPT, 0])
    assert reader.cached_tokens == len(PROMPT)
    for drafts in ([10, 10, 10, 10], [9] * 8):
        for one in (sequence, child, reader):
            if one is not reader:
                one.extend([pick])
                verify(model, one, drafts)
                one.truncate(len(PROMPT))
            assert_equals(reader, reference)
            assert_equals(child, reference)
            assert_equals(sequence, reference)
    late = cache.open([*PROMPT, 0])
    assert late.cached_tokens == len(PROMPT)
    assert_equals(late, reference)


def test_committed_rows_can_be_published_and_found() -> None:
    model = TinyModel()
    reference = sequential(model, 30)
    cache, sequence, _, pick = started(model)
    sequence.extend([pick])
    drafts = reference.tokens[sequence.length + 1 : sequence.length + 4]
    accepted, pick = verify(model, sequence, [*drafts, (reference.tokens[11] + 1) % VOCABULARY])
    assert accepted == 4
    sequence.snapshot()
    sequence.publish()
    sequence.close()
    found = cache.open([*reference.tokens[:11], pick])
    assert found.cached_tokens == 11
    assert_equals(found, reference)
    feed(model, found, [])
    assert_equals(found, reference)


def test_the_window_survives_a_session() -> None:
    """Nothing is trimmed before the verdict; afterwards as much as without speculation."""
    model = TinyModel((SLIDING,), window=5)
    reference = sequential(model, 60)
    cache = model.cache(block_tokens=2)
    sequence = cache.open(PROMPT)
    pick = feed(model, sequence, [])
    store = PlainStore(sequence)
    for _ in range(12):
        sequence.extend([pick])
        length = sequence.length
        with sequence.begin_verify([0] * 12) as session:
            model.run(session.tokens, length, VerifyStore(sequence, session))
        store.read(SLIDING, length - 4, length)
        assert_equals(sequence, reference)
        drafts = reference.tokens[length + 1 : length + 3]
        _, pick = verify(model, sequence, drafts)
        assert sequence.length == length + 3
        assert_equals(sequence, reference)
        sequence.truncate(length)  # back to where the round began
        assert_equals(sequence, reference)
        pick = feed(model, sequence, reference.tokens[length : length + 3])
        assert cache.stats().pages <= 6


def test_slots_and_pages_come_from_the_budget() -> None:
    model = TinyModel()
    reference = sequential(model, 20)
    cache = model.cache(memory=384 * 1024)
    sequence = cache.open(PROMPT)
    pick = feed(model, sequence, [])
    sequence.extend([pick])
    slot = cache.plan.slot_bytes
    before = cache.stats()
    with sequence.begin_verify([1, 2, 3]):
        during = cache.stats()
        assert during.snapshots - before.snapshots == 4
        new_pages = during.pages - before.pages
        pages = sum(group.page_bytes for group in cache.plan.groups)
        assert during.used_bytes - before.used_bytes == 4 * slot + new_pages // 2 * pages
    assert cache.stats().used_bytes == before.used_bytes
    footing = footprint(cache, sequence)
    with pytest.raises(OutOfCapacityError):
        sequence.begin_verify([1] * 4096)
    assert footprint(cache, sequence) == footing
    assert_equals(sequence, reference)
    assert verify(model, sequence, [])[0] == 1
    assert_equals(sequence, reference)


def test_a_session_evicts_what_nobody_uses() -> None:
    model = TinyModel((DELTA,))
    cache = model.cache(memory=256 * 1024)
    for first in range(600):  # snapshots of other prompts fill the memory
        with cache.open([first, 1, 2]) as other:
            other.state(DELTA, CONV)[:] = first
            other.advance(2)
            other.snapshot()
            other.publish()
    sequence = cache.open([1, 2])
    sequence.advance(1)
    evicted = cache.stats().evicted_snapshots
    with sequence.begin_verify([1] * 63) as session:
        assert session.rows == 64
    assert cache.stats().evicted_snapshots > evicted


def test_a_ledger_counts_sessions_without_bytes() -> None:
    model = TinyModel()
    cache = model.cache(backing=False)
    sequence = cache.open(PROMPT)
    sequence.advance(len(PROMPT))
    sequence.extend([1])
    before = cache.stats()
    with sequence.begin_verify([1, 2]) as session:
        assert cache.stats().snapshots == 3
        with pytest.raises(kvcache.UnsupportedError):
            session.state(0, DELTA, RECURRENT)
        assert session.commit(2) == len(PROMPT) + 2
    assert cache.stats().snapshots == 0
    assert cache.stats().pages == before.pages + 2
    assert sequence.tokens.tolist() == [*PROMPT, 1, 1]


def test_sessions_of_different_sequences_run_side_by_side() -> None:
    model = TinyModel()
    reference = sequential(model, 60)
    cache = model.cache(memory="4MiB")
    failures: list[BaseException] = []

    def decode(seed: int) -> None:
        try:
            rng = np.random.default_rng(seed)
            with cache.open(PROMPT) as sequence:
                pick = feed(model, sequence, [])
                while sequence.length < 40:
                    sequence.extend([pick])
                    drafts = draft(rng, reference, sequence.length + 1, 4)
                    _, pick = verify(model, sequence, drafts)
                    assert_equals(sequence, reference)
                sequence.snapshot()
                sequence.publish()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=decode, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    cache.clear()
    assert cache.stats().used_bytes == 0
