"""A small hybrid decoder in NumPy and what it needs of a cache.

Layer 0 is a gated delta net behind a causal convolution, layer 1 attends to everything and layer 2
to a sliding window; a model may leave some of them out. Every sum runs over the same shapes however
many rows run at once, so results are equal bit for bit. `Reference` keeps all state in plain
arrays, at every position, and knows nothing of the package under test.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.declarations import paged, recurrent

import kvcache
from kvcache import StateDecl

DELTA, FULL, SLIDING = 0, 1, 2
RECURRENT, CONV = "state.recurrent", "state.convolution"
HIDDEN, HEADS, WIDTH, TAPS, VOCABULARY = 12, 2, 6, 3, 11
Array = NDArray[Any]


def stored(rows: Array, storage: str) -> Array:
    """What a row of attention state reads back as, in float32."""
    half = rows.astype(np.float16).astype(np.float32)
    if storage == "f16":
        return half
    largest = np.abs(half).max(axis=-1, keepdims=True)
    scale = np.where(largest == 0, np.float32(1), largest / np.float32(127)).astype(np.float32)
    return np.rint(half / scale).astype(np.int8).astype(np.float32) * scale


@dataclass
class Part:
    """Rows of one sequence: tokens, where they are stored, what keeps the state, their tree."""

    tokens: Array
    start: int
    store: Any
    tree: kvcache.TokenTree | None = None


@dataclass
class TinyModel:
    layers: tuple[int, ...] = (DELTA, FULL, SLIDING)
    storage: str = "f16"
    window: int = 5
    seed: int = 0
    weights: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)

        def weight(*shape: int) -> Array:
            return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

        self.weights["embed"] = rng.standard_normal((VOCABULARY, HIDDEN)).astype(np.float32)
        for layer in self.layers:
            for name in ("q", "k", "v"):
                self.weights[f"{layer}.{name}"] = weight(HIDDEN, HEADS * WIDTH)
            self.weights[f"{layer}.gates"] = weight(HIDDEN, 2 * HEADS)
            self.weights[f"{layer}.out"] = weight(HEADS * WIDTH, HIDDEN)
            self.weights[f"{layer}.taps"] = weight(TAPS + 1, HIDDEN)

    def declarations(self) -> list[StateDecl]:
        found = []
        for layer in self.layers:
            if layer == DELTA:
                found.append(recurrent(layer, RECURRENT, HEADS, WIDTH, WIDTH))
                found.append(recurrent(layer, CONV, HIDDEN, TAPS))
                continue
            window, int8 = self.window if layer == SLIDING else 0, self.storage == "int8"
            found += [
                paged(layer, name, HEADS, WIDTH, window=window, int8=int8)
                for name in ("attention.keys", "attention.values")
            ]
        return found

    def cache(self, memory: str | int = "1MiB", block_tokens: int = 4, **options: Any) -> Any:
        plan = kvcache.StatePlan(
            self.declarations(),
            memory=memory,
            block_tokens=block_tokens,
            sequences=options.pop("sequences", 8),
            ring_depth=options.pop("ring_depth", 0),
        )
        return kvcache.Cache(plan, **options)

    def run(
        self, tokens: Array, start: int, store: Any, tree: kvcache.TokenTree | None = None
    ) -> list[int]:
        """Run consecutive positions, or a tree stored at them; the token that each row picks."""

        def write(layer: int, keys: list[Array], values: list[Array]) -> None:
            store.write(layer, start, keys[0], values[0])

        return self.run_all([Part(tokens, start, store, tree)], write)[0]

    def run_all(self, parts: list[Part], write: Any) -> list[list[int]]:
        """The same for several sequences, whose rows of a layer are written by one call."""
        rows = [[self.weights["embed"][token] for token in part.tokens] for part in parts]
        for layer in self.layers:
            if layer == DELTA:
                rows = [self._delta(layer, r, p) for r, p in zip(rows, parts, strict=True)]
                continue
            keys, values = (
                [np.stack([self._heads(layer, name, row) for row in each]) for each in rows]
                for name in ("k", "v")
            )
            write(layer, keys, values)
            rows = [self._attend(layer, r, p) for r, p in zip(rows, parts, strict=True)]
        return [[int(np.argmax(self.weights["embed"] @ row)) for row in each] for each in rows]

    def _heads(self, layer: int, name: str, row: Array) -> Array:
        return (row @ self.weights[f"{layer}.{name}"]).reshape(HEADS, WIDTH)

    def _delta(self, layer: int, rows: list[Array], part: Part) -> list[Array]:
        store = part.store
        mixed = []
        for index, row in enumerate(rows):
            conv, h = store.state(index, layer, CONV), store.state(index, layer, RECURRENT)
            taps = np.concatenate([conv.T, row[None]])
            conv[:] = taps[1:].T
            x = np.tanh((taps * self.weights[f"{layer}.taps"]).sum(axis=0))
            q, k, v = (self._heads(layer, name, x) for name in ("q", "k", "v"))
            k = k / np.sqrt((k * k).sum(axis=-1, keepdims=True) + np.float32(1e-6))
            gates = 1 / (1 + np.exp(-(row @ self.weights[f"{layer}.gates"])))
            for head in range(HEADS):
                decay, beta = gates[head], gates[HEADS + head]
                h[head] *= decay
                update = beta * (v[head] - k[head] @ h[head])
                h[head] += np.outer(k[head], update)
            out = np.stack([q[head] @ h[head] for head in range(HEADS)])
            mixed.append(row + out.reshape(-1) @ self.weights[f"{layer}.out"])
        return mixed

    def _attend(self, layer: int, rows: list[Array], part: Part) -> list[Array]:
        start, tree = part.start, part.tree
        mixed = []
        for index, row in enumerate(rows):
            # Of what is stored from `start` on, the row sees its path, which ends with itself.
            path = range(index + 1) if tree is None else tree.path(index)
            stop = start + len(path)
            first = max(0, stop - self.window) if layer == SLIDING else 0
            begin = min(first, start)
            seen = [*range(start - begin), *(start - begin + at for at in path)]
            found = part.store.read(layer, begin, start + index + 1)
            k, v = (each[seen][first - begin :] for each in found)
            out = np.empty((HEADS, WIDTH), np.float32)
            q = self._heads(layer, "q", row)
            for head in range(HEADS):
                scores = np.ascontiguousarray(k[:, head]) @ q[head]
                share = np.exp(scores - scores.max())
                out[head] = (share / share.sum()) @ np.ascontiguousarray(v[:, head])
            mixed.append(row + out.reshape(-1) @ self.weights[f"{layer}.out"])
        return mixed


class Reference:
    """Decodes one position at a time and remembers the state after each."""

    def __init__(self, model: TinyModel) -> None:
        self.model = model
        self.tokens: list[int] = []
        self.rows: dict[int, tuple[list[Array], list[Array]]] = {
            layer: ([], []) for layer in model.layers if layer != DELTA
        }
        self.live = {
            RECURRENT: np.zeros((HEADS, WIDTH, WIDTH), np.float32),
            CONV: np.zeros((HIDDEN, TAPS), np.float32),
        }
        self.after: list[dict[str, Array]] = []  # by position

    def state(self, _row: int, _layer: int, name: str) -> Array:
        return self.live[name]

    def write(self, layer: int, start: int, keys: Array, values: Array) -> None:
        assert start == len(self.rows[layer][0])
        for kept, new in zip(self.rows[layer], (keys, values), strict=True):
            kept.append(stored(new[0], self.model.storage))

    def read(self, layer: int, start: int, stop: int) -> tuple[Array, Array]:
        keys, values = self.rows[layer]
        return np.stack(keys[start:stop]), np.stack(values[start:stop])

    def step(self, token: int) -> int:
        """Run one token; the token it picks."""
        [pick] = self.model.run(np.array([token]), len(self.tokens), self)
        self.tokens.append(token)
        self.after.append({name: tensor.copy() for name, tensor in self.live.items()})
        return pick


class PlainStore:
    """The model's state in a `kvcache.Sequence`, without speculation."""

    def __init__(self, sequence: kvcache.Sequence) -> None:
        self.sequence = sequence

    def state(self, _row: int, layer: int, name: str) -> Array:
        return self.sequence.state(layer, name)

    def write(self, layer: int, start: int, keys: Array, values: Array) -> None:
        self.sequence.write(layer, start, keys, values)

    def read(self, layer: int, start: int, stop: int) -> tuple[Array, Array]:
        keys, values = self.sequence.read(layer, start, stop, "float32")
        assert values is not None
        return keys, values


class VerifyStore(PlainStore):
    """The model's state in an open `kvcache.VerifySession`."""

    def __init__(self, sequence: kvcache.Sequence, session: kvcache.VerifySession) -> None:
        super().__init__(sequence)
        self.session = session

    def state(self, row: int, layer: int, name: str) -> Array:
        return self.session.state(row, layer, name)

    def write(self, layer: int, start: int, keys: Array, values: Array) -> None:
        assert start == self.session.positions[0]
        self.session.write(layer, keys, values)


class BatchStore(PlainStore):
    """The state of one sequence in an open `kvcache.BatchVerifySession`."""

    def __init__(self, session: kvcache.BatchVerifySession, index: int) -> None:
        super().__init__(session.batch.sequences[index])
        self.session, self.index = session, index

    def state(self, row: int, layer: int, name: str) -> Array:
        return self.session.state(self.index, row, layer, name)


def run_batch(
    model: TinyModel,
    session: kvcache.BatchVerifySession,
    trees: list[kvcache.TokenTree] | None = None,
) -> list[list[int]]:
    """What each row of each sequence picks."""
    tokens = np.split(session.tokens, session.offsets[1:-1])
    starts = session.starts.tolist()
    parts = [
        Part(own, starts[i], BatchStore(session, i), None if trees is None else trees[i])
        for i, own in enumerate(tokens)
    ]

    def write(layer: int, keys: list[Array], values: list[Array]) -> None:
        session.write(layer, np.concatenate(keys), np.concatenate(values))

    return model.run_all(parts, write)


def feed(model: TinyModel, sequence: kvcache.Sequence, tokens: list[int] | Array) -> int:
    """Extend by ``tokens`` what is not known yet, run everything; the last pick."""
    if len(tokens):
        sequence.extend(tokens)
    pick = -1
    while sequence.length < len(sequence.tokens):
        at = sequence.length
        [pick] = model.run(sequence.tokens[at : at + 1], at, PlainStore(sequence))
        sequence.advance(1)
    return pick


def verify(model: TinyModel, sequence: kvcache.Sequence, drafts: list[int]) -> tuple[int, int]:
    """One round of greedy verification; rows accepted and the token picked after them."""
    with sequence.begin_verify(drafts) as session:
        start = int(session.positions[0])
        picks = model.run(session.tokens, start, VerifyStore(sequence, session))
        accepted = 1
        while accepted < session.rows and session.tokens[accepted] == picks[accepted - 1]:
            accepted += 1
        session.commit(accepted)
    return accepted, picks[accepted - 1]


def assert_equals(sequence: kvcache.Sequence, reference: Reference) -> None:
    """Tokens, rows of every window and fixed-size state, bit for bit."""
    model, length = reference.model, sequence.length
    assert sequence.tokens[:length].tolist() == reference.tokens[:length]
    for layer in model.layers:
        if layer == DELTA:
            for name in (RECURRENT, CONV):
                expected = reference.after[length - 1][name] if length else 0
                np.testing.assert_array_equal(sequence.state(layer, name), expected, name)
            continue
        first = max(0, length - model.window + 1) if layer == SLIDING else 0
        got = PlainStore(sequence).read(layer, first, length)
        for mine, theirs in zip(got, reference.read(layer, first, length), strict=True):
            np.testing.assert_array_equal(mine, theirs, f"layer {layer}")
