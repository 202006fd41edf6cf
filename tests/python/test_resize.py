"""Another budget for a cache in service, and how its memory is taken from the system."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.declarations import paged, recurrent
from support.forked import in_child

from kvcache import Cache, HugePages, MemoryOptions, PagePool, Sequence, StatePlan
from kvcache.errors import InvalidArgumentError, OutOfCapacityError, UnsupportedError

BLOCK = 4
KEYS = "attention.keys"
PAGE = 1 << 16  # bytes of a block of the only layer


def make_cache(blocks: int, *, fixed: bool = False, **options: Any) -> Cache:
    decls = [paged(0, KEYS, 16, 512)]
    if fixed:
        decls.append(recurrent(1, "state.recurrent", 1 << 14))
    plan = StatePlan(decls, memory=blocks * PAGE, block_tokens=BLOCK, sequences=8)
    assert plan.groups[0].page_bytes == PAGE
    return Cache(plan, **options)


def rows(tokens: list[int]) -> np.ndarray[Any, Any]:
    return np.array(tokens, np.float16)[:, None, None] * np.ones((1, 16, 512), np.float16)


def serve(cache: Cache, tokens: list[int], *, publish: bool = True) -> Sequence:
    sequence = cache.open(tokens)
    start = sequence.cached_tokens
    sequence.write(0, start, rows(tokens[start:]))
    sequence.advance(len(tokens) - start)
    if publish:
        sequence.publish()
    return sequence


def check(sequence: Sequence, tokens: list[int]) -> None:
    np.testing.assert_array_equal(sequence.read(0, 0, len(tokens))[0], rows(tokens))


def prompt(first: int, blocks: int) -> list[int]:
    return [first * 100 + i for i in range(blocks * BLOCK)]


def test_down_evicts_stored_prefixes_and_keeps_what_is_open() -> None:
    cache = make_cache(16)
    mine = serve(cache, prompt(1, 4))
    for first in (2, 3, 4):
        serve(cache, prompt(first, 4)).close()
    assert cache.stats().used_bytes == 16 * PAGE
    views = mine.views(0, 0, 4 * BLOCK)[0]
    assert views is not None
    shown = views[2].rows
    cache.resize(9 * PAGE)
    stats = cache.stats()
    assert (stats.budget_bytes, stats.used_bytes) == (9 * PAGE, 9 * PAGE)
    assert stats.committed_bytes <= 9 * PAGE
    check(mine, prompt(1, 4))
    np.testing.assert_array_equal(shown, rows(prompt(1, 4)[8:12]))
    assert cache.explain(prompt(4, 4)).cached_tokens > 0  # the latest stay longest
    with pytest.raises(OutOfCapacityError):
        serve(cache, prompt(5, 6))
    cache.resize(4 * PAGE)
    assert cache.stats().evicted_blocks == 12
    check(mine, prompt(1, 4))


def test_down_below_what_is_open_is_refused_and_changes_nothing() -> None:
    cache = make_cache(16, fixed=True)
    mine = serve(cache, prompt(1, 5), publish=False)
    serve(cache, prompt(2, 4)).close()
    before = cache.stats()
    with pytest.raises(OutOfCapacityError, match=rf"resize to {5 * PAGE} bytes.* need {6 * PAGE}"):
        cache.resize(5 * PAGE)
    with pytest.raises(OutOfCapacityError, match="one position of one sequence"):
        cache.resize(PAGE)
    assert cache.stats() == before
    cache.resize(6 * PAGE)
    assert cache.stats().indexed_blocks == 0
    check(mine, prompt(1, 5))


def test_up_allows_more_and_addresses_stay() -> None:
    cache = make_cache(4, max_memory=16 * PAGE)
    mine = serve(cache, prompt(1, 3))
    with pytest.raises(OutOfCapacityError):
        serve(cache, prompt(2, 4))
    cache.resize(str(8 * PAGE))
    other = serve(cache, prompt(2, 4))
    check(mine, prompt(1, 3))
    check(other, prompt(2, 4))
    assert cache.plan.memory_bytes == 4 * PAGE
    assert (cache.stats().budget_bytes, cache.stats().max_bytes) == (8 * PAGE, 16 * PAGE)
    with pytest.raises(InvalidArgumentError, match=rf"this cache can have {16 * PAGE}; .*max_mem"):
        cache.resize(17 * PAGE)
    assert cache.stats().budget_bytes == 8 * PAGE


def test_by_default_it_may_grow_to_the_machine() -> None:
    cache = make_cache(4)
    assert cache.stats().max_bytes > 1 << 28
    cache.resize(1 << 28)
    check(serve(cache, prompt(1, 40)), prompt(1, 40))


@pytest.mark.parametrize("memory", [0, -1, "x", None, 1.5, 2**64])
def test_what_is_no_size_is_refused(memory: Any) -> None:
    cache = make_cache(4)
    with pytest.raises(InvalidArgumentError):
        cache.resize(memory)
    assert cache.stats().budget_bytes == 4 * PAGE


def test_a_maximum_below_the_budget_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="max_memory"):
        make_cache(4, max_memory=3 * PAGE)


def test_a_ledger_is_resized_too() -> None:
    cache = make_cache(8, backing=False)
    sequence = cache.open(prompt(1, 6))
    sequence.advance(6 * BLOCK)
    sequence.publish()
    with pytest.raises(OutOfCapacityError):
        cache.resize(5 * PAGE)
    sequence.close()
    cache.resize(2 * PAGE)
    assert cache.stats().indexed_blocks == 2


def test_random_budgets_never_lose_a_byte_of_what_is_open() -> None:
    rng = np.random.default_rng(3)
    cache = make_cache(24, fixed=True, max_memory=64 * PAGE)
    held: list[tuple[Sequence, list[int]]] = []
    for step in range(250):
        try:
            if rng.random() < 0.4:
                cache.resize(int(rng.integers(1, 65)) * PAGE)
            elif held and rng.random() < 0.5:
                sequence, tokens = held.pop(int(rng.integers(len(held))))
                sequence.snapshot()
                sequence.publish()
                sequence.close()
            else:
                tokens = prompt(step % 7, int(rng.integers(1, 7)))
                held.append((serve(cache, tokens), tokens))
        except OutOfCapacityError:
            pass
        stats = cache.stats()
        assert stats.used_bytes <= stats.committed_bytes <= stats.budget_bytes
        assert 0 <= stats.fragmentation < 1
        for sequence, tokens in held:
            check(sequence, tokens)


# ---- Options of the memory --------------------------------------------------------------------


def memory_or_skip(memory: MemoryOptions) -> Cache:
    try:
        return make_cache(32, memory=memory)
    except UnsupportedError as error:
        pytest.skip(f"this system cannot: {error}")


@pytest.mark.parametrize(
    "memory",
    [
        *(MemoryOptions(huge_pages=mode) for mode in HugePages),
        MemoryOptions(numa_node=0),
        MemoryOptions(lock=True),
        MemoryOptions(prefault_threads=2),
        MemoryOptions(huge_pages="off", numa_node=0, lock=True, prefault_threads=3),
    ],
    ids=repr,
)
def test_state_is_right_whatever_the_memory_is(memory: MemoryOptions) -> None:
    cache = memory_or_skip(memory)
    for first in range(6):
        tokens = prompt(first, 7)
        sequence = serve(cache, tokens)
        check(sequence, tokens)
        sequence.close()
    cache.resize(8 * PAGE)
    check(serve(cache, prompt(9, 7)), prompt(9, 7))
    pool = PagePool(20, 5000, memory=memory)
    for block in pool.allocate_many(20).tolist():
        pool.view(block)[:] = block
    assert all((pool.view(block) == block).all() for block in range(20))


def resident_bytes() -> int:
    statm = Path("/proc/self/statm").read_text()
    return int(statm.split()[1]) * resource.getpagesize()


def test_prefault_takes_the_memory_at_once_and_resize_gives_it_back() -> None:
    before = resident_bytes()
    cache = make_cache(1024, memory=MemoryOptions(prefault_threads=2))
    assert resident_bytes() - before > 60 << 20
    cache.resize(4 * PAGE)
    assert resident_bytes() - before < 8 << 20


def test_a_node_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"NUMA node 1000.*numa_node"):
        make_cache(4, memory=MemoryOptions(numa_node=1000))


def test_memory_that_may_not_be_locked_is_refused_with_the_limit() -> None:
    # In a child without privileges, since root may lock anything.
    if os.geteuid() != 0:
        pytest.skip("needs root, to give up the privilege to lock")

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))
        os.setuid(65534)
        with pytest.raises(UnsupportedError, match="RLIMIT_MEMLOCK is 4096"):
            make_cache(64, memory=MemoryOptions(lock=True))

    assert in_child(child) == ""


@pytest.mark.parametrize(
    "values",
    [
        {"huge_pages": "always"},
        {"huge_pages": None},
        {"numa_node": -1},
        {"numa_node": 1024},
        {"numa_node": "0"},
        {"lock": 1},
        {"prefault_threads": -1},
        {"prefault_threads": 4097},
        {"prefault_threads": 1.0},
    ],
)
def test_options_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(values))):
        MemoryOptions(**values)


def test_memory_must_be_options() -> None:
    with pytest.raises(InvalidArgumentError, match="memory: expected MemoryOptions"):
        make_cache(4, memory="huge")


def test_a_budget_need_not_be_a_multiple_of_anything() -> None:
    cache = make_cache(16, fixed=True)
    for turn in range(60):
        tokens = prompt(turn % 7, 2 + turn % 5)
        with serve(cache, tokens, publish=False) as sequence:
            sequence.snapshot()
            sequence.publish()
        cache.resize((10 + turn % 6) * PAGE + 1234 + turn)
    cache.clear()
    with serve(cache, prompt(1, 8)) as sequence:
        check(sequence, prompt(1, 8))
