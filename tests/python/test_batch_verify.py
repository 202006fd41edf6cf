"""Verify sessions over batches, ragged, linear and trees, against sequential decoding."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
from model.driver import SHAPES
from support.drafts import SESSIONS, drafts_for, random_parents
from support.tiny_model import (
    CONV,
    DELTA,
    FULL,
    RECURRENT,
    SLIDING,
    VOCABULARY,
    Reference,
    TinyModel,
    assert_equals,
    feed,
    run_batch,
)

import kvcache
from kvcache import (
    Batch,
    InvalidArgumentError,
    NonFiniteError,
    NotFoundError,
    OutOfCapacityError,
    TokenTree,
    UnsupportedError,
)

MODELS = {
    "hybrid": (DELTA, FULL, SLIDING),
    "attention": (FULL,),
    "recurrent": (DELTA,),
}


def prompt_of(index: int) -> list[int]:
    return np.random.default_rng(index).integers(0, VOCABULARY, 3 + 2 * index).tolist()


def sequential(model: TinyModel, prompt: list[int], steps: int) -> Reference:
    reference = Reference(model)
    pick = [reference.step(token) for token in prompt][-1]
    for _ in range(steps):
        pick = reference.step(pick)
    return reference


def started(
    model: TinyModel, size: int, steps: int = 40, **options: Any
) -> tuple[Any, Batch, list[Reference]]:
    """A batch whose sequences each know the one token that comes after their prompt."""
    cache = model.cache(**({"memory": "4MiB"} | options))
    sequences, references = [], []
    for index in range(size):
        sequence = cache.open(prompt_of(index))
        references.append(sequential(model, prompt_of(index), steps))
        sequence.extend([feed(model, sequence, [])])
        sequences.append(sequence)
    return cache, Batch(sequences), references


def footprint(cache: Any, batch: Batch) -> tuple[object, ...]:
    stats = cache.stats()
    return (
        batch.lengths.tolist(),
        [sequence.tokens.tolist() for sequence in batch.sequences],
        (stats.used_bytes, stats.pages, stats.slots, stats.snapshots),
    )


def assert_all_equal(batch: Batch, references: list[Reference]) -> None:
    for sequence, reference in zip(batch.sequences, references, strict=True):
        assert_equals(sequence, reference)


def greedy(tokens: list[int], picks: list[int]) -> int:
    accepted = 1
    while accepted < len(tokens) and tokens[accepted] == picks[accepted - 1]:
        accepted += 1
    return accepted


def linear_round(
    model: TinyModel, batch: Batch, references: list[Reference], rng: np.random.Generator
) -> list[int]:
    """Ragged drafts, some right; the rows accepted of each."""
    drafts: list[int] = []
    counts = []
    for index, reference in enumerate(references):
        tree = TokenTree.linear(int(rng.integers(1, 6)))
        following = reference.tokens[batch.lengths[index] + 1 :]
        drafts += drafts_for(rng, tree, following, 0.7, VOCABULARY)
        counts.append(tree.nodes - 1)
    with batch.begin_verify(drafts, counts) as session:
        assert session.rows == sum(counts) + len(batch)
        bounds = session.offsets.tolist()
        assert np.diff(bounds).tolist() == [count + 1 for count in counts]
        picks = run_batch(model, session)
        tokens = np.split(session.tokens, session.offsets[1:-1])
        accepted = [greedy(list(t), p) for t, p in zip(tokens, picks, strict=True)]
        lengths = session.commit(accepted)
    assert lengths.tolist() == batch.lengths.tolist()
    batch.extend([p[n - 1] for p, n in zip(picks, accepted, strict=True)])
    return accepted


def tree_round(
    model: TinyModel, batch: Batch, references: list[Reference], rng: np.random.Generator
) -> list[int]:
    trees = [TokenTree(random_parents(rng, int(rng.integers(1, 10)))) for _ in references]
    drafts: list[int] = []
    for index, reference in enumerate(references):
        following = reference.tokens[batch.lengths[index] + 1 :]
        drafts += drafts_for(rng, trees[index], following, 0.7, VOCABULARY)
    counts = [tree.nodes - 1 for tree in trees]
    parents: Any = trees
    if rng.integers(0, 2):
        parents = np.concatenate([tree.parents for tree in trees])
    with batch.begin_verify(drafts, counts, parents) as session:
        expected = [tree.positions(n) for tree, n in zip(trees, session.starts, strict=True)]
        assert session.positions.tolist() == np.concatenate(expected).tolist()
        picks = run_batch(model, session, trees)
        tokens = np.split(session.tokens, session.offsets[1:-1])
        verdicts = [tree.accept(t, p) for tree, t, p in zip(trees, tokens, picks, strict=True)]
        paths: Any = [path for path, _ in verdicts]
        if rng.integers(0, 2):  # as kernels give it
            width = max(map(len, paths)) + int(rng.integers(0, 2))
            paths = np.array([[*path, *[-1] * (width - len(path))] for path in paths])
        session.commit(paths)
    batch.extend([bonus for _, bonus in verdicts])
    return [len(path) for path, _ in verdicts]


@pytest.mark.parametrize("storage", ["f16", "int8"])
@pytest.mark.parametrize("layers", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("one_round", [linear_round, tree_round], ids=["linear", "tree"])
def test_batches_equal_sequential_decoding(
    one_round: Any, layers: tuple[int, ...], storage: str
) -> None:
    left, seed, seen = max(24, SESSIONS // 12), 0, set()
    while left > 0:
        model = TinyModel(layers, storage, seed=seed)
        rng = np.random.default_rng(seed)
        size = int(rng.integers(1, 6))
        _, batch, references = started(model, size)
        seed += 1
        for _ in range(6):
            left -= size
            seen |= set(one_round(model, batch, references, rng))
            assert_all_equal(batch, references)
            tokens = [sequence.tokens[-1] for sequence in batch.sequences]
            right = [r.tokens[n] for r, n in zip(references, batch.lengths, strict=True)]
            assert tokens == right
    assert {1, 2, 3} <= seen


@pytest.mark.parametrize("end", ["rollback", "drop", "raise", "assign"])
def test_a_batch_that_is_not_committed_leaves_no_trace(end: str) -> None:
    model = TinyModel()
    cache, batch, references = started(model, 3)
    before = footprint(cache, batch)
    session = batch.begin_verify([1, 2, 3], [2, 0, 1])
    run_batch(model, session)
    assert footprint(cache, batch)[2] != before[2]
    if end == "rollback":
        session.rollback()
    elif end == "drop":
        del session
        gc.collect()
    elif end == "raise":
        with pytest.raises(InterruptedError), session:
            raise InterruptedError
    else:
        session = None  # type: ignore[assignment]
    assert footprint(cache, batch) == before
    assert_all_equal(batch, references)
    rng = np.random.default_rng(0)
    linear_round(model, batch, references, rng)
    assert_all_equal(batch, references)


def test_none_of_a_sequences_rows_may_be_accepted() -> None:
    """Where its request ended meanwhile: the others go on, and it is as it was."""
    model = TinyModel()
    _, batch, references = started(model, 3)
    lengths = batch.lengths.tolist()
    with batch.begin_verify([1, 2, 3]) as session:
        run_batch(model, session)
        assert session.commit([1, 0, 1]).tolist() == [lengths[0] + 1, lengths[1], lengths[2] + 1]
    assert_all_equal(batch, references)
    feed(model, batch.sequences[1], [])
    assert_all_equal(batch, references)


def test_a_wrong_verdict_for_one_changes_none() -> None:
    model = TinyModel()
    cache, batch, references = started(model, 3)
    before = footprint(cache, batch)
    session = batch.begin_verify([1, 2, 3], [2, 0, 1])
    with pytest.raises(InvalidArgumentError, match=r"sequences\[0\]: commit to position"):
        session.commit([1, 1, 1])
    run_batch(model, session)
    during = footprint(cache, batch)
    for accepted, match in (
        ([1, 2, 1], r"sequences\[1\]: commit: accepted must be 1\.\.1, got 2"),
        ([1, 1, 2**60], r"sequences\[2\]: commit: accepted must be 1\.\.2"),
        ([1, 1], "accepted: 2 numbers for 3 sequences"),
        ([], "accepted: 0 numbers for 3 sequences"),
        ([1, 1, -1], "must not be negative"),
        ([1.0, 1, 1], "accepted"),
        (None, "accepted: expected a number for each sequence"),
        (1, "accepted"),
        ([[0], [0], [1]], r"sequences\[2\]: commit: path\[0\] must be 0"),
        ([[0], [0]], "accepted: 2 numbers for 3 sequences"),
        ([[0], 0, [0]], r"paths\[1\]: expected one axis"),
        (np.array([[0, 1], [-1, 0], [0, -1]]), "after which no row may follow"),
        (np.array([[0], [0], [5]]), r"sequences\[2\]"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            session.commit(accepted)
        assert session.is_open
        assert footprint(cache, batch) == during
    session.rollback()
    assert footprint(cache, batch) == before
    assert_all_equal(batch, references)


def test_a_batch_that_cannot_begin_changes_nothing() -> None:
    model = TinyModel()
    cache, batch, references = started(model, 3)
    before = footprint(cache, batch)
    for arguments, match in (
        (([1, 2], [1, 0, 0]), "drafts: 2 given, but counts add up to 1"),
        (([1], None), "drafts: 1 given, but counts add up to 3"),
        (([1], [1, 0]), "counts: 2 numbers for 3 sequences"),
        (([1], [2**63, 0, 0]), "counts"),
        (([1, 2, 3], None, [-1, 0]), "parents: 2 given, expected 6"),
        (([1, 2, 3], None, []), "parents: 0 given, expected 6"),
        (([1, 2, 3], None, [TokenTree.linear(2)]), "parents: 2 given, expected 6"),
        (([1, 2, 3], None, [TokenTree.linear(2), 3]), r"parents\[1\]: expected a TokenTree"),
        (([1, 2, 3], None, [-1, 0, -1, 1, -1, 0]), r"sequences\[1\]: parents\[1\] must be 0"),
        (([0.5, 1, 1],), "drafts"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            batch.begin_verify(*arguments)
        assert footprint(cache, batch) == before
    with pytest.raises(InvalidArgumentError, match="table: expected a VerifyTable"):
        batch.begin_verify([1, 2, 3], table=3)  # type: ignore[arg-type]
    feed(model, batch.sequences[1], [])
    with pytest.raises(InvalidArgumentError, match=r"sequences\[1\]: begin_verify: 0 known"):
        batch.begin_verify([1, 2, 3])
    batch.sequences[1].extend([references[1].tokens[batch.lengths[1]]])
    with (
        batch.sequences[2].begin_verify([1]),
        pytest.raises(InvalidArgumentError, match=r"sequences\[2\]: begin_verify: a verify"),
    ):
        batch.begin_verify([1, 2, 3])
    linear_round(model, batch, references, np.random.default_rng(3))
    assert_all_equal(batch, references)


def test_out_of_capacity_takes_nothing() -> None:
    model = TinyModel()
    cache, batch, references = started(model, 3, memory=512 * 1024)
    before = footprint(cache, batch)
    with pytest.raises(OutOfCapacityError):
        batch.begin_verify([1] * 4000, [10, 3980, 10])
    assert footprint(cache, batch) == before
    linear_round(model, batch, references, np.random.default_rng(3))
    assert_all_equal(batch, references)


def test_other_calls_wait_for_the_session() -> None:
    model = TinyModel()
    cache, batch, _ = started(model, 2)
    other = Batch(batch.sequences[:1])
    session = batch.begin_verify([1, 2])
    during = footprint(cache, batch)
    for call in (
        lambda: batch.extend([1, 1]),
        lambda: batch.advance(),
        lambda: batch.begin_verify([1, 2]),
        lambda: other.begin_verify([1]),
        lambda: batch.sequences[0].begin_verify([1]),
        lambda: batch.sequences[0].truncate(0),
    ):
        with pytest.raises(InvalidArgumentError, match=r"a verify session of 2 rows"):
            call()
    assert footprint(cache, batch) == during
    table = session.block_table(0)
    assert (table[:, 0] >= 0).all()
    session.rollback()
    rows = np.zeros((4, 2, 6), np.float32)
    for call in (
        lambda: session.rollback(),
        lambda: session.commit([1, 1]),
        lambda: session.write(FULL, rows, rows),
        lambda: session.state(0, 0, DELTA, RECURRENT),
    ):
        with pytest.raises(InvalidArgumentError, match="the verify session has ended"):
            call()
    assert repr(session) == "<BatchVerifySession ended>"
    assert session.rows == 4
    assert len(session) == 2


def test_a_closed_sequence_ends_the_session_of_all() -> None:
    model = TinyModel()
    cache, batch, references = started(model, 3)
    session = batch.begin_verify([1, 2, 3])
    run_batch(model, session)
    batch.sequences[1].close()
    rows = np.zeros((6, 2, 6), np.float32)
    for call in (
        lambda: session.commit([1, 1, 1]),
        lambda: session.write(FULL, rows, rows),
        lambda: session.state(0, 0, DELTA, RECURRENT),
    ):
        with pytest.raises(InvalidArgumentError, match=r"sequences\[1\]: .*it was closed"):
            call()
    assert session.is_open
    session.rollback()
    assert cache.stats().snapshots == 0
    for index in (0, 2):
        assert_equals(batch.sequences[index], references[index])
        feed(model, batch.sequences[index], [])
        assert_equals(batch.sequences[index], references[index])


def test_wrong_rows_and_states() -> None:
    model = TinyModel(storage="int8")
    _, batch, references = started(model, 2)
    session = batch.begin_verify([1, 2, 2], [1, 2])
    good = np.ones((5, 2, 6), np.float32)
    bad = good.copy()
    bad[4] = np.nan
    with pytest.raises(InvalidArgumentError, match="has 5 rows, got 4"):
        session.write(FULL, good[:4], good[:4])
    with pytest.raises(InvalidArgumentError, match="keeps no pages"):
        session.write(DELTA, good, good)
    session.write(FULL, good, good)
    with pytest.raises(NonFiniteError, match=r"sequences\[1\]"):
        session.write(FULL, bad, good)
    session.write(SLIDING, good, good)
    with pytest.raises(
        InvalidArgumentError, match=r"sequences\[0\]: commit to position .* layer 1"
    ):
        session.commit([1, 1])
    for arguments, error in (
        ((2, 0, DELTA, CONV), InvalidArgumentError),
        ((0, 2, DELTA, CONV), InvalidArgumentError),
        ((-1, 0, DELTA, CONV), InvalidArgumentError),
        ((0, 0, FULL, CONV), NotFoundError),
        ((0, 0, DELTA, "state.nothing"), NotFoundError),
    ):
        with pytest.raises(error):
            session.state(*arguments)
    with pytest.raises(NotFoundError):
        session.write_records(DELTA, "state.pooled", good)
    run_batch(model, session)
    session.commit([1, 1])
    assert_all_equal(batch, references)


def test_a_tensor_of_the_accepted_row_must_have_been_taken() -> None:
    model = TinyModel((DELTA,))
    _, batch, references = started(model, 2)
    session = batch.begin_verify([1, 2])
    for index in range(2):
        for name in (CONV, RECURRENT):
            session.state(index, 0, DELTA, name)
    session.state(0, 1, DELTA, CONV)
    with pytest.raises(InvalidArgumentError, match=r"sequences\[0\]: commit up to row 1: 'state"):
        session.commit([2, 1])
    session.rollback()
    assert_all_equal(batch, references)


def test_records_of_all_sequences() -> None:
    plan = kvcache.StatePlan(SHAPES["pooled alone"], memory="4MiB", block_tokens=4, sequences=4)
    cache = kvcache.Cache(plan)
    name = "state.pooling.0.pooled"
    rng = np.random.default_rng(0)
    rows = {index: rng.integers(-9, 9, (9, 2, 4)).astype(np.float32) for index in range(3)}
    values = {index: rng.integers(-9, 9, (9, 2, 8)).astype(np.float32) for index in range(3)}
    records = {index: rng.integers(-9, 9, (4, 2, 4)).astype(np.float32) for index in range(3)}
    sequences = [cache.open([index] * (index + 2)) for index in range(3)]  # lengths 1, 2, 3
    for index, sequence in enumerate(sequences):
        length = index + 1
        sequence.write(1, 0, rows[index][:length], values[index][:length])
        sequence.write_records(0, name, 0, records[index][: length // 2])
        sequence.advance(length)
    batch = Batch(sequences)
    with pytest.raises(UnsupportedError, match=r"sequences\[2\]: .* pooled over 2 consecutive"):
        batch.begin_verify([5] * 6, [1, 2, 3], [-1, 0, -1, 0, 1, -1, 0, 0, 1])
    spans = [(1, 3), (2, 5), (3, 7)]
    with batch.begin_verify([5] * 6, [1, 2, 3]) as session:
        session.write(
            1,
            np.concatenate([rows[i][a:b] for i, (a, b) in enumerate(spans)]),
            np.concatenate([values[i][a:b] for i, (a, b) in enumerate(spans)]),
        )
        new = np.concatenate([records[i][a // 2 : b // 2] for i, (a, b) in enumerate(spans)])
        assert len(new) == 4
        with pytest.raises(InvalidArgumentError, match=r"sequences\[0\]: commit .* records"):
            session.commit([2, 1, 3])
        with pytest.raises(InvalidArgumentError, match="completes 4 records, got 3"):
            session.write_records(0, name, new[:3])
        session.write_records(0, name, new)
        assert session.commit([2, 1, 3]).tolist() == [3, 3, 6]
    for index, length in enumerate([3, 3, 6]):
        got = sequences[index].read_records(0, name, 0, length // 2)
        np.testing.assert_array_equal(got, records[index][: length // 2])
        np.testing.assert_array_equal(sequences[index].read(1, 0, length)[0], rows[index][:length])


def test_a_ledger_counts_batches_without_bytes() -> None:
    model = TinyModel()
    cache = model.cache(backing=False)
    sequences = [cache.open([1, 2, 3]) for _ in range(2)]
    for sequence in sequences:
        sequence.advance(2)
    batch = Batch(sequences)
    with batch.begin_verify([4, 5, 6], [2, 1], [-1, 0, 0, -1, 0]) as session:
        assert cache.stats().snapshots == 5
        with pytest.raises(UnsupportedError):
            session.state(0, 0, DELTA, CONV)
        assert session.commit([[0, 2], [0]]).tolist() == [4, 3]
    assert sequences[0].tokens.tolist() == [1, 2, 3, 5]
    assert cache.stats().snapshots == 0
    batch.extend([1, 1])
    with pytest.raises(UnsupportedError, match="begin_verify with a verify table"):
        batch.begin_verify([1, 1], table=kvcache.VerifyTable(cache.plan))


def test_batches_with_sequences_in_common_do_not_deadlock() -> None:
    model = TinyModel()
    _, batch, references = started(model, 4)
    others = [batch, Batch(batch.sequences[::-1]), Batch(batch.sequences[1:3])]
    failures: list[BaseException] = []
    turns = [0, 0, 0]

    def work(index: int) -> None:
        try:
            for _ in range(40):
                try:
                    session = others[index].begin_verify([1] * len(others[index]))
                except InvalidArgumentError:
                    continue  # the others have one open
                session.rollback()
                turns[index] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sum(turns) > 0
    assert_all_equal(batch, references)
