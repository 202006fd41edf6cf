"""Reference models of recurrent layers in NumPy, one position at a time.

Each says what a token gives its state (`inputs`, which may depend on the state before it) and how
the state takes it (`advance`, the plain definition). Everything is float32; the state is rounded to
its element after each position. None knows anything of the package under test but declarations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcache import DType, Gate, Section, StateDecl, StateKind, VerifyRule

Array = NDArray[Any]
States = dict[str, Array]
Inputs = dict[str, dict[str, Array]]

H, CONV = "state.recurrent", "state.convolution."
NUMPY = {DType.F32: np.float32, DType.F16: np.float16, DType.I32: np.int32}


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


class Layer:
    """A layer whose token embedding is a row of a random table."""

    width = 0  # of the embedding

    def __init__(self, layer: int, dtype: DType, seed: int) -> None:
        self.layer = layer
        self.dtype = dtype
        self.table = (
            np.random.default_rng((seed, layer))
            .standard_normal((64, self.width))
            .astype(np.float32)
        )

    def tensors(self) -> list[tuple[str, tuple[int, ...], Gate | None]]:
        """Name and shape of each tensor, and what its gates are for; None for a convolution."""
        raise NotImplementedError

    def inputs(self, states: States, token: int) -> Inputs:
        raise NotImplementedError

    def declarations(self) -> list[StateDecl]:
        return [
            StateDecl(
                id=f"l{self.layer}.{name}",
                layer=self.layer,
                component=name,
                kind=StateKind.RECURRENT,
                section=Section.MAIN,
                dtype=self.dtype,
                shape=shape,
                verify=VerifyRule.CONV_STEPS if gate is None else VerifyRule.H_STEPS,
                gate=gate or Gate.HEAD,
            )
            for name, shape, gate in self.tensors()
        ]

    def zeros(self) -> States:
        return {name: np.zeros(shape, NUMPY[self.dtype]) for name, shape, _ in self.tensors()}

    def advance(self, states: States, inputs: Inputs) -> None:
        """In place."""
        for name, given in inputs.items():
            state = states[name]
            if "rows" in given:
                row = given["rows"].astype(state.dtype)
                state[:] = np.concatenate([state, row[None]])[len(state) and 1 :]
                continue
            gate, right = given["gate"], given["right"]
            gate = gate.reshape(gate.shape + (1,) * (state.ndim - gate.ndim))
            added = right
            if state.ndim > 1:
                left = given["left"]
                if state.ndim == 3:
                    left = np.repeat(left, len(state) // len(left), axis=0)
                    right = np.repeat(right, len(state) // len(right), axis=0)
                added = left[..., :, None] * right[..., None, :]
            state[:] = (gate * state.astype(np.float32) + added).astype(state.dtype)


def convolved(state: Array, x: Array) -> Array:
    """Of a causal convolution with taps 1, 1/2, ... and the newest input."""
    window = np.concatenate([state.astype(np.float32), x[None]])
    taps = (0.5 ** np.arange(len(window), dtype=np.float32))[::-1, None]
    return np.tanh((window * taps).sum(axis=0))


class GatedDeltaNet(Layer):
    """Three value heads to one key head; a matrix a head, one gate a head."""

    heads, key_heads, keys, values = 6, 2, 5, 7
    channels = 2 * 5 + 6 * 7
    width = channels + 12

    def tensors(self) -> list[tuple[str, tuple[int, ...], Gate | None]]:
        matrix = (self.heads, self.keys, self.values)
        return [(CONV + "0", (3, self.channels), None), (H, matrix, Gate.HEAD)]

    def gate(self, gates: Array, _k: Array) -> Array:
        return np.asarray(sigmoid(gates[: self.heads]))

    def inputs(self, states: States, token: int) -> Inputs:
        x, gates = np.split(self.table[token], [self.channels])
        y = convolved(states[CONV + "0"], x)
        k = y[: self.key_heads * self.keys].reshape(self.key_heads, self.keys)
        k = k / np.sqrt((k * k).sum(axis=-1, keepdims=True) + np.float32(1e-6))
        v = y[self.key_heads * self.keys :].reshape(self.heads, self.values)
        gate = self.gate(gates, k)
        shared = np.repeat(k, self.heads // self.key_heads, axis=0)
        decayed = gate.reshape(self.heads, -1, 1) * states[H].astype(np.float32)
        read = np.stack([shared[h] @ decayed[h] for h in range(self.heads)])
        beta = sigmoid(gates[self.heads : 2 * self.heads])[:, None]
        update = {"gate": gate, "left": k, "right": beta * (v - read)}
        return {CONV + "0": {"rows": x}, H: update}


class KimiDelta(GatedDeltaNet):
    """A gate for each key channel."""

    def tensors(self) -> list[tuple[str, tuple[int, ...], Gate | None]]:
        matrix = (self.heads, self.keys, self.values)
        return [(CONV + "0", (3, self.channels), None), (H, matrix, Gate.CHANNEL)]

    def gate(self, gates: Array, k: Array) -> Array:
        channels = np.repeat(k, self.heads // self.key_heads, axis=0)
        return np.asarray(sigmoid(gates[: self.heads, None] + channels))


class Mamba2(Layer):
    """The state space duality step: two heads share a group's B."""

    heads, dim, states, groups = 4, 3, 9, 2
    channels = 4 * 3 + 2 * 9
    width = channels + 4

    def tensors(self) -> list[tuple[str, tuple[int, ...], Gate | None]]:
        matrix = (self.heads, self.dim, self.states)
        return [(CONV + "0", (3, self.channels), None), (H, matrix, Gate.HEAD)]

    def inputs(self, states: States, token: int) -> Inputs:
        row, gates = np.split(self.table[token], [self.channels])
        y = convolved(states[CONV + "0"], row)
        x = y[: self.heads * self.dim].reshape(self.heads, self.dim)
        b = y[self.heads * self.dim :].reshape(self.groups, self.states)
        dt = np.log1p(np.exp(gates))
        update = {"gate": np.exp(-dt), "left": dt[:, None] * x, "right": b}
        return {CONV + "0": {"rows": row}, H: update}


class Mamba(Layer):
    """A gate for each element of [channels, states]."""

    channels, states = 6, 4
    width = 6 + 4 + 6

    def tensors(self) -> list[tuple[str, tuple[int, ...], Gate | None]]:
        return [(H, (self.channels, self.states), Gate.ELEMENT)]

    def inputs(self, _states: States, token: int) -> Inputs:
        x, b, dt = np.split(self.table[token], [6, 10])
        dt = np.log1p(np.exp(dt))
        decay = -np.arange(1, self.states + 1, dtype=np.float32)
        return {H: {"gate": np.exp(dt[:, None] * decay), "left": dt * x, "right": b}}


class Griffin(Layer):
    """RG-LRU behind a convolution: h = a * h + b."""

    width = 11

    def tensors(self) -> list[tuple[str, tuple[int, ...], Gate | None]]:
        return [(CONV + "0", (3, 11), None), (H, (11,), Gate.ELEMENT)]

    def inputs(self, states: States, token: int) -> Inputs:
        y = convolved(states[CONV + "0"], self.table[token])
        a = sigmoid(y)
        update = {"gate": a, "right": np.sqrt(1 - a * a) * y}
        return {CONV + "0": {"rows": self.table[token]}, H: update}


class ShortConvolution(Layer):
    """Nothing but two histories, as in LFM2 and in the token shifts of RWKV."""

    width = 8

    def tensors(self) -> list[tuple[str, tuple[int, ...], Gate | None]]:
        return [(CONV + "0", (2, 8), None), (CONV + "1", (1, 8), None)]

    def inputs(self, states: States, token: int) -> Inputs:
        x = self.table[token]
        y = convolved(states[CONV + "0"], x) * states[CONV + "1"][0].astype(np.float32)
        return {CONV + "0": {"rows": x}, CONV + "1": {"rows": y.astype(np.float32)}}


LAYERS: list[type[Layer]] = [GatedDeltaNet, KimiDelta, Mamba2, Mamba, Griffin, ShortConvolution]
