"""Sequences of the recurrent reference models: decoded, and verified by any strategy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.declarations import paged
from support.recurrences import LAYERS, Inputs, Layer, States

import kvcache
from kvcache import Cache, DType, Sequence, StatePlan, VerifySession

Array = NDArray[Any]
KEYS = "attention.keys"


def make_layers(dtype: DType = DType.F32, seed: int = 0) -> list[Layer]:
    return [kind(index, dtype, seed) for index, kind in enumerate(LAYERS)]


def cache_of(layers: list[Layer], *, stash_rows: int = 8, extra: Any = (), **options: Any) -> Cache:
    decls = [decl for layer in layers for decl in layer.declarations()]
    attention = [paged(len(LAYERS), KEYS, 1, 4), paged(len(LAYERS), "attention.values", 1, 4)]
    plan = StatePlan(
        [*decls, *attention, *extra],
        memory=options.pop("memory", "8MiB"),
        block_tokens=4,
        sequences=options.pop("sequences", 4),
        ring_depth=2,
        stash_rows=stash_rows,
    )
    return Cache(plan, **options)


class Oracle:
    """Every state there was, from decoding one token after the other."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers
        self.tokens: list[int] = []
        self.after: list[list[States]] = [[layer.zeros() for layer in layers]]

    def step(self, token: int) -> None:
        states = [{name: x.copy() for name, x in s.items()} for s in self.after[-1]]
        for layer, state in zip(self.layers, states, strict=True):
            layer.advance(state, layer.inputs(state, token))
        self.tokens.append(token)
        self.after.append(states)

    def truncate(self, position: int) -> None:
        del self.tokens[position:], self.after[position + 1 :]

    def fork(self) -> Oracle:
        other = Oracle(self.layers)
        other.tokens, other.after = self.tokens.copy(), self.after.copy()
        return other

    def check(self, sequence: Sequence) -> None:
        assert sequence.length == len(self.tokens)
        assert sequence.tokens[: sequence.length].tolist() == self.tokens
        for layer, states in zip(self.layers, self.after[-1], strict=True):
            for name, expected in states.items():
                found = sequence.state(layer.layer, name)
                assert found.tobytes() == expected.tobytes(), (type(layer).__name__, name)
        keys, _ = sequence.read(len(LAYERS), 0, sequence.length)
        np.testing.assert_array_equal(keys, attention_rows(self.tokens, range(len(self.tokens))))


def attention_rows(tokens: Any, positions: Any) -> Array:
    pairs = [[token, position] * 2 for token, position in zip(tokens, positions, strict=True)]
    return np.array(pairs, np.float16).reshape(-1, 1, 4)


def decode(sequence: Sequence, layers: list[Layer], token: int) -> None:
    """One token, without a session."""
    sequence.extend([token])
    for layer in layers:
        states = {name: sequence.state(layer.layer, name) for name, _, _ in layer.tensors()}
        layer.advance(states, layer.inputs(states, token))
    rows = attention_rows([token], [sequence.length])
    sequence.write(len(LAYERS), sequence.length, rows, rows)
    sequence.advance(1)


def stacked(inputs: list[Inputs], name: str) -> dict[str, Array]:
    keys = inputs[0][name]
    return {key: np.stack([row[name][key] for row in inputs]) for key in keys}


def run_layer(
    session: VerifySession, layer: Layer, parents: list[int], *, stash: bool
) -> list[Inputs]:
    """Run all rows of one layer, keeping inputs or filling the state after each."""
    names = [name for name, _, _ in layer.tensors()]
    tokens = session.tokens.tolist()
    if not stash:
        for row, token in enumerate(tokens):
            states = {name: session.state(row, layer.layer, name) for name in names}
            layer.advance(states, layer.inputs(states, token))
        return []
    base = {name: session.live(layer.layer, name).copy() for name in names}
    for name in names:
        pending = session.pending(layer.layer, name)
        if pending.rows is not None:
            kvcache.append_rows(base[name], np.ascontiguousarray(pending.rows))
        else:
            kvcache.fold(base[name], pending.gate, pending.left, pending.right)
    after: list[States] = []
    inputs: list[Inputs] = []
    for row, token in enumerate(tokens):
        states = base if row == 0 else after[parents[row]]
        states = {name: tensor.copy() for name, tensor in states.items()}
        inputs.append(layer.inputs(states, token))
        layer.advance(states, inputs[-1])
        after.append(states)
    for name in names:
        session.stash(layer.layer, name, **stacked(inputs, name))
    return inputs


def run(
    session: VerifySession,
    layers: list[Layer],
    parents: list[int] | None = None,
    declined: Any = (),
) -> None:
    parents = parents or list(range(-1, session.rows - 1))
    for layer in layers:
        stash = session.strategy != "steps" and layer.layer not in declined
        run_layer(session, layer, parents, stash=stash)
    rows = attention_rows(session.tokens, session.positions)
    session.write(len(LAYERS), rows, rows)
