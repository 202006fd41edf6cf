"""Batched verifies by replay and carry, handed over or stored by kernels that go by a table."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.recurrences import CONV, LAYERS, NUMPY, GatedDeltaNet, H, Inputs, Layer, States
from support.speculation import Oracle, attention_rows, cache_of, decode, make_layers, stacked

import kvcache
from kvcache import (
    Batch,
    BatchVerifySession,
    Cache,
    CacheInputs,
    CarryTable,
    DType,
    InvalidArgumentError,
    NotFoundError,
    StatePlan,
    UnsupportedError,
    VerifyTable,
    cache_terms,
    declare_caches,
)

Array = NDArray[Any]
STASH_ROWS = 8


def at(address: Any, dtype: Any, *shape: int) -> Array:
    """Memory by its address, as a kernel sees it."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(int(address)), dtype).reshape(shape)


def started(size: int, dtype: DType = DType.F32) -> tuple[Cache, Batch, list[Oracle]]:
    layers = make_layers(dtype)
    cache = cache_of(layers, sequences=size + 1, stash_rows=STASH_ROWS)
    sequences, oracles = [], []
    for i in range(size):
        sequence = cache.open([i])
        sequence.truncate(0)
        oracle = Oracle(layers)
        for token in range(i + 1):
            decode(sequence, layers, token)
            oracle.step(token)
        sequences.append(sequence)
        oracles.append(oracle)
    return cache, Batch(sequences), oracles


def rows_from(layer: Layer, states: States, tokens: Any) -> list[Inputs]:
    inputs = []
    for token in tokens:
        inputs.append(layer.inputs(states, int(token)))
        layer.advance(states, inputs[-1])
    return inputs


def tokens_of(session: BatchVerifySession, i: int) -> Array:
    return session.tokens[session.offsets[i] : session.offsets[i + 1]]


def hand_over(session: BatchVerifySession, layer: Layer) -> None:
    names = [name for name, _, _ in layer.tensors()]
    inputs = []
    for i in range(len(session)):
        base = {name: session.live(i, layer.layer, name).copy() for name in names}
        for name in names:
            pending = session.pending(i, layer.layer, name)
            if pending.rows is not None:
                kvcache.append_rows(base[name], np.ascontiguousarray(pending.rows))
            else:
                kvcache.fold(base[name], pending.gate, pending.left, pending.right)
        inputs += rows_from(layer, base, tokens_of(session, i))
    for name in names:
        session.stash(layer.layer, name, **stacked(inputs, name))


def fill_states(session: BatchVerifySession, layer: Layer) -> None:
    for i in range(len(session)):
        for row, token in enumerate(tokens_of(session, i)):
            states = {
                name: session.state(i, row, layer.layer, name) for name, _, _ in layer.tensors()
            }
            layer.advance(states, layer.inputs(states, int(token)))


def kernel(session: BatchVerifySession, table: CarryTable, layer: Layer) -> None:
    """Reads addresses alone, stores inputs behind those that wait, and sets the flag."""
    for i in range(len(session)):
        tensors, base = {}, {}
        for name, shape, gate in layer.tensors():
            offsets = table.offsets(layer.layer, name)
            stash = int(table.stashes(layer.layer)[i])
            count = int(at(stash + offsets.pending, np.uint32, 1)[0])
            widths = {"rows": (offsets.right, NUMPY[layer.dtype], shape[1:])}
            if gate is not None:
                axes = {"head": 1, "channel": 2, "element": 3}[gate.value]
                gates = shape[:axes] if len(shape) == 3 else shape
                right = (*shape[:-2], shape[-1])
                widths = {
                    "gate": (offsets.gate, np.float32, gates),
                    "left": (offsets.left, np.float32, shape[:-1] or (1,)),
                    "right": (offsets.right, np.float32, right),
                }
            tensors[name] = (
                count,
                {
                    key: at(stash + offset, dtype, STASH_ROWS, *width)
                    for key, (offset, dtype, width) in widths.items()
                },
            )
            live = int(table.live(layer.layer, name)[i])
            base[name] = at(live, NUMPY[layer.dtype], *shape).copy()
            old = {key: rows[:count].copy() for key, rows in tensors[name][1].items()}
            for row in range(count):
                layer.advance(base, {name: {key: rows[row] for key, rows in old.items()}})
        inputs = rows_from(layer, base, tokens_of(session, i))
        for name, (count, regions) in tensors.items():
            new = stacked(inputs, name)
            for key, region in regions.items():
                rows = new.get(key, np.ones((len(inputs), 1), np.float32))  # no left: ones
                if key in ("left", "right") and region.ndim == 3:
                    rows = np.repeat(rows, region.shape[1] // rows.shape[1], axis=1)
                region[count : count + len(inputs)] = rows
        table.engaged(layer.layer)[i] = 1


def write_attention(session: BatchVerifySession) -> None:
    rows = attention_rows(session.tokens, session.positions)
    session.write(len(LAYERS), rows, rows)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
@pytest.mark.parametrize("strategy", ["steps", "replay", "carry"])
def test_batches_equal_sequential_decoding(strategy: str, dtype: DType) -> None:
    rng = np.random.default_rng(4)
    cache, batch, oracles = started(3, dtype)
    table = CarryTable(cache.plan, 5)
    for _ in range(25):
        counts = rng.integers(0, STASH_ROWS - 1, len(batch))
        tokens = [rng.integers(0, 64, count + 1) for count in counts]
        batch.extend(np.array([own[0] for own in tokens], np.int32))
        options: dict[str, Any] = {"strategy": strategy}
        if strategy != "steps" and rng.integers(3):
            options["carry"] = table
        drafts = np.concatenate([own[1:] for own in tokens])
        with batch.begin_verify(drafts, counts, **options) as session:
            assert session.strategy == strategy
            assert table.is_staged == ("carry" in options)
            for layer in oracles[0].layers:
                way = rng.integers(4) if strategy != "steps" else 3
                if way == 3:
                    fill_states(session, layer)
                elif way == 2 or "carry" not in options:
                    hand_over(session, layer)
                else:
                    kernel(session, table, layer)
            write_attention(session)
            accepted = [int(rng.integers(0, count + 2)) for count in counts]
            if rng.integers(5):
                session.commit(accepted)
            else:
                accepted = [0] * len(batch)
        for sequence, oracle, own, kept in zip(
            batch.sequences, oracles, tokens, accepted, strict=True
        ):
            for token in own[:kept]:
                oracle.step(int(token))
            if kept == 0:
                sequence.truncate(sequence.length)
            if rng.integers(4) == 0:
                oracle.check(sequence)
        assert not table.is_staged
    for sequence, oracle in zip(batch.sequences, oracles, strict=True):
        oracle.check(sequence)


def test_a_table_is_zero_but_while_it_is_staged_and_never_moves() -> None:
    cache, batch, _ = started(2)
    table = CarryTable(cache.plan, 4)
    live, stashes, flags = table.live(0, H), table.stashes(0), table.engaged(0)
    assert not live.any()
    batch.extend([1, 2])
    with batch.begin_verify([], [0, 0], strategy="carry", carry=table) as session:
        assert live[:2].all()
        assert stashes[:2].all()
        assert not live[2:].any()
        assert live.ctypes.data == table.live(0, H).ctypes.data
        shown = at(live[1], np.float32, *GatedDeltaNet(0, DType.F32, 0).tensors()[1][1])
        np.testing.assert_array_equal(shown, session.live(1, 0, H))
        flags[:] = 1
        with pytest.raises(InvalidArgumentError, match="staged by a session that is open"):
            started_with(cache, table)
    assert not live.any()
    assert not stashes.any()
    assert not flags.any()
    with pytest.raises(ValueError, match="read-only"):
        live[0] = 1


def started_with(cache: Cache, table: CarryTable) -> None:
    with cache.open([9]) as sequence:
        Batch([sequence]).begin_verify([], [0], strategy="carry", carry=table)


def test_bytes_are_those_of_the_state_kind() -> None:
    plan = StatePlan(
        GatedDeltaNet(0, DType.F32, 0).declarations(), memory="1MiB", sequences=2, stash_rows=8
    )
    caches = declare_caches(plan.declarations, hidden_size=8)
    terms = cache_terms(caches, CacheInputs(carry=(0, 128)))
    carried = [t for t in terms if t.kind.value == "carry_table" and t.state.startswith("l0.")]
    assert sum(term.bytes for term in carried) == CarryTable(plan, 128).nbytes == 128 * 28


def test_what_does_not_fit_is_refused() -> None:
    cache, batch, _ = started(2)
    plan = cache.plan
    for rows in (0, 2**20 + 1, -1):
        with pytest.raises(InvalidArgumentError, match="batch_rows"):
            CarryTable(plan, rows)
    with pytest.raises(InvalidArgumentError, match="no carry stash"):
        CarryTable(cache_of(make_layers(), stash_rows=0).plan)
    with pytest.raises(InvalidArgumentError, match="plan: expected"):
        CarryTable(3)  # type: ignore[arg-type]
    table = CarryTable(plan, 1)
    batch.extend([1, 2])
    with pytest.raises(InvalidArgumentError, match="raise its batch_rows"):
        batch.begin_verify([], [0, 0], strategy="carry", carry=table)
    table = CarryTable(plan)
    assert repr(table) == "<CarryTable for 128 sequences>"
    with pytest.raises(InvalidArgumentError, match="the strategy is steps"):
        batch.begin_verify([], [0, 0], carry=table)
    with pytest.raises(InvalidArgumentError, match="carry: expected"):
        batch.begin_verify([], [0, 0], strategy="carry", carry=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="strategy: expected"):
        batch.begin_verify([], [0, 0], strategy="lazy")
    other = CarryTable(cache_of(make_layers(), stash_rows=3).plan)
    with pytest.raises(InvalidArgumentError, match="of another plan"):
        batch.begin_verify([], [0, 0], strategy="carry", carry=other)
    with pytest.raises(InvalidArgumentError, match=r"1.*9 rows, the carry stash holds 8"):
        batch.begin_verify([0] * 8, [0, 8], strategy="replay")
    for call in (
        lambda: table.live(0, "state.other"),
        lambda: table.live(len(LAYERS), H),
        lambda: table.stashes(99),
        lambda: table.engaged(99),
        lambda: table.offsets(99, H),
        lambda: table.offsets(0, "state.other"),
    ):
        with pytest.raises(NotFoundError, match="carry table"):
            call()
    assert not table.is_staged
    cache = cache_of(make_layers(), stash_rows=8, backing=False)
    with cache.open([1]) as sequence, pytest.raises(UnsupportedError, match="ledger"):
        Batch([sequence]).begin_verify([], [0], strategy="carry", carry=CarryTable(cache.plan))


def test_inputs_of_a_batch_are_checked() -> None:
    _, batch, _ = started(2)
    batch.extend([1, 2])
    good = {
        "gate": np.ones((3, 6), np.float32),
        "left": np.ones((3, 2, 5), np.float32),
        "right": np.ones((3, 6, 7), np.float32),
    }
    with batch.begin_verify([5], [1, 0], strategy="carry") as session:
        session.stash(0, H, **good)
        with pytest.raises(InvalidArgumentError, match="has 3 rows, got 2"):
            session.stash(0, H, **(good | {"left": good["left"][:2]}))
        with pytest.raises(InvalidArgumentError, match="right must be"):
            session.stash(0, H, **(good | {"right": good["left"]}))
        with pytest.raises(InvalidArgumentError, match="and nothing else"):
            session.stash(0, CONV + "0", **good)
        with pytest.raises(InvalidArgumentError, match=r"sequences 0\.\.1, got 2"):
            session.live(2, 0, H)
        with pytest.raises(InvalidArgumentError, match=r"sequences 0\.\.1, got 2"):
            session.pending(2, 0, H)
        with pytest.raises(NotFoundError):
            session.live(0, 0, "state.other")
    for call in (
        lambda: session.live(0, 0, H),
        lambda: session.pending(0, 0, H),
        lambda: session.stash(0, H, **good),
    ):
        with pytest.raises(InvalidArgumentError, match="ended"):
            call()


def test_both_tables_serve_layers_that_engage_and_layers_that_decline() -> None:
    cache, batch, oracles = started(2)
    carry, steps = CarryTable(cache.plan), VerifyTable(cache.plan)
    batch.extend([1, 2])
    layers = oracles[0].layers
    with batch.begin_verify([3, 4], [2, 0], table=steps, strategy="carry", carry=carry) as session:
        for layer in layers[1:]:
            kernel(session, carry, layer)
        for i in range(2):
            tensors = layers[0].tensors()
            previous = {
                name: at(steps.pointers(0, name)[0, i], np.float32, *shape)
                for name, shape, _ in tensors
            }
            for row, token in enumerate(tokens_of(session, i)):
                after = {
                    name: at(steps.pointers(0, name)[row + 1, i], np.float32, *shape)
                    for name, shape, _ in tensors
                }
                for name in after:
                    after[name][:] = previous[name]
                layers[0].advance(after, layers[0].inputs(after, int(token)))
                previous = after
        write_attention(session)
        session.commit([2, 1])
    for token in (1, 3):
        oracles[0].step(token)
    oracles[1].step(2)
    for sequence, oracle in zip(batch.sequences, oracles, strict=True):
        oracle.check(sequence)
