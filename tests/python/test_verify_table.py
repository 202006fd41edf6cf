"""Verify tables: what a kernel finds at their addresses, and what it leaves there."""

from __future__ import annotations

import ctypes
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.tiny_model import (
    CONV,
    DELTA,
    FULL,
    RECURRENT,
    SLIDING,
    BatchStore,
    Part,
    Reference,
    TinyModel,
    assert_equals,
    feed,
)

import kvcache
from kvcache import (
    Batch,
    InvalidArgumentError,
    NotFoundError,
    TokenTree,
    VerifyRule,
    VerifyTable,
)

NAMES = (CONV, RECURRENT)
Array = NDArray[Any]


def at_address(address: int, like: Array) -> Array:
    """A tensor where a kernel finds it."""
    memory = (ctypes.c_char * like.nbytes).from_address(address)
    return np.frombuffer(memory, like.dtype).reshape(like.shape)


def writable(array: Array) -> Array:
    """The same memory to a kernel, which no flag of numpy stops."""
    holder = type("Memory", (), {})()
    interface = dict(array.__array_interface__)
    holder.__array_interface__ = interface | {"data": (interface["data"][0], False)}
    return np.asarray(holder)


class KernelStore(BatchStore):
    """Reads state through the table and stores rows in the pages: calls nothing of the session."""

    def __init__(
        self, session: Any, index: int, table: VerifyTable, cache: Any, tree: TokenTree
    ) -> None:
        super().__init__(session, index)
        self.table, self.cache, self.tree = table, cache, tree
        self.begun: set[tuple[int, str]] = set()

    def state(self, row: int, layer: int, name: str) -> Array:
        [part] = [p for p in self.sequence.plan.fixed if (p.layer, p.name) == (layer, name)]
        like = np.empty(part.shape, np.float32)
        pointers = self.table.pointers(layer, name)[:, self.index]
        state = at_address(int(pointers[row + 1]), like)
        if (row, name) not in self.begun:
            self.begun.add((row, name))
            state[...] = at_address(int(pointers[self.tree.parents[row] + 1]), like)
        return state

    def read(self, layer: int, start: int, stop: int) -> tuple[Array, Array]:
        block, row = np.divmod(np.arange(start, stop), self.sequence.plan.block_tokens)
        found = []
        for part in self.sequence.plan.paged_components(layer):
            memory = self.cache.pages(layer, part.component)
            pages = self.session.block_table(memory.group)[self.index][block]
            found.append(memory.rows[pages, row].astype(np.float32))
        return found[0], found[1]

    def store(self, layer: int, parts: tuple[Array, Array]) -> None:
        start = int(self.session.starts[self.index])
        positions = np.arange(start, start + len(parts[0]))
        block, row = np.divmod(positions, self.sequence.plan.block_tokens)
        for part, rows in zip(self.sequence.plan.paged_components(layer), parts, strict=True):
            memory = self.cache.pages(layer, part.component)
            pages = self.session.block_table(memory.group)[self.index][block]
            writable(memory.rows)[pages, row] = rows.astype(np.float16)


def started(model: TinyModel, size: int) -> tuple[Any, Batch, list[Reference]]:
    cache, sequences, references = model.cache(memory="4MiB"), [], []
    for index in range(size):
        prompt = [index, *range(2 + index)]
        reference = Reference(model)
        pick = [reference.step(token) for token in prompt][-1]
        for _ in range(30):
            pick = reference.step(pick)
        sequence = cache.open(prompt)
        sequence.extend([feed(model, sequence, [])])
        sequences.append(sequence)
        references.append(reference)
    return cache, Batch(sequences), references


def test_a_kernel_that_knows_tables_alone_equals_sequential_decoding() -> None:
    model = TinyModel((DELTA, FULL, SLIDING))
    cache, batch, references = started(model, 3)
    table = VerifyTable(cache.plan, batch_rows=4, tables=7)
    trees = [TokenTree.linear(3), TokenTree([-1, 0, 0, 1, 2]), TokenTree([-1])]
    addresses = [table.pointers(DELTA, name).ctypes.data for name in NAMES]
    accepted = []
    for turn in range(6):
        drafts: list[int] = []
        for tree, reference, length in zip(trees, references, batch.lengths, strict=True):
            right = reference.tokens[length + 1 : length + 1 + tree.depth]
            drafts += [
                right[depth - 1] if node % 2 == turn % 2 else 0
                for node, depth in enumerate(tree.depths.tolist())
                if node
            ]
        counts, parents = [t.nodes - 1 for t in trees], np.concatenate([t.parents for t in trees])
        with batch.begin_verify(drafts, counts, parents, table=table) as session:
            assert table.is_staged
            tokens = np.split(session.tokens, session.offsets[1:-1])
            stores = [KernelStore(session, i, table, cache, tree) for i, tree in enumerate(trees)]
            parts = [
                Part(own, int(start), store, tree)
                for own, start, store, tree in zip(
                    tokens, session.starts, stores, trees, strict=True
                )
            ]

            def write(
                layer: int, keys: list[Array], values: list[Array], stores: Any = stores
            ) -> None:
                for store, *rows in zip(stores, keys, values, strict=True):
                    store.store(layer, rows)

            picks = model.run_all(parts, write)
            verdicts = [t.accept(own, p) for t, own, p in zip(trees, tokens, picks, strict=True)]
            session.commit([path for path, _ in verdicts], in_place=True)
        assert not table.is_staged
        batch.extend([bonus for _, bonus in verdicts])
        accepted += [len(path) for path, _ in verdicts]
        for sequence, reference in zip(batch.sequences, references, strict=True):
            assert_equals(sequence, reference)
        trees = trees[1:] + trees[:1]
    assert max(accepted) == 3
    assert [table.pointers(DELTA, name).ctypes.data for name in NAMES] == addresses


def test_entries_are_the_slots_of_rows_and_zero_elsewhere() -> None:
    model = TinyModel((DELTA, FULL))
    cache, batch, _ = started(model, 3)
    table = VerifyTable(cache.plan, batch_rows=5, tables=6)
    live = {n: [s.state(DELTA, n).ctypes.data for s in batch.sequences] for n in NAMES}
    for end in ("commit", "rollback", "close"):
        session = batch.begin_verify([1, 2, 3, 4], [3, 0, 1], table=table)
        for name in NAMES:
            pointers = table.pointers(DELTA, name)
            assert pointers.shape == (6, 5)
            expected = np.zeros((6, 5), np.uint64)
            expected[0, :3] = live[name]
            for i, rows in enumerate((4, 1, 2)):
                for row in range(rows):
                    expected[row + 1, i] = session.state(i, row, DELTA, name).ctypes.data
            np.testing.assert_array_equal(pointers, expected)
            assert not pointers.flags.writeable
        if end == "commit":
            rows = np.zeros((7, 2, 6), np.float32)
            session.write(FULL, rows, rows)
            session.commit([1, 1, 1])
            batch.extend([1, 1, 1])
        elif end == "rollback":
            session.rollback()
        else:
            batch.sequences[0].close()
            session.rollback()
        assert not table.is_staged
        assert not any(table.pointers(DELTA, name).any() for name in NAMES)


def test_a_table_takes_what_the_sizing_law_says() -> None:
    plan = TinyModel((DELTA,)).cache().plan
    for rows in (1, 128):
        inputs = kvcache.CacheInputs(verify_table_rows=rows)
        states = [
            replace(d, verify=VerifyRule.H_STEPS if d.component == RECURRENT else d.verify)
            for d in TinyModel((DELTA,)).declarations()
        ]
        decls = kvcache.declare_caches(states, hidden_size=8)
        [term] = [t for t in kvcache.cache_terms(decls, inputs) if "verify.pointers" in t.state]
        table = VerifyTable(plan, batch_rows=rows)
        assert table.tables == 16
        # The law knows one table a layer, of its recurrent state; ours has one a tensor.
        assert table.pointers(DELTA, RECURRENT).nbytes == term.bytes
        assert table.nbytes == len(plan.fixed) * term.bytes


def test_a_table_that_does_not_fit_changes_nothing() -> None:
    model = TinyModel((DELTA, FULL))
    cache, batch, _ = started(model, 3)
    before = cache.stats().used_bytes
    other = VerifyTable(TinyModel((DELTA, DELTA)[:1], window=3).cache().plan)
    for table, match in (
        (VerifyTable(cache.plan, batch_rows=2), "a batch of 3 sequences, .* room for 2"),
        (VerifyTable(cache.plan, tables=4), "4 rows of one sequence .* has 4; raise its tables"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            batch.begin_verify([1] * 5, [1, 3, 1], table=table)
        assert not table.is_staged
        assert cache.stats().used_bytes == before
    with batch.begin_verify([1] * 5, [1, 3, 1], table=other):
        pass  # another cache, but the same places
    elsewhere = kvcache.Cache(
        kvcache.StatePlan([*model.declarations()[:1]], memory="1MiB", sequences=2)
    )
    with pytest.raises(InvalidArgumentError, match="of another plan"):
        batch.begin_verify([1] * 3, table=VerifyTable(elsewhere.plan))
    table = VerifyTable(cache.plan)
    alone = Batch(batch.sequences[:1])
    rest = Batch(batch.sequences[1:])
    with alone.begin_verify([1], table=table):
        with pytest.raises(InvalidArgumentError, match="staged by a session that is open"):
            rest.begin_verify([1, 1], table=table)
        assert table.pointers(DELTA, CONV)[0, 0] != 0
    with rest.begin_verify([1, 1], table=table):
        assert table.is_staged
    assert cache.stats().used_bytes == before


def test_wrong_arguments() -> None:
    plan = TinyModel((DELTA, FULL)).cache().plan
    for options in (
        {"batch_rows": 0},
        {"tables": 1},
        {"batch_rows": 2**40},
        {"tables": 2**62},
        {"batch_rows": 2**63 - 1, "tables": 2**63 - 1},
        {"batch_rows": 1.5},
        {"tables": -1},
    ):
        with pytest.raises(InvalidArgumentError):
            VerifyTable(plan, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="no fixed-size state"):
        VerifyTable(TinyModel((FULL,)).cache().plan)
    with pytest.raises(InvalidArgumentError, match="plan: expected a StatePlan"):
        VerifyTable(3)  # type: ignore[arg-type]
    table = VerifyTable(plan, 8, 4)
    with pytest.raises(NotFoundError, match=r"layer 0 keeps no tensor 'h'; it has state\."):
        table.pointers(DELTA, "h")
    with pytest.raises(NotFoundError, match="layer 9"):
        table.pointers(9, CONV)
    with pytest.raises(InvalidArgumentError):
        table.pointers(-1, CONV)
    assert repr(table) == "<VerifyTable of 4 tables for 8 sequences>"
    assert table.nbytes == 8 * 4 * 8 * 2


def test_pointers_outlive_the_table() -> None:
    plan = TinyModel((DELTA,)).cache().plan
    pointers = VerifyTable(plan).pointers(DELTA, CONV)
    assert pointers.size == math.prod((16, 128))
    assert not pointers.any()
