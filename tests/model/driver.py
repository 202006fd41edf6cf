"""Drives a cache and the reference with the same operations and compares what they answer.

Rows and state are a function of the space and of every token up to their position, as they are in
a model, so that a row of another prefix, position, layer or space can never pass for the right one.
The values are such that every storage format keeps them exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from model.reference import ReferenceCache, ReferenceSequence
from support.declarations import paged, recurrent

from kvcache import Cache, Sequence, StateDecl, StatePlan
from kvcache.enums import DType
from kvcache.errors import KVCacheError, OutOfCapacityError, UnsupportedError


def attention(layer: int, **options: Any) -> list[StateDecl]:
    return [
        paged(layer, "attention.keys", 2, 4, **options),
        paged(layer, "attention.values", 2, 8, **options),
    ]


LINEAR = [
    recurrent(1, "state.convolution.0", 3, 2, dtype=DType.F16),
    recurrent(1, "state.recurrent", 2, 3),
]

#: Plan shapes by name: what a model keeps.
SHAPES: dict[str, list[StateDecl]] = {
    "full": [*attention(0), *attention(1)],
    "int8": attention(0, int8=True),
    "sliding": attention(0, window=6),
    "wide window": attention(0, window=1000),
    "window 1": attention(0, window=1),
    "chunked": attention(0, window=8, chunked=True),
    "chunks across blocks": [*attention(0, window=6, chunked=True), *attention(1)],
    "sinks": attention(0, window=5, sinks=2),
    "sinks in two blocks": [*attention(0, window=3, sinks=5, int8=True), *LINEAR],
    "window 1 and sinks": [*attention(0, window=1, sinks=3), *attention(1, window=7)],
    "pooled": [
        *attention(0, window=6),
        paged(0, "state.pooling.0.pooled", 1, 8, record_tokens=4),
        recurrent(0, "state.pooling.0.pending_values", 3, 8),
        paged(1, "state.pooling.0.pooled", 1, 4, record_tokens=2, int8=True),
        paged(1, "state.pooling.1.pooled", 1, 4, record_tokens=2, int8=True),
    ],
    "pooled alone": [paged(0, "state.pooling.0.pooled", 2, 4, record_tokens=2), *attention(1)],
    "latent": [
        paged(0, "attention.latent", 1, 12),
        paged(0, "attention.rotary_keys", 1, 4),
    ],
    "key only": [paged(0, "attention.keys", 1, 8)],
    "recurrent": LINEAR,
    "hybrid": [*attention(0), *LINEAR, *attention(2)],
    "full and sliding": [*attention(0, window=6), *attention(1), *attention(2, window=1)],
    "everything": [*attention(0, window=7, int8=True), *LINEAR, *attention(2, int8=True)],
    # Items so large that a page, a slot and a snapshot are worth evicting for one another.
    "large": [
        paged(0, "attention.keys", 2, 2400),
        paged(2, "attention.keys", 1, 4800, window=6),
        recurrent(1, "state.recurrent", 90, 96),
    ],
    "two formats": [
        paged(0, "attention.keys", 2, 4),
        paged(0, "attention.values", 2, 4, int8=True),
    ],
    "bf16": [
        paged(0, "attention.keys", 2, 4, dtype=DType.BF16),
        paged(0, "attention.values", 2, 8, dtype=DType.BF16),
        paged(2, "attention.keys", 2, 4, window=6, dtype=DType.BF16),
    ],
    "f32": [
        paged(0, "attention.keys", 2, 4, dtype=DType.F32),
        paged(0, "attention.values", 1, 5, dtype=DType.F32),
        *LINEAR,
    ],
    "integers": [
        paged(0, "attention.keys", 2, 4, dtype=DType.I32),
        paged(0, "attention.values", 3, 5, dtype=DType.U8),
        paged(2, "attention.keys", 1, 3, window=6, dtype=DType.U64),
        paged(2, "attention.values", 1, 3, window=6, dtype=DType.U32),
    ],
}


#: How rows of integers are handed over; all others are given and read as float16.
INTEGERS = {DType.I32: "int32", DType.U32: "uint32", DType.U64: "uint64", DType.U8: "uint8"}

#: Enough for everything, where every answer must be exact; and too little, in two ways.
AMPLE: dict[str, Any] = {"memory": "64MiB"}
FEW_BYTES: dict[str, Any] = {"memory": "400KiB"}  # for the large shape; others need less
FEW_BLOCKS: dict[str, Any] = {"memory": "64MiB", "capacity_blocks": 9}


def make_driver(shape: str, memory: dict[str, Any], sequences: int = 6) -> Driver:
    blocks = memory.get("capacity_blocks", 0)
    plan = StatePlan(SHAPES[shape], memory=memory["memory"], block_tokens=4, sequences=sequences)
    return Driver(plan, exact=memory is AMPLE, capacity_blocks=blocks)


def digest(*parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode()).digest()


def outcome(call: Callable[[], Any]) -> tuple[Any, KVCacheError | None]:
    try:
        return call(), None
    except KVCacheError as error:
        return None, error


class Pair:
    """One sequence of the cache and its twin of the reference."""

    def __init__(self, driver: Driver, real: Sequence, twin: ReferenceSequence) -> None:
        self.driver, self.real, self.twin = driver, real, twin
        self.stale: set[tuple[int, int]] = set()  # (layer, position) written with wrong rows

    def content(self, layer: int, position: int, draft: int = 0) -> list[np.ndarray]:
        """The rows of one position, one array ``[heads, width]`` for each component."""
        prefix = tuple(self.twin.tokens[: position + 1])
        rows = []
        for part in self.driver.plan.paged_components(layer):
            seed = digest(self.twin.space, prefix, layer, part.component, draft)
            codes = np.maximum(np.frombuffer(seed, np.int8), -127).astype(np.float16)
            if part.dtype in INTEGERS:
                codes = np.abs(codes)
            row = np.resize(codes, (part.heads, part.width))
            row[:, 0] = 127  # the largest, so that the scale of an INT8 row is 1
            rows.append(row)
        return rows

    def record(self, stream: tuple[int, str], index: int) -> np.ndarray:
        """One record of pooled state, `[heads, width]`."""
        layer, name = stream
        [part] = [part for part in self.driver.plan.streams(layer) if part.component == name]
        prefix = tuple(self.twin.tokens[: (index + 1) * part.record_tokens])
        codes = np.frombuffer(digest(self.twin.space, prefix, layer, name), np.int8)
        row = np.resize(np.maximum(codes, -127).astype(np.float16), (part.heads, part.width))
        row[:, 0] = 127
        return row

    def state_content(self) -> dict[tuple[int, str], np.ndarray]:
        prefix = tuple(self.twin.tokens[: self.twin.length])
        content = {}
        for part in self.driver.plan.fixed:
            seed = digest(self.twin.space, prefix, part.layer, part.name)
            content[part.layer, part.name] = np.resize(np.frombuffer(seed, np.uint8), part.shape)
        return content


class Driver:
    """A cache and the reference. `exact`: memory never runs out, so every answer is the same."""

    def __init__(self, plan: StatePlan, *, exact: bool = True, capacity_blocks: int = 0) -> None:
        self.plan, self.exact = plan, exact
        # A limit of snapshots on a path would forget some that the reference knows.
        self.cache = Cache(plan, capacity_blocks=capacity_blocks, snapshots_per_path=0)
        self.reference = ReferenceCache(plan)
        self.pairs: list[Pair] = []
        self.failures = 0  # operations that found no room

    def both(self, real: Callable[[], Any], twin: Callable[[], Any]) -> tuple[Any, Any] | None:
        """Calls the cache, then the reference; None when both refused, with the same error.

        Without room the cache may refuse alone; the reference is then not called at all.
        """
        answer, refused = outcome(real)
        if isinstance(refused, OutOfCapacityError | UnsupportedError) and not self.exact:
            self.failures += 1
            return None
        expected, twin_refused = outcome(twin)
        if type(refused) is not type(twin_refused):
            raise AssertionError(f"{refused!r}, expected {twin_refused!r}") from refused
        return None if refused else (answer, expected)

    # ---- Operations; `at` picks among the open sequences --------------------------------------

    def pick(self, at: int) -> Pair | None:
        return self.pairs[at % len(self.pairs)] if self.pairs else None

    def open(self, tokens: list[int], adapter: str = "") -> Pair | None:
        at: list[int] = []

        def real() -> Sequence:
            sequence = self.cache.open(tokens, adapter=adapter)
            at.append(sequence.cached_tokens)
            return sequence

        matched = self.reference.matched(adapter, tokens)
        best = self.reference.hit(adapter, tokens) if tokens else 0
        opened = self.both(
            real, lambda: self.reference.open(tokens, adapter, at[0] if at else None)
        )
        if opened is None:
            return None
        sequence, twin = opened
        assert sequence.cached_tokens <= best
        assert sequence.matched_tokens <= matched
        if self.exact:
            assert (sequence.cached_tokens, sequence.matched_tokens) == (best, matched)
        pair = Pair(self, sequence, twin)
        self.pairs.append(pair)
        self.check(pair)
        return pair

    def write(self, pair: Pair, layer: int, start: int, count: int, draft: int = 0) -> bool:
        """Writes `count` rows; those of a draft are wrong and must not be completed."""
        known = range(start, min(start + count, len(pair.twin.tokens)))
        rows = [pair.content(layer, p, draft) for p in known]
        rows += [pair.content(layer, p) for p in range(len(rows), count)]  # beyond the tokens
        parts = self.plan.paged_components(layer)
        arrays = [
            np.array([row[i] for row in rows], INTEGERS.get(part.dtype, "float16")).reshape(
                count, part.heads, part.width
            )
            for i, part in enumerate(parts)
        ]
        arrays = arrays or [np.zeros((count, 1, 1), np.float16)]
        done = self.both(
            lambda: pair.real.write(layer, start, *arrays),
            lambda: pair.twin.write(layer, start, rows),
        )
        if done is None:
            return False
        cells = {(layer, start + i) for i in range(count)}
        pair.stale = pair.stale | cells if draft else pair.stale - cells
        return True

    def complete(self, pair: Pair, count: int) -> bool:
        """Writes what is missing or stale of the next `count` positions and advances."""
        length = pair.twin.length
        count = min(count, len(pair.twin.tokens) - length)
        for layer in self.reference.windows:
            missing = pair.twin.written[layer]
            stale = [p for at, p in pair.stale if at == layer and p < length + count]
            start = min([missing, *stale])
            if not self.write(pair, layer, start, max(0, length + count - start)):
                return False
        for (layer, name), r in self.reference.streams.items():
            first = len(pair.twin.records[layer, name])
            if not self.write_records(pair, (layer, name), first, (length + count) // r - first):
                return False
        self.advance(pair, count)
        return True

    def write_records(self, pair: Pair, stream: tuple[int, str], first: int, count: int) -> bool:
        rows = [pair.record(stream, first + i) for i in range(count)]
        layer, name = stream
        [part] = [part for part in self.plan.streams(layer) if part.component == name]
        array = np.array(rows, np.float16).reshape(len(rows), part.heads, part.width)
        done = self.both(
            lambda: pair.real.write_records(layer, name, first, array),
            lambda: pair.twin.write_records(stream, first, rows),
        )
        return done is not None

    def advance(self, pair: Pair, count: int) -> None:
        """Completes positions whose rows are all there and right, and refuses others."""
        if any(p < pair.twin.length + count for _, p in pair.stale):
            return
        done = self.both(lambda: pair.real.advance(count), lambda: pair.twin.advance(count))
        if done is not None and count:
            self.set_state(pair)

    def extend(self, pair: Pair, tokens: list[int]) -> None:
        self.both(lambda: pair.real.extend(tokens), lambda: pair.twin.extend(tokens))

    def turn(self, pair: Pair) -> None:
        """What an engine does with a prompt: run to each stop, keep the state there, publish."""
        for stop in pair.real.prefill_stops():
            if not self.complete(pair, stop - pair.twin.length):
                return
            self.snapshot(pair)
        self.publish(pair)

    def set_state(self, pair: Pair) -> None:
        content = pair.state_content()
        for (layer, name), value in content.items():
            pair.real.state(layer, name)[...] = value
        if content:
            pair.twin.state = content

    def truncate(self, pair: Pair, position: int) -> None:
        done = self.both(lambda: pair.real.truncate(position), lambda: pair.twin.truncate(position))
        if done is not None:
            pair.stale.clear()

    def snapshot(self, pair: Pair, kept: str = "exact") -> None:
        """Of a format that keeps the state of every shape exactly, which consists of bytes."""
        done = self.both(lambda: pair.real.snapshot(kept), pair.twin.snapshot)
        assert done is None or done[0] == done[1]

    def publish(self, pair: Pair) -> None:
        assert self.both(pair.real.publish, pair.twin.publish)

    def fork(self, pair: Pair) -> None:
        forked = self.both(pair.real.fork, pair.twin.fork)
        if forked is not None:
            child = Pair(self, *forked)
            self.pairs.append(child)
            self.check(child)

    def close(self, pair: Pair) -> None:
        self.both(pair.real.close, pair.twin.close)
        self.pairs.remove(pair)
        assert not pair.real.is_open

    def clear(self) -> None:
        self.cache.clear()
        self.reference.clear()

    # ---- Comparisons -----------------------------------------------------------------------

    def read(self, pair: Pair, layer: int, start: int, stop: int) -> None:
        done = self.both(
            lambda: pair.real.read(layer, start, stop, "float16"),
            lambda: pair.twin.read(layer, start, stop),
        )
        if done is None:
            return
        for i, array in enumerate(part for part in done[0] if part is not None):
            want = np.array([row[i] for row in done[1]], array.dtype)
            assert array.tobytes() == want.tobytes(), (layer, start, stop, i)

    def check(self, pair: Pair) -> None:
        """Everything a sequence can show, to the byte."""
        real, twin = pair.real, pair.twin
        assert real.length == twin.length
        assert real.tokens.tolist() == twin.tokens
        for layer, group in self.reference.windows.items():
            start = group.live_start(twin.length)
            self.read(pair, layer, start, twin.written[layer])
            self.read(pair, layer, 0, group.sink_end(twin.length))
        for (layer, name), known in twin.records.items():
            assert real.written_records(layer, name) == len(known)
            got = real.read_records(layer, name, 0, len(known))
            assert np.array_equal(got, np.reshape(known, got.shape))
        for part in self.plan.fixed:
            array = real.state(part.layer, part.name)
            want = 0 if twin.state is None else twin.state[part.layer, part.name]
            assert np.array_equal(array, np.broadcast_to(want, array.shape).astype(array.dtype))

    def explain(self, tokens: list[int], adapter: str = "") -> None:
        said = self.cache.explain(tokens, adapter=adapter)
        matched = self.reference.matched(adapter, tokens)
        cached = self.reference.hit(adapter, tokens)
        assert said.matched_tokens <= matched
        assert said.cached_tokens <= cached
        if not self.exact:
            return
        assert (said.matched_tokens, said.cached_tokens) == (matched, cached)
        if self.reference.fixed:
            assert said.nearest_snapshot == self.reference.nearest_snapshot(adapter, tokens)
        if cached == min(matched, len(tokens) - 1):
            assert said.limited_by == ("tokens" if matched < len(tokens) else "last token")
        else:
            windows = any(group.window for group in self.reference.windows.values())
            limits = {"snapshot"} if self.reference.fixed else set()
            assert said.limited_by in limits | ({"window"} if windows else set())

    def check_ledger(self) -> None:
        stats = self.cache.stats()
        assert stats.used_bytes <= stats.committed_bytes <= stats.peak_bytes <= stats.budget_bytes
        assert stats.open_sequences == self.reference.open_count == len(self.pairs)
        assert stats.slots == (len(self.pairs) if self.reference.fixed else 0)
        if self.exact:
            stored = self.reference.stored()
            assert stats.indexed_tokens == len(stored)
            assert stats.indexed_snapshots == sum(known.state is not None for known in stored)
            assert stats.evicted_blocks == stats.evicted_snapshots == 0

    def finish(self) -> None:
        """Closes and drops everything; not a byte may stay in use."""
        for pair in list(self.pairs):
            self.check(pair)
            self.close(pair)
        self.clear()
        self.check_ledger()
        stats = self.cache.stats()
        assert (stats.used_bytes, stats.pages, stats.slots, stats.snapshots) == (0, 0, 0, 0)
        assert (stats.indexed_blocks, stats.indexed_tokens, stats.indexed_snapshots) == (0, 0, 0)
