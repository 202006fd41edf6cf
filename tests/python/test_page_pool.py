"""Block ids: what is taken, shared and freed, and what is refused."""

from __future__ import annotations

import gc
import random
import threading
from typing import Any

import numpy as np
import pytest
from support.declarations import paged

import kvcache
from kvcache import PagePool, StatePlan
from kvcache.errors import InvalidArgumentError, OutOfCapacityError, UnsupportedError


def pool_of(blocks: int = 8, **options: Any) -> PagePool:
    return PagePool(blocks, 1024, **options)


def state(pool: PagePool) -> list[int]:
    return [pool.refs(block) for block in range(pool.blocks)]


def test_any_sequence_of_calls_agrees_with_a_dictionary_of_references() -> None:
    rng = random.Random(5)
    pool = PagePool(300, 5000, backing=False)
    refs: dict[int, int] = {}
    for _ in range(3000):
        ids = rng.choices(sorted(refs), k=rng.randrange(1, 8)) if refs else []
        match rng.randrange(5):
            case 0 if len(refs) < 300:
                block = pool.allocate()
                assert block == min(set(range(300)) - refs.keys())
                refs[block] = 1
            case 1:
                count = rng.randrange(40)
                if count > 300 - len(refs):
                    with pytest.raises(OutOfCapacityError):
                        pool.allocate_many(count)
                else:
                    taken = pool.allocate_many(count).tolist()
                    assert taken == sorted(set(range(300)) - refs.keys())[:count]
                    refs |= dict.fromkeys(taken, 1)
            case 2:
                pool.retain(np.array(ids, np.int32))
                for block in ids:
                    refs[block] += 1
            case _:
                if any(ids.count(block) > refs[block] for block in ids):
                    with pytest.raises(InvalidArgumentError):
                        pool.free(ids)
                    continue
                pool.free(ids)
                for block in ids:
                    refs[block] -= 1
                refs = {block: count for block, count in refs.items() if count}
        assert pool.live_blocks == len(refs)
        assert pool.free_blocks == 300 - len(refs)
    assert state(pool) == [refs.get(block, 0) for block in range(300)]


def test_exhaustion_says_what_was_asked_and_takes_nothing() -> None:
    pool = pool_of()
    pool.allocate_many(6)
    with pytest.raises(OutOfCapacityError, match=r"asked 3 items, 2 of 8 are free"):
        pool.allocate_many(3)
    with pytest.raises(OutOfCapacityError, match="the pool has 8"):
        pool.allocate_many(2**60)
    assert pool.free_blocks == 2
    pool.allocate_many(2)
    with pytest.raises(OutOfCapacityError, match="all 8 items are live"):
        pool.allocate()


@pytest.mark.parametrize(
    "ids",
    [0, [0], [1, 1], [2, 2, 2], [1, 7], [1, -1], [1, 8], [1, 2**31 - 1], -1, 8, 2**80, -(2**80)],
)
def test_free_of_what_is_not_live_is_refused_and_changes_nothing(ids: Any) -> None:
    pool = pool_of()
    pool.allocate_many(3)
    pool.free(0)
    pool.retain(2)
    before = state(pool)
    with pytest.raises(InvalidArgumentError):
        pool.free(ids)
    assert state(pool) == before == [0, 1, 2, 0, 0, 0, 0, 0]


def test_retain_of_what_is_not_live_is_refused_and_changes_nothing() -> None:
    pool = pool_of()
    pool.allocate_many(2)
    for ids in ([0, 1, 2], 2, -5, [2**31 - 1], np.array([1, -1])):
        with pytest.raises(InvalidArgumentError, match="retain: id"):
            pool.retain(ids)
    assert state(pool) == [1, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "ids", ["0", [0.0], 0.5, [[0]], None, [2**31], {"a": 1}, np.zeros((1, 1), np.int32), True]
)
def test_what_is_no_list_of_ids_is_refused(ids: Any) -> None:
    pool = pool_of()
    pool.allocate()
    for call in (pool.free, pool.retain):
        with pytest.raises(InvalidArgumentError):
            call(ids)
    assert pool.refs(0) == 1


def test_ids_may_be_of_any_integer_type() -> None:
    pool = pool_of()
    pool.allocate_many(8)
    for ids in (
        0,
        np.int64(1),
        [2],
        (3,),
        np.array([4]),
        np.array([5, 6], np.uint8)[::-1],
        range(7, 8),
    ):
        pool.free(ids)
    assert pool.free_blocks == 8
    pool.free([])
    pool.retain(np.empty(0, np.int32))


@pytest.mark.parametrize(
    ("blocks", "block_bytes"),
    [(0, 1), (-1, 1), (2**31, 1), (2**64, 1), (1.5, 1), (1, 0), (1, "x"), (1, 2**64 - 1)],
)
def test_sizes_that_cannot_be_are_refused(blocks: Any, block_bytes: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        PagePool(blocks, block_bytes, backing=False)


def test_more_bytes_than_addresses_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="address"):
        PagePool(2**31 - 1, "1GiB")


def test_views_are_the_bytes_of_their_block_and_hold_it() -> None:
    pool = PagePool(40, 5000)
    blocks = pool.allocate_many(40)
    views = [pool.view(block) for block in blocks.tolist()]
    for index, view in enumerate(views):
        assert (view.shape, view.dtype) == ((5000,), np.uint8)
        view[:] = index
    assert all((pool.view(i) == i).all() for i in range(40))
    pool.free(blocks)
    assert pool.live_blocks == 40
    del views[3], view
    gc.collect()
    assert pool.allocate() == 3
    del views
    gc.collect()
    assert pool.live_blocks == 1


def test_a_view_outlives_the_pool() -> None:
    pool = PagePool(2, 4096)
    view = pool.view(pool.allocate())
    view[:] = 7
    del pool
    gc.collect()
    assert view.sum() == 7 * 4096


def test_a_ledger_has_no_bytes_and_no_dead_block_has() -> None:
    ledger = pool_of(backing=False)
    with pytest.raises(UnsupportedError, match="without backing"):
        ledger.view(ledger.allocate())
    with pytest.raises(InvalidArgumentError, match="not live"):
        pool_of().view(0)
    with pytest.raises(InvalidArgumentError, match=r"ids are 0\.\.7"):
        ledger.refs(8)


def test_a_group_of_a_plan_gives_its_size_and_count() -> None:
    plan = StatePlan(
        [paged(0, "attention.keys", 4, 64), paged(1, "attention.keys", 2, 64, window=32)],
        memory="1MiB",
        block_tokens=16,
    )
    for group, layout in enumerate(plan.groups):
        pool = PagePool.for_group(plan, group, backing=False)
        assert pool.block_bytes == layout.page_bytes
        assert pool.blocks == plan.memory_bytes // layout.page_bytes
        pool.allocate_many(pool.blocks)
        with pytest.raises(OutOfCapacityError):
            pool.allocate()
    with pytest.raises(InvalidArgumentError, match="the plan has 2 groups"):
        PagePool.for_group(plan, 2)
    with pytest.raises(InvalidArgumentError, match="expected a StatePlan"):
        PagePool.for_group(object())  # type: ignore[arg-type]
    tiny = StatePlan([paged(0, "attention.keys", 4, 64)], memory=4096, block_tokens=16)
    with pytest.raises(OutOfCapacityError, match="does not fit the plan's 4096 bytes"):
        PagePool.for_group(tiny)


def test_threads_never_hold_the_same_block() -> None:
    pool = PagePool(64, 64, backing=False)
    owner = [0] * 64
    clashes: list[int] = []

    def work(me: int) -> None:
        rng = random.Random(me)
        for _ in range(300):
            try:
                ids = pool.allocate_many(rng.randrange(1, 20)).tolist()
            except OutOfCapacityError:
                continue
            clashes.extend(block for block in ids if owner[block])
            for block in ids:
                owner[block] = me
            for block in ids:
                if owner[block] != me:
                    clashes.append(block)
                owner[block] = 0
            pool.free(ids)

    threads = [threading.Thread(target=work, args=(me,)) for me in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clashes == []
    assert pool.live_blocks == 0


def test_metadata_stays_below_100_bytes_a_block() -> None:
    for block_bytes in (64, 5000, 64 << 10, 2 << 20):
        pool = PagePool(20_000, block_bytes, backing=False)
        pool.allocate_many(20_000)
        assert pool.metadata_bytes < 100 * 20_000


def test_it_is_public_and_says_what_it_is() -> None:
    assert kvcache.PagePool is PagePool
    assert repr(pool_of()) == "<PagePool 0 of 8 blocks of 1024 bytes>"


def test_a_view_keeps_its_block_when_the_references_are_freed() -> None:
    pool = PagePool(2, 4096)
    block = pool.allocate()
    view = pool.view(block)
    with pytest.raises(InvalidArgumentError, match="not live"):
        pool.free([block, block])  # one of the two is the view's
    pool.free([block])
    assert pool.allocate() != block
    view[:] = 1
    del view
    assert pool.allocate() == block
