"""Every operation of the random tests, each written once: what is drawn, and what it does.

To add one: a function here, under `on_cache` or `on_sequence` with how often it comes up; what it
means goes into the reference, and what it leaves behind into the checks of the driver.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from model.driver import INTEGERS, Driver, Pair, values
from model.outcome import outcome
from model.tenants import NAMES

from kvcache import Batch, Cache, FixedComponent
from kvcache.errors import InvalidArgumentError, OutOfCapacityError, UnsupportedError

T = TypeVar("T")


class Draw(Protocol):
    """Where choices come from: a seeded generator, or hypothesis."""

    def integer(self, least: int, most: int) -> int: ...
    def pick(self, values: Sequence[T]) -> T: ...


class RandomDraw:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def integer(self, least: int, most: int) -> int:
        return self.rng.randint(least, most)

    def pick(self, values: Sequence[T]) -> T:
        return values[int(self.rng.random() * len(values))]


@dataclass(frozen=True)
class Operation:
    name: str
    weight: float
    needs_sequence: bool
    run: Callable[[Driver, Draw], None]


OPERATIONS: list[Operation] = []


def on_cache(weight: float) -> Callable[[Callable[[Driver, Draw], None]], None]:
    def register(function: Callable[[Driver, Draw], None]) -> None:
        OPERATIONS.append(Operation(function.__name__, weight, False, function))

    return register


def on_sequence(weight: float) -> Callable[[Callable[[Driver, Pair, Draw], None]], None]:
    def register(function: Callable[[Driver, Pair, Draw], None]) -> None:
        def run(driver: Driver, draw: Draw) -> None:
            function(driver, draw.pick(driver.pairs), draw)

        OPERATIONS.append(Operation(function.__name__, weight, True, run))

    return register


def perform(operation: Operation, driver: Driver, draw: Draw) -> None:
    """One operation and every check that does not cost the whole content."""
    operation.run(driver, draw)
    driver.check_pages()
    driver.check_ledger()
    driver.routed.check()


def step(rng: random.Random, driver: Driver) -> None:
    """One random operation."""
    choices = [op for op in OPERATIONS if driver.pairs or not op.needs_sequence]
    [operation] = rng.choices(choices, [op.weight for op in choices])
    perform(operation, driver, RandomDraw(rng))


# ---- What is drawn --------------------------------------------------------------------------


def some_tokens(draw: Draw, most: int) -> list[int]:
    return [draw.pick([1, 2, -7]) for _ in range(draw.integer(0, most))]


def some_prompt(driver: Driver, draw: Draw) -> list[int]:
    """A prompt that shares a prefix with others most of the time."""
    shared: list[int] = []
    if driver.pairs and draw.integer(0, 9) < 7:
        tokens = draw.pick(driver.pairs).twin.tokens
        shared = tokens[: draw.integer(0, len(tokens))]
    return shared + some_tokens(draw, 12)


def an_adapter(draw: Draw) -> str:
    return draw.pick(["", "", "a"])


def a_ttl(driver: Driver, draw: Draw) -> int:
    """Milliseconds, 0 for no end: which of what has ended is there the reference cannot say."""
    return 0 if driver.exact else draw.pick([0, 0, 50])


# ---- On the cache ---------------------------------------------------------------------------


@on_cache(5)
def open_(driver: Driver, draw: Draw) -> None:
    tokens, adapter = some_prompt(driver, draw), an_adapter(draw)
    if tokens:
        driver.explain(tokens, adapter)
    driver.open(tokens, adapter, draw.pick(NAMES), a_ttl(driver, draw))


@on_cache(0.5)
def wait(driver: Driver, draw: Draw) -> None:
    """Time passes; the next open says so."""
    driver.reference.wait(0 if driver.exact else draw.integer(1, 40))
    if draw.integer(0, 3) == 0:
        driver.cache.drop_expired()


@on_cache(0.5)
def set_quota(driver: Driver, draw: Draw) -> None:
    """The reference knows no limits: it says what there may be at most."""
    if driver.exact:
        return
    blocks = draw.integer(0, 12)  # the last is no quota
    quota = blocks * (driver.plan.block_bytes + driver.plan.slot_bytes) // 2
    driver.tenants.set_quota(draw.pick(NAMES[1:]), None if blocks == 12 else quota)


@on_cache(0.2)
def erase_tenant(driver: Driver, draw: Draw) -> None:
    if not driver.exact:
        driver.tenants.erase(draw.pick(NAMES[1:]))
        driver.pins.forget_dropped()


@on_cache(0.1)
def clear(driver: Driver, draw: Draw) -> None:
    driver.clear()


@on_cache(2)
def drop_views(driver: Driver, draw: Draw) -> None:
    if driver.views:
        driver.drop_views(draw.integer(0, len(driver.views) - 1))


@on_cache(1)
def pin(driver: Driver, draw: Draw) -> None:
    tokens, adapter = some_prompt(driver, draw), an_adapter(draw)
    if tokens:
        driver.pins.add(tokens, adapter)


@on_cache(1)
def unpin(driver: Driver, draw: Draw) -> None:
    if driver.pins.held:
        driver.pins.drop(draw.integer(0, len(driver.pins.held) - 1), draw.integer(0, 2))


@on_cache(0.1)
def save_and_load(driver: Driver, draw: Draw) -> None:
    """Saves a prefix, loads it here and into an empty cache, and goes on from it there."""
    tokens, adapter = some_prompt(driver, draw), an_adapter(draw)
    if len(driver.pairs) == driver.plan.sequences:
        return  # the reference could not open what was loaded
    expected = driver.reference.hit(adapter, [*tokens, 0]) if tokens else 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "saved")
        saved, refused = outcome(lambda: driver.cache.save(path, tokens, adapter=adapter))
        assert (saved or 0) <= expected
        assert saved == expected or not driver.exact or refused
        if refused is not None:
            lossy = isinstance(refused, UnsupportedError) and driver.has_lossy(adapter, tokens)
            assert expected == 0 or lossy or not driver.exact, refused
            return
        driver.tenants.is_known &= driver.exact  # one call may evict a page and load into it
        assert driver.cache.load(path, adapter=adapter) == saved
        for p in range(1, saved + 1):  # loaded without an end, which what was there takes over
            driver.reference.renew(driver.reference.index[adapter][tuple(tokens[:p])], math.inf)
        other = Cache(driver.plan)
        assert other.load(path, adapter=adapter) == saved
    with other.open([*tokens, 0], adapter=adapter) as real:
        assert real.cached_tokens == saved
        twin = driver.reference.open([*tokens, 0], adapter, saved)
        twin.matched_tokens = saved  # the other cache knows nothing else
        driver.check(Pair(driver, real, twin))
        twin.close()
    other.clear()
    assert other.stats().used_bytes == 0


@on_cache(0.3)
def resize(driver: Driver, draw: Draw) -> None:
    """Another budget; what is open stays, and with room for all nothing is evicted."""
    parts = [4, 6, 8] if driver.exact else [2, 3, 4]  # of the plan's four
    memory = driver.plan.memory_bytes * draw.pick(parts) // 4
    before = driver.cache.stats()
    _, refused = outcome(lambda: driver.cache.resize(memory))
    assert refused is None or (isinstance(refused, OutOfCapacityError) and not driver.exact)
    budget = driver.cache.stats().budget_bytes
    assert budget == (before.budget_bytes if refused else memory)


@on_cache(0.3)
def reserve(driver: Driver, draw: Draw) -> None:
    """Budget for memory elsewhere, for a moment; with room for all nothing is evicted."""
    before = driver.cache.stats()
    part = draw.pick([8, 4, 1])
    memory = before.budget_bytes // part
    if driver.exact and not 0 < memory <= before.budget_bytes - driver.plan.memory_bytes:
        return
    held, refused = outcome(lambda: driver.cache.reserve(memory))
    assert refused is None or (isinstance(refused, OutOfCapacityError) and not driver.exact)
    during = driver.cache.stats()
    assert during.budget_bytes == before.budget_bytes
    assert during.reserved_bytes == (memory if held else 0)
    assert during.committed_bytes + during.reserved_bytes <= during.budget_bytes
    if held is not None:
        held.release()
    assert driver.cache.stats().reserved_bytes == 0


@on_cache(3)
def decode_batch(driver: Driver, draw: Draw) -> None:
    """The next tokens of several sequences, some of which have none, by the calls of a batch."""
    ready = [pair for pair in driver.pairs if pair.is_ready]
    chosen = [pair for pair in ready if draw.integer(0, 3)]
    if not chosen or driver.reference.streams:
        return  # there is no batch of records
    batch = Batch([pair.real for pair in chosen])
    tokens = [some_tokens(draw, 2) for _ in chosen]
    counts = [len(new) for new in tokens]
    starts = [pair.twin.length for pair in chosen]
    work = list(zip(chosen, tokens, starts, strict=True))
    driver.both(
        lambda: batch.extend([token for new in tokens for token in new], counts),
        lambda: [pair.twin.extend(new) for pair, new, _ in work],
    )
    for layer in driver.reference.windows:
        rows = [
            [pair.content(layer, start + i) for i in range(len(new))] for pair, new, start in work
        ]
        arrays = driver.arrays(layer, [row for each in rows for row in each])
        sent = driver.both(
            lambda layer=layer, arrays=arrays: batch.write(layer, *arrays, counts=counts),
            lambda layer=layer, rows=rows: [
                pair.twin.write(layer, start, each, trims=False)
                for (pair, _, start), each in zip(work, rows, strict=True)
            ],
        )
        if sent is None:
            return
        for pair in chosen:
            for group in range(len(driver.plan.groups)):
                pair.twin.let_go(group, pair.real.block_table(group).tolist())
    driver.both(
        lambda: batch.advance(counts),
        lambda: [pair.twin.advance(len(new)) for pair, new, _ in work],
    )
    assert batch.lengths.tolist() == [pair.twin.length for pair in chosen]
    for pair, new, _ in work:
        if new:
            driver.set_state(pair)
        driver.check(pair)
    for group in range(len(driver.plan.groups)):
        shown = batch.block_table(group)
        for row, pair in zip(shown.tolist(), chosen, strict=True):
            table = pair.real.block_table(group).tolist()
            assert row == table + [-1] * (len(row) - len(table))


# ---- On one sequence ------------------------------------------------------------------------


@on_sequence(3)
def extend(driver: Driver, pair: Pair, draw: Draw) -> None:
    driver.extend(pair, some_tokens(draw, 4))


@on_sequence(3)
def write(driver: Driver, pair: Pair, draw: Draw) -> None:
    """Rows anywhere, of layers that there may not be; those of a draft are wrong."""
    start = max(0, pair.twin.length + draw.integer(-3, 5))
    count, draft = draw.integer(0, 6), draw.integer(0, 1)
    driver.write(pair, draw.integer(0, 3), start, count, draft)
    driver.check(pair)


@on_sequence(1)
def advance(driver: Driver, pair: Pair, draw: Draw) -> None:
    driver.advance(pair, draw.integer(0, 6))


@on_sequence(8)
def complete(driver: Driver, pair: Pair, draw: Draw) -> None:
    driver.complete(pair, draw.integer(0, 12))
    driver.check(pair)


@on_sequence(6)
def turn(driver: Driver, pair: Pair, draw: Draw) -> None:
    driver.turn(pair)
    driver.check(pair)


@on_sequence(3)
def read(driver: Driver, pair: Pair, draw: Draw) -> None:
    start = draw.integer(0, pair.twin.length + 1)
    driver.read(pair, draw.integer(0, 3), start, start + draw.integer(0, 6))


@on_sequence(3)
def view(driver: Driver, pair: Pair, draw: Draw) -> None:
    start = draw.integer(0, pair.twin.length)
    stop = draw.integer(start, pair.twin.length + 1)
    driver.view(pair, draw.integer(0, 3), start, stop)


@on_sequence(2)
def transfer(driver: Driver, pair: Pair, draw: Draw) -> None:
    """Rows by way of an engine's tensors, which have no integers."""
    layer, layout = draw.integer(0, 3), draw.pick(["tokens heads dim", "heads dim tokens"])
    if any(part.dtype in INTEGERS for part in driver.plan.paged_components(layer)):
        return
    start = pair.twin.length + draw.integer(-1, 3)
    driver.write(pair, layer, max(0, start), draw.integer(0, 6), draw.integer(0, 1), layout)
    start = draw.integer(0, pair.twin.length)
    driver.export(pair, layer, start, start + draw.integer(0, 6), layout)
    driver.check(pair)


@on_sequence(3)
def snapshot(driver: Driver, pair: Pair, draw: Draw) -> None:
    # INT8 keeps rows below 16 elements as they are; one shape has longer ones.
    short = driver.plan.slot_bytes < 4096
    driver.snapshot(pair, draw.pick(["exact", "exact", "f16", "int8" if short else "f16"]))


@on_sequence(3)
def publish(driver: Driver, pair: Pair, draw: Draw) -> None:
    driver.publish(pair)


@on_sequence(0.3)
def shift(driver: Driver, pair: Pair, draw: Draw) -> None:
    """No shape here keeps keys before rotation, so nothing may be dropped from the middle."""
    keep, drop = draw.integer(0, pair.twin.length + 1), draw.integer(1, 5)
    _, refused = outcome(lambda: pair.real.shift(keep, drop))
    assert isinstance(refused, InvalidArgumentError | UnsupportedError)
    driver.check(pair)


@on_sequence(2)
def fork(driver: Driver, pair: Pair, draw: Draw) -> None:
    driver.fork(pair)


@on_sequence(2)
def truncate(driver: Driver, pair: Pair, draw: Draw) -> None:
    position = max(0, pair.twin.length + draw.integer(-9, 1))
    driver.forget(pair, pair.real.truncate, pair.twin.truncate, position)
    driver.check(pair)


@on_sequence(2)
def record(driver: Driver, pair: Pair, draw: Draw) -> None:
    done = driver.both(pair.real.record, pair.twin.record)
    assert done is None or done[0] == done[1]


@on_sequence(4)
def decode(driver: Driver, pair: Pair, draw: Draw) -> None:
    """Token by token, with a record after some of them, and back to one of those."""
    for _ in range(draw.integer(1, 6)):
        driver.extend(pair, [draw.pick([1, 2])])
        if not driver.complete(pair, len(pair.twin.tokens)):
            return
        if draw.integer(0, 2):
            driver.both(pair.real.record, pair.twin.record)
    if pair.twin.ring and draw.integer(0, 1):
        position = draw.pick([at for at, _, _ in pair.twin.ring])
        driver.forget(pair, pair.real.rollback, pair.twin.rollback, position)
    driver.check(pair)


@on_sequence(2)
def rollback(driver: Driver, pair: Pair, draw: Draw) -> None:
    position = max(0, pair.twin.length + draw.integer(-6, 1))
    if pair.twin.ring and draw.integer(0, 2):
        position = draw.pick([at for at, _, _ in pair.twin.ring])
    driver.forget(pair, pair.real.rollback, pair.twin.rollback, position)
    driver.check(pair)


@on_sequence(4)
def close(driver: Driver, pair: Pair, draw: Draw) -> None:
    driver.close(pair)


class Verify:
    """What one sequence has run in a session: rows, records and state of every path."""

    def __init__(self, driver: Driver, pair: Pair, draw: Draw) -> None:
        self.driver, self.pair, self.twin = driver, pair, pair.twin
        self.drafts = some_tokens(draw, 4)
        # Records are of one path: then each draft follows the one before it.
        one_path = driver.reference.streams or draw.integer(0, 1)
        self.parents = [-1]
        for row in range(len(self.drafts)):
            self.parents.append(row if one_path else draw.integer(0, row))

    def run(self) -> None:
        twin, tokens = self.twin, [*self.twin.tokens, *self.drafts]
        paths = [list(twin.tokens)]  # the tokens up to each row
        for draft, parent in zip(self.drafts, self.parents[1:], strict=True):
            paths.append([*paths[parent], draft])
        self.rows = {
            layer: [self.pair.content(layer, len(path) - 1, tokens=path) for path in paths]
            for layer in self.driver.reference.windows
        }
        self.states = [self.pair.state_content(path) for path in paths]
        self.records = {
            stream: [
                self.pair.record(stream, j, tokens)
                for j in range(twin.length // r, len(tokens) // r)
            ]
            for stream, (_, r) in self.driver.reference.streams.items()
        }

    def draw_path(self, draw: Draw) -> list[int]:
        """A row, and from the root to it."""
        path = [draw.integer(0, len(self.drafts))]
        while path[0]:
            path.insert(0, self.parents[path[0]])
        return path

    def commit(self, path: list[int]) -> int:
        self.twin.drafts = [self.drafts[row - 1] for row in path[1:]]
        rows = {layer: [written[row] for row in path] for layer, written in self.rows.items()}
        return self.twin.commit(rows, self.records, [self.states[row] for row in path], len(path))


def may_stash(part: FixedComponent, strategy: str) -> bool:
    """Whether a fold with gates of 0 stores any values of a tensor."""
    return strategy != "steps" and part.name == "state.recurrent" and len(part.shape) == 1


@on_sequence(3)
def verify(driver: Driver, pair: Pair, draw: Draw) -> None:
    """A verify session, to whatever end; most of the time the sequence is ready for one."""
    if draw.integer(0, 4):
        if not driver.complete(pair, len(pair.twin.tokens)):
            return
        driver.extend(pair, [draw.pick([1, 2])])
    own = Verify(driver, pair, draw)
    strategy = draw.pick(["steps", "replay", "carry"])
    begun = driver.both(
        lambda: pair.real.begin_verify(own.drafts, own.parents, strategy=strategy),
        lambda: pair.twin.begin_verify(own.drafts),
    )
    if begun is None:
        return
    pair.has_stash |= strategy != "steps"
    session = begun[0]
    own.run()
    for layer, rows in own.rows.items():
        session.write(layer, *driver.arrays(layer, rows))
    for part in driver.plan.fixed:
        values = [state[part.layer, part.name] for state in own.states]
        if may_stash(part, strategy):
            new = np.float32(values)
            session.stash(part.layer, part.name, gate=np.zeros_like(new), right=new)
            continue
        for row, value in enumerate(values):
            session.state(row, part.layer, part.name)[...] = value
    for stream, new in own.records.items():
        session.write_records(*stream, driver.record_array(stream, new))
    _, refused = outcome(pair.real.publish)
    assert isinstance(refused, InvalidArgumentError)
    end = draw.pick(["commit", "commit", "rollback", "close"])
    if end == "commit":
        path = own.draw_path(draw)
        assert session.commit(path) == own.commit(path)
    elif end == "rollback":
        session.rollback()
        pair.twin.drop_verify()
    else:
        driver.close(pair)
        return
    driver.check(pair)


@on_sequence(2)
def verify_batch(driver: Driver, pair: Pair, draw: Draw) -> None:
    """Several sequences in one session, of which some may accept nothing."""
    pairs = [pair, *(other for other in driver.pairs if other is not pair and draw.integer(0, 1))]
    for each in pairs:
        if not driver.complete(each, len(each.twin.tokens)):
            return
        driver.extend(each, [draw.pick([1, 2])])
    all_own = [Verify(driver, each, draw) for each in pairs]
    drafts = [draft for own in all_own for draft in own.drafts]
    counts = [len(own.drafts) for own in all_own]
    parents = [parent for own in all_own for parent in own.parents]
    batch = Batch([each.real for each in pairs])

    def begin_twins() -> None:
        for own in all_own:
            own.twin.begin_verify(own.drafts)

    strategy = draw.pick(["steps", "replay", "carry"])
    begun = driver.both(
        lambda: batch.begin_verify(drafts, counts, parents, strategy=strategy), begin_twins
    )
    if begun is None:
        return
    session = begun[0]
    for own in all_own:
        own.pair.has_stash |= strategy != "steps"
        own.run()
    for part in driver.plan.fixed:
        tensor = part.layer, part.name
        if may_stash(part, strategy):
            new = np.float32([state[tensor] for own in all_own for state in own.states])
            session.stash(*tensor, gate=np.zeros_like(new), right=new)
            continue
        for i, own in enumerate(all_own):
            for row, state in enumerate(own.states):
                session.state(i, row, *tensor)[...] = state[tensor]
    for layer in driver.reference.windows:
        rows = [row for own in all_own for row in own.rows[layer]]
        session.write(layer, *driver.arrays(layer, rows))
    for stream in driver.reference.streams:
        new = [record for own in all_own for record in own.records[stream]]
        session.write_records(*stream, driver.record_array(stream, new))
    paths = [own.draw_path(draw) if draw.integer(0, 5) else [] for own in all_own]
    if draw.integer(0, 3):
        lengths = session.commit(paths).tolist()
        for own, path, length in zip(all_own, paths, lengths, strict=True):
            assert length == (own.commit(path) if path else own.twin.length)
    else:
        session.rollback()
        paths = [[] for _ in paths]
    for own, path in zip(all_own, paths, strict=True):
        if not path:
            own.twin.drop_verify()
        driver.check(own.pair)


@on_sequence(1)
def gather_by_table(driver: Driver, pair: Pair, draw: Draw) -> None:
    """What a kernel does: rows of the whole pool, found by the block table."""
    for layer in driver.reference.windows:
        positions = np.array(driver.reference.needed(layer, pair.twin.length), np.int64)
        for index, part in enumerate(driver.plan.paged_components(layer)):
            memory = driver.cache.pages(layer, part.component)
            table = pair.real.block_table(memory.group)
            block, row = np.divmod(positions, driver.plan.block_tokens)
            got = values(memory.rows, (table[block], row))
            want = [pair.twin.rows[layer][p][index] for p in positions]
            assert np.array_equal(got, np.array(want).reshape(got.shape))
