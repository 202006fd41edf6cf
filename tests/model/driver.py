"""Drives a cache and the reference with the same operations and compares what they answer.

Rows and state are a function of the space and of every token up to their position, as they are in
a model, so that a row of another prefix, position, layer or space can never pass for the right one.
The values are such that every storage format keeps them exactly.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from model.outcome import outcome
from model.pins import Pins
from model.reference import ReferenceCache
from model.reference_sequence import ReferenceSequence
from model.router import Routed
from model.tables import FORMATS, Page, Tables
from model.tenants import Tenants
from support.declarations import paged, recurrent
from support.int8_oracle import from_bfloat16_bits

from kvcache import Cache, RequestHints, Sequence, StateDecl, StatePlan, _core
from kvcache.enums import DType, Gate
from kvcache.errors import OutOfCapacityError, UnsupportedError


def attention(layer: int, **options: Any) -> list[StateDecl]:
    return [
        paged(layer, "attention.keys", 2, 4, **options),
        paged(layer, "attention.values", 2, 8, **options),
    ]


LINEAR = [
    recurrent(1, "state.convolution.0", 3, 2, dtype=DType.F16),
    recurrent(1, "state.recurrent", 6, gate=Gate.ELEMENT),  # what verify sessions may stash
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
    "latent": [paged(0, "attention.latent", 1, 12), paged(0, "attention.rotary_keys", 1, 4)],
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
FEW_BLOCKS: dict[str, Any] = {"memory": "64MiB", "capacity_blocks": 13}


def make_driver(shape: str, memory: dict[str, Any], sequences: int = 6) -> Driver:
    blocks = memory.get("capacity_blocks", 0)
    plan = StatePlan(
        SHAPES[shape],
        memory=memory["memory"],
        block_tokens=4,
        sequences=sequences,
        ring_depth=3,
        stash_rows=6,
    )
    return Driver(plan, exact=memory is AMPLE, capacity_blocks=blocks)


def digest(*parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode()).digest()


def values(rows: Any, at: Any = slice(None)) -> np.ndarray:
    """Rows as numbers, whatever their element, of the indexes `at`."""
    if isinstance(rows, _core.Bfloat16Array):
        return from_bfloat16_bits(rows.bits[at])
    return np.asarray(rows)[at]


def runs(positions: Iterable[int]) -> list[tuple[int, int]]:
    """The contiguous runs ``[start, stop)`` that positions form."""
    among = set(positions)
    starts = sorted(p for p in among if p - 1 not in among)
    stops = sorted(p + 1 for p in among if p + 1 not in among)
    return list(zip(starts, stops, strict=True))


def to_engine(rows: np.ndarray, layout: str) -> np.ndarray:
    """Rows ``[tokens, heads, dim]`` with the axes of a layout."""
    words = ["tokens", "heads", "dim"]
    return np.ascontiguousarray(rows.transpose([words.index(word) for word in layout.split()]))


class Pair:
    """One sequence of the cache and its twin of the reference."""

    def __init__(
        self, driver: Driver, real: Sequence, twin: ReferenceSequence, tenant: str = ""
    ) -> None:
        self.driver, self.real, self.twin, self.tenant = driver, real, twin, tenant
        self.stale: set[tuple[int, int]] = set()  # (layer, position) written with wrong rows
        self.has_stash = False  # from its first verify by inputs on

    @property
    def is_ready(self) -> bool:
        """Whether everything that is known has run, and nothing is written beyond it."""
        done = len(self.twin.tokens) == self.twin.length
        return done and all(n == self.twin.length for n in self.twin.written.values())

    def content(
        self, layer: int, position: int, draft: int = 0, tokens: list[int] | None = None
    ) -> list[np.ndarray]:
        """The rows of one position, one array ``[heads, width]`` for each component."""
        prefix = tuple((tokens or self.twin.tokens)[: position + 1])
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

    def record(
        self, stream: tuple[int, str], index: int, tokens: list[int] | None = None
    ) -> np.ndarray:
        """One record of pooled state, ``[heads, width]``."""
        layer, name = stream
        [part] = [part for part in self.driver.plan.streams(layer) if part.component == name]
        prefix = tuple((tokens or self.twin.tokens)[: (index + 1) * part.record_tokens])
        codes = np.frombuffer(digest(self.twin.space, prefix, layer, name), np.int8)
        row = np.resize(np.maximum(codes, -127).astype(np.float16), (part.heads, part.width))
        row[:, 0] = 127
        return row

    def state_content(self, prefix_tokens: list[int]) -> dict[tuple[int, str], np.ndarray]:
        """Every tensor of the state after these tokens."""
        prefix = tuple(prefix_tokens)
        content = {}
        for part in self.driver.plan.fixed:
            seed = digest(self.twin.space, prefix, part.layer, part.name)
            content[part.layer, part.name] = np.resize(np.frombuffer(seed, np.uint8), part.shape)
        return content


@dataclass
class Views:
    """Pinned pages: their numbers by group, and what they show and go on showing."""

    pages: dict[int, list[int]]
    shown: list[tuple[Any, np.ndarray]]  # arrays in place, and their content


class Driver:
    """A cache and the reference. `exact`: memory never runs out, so every answer is the same."""

    def __init__(self, plan: StatePlan, *, exact: bool = True, capacity_blocks: int = 0) -> None:
        self.plan, self.exact = plan, exact
        # A limit of snapshots on a path would forget some that the reference knows.
        self.reference = ReferenceCache(plan)
        # So few events may wait that some are lost, and the router is told everything again.
        self.cache = Cache(
            plan, capacity_blocks=capacity_blocks, snapshots_per_path=0, event_capacity=24
        )
        self.routed = Routed(self.cache, self.reference if exact else None)
        self.pairs: list[Pair] = []
        self.views: list[Views] = []
        self.pins = Pins(self.cache, self.reference, exact)
        self.tenants = Tenants(self.cache)
        self.reference.keeps = self.pins.keeps
        self.failures = 0  # operations that found no room

    def both(self, real: Callable[[], Any], twin: Callable[[], Any]) -> tuple[Any, Any] | None:
        """Calls the cache, then the reference; None when both refused, with the same error.

        Without room the cache may refuse alone; the reference is then not called at all.
        """
        answer, refused = outcome(real)
        if isinstance(refused, OutOfCapacityError | UnsupportedError) and not self.exact:
            self.failures += 1
            self.resync()
            return None
        expected, twin_refused = outcome(twin)
        if type(refused) is not type(twin_refused):
            raise AssertionError(f"{refused!r}, expected {twin_refused!r}") from refused
        return None if refused else (answer, expected)

    # ---- Operations -------------------------------------------------------------------------

    def open(
        self, tokens: list[int], adapter: str = "", tenant: str = "", ttl_ms: int = 0
    ) -> Pair | None:
        """`ttl_ms`: of what it publishes; 0 for no end. Not where every answer must be exact."""
        found: list[Any] = []  # where the cache starts, and in which pages
        if tokens:  # without them the cache refuses before it hears the time
            self.reference.tell_time()

        def real() -> Sequence:
            clock = {} if self.exact else {"now_ms": self.reference.now}
            ttl = ttl_ms / 1000 if ttl_ms else None
            sequence = self.cache.open(
                tokens, adapter=adapter, hints=RequestHints(tenant=tenant), ttl=ttl, **clock
            )
            tables = map(sequence.block_table, range(len(self.plan.groups)))
            found.extend((sequence.cached_tokens, [table.tolist() for table in tables]))
            return sequence

        matched = self.reference.matched(adapter, tokens)
        best = self.reference.hit(adapter, tokens) if tokens else 0
        opened = self.both(real, lambda: self.reference.open(tokens, adapter, *found))
        if opened is None:
            return None
        sequence, twin = opened
        assert sequence.cached_tokens <= best
        assert sequence.matched_tokens <= matched
        if self.exact:
            assert (sequence.cached_tokens, sequence.matched_tokens) == (best, matched)
        twin.ttl = ttl_ms or twin.ttl
        pair = Pair(self, sequence, twin, tenant)
        self.pairs.append(pair)
        self.check(pair)
        return pair

    def write(
        self,
        pair: Pair,
        layer: int,
        start: int,
        count: int,
        draft: int = 0,
        layout: str | None = None,
    ) -> bool:
        """Writes `count` rows; those of a draft are wrong and must not be completed.

        With a layout they come as tensors of an engine.
        """
        known = range(start, min(start + count, len(pair.twin.tokens)))
        rows = [pair.content(layer, p, draft) for p in known]
        rows += [pair.content(layer, p) for p in range(len(rows), count)]  # beyond the tokens
        arrays = self.arrays(layer, rows) or [np.zeros((count, 1, 1), np.float16)]

        def send() -> None:
            if layout is None:
                pair.real.write(layer, start, *arrays)
                return
            tensors = [to_engine(array, layout) for array in arrays]
            pair.real.import_rows(layer, start, start + count, tensors, layout)

        done = self.both(send, lambda: pair.twin.write(layer, start, rows))
        if done is None:
            return False
        cells = {(layer, start + i) for i in range(count)}
        pair.stale = pair.stale | cells if draft else pair.stale - cells
        return True

    def arrays(self, layer: int, rows: list[list[np.ndarray]]) -> list[np.ndarray]:
        """Rows of positions as `Sequence.write` takes them, one array for each component."""
        return [
            np.array([row[i] for row in rows], INTEGERS.get(part.dtype, "float16")).reshape(
                -1, part.heads, part.width
            )
            for i, part in enumerate(self.plan.paged_components(layer))
        ]

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
        for stream, (_, r) in self.reference.streams.items():
            first = len(pair.twin.records[stream])
            if not self.write_records(pair, stream, first, (length + count) // r - first):
                return False
        self.advance(pair, count)
        return True

    def record_array(self, stream: tuple[int, str], rows: list[np.ndarray]) -> np.ndarray:
        layer, name = stream
        [part] = [part for part in self.plan.streams(layer) if part.component == name]
        return np.array(rows, np.float16).reshape(len(rows), part.heads, part.width)

    def write_records(self, pair: Pair, stream: tuple[int, str], first: int, count: int) -> bool:
        rows = [pair.record(stream, first + i) for i in range(count)]
        array = self.record_array(stream, rows)
        done = self.both(
            lambda: pair.real.write_records(*stream, first, array),
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
        content = pair.state_content(pair.twin.tokens[: pair.twin.length])
        for (layer, name), value in content.items():
            pair.real.state(layer, name)[...] = value
        if content:
            pair.twin.state = content

    def forget(
        self, pair: Pair, real: Callable[[int], Any], twin: Callable[[int], Any], position: int
    ) -> None:
        """Calls what goes back to `position`."""
        if self.both(lambda: real(position), lambda: twin(position)) is not None:
            pair.stale.clear()

    def snapshot(self, pair: Pair, kept: str = "exact") -> None:
        """Of a format that keeps the state of every shape exactly, which consists of bytes."""
        done = self.both(lambda: pair.real.snapshot(kept), lambda: pair.twin.snapshot(kept))
        assert done is None or done[0] == done[1]

    def publish(self, pair: Pair) -> None:
        self.check_pages()  # the pages that others may find are noted
        self.tenants.look()
        assert self.both(pair.real.publish, pair.twin.publish)
        self.tenants.look(pair.tenant)
        # What a snapshot kept from a trimming that the reference was not told of goes as well.
        for group in range(len(self.plan.groups)):
            pair.twin.let_go(group, pair.real.block_table(group).tolist())

    def fork(self, pair: Pair) -> None:
        forked = self.both(pair.real.fork, pair.twin.fork)
        if forked is not None:
            child = Pair(self, *forked, pair.tenant)
            self.pairs.append(child)
            self.check(child)

    def close(self, pair: Pair) -> None:
        self.both(pair.real.close, pair.twin.close)
        self.pairs.remove(pair)
        assert not pair.real.is_open

    def clear(self) -> None:
        self.cache.clear()
        self.reference.clear()
        self.pins.dropped()
        self.tenants.cleared()

    def view(self, pair: Pair, layer: int, start: int, stop: int) -> None:
        """Pins rows where they lie; complete ones go on showing what they show."""
        done = self.both(
            lambda: pair.real.views(layer, start, stop), lambda: pair.twin.view(layer, start, stop)
        )
        if done is None or start == stop or stop > pair.twin.length:
            return
        pinned = Views({}, [])
        for index, views in enumerate(views for views in done[0] if views is not None):
            group = self.cache.pages(layer, self.plan.paged_components(layer)[index].component)
            pinned.pages[group.group] = [view.page for view in views]
            for view in views:
                rows = done[1][view.start - start :][: len(values(view.rows))]
                pinned.shown.append((view.rows, np.array([row[index] for row in rows])))
                assert view.scales is None or (view.scales == 1).all()
            assert sum(len(values(view.rows)) for view in views) == stop - start
        self.views.append(pinned)
        self.check_views()

    def drop_views(self, at: int) -> None:
        self.check_views()
        del self.views[at]

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

    def export(self, pair: Pair, layer: int, start: int, stop: int, layout: str) -> None:
        """What `read` compares, through tensors of an engine."""
        shape = (max(0, stop - start),)
        tensors = [
            to_engine(np.zeros((*shape, part.heads, part.width), np.float32), layout)
            for part in self.plan.paged_components(layer)
        ] or [np.zeros((1, 1, 1), np.float32)]
        done = self.both(
            lambda: pair.real.export_rows(layer, start, stop, tensors, layout),
            lambda: pair.twin.read(layer, start, stop),
        )
        if done is not None:
            want = self.arrays(layer, done[1])
            for tensor, rows in zip(tensors, want, strict=True):
                assert np.array_equal(tensor, to_engine(rows, layout))

    def check_views(self) -> None:
        for views in self.views:
            for array, want in views.shown:
                assert np.array_equal(values(array), want)

    def tables(self, group: int) -> list[tuple[Tables, list[int]]]:
        """Of every open sequence its table in the reference, and the real one."""
        return [(pair.twin.tables, pair.real.block_table(group).tolist()) for pair in self.pairs]

    def resync(self) -> None:
        """A call that found no room may have let go or copied pages before it failed."""
        for group in range(len(self.plan.groups)):
            for tables, numbers in self.tables(group):
                tables.resync(group, numbers)

    def check_pages(self) -> None:
        """Who shares which page, how often each is referenced, and what all of them take."""
        pages = page_bytes = 0
        for group, shape in enumerate(self.plan.groups):
            holders = Counter(page for views in self.views for page in views.pages.get(group, ()))
            numbers: dict[Page, int] = {}
            for tables, real in self.tables(group):
                twin = tables.pages[group]
                assert [number < 0 for number in real] == [page is None for page in twin]
                for page, number in zip(twin, real, strict=True):
                    if page is not None:
                        page.number = number if page.number < 0 else page.number
                        assert page.number == number
                        numbers[page] = number
                        holders[number] += 1
            assert len(set(numbers.values())) == len(numbers)
            live = _core.page_refs(self.cache._core, group)
            held = {page: refs - indexed for page, refs, indexed in live if refs > indexed}
            assert held == holders
            pages += len(live)
            page_bytes += len(live) * shape.page_bytes
        stats = self.cache.stats()
        exact = stats.slots + stats.snapshots - stats.lossy_snapshots + stats.ring_snapshots
        sizes = [self.plan.snapshot_bytes(kept) for kept in FORMATS[1:]]
        lossy = stats.used_bytes - page_bytes - exact * self.plan.slot_bytes
        lossy -= sum(pair.has_stash for pair in self.pairs) * self.plan.stash_bytes
        assert stats.pages == pages
        assert min(sizes) * stats.lossy_snapshots <= lossy <= max(sizes) * stats.lossy_snapshots

    def check(self, pair: Pair) -> None:
        """Everything a sequence can show, to the byte."""
        real, twin = pair.real, pair.twin
        assert real.length == twin.length
        assert real.tokens.tolist() == twin.tokens
        assert real.recorded == [position for position, _, _ in twin.ring]
        assert real.cached_tokens == twin.cached_tokens
        assert real.matched_tokens == twin.matched_tokens or not self.exact
        for layer in self.reference.windows:
            ahead = range(twin.length, twin.written[layer])
            for start, stop in runs([*self.reference.needed(layer, twin.length), *ahead]):
                self.read(pair, layer, start, stop)
        for stream, known in twin.records.items():
            assert real.written_records(*stream) == len(known)
            got = real.read_records(*stream, 0, len(known))
            assert np.array_equal(got, np.reshape(known, got.shape))
        for part in self.plan.fixed:
            array = real.state(part.layer, part.name)
            want = 0 if twin.state is None else twin.state[part.layer, part.name]
            assert np.array_equal(array, np.broadcast_to(want, array.shape).astype(array.dtype))

    def has_lossy(self, adapter: str, tokens: list[int]) -> bool:
        """Whether a snapshot of a prefix is one that files do not hold."""
        known = self.reference.index.get(adapter, {})
        path = [
            known[tuple(tokens[:n])] for n in range(1, self.reference.matched(adapter, tokens) + 1)
        ]
        return any(at.snapshot is not None and at.snapshot.kept != "exact" for at in path)

    def explain(self, tokens: list[int], adapter: str = "") -> None:
        said = self.cache.explain(tokens, adapter=adapter)
        self.routed.check_hit(tokens, adapter, said.cached_tokens)
        matched = self.reference.matched(adapter, tokens)
        cached = self.reference.hit(adapter, tokens)
        assert said.matched_tokens <= matched
        assert said.cached_tokens <= cached
        if not self.exact:
            return
        assert (said.matched_tokens, said.cached_tokens) == (matched, cached)
        assert said.once_tokens == matched
        assert said.reason == ("none" if said.limited_by == "last token" else "never stored")
        if self.reference.fixed:
            assert said.nearest_snapshot == self.reference.nearest_snapshot(adapter, tokens)
        if cached == min(matched, len(tokens) - 1):
            assert said.limited_by == ("tokens" if matched < len(tokens) else "last token")
        else:
            windows = any(group.window for group in self.reference.windows.values())
            limits = {"snapshot"} if self.reference.fixed else set()
            assert said.limited_by in limits | ({"window"} if windows else set())

    def check_ledger(self) -> None:
        self.pins.check()
        self.tenants.check()
        stats = self.cache.stats()
        assert stats.used_bytes <= stats.committed_bytes
        assert stats.committed_bytes <= min(stats.peak_bytes, stats.budget_bytes)
        assert stats.open_sequences == len(self.reference.open_sequences) == len(self.pairs)
        assert stats.slots == (len(self.pairs) if self.reference.fixed else 0)
        assert stats.ring_snapshots == sum(len(pair.twin.ring) for pair in self.pairs)
        if self.exact:
            stored = self.reference.stored()
            indexed = {known.snapshot for known in stored if known.snapshot is not None}
            unpublished = {s for pair in self.pairs for s in pair.twin.snapshots.values()}
            assert stats.indexed_tokens == len(stored)
            assert stats.indexed_snapshots == len(indexed)
            assert stats.snapshots == len(indexed | unpublished)
            lossy = [s for s in indexed | unpublished if s.kept != "exact"]
            assert stats.lossy_snapshots == len(lossy)
            assert stats.evicted_blocks == stats.evicted_snapshots == 0

    def finish(self) -> None:
        """Closes and drops everything; not a byte may stay in use."""
        self.check_views()
        self.views.clear()
        for pair in list(self.pairs):
            self.check(pair)
            self.close(pair)
        self.clear()
        self.check_pages()
        self.check_ledger()
        stats = self.cache.stats()
        assert (stats.used_bytes, stats.pages, stats.slots, stats.snapshots) == (0, 0, 0, 0)
        assert (stats.indexed_blocks, stats.indexed_tokens, stats.indexed_snapshots) == (0, 0, 0)
        self.check_all_memory_is_free()

    def check_all_memory_is_free(self) -> None:
        """The least budget there is will do, and what was taken beyond it is given back."""
        least = self.plan.sequence_bytes(1)
        self.cache.resize(least)
        assert self.cache.stats().committed_bytes <= least
