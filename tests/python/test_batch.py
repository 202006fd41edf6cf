"""Batches: many sequences by one call, all or nothing; and several layers of one sequence."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from support.filled import MODELS, Array, make_cache, paged_layers, prompt, rows, run, state

import kvcache
from kvcache.errors import (
    InvalidArgumentError,
    NonFiniteError,
    NotFoundError,
    OutOfCapacityError,
    UnsupportedError,
)

PAGED = [name for name in MODELS if name != "recurrent only"]
LENGTHS = (5, 12, 1)


def open_batch(cache: Any, lengths: tuple[int, ...] = LENGTHS) -> kvcache.Batch:
    """Sequences that are complete up to these lengths."""
    sequences = [cache.open(prompt(length, seed)) for seed, length in enumerate(lengths)]
    for sequence, length in zip(sequences, lengths, strict=True):
        run(cache, sequence, [length])
    return kvcache.Batch(sequences)


def ragged(batch: kvcache.Batch, layer: int, starts: Array, counts: Array) -> list[Array]:
    """What the model computes for these rows, one after the other."""
    parts = batch.sequences[0].plan.paged_components(layer)
    found = []
    for index, part in enumerate(parts):
        of_each = [
            rows(sequence.tokens, layer, index, (part.heads, part.width))[start : start + count]
            for sequence, start, count in zip(batch.sequences, starts, counts, strict=True)
        ]
        found.append(np.concatenate(of_each))
    return found


def snapshot_of(batch: kvcache.Batch) -> list[Any]:
    """All that a failed call must leave as it was."""
    return [
        (
            sequence.length,
            sequence.tokens.tolist(),
            [sequence.block_table(g).tolist() for g in range(len(sequence.plan.groups))],
            [
                sequence._core.written(part.layer)
                for group in sequence.plan.groups
                for part in group.components
            ],
        )
        for sequence in batch.sequences
    ]


@pytest.mark.parametrize("model", PAGED)
def test_a_ragged_batch_is_written_and_read(model: str) -> None:
    cache = make_cache(model)
    batch = open_batch(cache)
    counts = np.array([3, 0, 6])
    batch.extend(prompt(9, seed=9), counts)
    starts = batch.lengths
    for layer in paged_layers(cache):
        batch.write(layer, *ragged(batch, layer, starts, counts), counts=counts)
    for part in cache.plan.fixed:
        for sequence, length in zip(batch.sequences, starts + counts, strict=True):
            tensor = sequence.state(part.layer, part.name)
            tensor[...] = state(sequence.tokens[: int(length)], part.layer, part.name)
    batch.advance(counts)
    assert batch.lengths.tolist() == [8, 12, 7]
    for layer in paged_layers(cache):
        want = ragged(batch, layer, starts, counts)
        if any(g.window == 1 for g in cache.plan.groups for p in g.components if p.layer == layer):
            with pytest.raises(NotFoundError, match="left its window"):
                batch.read(layer, starts, counts)
            continue
        got = batch.read(layer, starts, counts)
        for g, w in zip(got, want, strict=True):
            assert np.array_equal(g, w)
        for row, sequence in enumerate(batch.sequences):
            first, last = int(starts[row]), int(starts[row]) + int(counts[row])
            if first < last:
                offset = int(counts[:row].sum())
                for g, s in zip(got, sequence.read(layer, first, last), strict=True):
                    assert np.array_equal(g[offset : offset + last - first], s)


def test_a_decode_step_in_place() -> None:
    """Kernels store rows through the block table; only C, C++ or Cython may, so ctypes here."""
    cache = make_cache("attention")
    batch = open_batch(cache)
    for step in range(9):
        batch.extend([step, step + 1, step + 2])
        batch.prepare()
        table, lengths = batch.block_table(0), batch.lengths
        want = [ragged(batch, layer, lengths, np.ones(3, int)) for layer in (0, 1)]
        for layer in (0, 1):
            for index, name in enumerate(("attention.keys", "attention.values")):
                pages = writable(cache.pages(layer, name).rows)
                pages[table[range(3), lengths // 4], lengths % 4] = want[layer][index]
        batch.advance(in_place=True)
        for layer in (0, 1):
            for got, expected in zip(
                batch.read(layer, lengths, np.ones(3, int)), want[layer], strict=True
            ):
                assert np.array_equal(got, expected)


def writable(pages: Array) -> Array:
    """The same memory as a C kernel sees it."""
    interface = dict(pages.__array_interface__, data=(pages.ctypes.data, False))
    holder = type("Holder", (), {"__array_interface__": interface, "pages": pages})()
    return np.asarray(holder)


@pytest.mark.parametrize("model", PAGED)
def test_the_table_of_a_batch_follows_its_sequences(model: str) -> None:
    cache = make_cache(model, memory="64MiB", sequences=8)
    batch = open_batch(cache)
    first, second, third = batch.sequences
    rng = np.random.default_rng(1)
    for step in range(60):
        counts = rng.integers(0, 4, 3)
        if step == 20 and not cache.plan.fixed and all(g.window == 0 for g in cache.plan.groups):
            first.truncate(3)
        if step in (10, 30):
            child = second.fork()  # its pages are shared now, and copied by one of the two
            child.extend([1])
            child.prepare(1)
        if step == 40:
            third.publish()
        batch.extend(rng.integers(0, 9, counts.sum()), counts)
        batch.prepare(counts)
        for group in range(len(cache.plan.groups)):
            table = batch.block_table(group)
            assert table is batch.block_table(group)
            filled = batch.block_table(group, np.full((3, table.shape[1]), 77, np.int32))
            assert np.array_equal(table, filled)
            for row, sequence in zip(table, batch.sequences, strict=True):
                blocks = sequence.block_table(group)
                assert np.array_equal(row[: len(blocks)], blocks)
                assert (row[len(blocks) :] == -1).all()
        batch.advance(counts, in_place=True)


def test_a_table_that_grew_leaves_the_old_one_valid() -> None:
    cache = make_cache("attention", memory="64MiB")
    batch = open_batch(cache)
    old = batch.block_table(0)
    shown = old.copy()
    with pytest.raises(ValueError, match="read-only"):
        old[0, 0] = 1
    batch.extend(np.zeros(300, int), [300, 0, 0])
    batch.prepare([300, 0, 0])
    new = batch.block_table(0)
    assert new.shape[1] > old.shape[1]
    assert np.array_equal(old, shown)
    del batch, cache
    assert np.array_equal(old, shown)


def test_prepared_pages_stay_where_they_are() -> None:
    cache = make_cache("attention")
    with cache.open(prompt(9)) as sequence:
        run(cache, sequence, [6])
        sequence.publish()
    again = cache.open(prompt(9))
    assert again.cached_tokens == 6
    shared = again.block_table(0)
    again.prepare(3)
    table = again.block_table(0)
    assert table[0] == shared[0]
    assert table[1] != shared[1]  # the tail is others' too: copied
    for layer in (0, 1):
        parts = cache.plan.paged_components(layer)
        again.write(
            layer,
            6,
            *(rows(prompt(9), layer, i, (p.heads, p.width))[6:] for i, p in enumerate(parts)),
        )
    again.advance(3)
    assert np.array_equal(again.block_table(0), table)
    for index, got in enumerate(again.read(1, 0, 9)):
        assert np.array_equal(got, rows(prompt(9), 1, index, (2, 8)))


# ---- All or nothing ---------------------------------------------------------------------------


def test_no_room_for_one_is_no_room_for_all() -> None:
    cache = make_cache("attention", capacity_blocks=8)
    batch = open_batch(cache, (5, 12, 1))  # 2 + 3 + 1 blocks
    batch.extend(prompt(16, seed=3), [4, 4, 8])
    before, pages = snapshot_of(batch), cache.stats().pages
    with pytest.raises(OutOfCapacityError, match="all 8 items are live"):
        batch.prepare([4, 4, 8])  # 1 + 1 + 2 more
    assert snapshot_of(batch) == before
    assert cache.stats().pages == pages
    keys = np.ones((16, 2, 8), np.float16)
    with pytest.raises(OutOfCapacityError):
        batch.write(0, keys, keys, counts=[4, 4, 8])
    assert snapshot_of(batch) == before
    batch.prepare([4, 4, 0])
    assert cache.stats().pages == 8


def test_no_room_leaves_shared_tails_shared() -> None:
    cache = make_cache("attention", capacity_blocks=3)
    parent = open_batch(cache, (6,)).sequences[0]
    batch = kvcache.Batch([parent.fork(), parent.fork()])
    batch.extend([1, 2])
    before = snapshot_of(batch)
    with pytest.raises(OutOfCapacityError):
        batch.prepare()  # each needs a copy of the tail, and there is one page
    assert snapshot_of(batch) == before
    assert cache.stats().pages == 2


def test_a_row_that_is_not_finite_takes_all_back() -> None:
    cache = make_cache("int8")
    batch = open_batch(cache)
    batch.extend([1, 2, 3])
    before = [sequence._core.written(0) for sequence in batch.sequences]
    keys = np.ones((3, 2, 8), np.float16)
    keys[1, 0, 0] = np.inf
    with pytest.raises(NonFiniteError, match=r"^sequences\[1\]: "):
        batch.write(0, keys, np.ones_like(keys))
    assert [sequence._core.written(0) for sequence in batch.sequences] == before
    with pytest.raises(InvalidArgumentError, match="written up to"):
        batch.advance()


def test_one_wrong_sequence_stops_the_call() -> None:
    cache = make_cache("attention")
    batch = open_batch(cache)
    before = snapshot_of(batch)
    with pytest.raises(InvalidArgumentError, match=r"sequences\[0\].*passes the 5 known tokens"):
        batch.prepare()
    batch.extend([1], [0, 1, 0])
    with pytest.raises(InvalidArgumentError, match=r"sequences\[0\].*passes"):
        batch.advance()
    with pytest.raises(InvalidArgumentError, match=r"sequences\[1\].*written up to 12 only"):
        batch.advance([0, 1, 0])
    with pytest.raises(InvalidArgumentError, match=r"sequences\[1\].*prepare\(\) them first"):
        batch.advance([0, 1, 0], in_place=True)
    keys = np.ones((2, 2, 8), np.float16)
    with pytest.raises(InvalidArgumentError, match=r"sequences\[2\].*only 1 tokens are known"):
        batch.write(0, keys, keys, counts=[0, 1, 1])
    assert [s[0] for s in snapshot_of(batch)] == [s[0] for s in before]
    session = batch.sequences[2]
    session.extend([4])
    verify = session.begin_verify([5])
    with pytest.raises(InvalidArgumentError, match=r"sequences\[2\]: extend: a verify session"):
        batch.extend([1, 2, 3])
    assert batch.block_table(0).shape[0] == 3  # reading is fine
    verify.rollback()
    session.close()
    for call in (batch.prepare, batch.advance, lambda: batch.block_table(0), lambda: batch.lengths):
        with pytest.raises(InvalidArgumentError, match=r"sequences\[2\]: the sequence is closed"):
            call()


def test_what_a_batch_is_made_of() -> None:
    cache = make_cache("attention")
    a, b = cache.open([1]), cache.open([2])
    other = make_cache("attention").open([1])
    with pytest.raises(InvalidArgumentError, match="at least one"):
        kvcache.Batch([])
    with pytest.raises(
        InvalidArgumentError, match=r"sequences\[0\] and sequences\[2\] are the same"
    ):
        kvcache.Batch([a, b, a])
    with pytest.raises(InvalidArgumentError, match=r"sequences\[1\] is of another cache"):
        kvcache.Batch([a, other])
    with pytest.raises(InvalidArgumentError, match="expected a Sequence, got int"):
        kvcache.Batch([a, 3])
    with pytest.raises(InvalidArgumentError, match="expected a list of Sequence, got Sequence"):
        kvcache.Batch(a)
    b.close()
    with pytest.raises(InvalidArgumentError, match=r"sequences\[1\]: the sequence is closed"):
        kvcache.Batch([a, b])


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([1, 1], "counts: 2 numbers for 3 sequences"),
        ([1, 1, 3], "counts add up to 5"),
        ([1, 1, 0], "counts add up to 2"),
        ([-1, 2, 2], "counts: must not be negative, got -1"),
        (np.array([2**63, 1, 1], np.uint64), r"counts: must be below 2\*\*63"),
        ([0.5, 1, 1.5], "counts: expected one axis of integers"),
        (3, "counts: expected one axis of integers"),
        (object(), "counts: expected one axis of integers"),
    ],
)
def test_wrong_counts(counts: Any, message: str) -> None:
    batch = open_batch(make_cache("attention"))
    before = snapshot_of(batch)
    with pytest.raises(InvalidArgumentError, match=message):
        batch.extend([1, 2, 3], counts)
    assert snapshot_of(batch) == before


def test_wrong_rows_starts_and_tables() -> None:
    cache = make_cache("attention")
    batch = open_batch(cache)
    batch.extend([1, 2, 3])
    keys = np.ones((3, 2, 8), np.float16)
    for arrays, options, message in [
        ((keys,), {}, "2 components"),
        ((keys[:2], keys[:2]), {}, "rows: 2 given, but counts add up to 3"),
        ((keys[:, :1], keys), {}, r"expected \[3, 2, 8\]"),
        ((keys, keys), {"starts": [0, 0]}, "starts: 2 numbers for 3"),
        ((keys, keys), {"starts": [2**62, 0, 0]}, r"sequences\[0\].*writes may start at 5"),
        ((keys, keys), {"starts": [5, 0, 0]}, r"sequences\[1\].*writes may start at 12"),
    ]:
        with pytest.raises(InvalidArgumentError, match=message):
            batch.write(0, *arrays, **options)
    with pytest.raises(InvalidArgumentError, match="layer 5 keeps no pages"):
        batch.write(5, keys, keys)
    with pytest.raises(InvalidArgumentError, match=r"sequences\[0\]: positions \[0, 6\)"):
        batch.read(0, [0, 0, 0], [6, 1, 1])
    with pytest.raises(InvalidArgumentError, match="starts: 1 numbers"):
        batch.read(0, [0], [1, 1, 1])
    with pytest.raises(InvalidArgumentError, match="dtype: expected"):
        batch.read(0, [0, 0, 0], [1, 1, 1], "int8")
    with pytest.raises(InvalidArgumentError, match="the plan has 1 groups"):
        batch.block_table(1)
    with pytest.raises(InvalidArgumentError, match=r"sequences\[1\] has 3 blocks, .* 2 columns"):
        batch.block_table(0, np.zeros((3, 2), np.int32))
    for out in (np.zeros((3, 9)), np.zeros((2, 9), np.int32), np.zeros((9, 3), np.int32).T, [[1]]):
        with pytest.raises(InvalidArgumentError, match="contiguous int32 array"):
            batch.block_table(0, out)


def test_a_ledger_advances_by_batches() -> None:
    cache = make_cache("sliding", backing=False)
    batch = kvcache.Batch([cache.open(prompt(30, 1)), cache.open(prompt(40, 2))])
    for _ in range(5):
        batch.advance([6, 8])
    assert batch.lengths.tolist() == [30, 40]
    one = cache.open(prompt(30, 3))
    for _ in range(5):
        one.advance(6)
    for group in range(2):
        holes = one.block_table(group) == -1
        assert np.array_equal(batch.block_table(group)[0, :8] == -1, holes)
    keys = np.ones((2, 2, 8), np.float16)
    with pytest.raises(UnsupportedError, match="ledger"):
        batch.write(0, keys, keys)


# ---- Several layers ---------------------------------------------------------------------------


def test_layers_are_written_and_read_by_one_call() -> None:
    cache = make_cache("hybrid with windows")
    tokens = prompt(6)
    sequence = cache.open(tokens)
    arrays = {
        layer: [rows(tokens, layer, index, (2, 8)) for index in range(2)]
        for layer in paged_layers(cache)
    }
    sequence.write_layers(0, arrays)
    sequence.advance(6)
    got = sequence.read_layers(arrays, 0, 6)
    assert list(got) == list(arrays)
    for layer, want in arrays.items():
        assert all(map(np.array_equal, got[layer], want))
        assert all(map(np.array_equal, sequence.read(layer, 0, 6), want))


def test_layers_fail_together() -> None:
    cache = make_cache("int8", capacity_blocks=1)
    sequence = cache.open(prompt(9))
    good = np.ones((4, 2, 8), np.float16)
    bad = good.copy()
    bad[2, 0, 0] = np.nan
    with pytest.raises(NonFiniteError):
        sequence.write_layers(0, {0: (good, good), 1: (good, bad)})
    assert [sequence._core.written(layer) for layer in (0, 1)] == [0, 0]
    longer = np.ones((9, 2, 8), np.float16)
    with pytest.raises(OutOfCapacityError):
        sequence.write_layers(0, {0: (longer, longer), 1: (longer, longer)})
    for layers, message in [
        ({0: (good, good), 7: (good, good)}, "layer 7 keeps no pages"),
        ({0: (good, good), 1: (longer, longer)}, "layer 1: 9 rows, but layer 0 has 4"),
        ({0: (good,)}, "2 components"),
        ({-1: (good, good)}, "layer: must be 0"),
        ([good], r"layers: expected \{layer"),
        (3, r"layers: expected \{layer"),
    ]:
        with pytest.raises(InvalidArgumentError, match=message):
            sequence.write_layers(0, layers)
    assert [sequence._core.written(layer) for layer in (0, 1)] == [0, 0]
    sequence.write_layers(0, {})
    with pytest.raises(InvalidArgumentError, match=r"positions \[0, 1\) of layer 1"):
        sequence.read_layers([1], 0, 1)


# ---- Threads ----------------------------------------------------------------------------------


def test_batches_with_common_sequences_do_not_wait_in_a_circle() -> None:
    cache = make_cache("attention", memory="64MiB", sequences=8)
    sequences = [cache.open([seed]) for seed in range(6)]
    orders = [sequences, sequences[::-1], sequences[::2] + sequences[1::2]]
    errors: list[BaseException] = []

    def advance(members: list[kvcache.Sequence]) -> None:
        try:
            batch = kvcache.Batch(members)
            for _ in range(200):
                batch.extend(np.zeros(6, np.int32))
                batch.prepare()
                batch.block_table(0)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=advance, args=(order,), daemon=True) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not errors
    assert [len(sequence.tokens) for sequence in sequences] == [601] * 6
