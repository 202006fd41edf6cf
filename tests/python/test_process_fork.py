"""Handles in a child of fork(): a clear error, whatever other threads were doing meanwhile."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model.driver import AMPLE, make_driver
from model.operations import step
from support.forked import in_child

from kvcache import (
    Batch,
    BatchVerifySession,
    Cache,
    CacheDisk,
    CacheRemote,
    CarryTable,
    DiskTier,
    InvalidArgumentError,
    KVCacheError,
    PagePool,
    Pin,
    Reservation,
    Sequence,
    StatePlan,
    ValkeyTier,
    VerifySession,
    VerifyTable,
)

Call = Callable[[Any], object]
ROWS = np.zeros((1, 2, 4), np.float16)
VALUES = np.zeros((1, 2, 8), np.float16)

#: Every public call of a handle. A new one is added here, or to what works everywhere.
CALLS: dict[type, dict[str, Call]] = {
    Cache: {
        "open": lambda cache: cache.open([1, 2]),
        "explain": lambda cache: cache.explain([1, 2]),
        "save": lambda cache: cache.save("unused", [1, 2]),
        "load": lambda cache: cache.load("unused"),
        "pages": lambda cache: cache.pages(0, "attention.keys"),
        "set_quota": lambda cache: cache.set_quota("t", 1),
        "tenants": lambda cache: cache.tenants(),
        "drop_expired": lambda cache: cache.drop_expired(),
        "pin": lambda cache: cache.pin([1, 2]),
        "resize": lambda cache: cache.resize("1MiB"),
        "reserve": lambda cache: cache.reserve(1),
        "stats": lambda cache: cache.stats(),
        "clear": lambda cache: cache.clear(),
        "prometheus": lambda cache: cache.prometheus(),
        "erase": lambda cache: cache.erase(),
        "bump_epoch": lambda cache: cache.bump_epoch(),
        "take_events": lambda cache: cache.take_events(),
        "events_snapshot": lambda cache: cache.events_snapshot(),
    },
    Sequence: {
        "length": lambda seq: seq.length,
        "tokens": lambda seq: seq.tokens,
        "extend": lambda seq: seq.extend([3]),
        "write_records": lambda seq: seq.write_records(0, "state.pooling.0.pooled", 0, ROWS),
        "read_records": lambda seq: seq.read_records(0, "state.pooling.0.pooled", 0, 1),
        "written_records": lambda seq: seq.written_records(0, "state.pooling.0.pooled"),
        "write": lambda seq: seq.write(0, 0, ROWS, VALUES),
        "read": lambda seq: seq.read(0, 0, 1),
        "write_layers": lambda seq: seq.write_layers(0, {0: (ROWS, VALUES)}),
        "read_layers": lambda seq: seq.read_layers([0], 0, 0),
        "prepare": lambda seq: seq.prepare(1),
        "import_rows": lambda seq: seq.import_rows(0, 0, 1, [ROWS, VALUES], "tokens heads dim"),
        "export_rows": lambda seq: seq.export_rows(0, 0, 1, [ROWS, VALUES], "tokens heads dim"),
        "block_table": lambda seq: seq.block_table(0),
        "views": lambda seq: seq.views(0, 0, 0),
        "state": lambda seq: seq.state(1, "state.recurrent"),
        "advance": lambda seq: seq.advance(1),
        "snapshot": lambda seq: seq.snapshot(),
        "mark": lambda seq: seq.mark(1),
        "prefill_stops": lambda seq: seq.prefill_stops(),
        "publish": lambda seq: seq.publish(),
        "fork": lambda seq: seq.fork(),
        "truncate": lambda seq: seq.truncate(0),
        "shift": lambda seq: seq.shift(0, 1),
        "record": lambda seq: seq.record(),
        "rollback": lambda seq: seq.rollback(0),
        "recorded": lambda seq: seq.recorded,
        "begin_verify": lambda seq: seq.begin_verify([]),
    },
    Batch: {
        "lengths": lambda batch: batch.lengths,
        "extend": lambda batch: batch.extend([3]),
        "prepare": lambda batch: batch.prepare(),
        "write": lambda batch: batch.write(0, ROWS, VALUES, starts=[0]),
        "read": lambda batch: batch.read(0, [0], [0]),
        "advance": lambda batch: batch.advance(),
        "block_table": lambda batch: batch.block_table(0),
        "begin_verify": lambda batch: batch.begin_verify([1]),
    },
    BatchVerifySession: {
        "write": lambda session: session.write(0, ROWS, VALUES),
        "write_records": lambda session: session.write_records(0, "state.pooling.0.pooled", ROWS),
        "state": lambda session: session.state(0, 0, 1, "state.recurrent"),
        "live": lambda session: session.live(0, 1, "state.recurrent"),
        "pending": lambda session: session.pending(0, 1, "state.recurrent"),
        "stash": lambda session: session.stash(1, "state.recurrent", right=ROWS),
        "block_table": lambda session: session.block_table(0),
        "commit": lambda session: session.commit([1]),
        "rollback": lambda session: session.rollback(),
    },
    PagePool: {
        "allocate": lambda pool: pool.allocate(),
        "allocate_many": lambda pool: pool.allocate_many(2),
        "retain": lambda pool: pool.retain(0),
        "free": lambda pool: pool.free(0),
        "refs": lambda pool: pool.refs(0),
        "view": lambda pool: pool.view(0),
        "blocks": lambda pool: pool.blocks,
        "live_blocks": lambda pool: pool.live_blocks,
        "free_blocks": lambda pool: pool.free_blocks,
        "block_bytes": lambda pool: pool.block_bytes,
        "metadata_bytes": lambda pool: pool.metadata_bytes,
    },
    CarryTable: {
        "is_staged": lambda table: table.is_staged,
        "live": lambda table: table.live(0, "state.recurrent"),
        "stashes": lambda table: table.stashes(0),
        "engaged": lambda table: table.engaged(0),
    },
    VerifyTable: {
        "is_staged": lambda table: table.is_staged,
        "pointers": lambda table: table.pointers(1, "state.recurrent"),
    },
    Reservation: {"bytes": lambda reserved: reserved.bytes},
    VerifySession: {
        "write": lambda session: session.write(0, ROWS, VALUES),
        "write_records": lambda session: session.write_records(0, "state.pooling.0.pooled", ROWS),
        "state": lambda session: session.state(0, 1, "state.recurrent"),
        "live": lambda session: session.live(1, "state.recurrent"),
        "pending": lambda session: session.pending(1, "state.recurrent"),
        "stash": lambda session: session.stash(1, "state.recurrent", right=ROWS),
        "commit": lambda session: session.commit(1),
        "rollback": lambda session: session.rollback(),
    },
    CacheDisk: {
        "prefetch": lambda disk: disk.prefetch([1, 2]),
        "flush": lambda disk: disk.flush(),
        "stats": lambda disk: disk.stats(),
        "warn": lambda disk: disk.warn(),
    },
    CacheRemote: {
        "prefetch": lambda remote: remote.prefetch([1, 2]),
        "flush": lambda remote: remote.flush(),
        "stats": lambda remote: remote.stats(),
        "warn": lambda remote: remote.warn(),
    },
    Pin: {"is_held": lambda pin: pin.is_held, "renew": lambda pin: pin.renew()},
}
#: Facts that never change, and what has to work wherever a handle is dropped.
EVERYWHERE: dict[type, set[str]] = {
    Cache: {"plan", "policy", "disk", "remote"},
    CacheDisk: set(),
    CacheRemote: set(),
    Sequence: {"cached_tokens", "matched_tokens", "is_open", "close", "plan", "snapshot_errors"},
    Batch: {"sequences"},
    PagePool: {"for_group"},
    CarryTable: {"batch_rows", "nbytes", "offsets"},
    VerifyTable: {"batch_rows", "nbytes", "tables"},
    Reservation: {"release"},
    BatchVerifySession: {
        "batch",
        "rows",
        "strategy",
        "tokens",
        "positions",
        "offsets",
        "starts",
        "is_open",
    },
    VerifySession: {"rows", "start", "strategy", "tokens", "positions", "is_open"},
    Pin: {"tokens", "expires_ms", "release"},
}


def pinned(cache: Cache) -> Pin:
    with cache.open([3, 4]) as sequence:
        for layer in (0, 2):
            sequence.write(layer, 0, ROWS, VALUES)
        sequence.advance(1)
        sequence.snapshot()
        sequence.publish()
    return cache.pin([3, 4])


def disk_of(plan: StatePlan) -> CacheDisk:
    """Of a tier whose directory is gone, which its open files outlive."""
    with tempfile.TemporaryDirectory() as directory:
        disk = Cache(plan, disk=DiskTier(f"{directory}/tier", "64MiB")).disk
        assert disk is not None
        return disk


def remote_of(plan: StatePlan) -> CacheRemote:
    remote = Cache(plan, remote=ValkeyTier("127.0.0.1:1")).remote
    assert remote is not None
    return remote


def handles() -> dict[type, Any]:
    """One of each, all in use, with a view of the state on top."""
    cache = make_driver("hybrid", AMPLE).cache
    busy = cache.open([7])
    pool = PagePool(4, 64)
    pool.allocate_many(3)
    return {
        Cache: cache,
        Sequence: cache.open([1, 2]),
        Batch: Batch([cache.open([9])]),
        BatchVerifySession: Batch([cache.open([6])]).begin_verify(
            [8], table=VerifyTable(cache.plan)
        ),
        PagePool: pool,
        VerifySession: busy.begin_verify([8]),
        Pin: pinned(cache),
        CacheDisk: disk_of(cache.plan),
        CacheRemote: remote_of(cache.plan),
        CarryTable: CarryTable(cache.plan),
        VerifyTable: VerifyTable(cache.plan),
        Reservation: cache.reserve(1),
        np.ndarray: cache.open([5]).state(1, "state.recurrent"),
    }


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_every_public_call_is_covered(kind: type) -> None:
    public = {name for name in dir(kind) if not name.startswith("_")}
    assert public == set(CALLS[kind]) | EVERYWHERE[kind]


def test_every_call_is_refused_in_a_child() -> None:
    made = handles()

    def child() -> None:
        for kind, calls in CALLS.items():
            for call in calls.values():
                with pytest.raises(InvalidArgumentError, match=r"before fork\(\)"):
                    call(made[kind])
        assert repr(made[PagePool]) == "<PagePool of another process>"

    assert in_child(child) == ""
    assert made[Cache].stats().open_sequences == 4  # the view's is closed
    assert made[PagePool].live_blocks == 3


def test_a_child_drops_handles_without_a_trace() -> None:
    made = handles()
    used = made[Cache].stats()

    def child() -> None:
        assert not made[Sequence].is_open
        assert not made[VerifySession].is_open
        assert "closed" in repr(made[Sequence])
        assert "ended" in repr(made[VerifySession])
        made[Sequence].close()
        assert not made[BatchVerifySession].is_open
        for session in (VerifySession, BatchVerifySession):
            with made[session]:
                pass
        made[np.ndarray][...] = 1  # a private copy of the memory
        made.clear()
        gc.collect()

    assert in_child(child) == ""
    assert made[Cache].stats() == used
    assert not made[np.ndarray].any()


def test_a_child_makes_its_own_cache_which_its_own_child_cannot_use() -> None:
    driver = make_driver("hybrid", AMPLE)
    driver.open([1, 2, 3])

    def use() -> None:
        own = make_driver("hybrid", AMPLE)
        rng = random.Random(1)
        for _ in range(100):
            step(rng, own)
        assert "before fork()" in in_child(own.cache.stats)
        own.finish()

    assert in_child(use) == ""
    driver.finish()


@contextmanager
def busy_threads(count: int) -> Iterator[None]:
    """Threads that open, run, publish and close in one cache."""
    stop = threading.Event()
    shared = Cache(make_driver("hybrid", AMPLE, sequences=64).plan)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        while not stop.is_set():
            tokens = [rng.randrange(3) for _ in range(20)]
            with shared.open(tokens) as seq, seq.fork():
                if seq.cached_tokens < 5:
                    for layer in (0, 2):
                        n = 5 - seq.cached_tokens
                        seq.write(layer, seq.cached_tokens, ROWS.repeat(n, 0), VALUES.repeat(n, 0))
                    seq.advance(5 - seq.cached_tokens)
                    seq.snapshot()
                    seq.publish()
                shared.stats()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield shared
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_forks_among_busy_threads_neither_hang_nor_corrupt() -> None:
    with busy_threads(4) as shared:
        seq = shared.open([9, 9])

        def child() -> None:
            for use in (shared.stats, lambda: shared.open([1]), lambda: seq.length, seq.publish):
                with pytest.raises(KVCacheError, match=r"before fork\(\)"):
                    use()
            seq.close()

        assert {in_child(child) for _ in range(200)} == {""}
        seq.close()
    shared.clear()
    stats = shared.stats()
    assert (stats.used_bytes, stats.open_sequences) == (0, 0)


def _worker(cache: Cache, seq: Sequence, answers: Any) -> None:
    try:
        cache.open([1])
    except KVCacheError as error:
        answers.put(str(error))
    with Cache(cache.plan).open([1, 2]) as own:
        answers.put(own.length)
    seq.close()


def test_multiprocessing_by_fork_gets_the_error_and_exits_cleanly() -> None:
    made = handles()
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    worker = context.Process(target=_worker, args=(made[Cache], made[Sequence], answers))
    worker.start()
    assert "before fork()" in answers.get(timeout=60)
    assert answers.get(timeout=60) == 0
    worker.join(60)
    assert worker.exitcode == 0
    assert made[Sequence].is_open


def test_a_child_may_end_with_a_full_shutdown_of_the_interpreter() -> None:
    code = """
import os, threading
from kvcache import Cache, StatePlan
from model.driver import SHAPES
cache = Cache(StatePlan(SHAPES["hybrid"], memory="4MiB", block_tokens=4, sequences=8))
seq = cache.open([1, 2])
view = seq.state(1, "state.recurrent")
session = cache.open([4]).begin_verify([3])
def serve():
    while True:
        cache.open([1, 2, 3]).close()
threading.Thread(target=serve, daemon=True).start()
children = [os.fork() for _ in range(3)]
if all(children):
    for child in children:
        os.waitpid(child, 0)
print("end")
"""
    paths = filter(None, [os.environ.get("PYTHONPATH")])
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *paths])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("end") == 8


def test_a_plan_is_a_value_and_works_in_a_child() -> None:
    plan = make_driver("hybrid", AMPLE).plan

    def child() -> None:
        assert Cache(plan).stats().used_bytes == 0
        assert plan.sequence_bytes(10) > 0

    assert in_child(child) == ""
