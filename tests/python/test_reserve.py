"""One budget for memory that lies elsewhere too."""

from __future__ import annotations

import numpy as np
import pytest
from support.declarations import paged
from support.forked import in_child

import kvcache
from kvcache import InvalidArgumentError, OutOfCapacityError

HEADS, WIDTH, TOKENS = 8, 64, 12
KIB = 1024


def made(memory: str = "1MiB", **options: str) -> kvcache.Cache:
    """2 KiB a position, so that a dozen sequences fill a quarter of the budget."""
    sides = [paged(0, f"attention.{side}", HEADS, WIDTH) for side in ("keys", "values")]
    return kvcache.Cache(kvcache.StatePlan(sides, memory=memory, block_tokens=4), **options)


def ran(cache: kvcache.Cache, first: int) -> kvcache.Sequence:
    sequence = cache.open(np.arange(first, first + TOKENS))
    rows = np.zeros((TOKENS - sequence.length, HEADS, WIDTH), np.float16)
    sequence.write(0, sequence.length, rows, rows)
    sequence.advance(len(rows))
    return sequence


def filled(cache: kvcache.Cache) -> None:
    for first in range(60):
        with ran(cache, 100 * first) as sequence:
            sequence.publish()


def test_reserving_evicts_what_is_stored_and_gives_it_back() -> None:
    cache = made()
    filled(cache)
    stored = cache.stats()
    reserved = cache.reserve("768KiB")
    assert reserved.bytes == 768 * KIB
    held = cache.stats()
    assert held.budget_bytes == stored.budget_bytes == 1024 * KIB
    assert held.reserved_bytes == 768 * KIB
    assert held.committed_bytes <= 256 * KIB < stored.committed_bytes
    assert held.evicted_blocks > stored.evicted_blocks
    filled(cache)
    assert cache.stats().committed_bytes <= 256 * KIB
    reserved.release()
    reserved.release()
    assert (cache.stats().reserved_bytes, reserved.bytes) == (0, 0)
    filled(cache)
    assert cache.stats().committed_bytes > 768 * KIB


def test_what_is_in_use_is_not_reserved() -> None:
    cache = made()
    sequences = [ran(cache, 100 * first) for first in range(20)]
    before = cache.stats()
    assert len(sequences) * TOKENS * 2 * KIB <= before.committed_bytes
    with pytest.raises(OutOfCapacityError, match="open sequences and views need"):
        cache.reserve("768KiB")
    with pytest.raises(OutOfCapacityError, match="one position of one sequence takes"):
        cache.reserve("1MiB")
    with pytest.raises(OutOfCapacityError, match="one position of one sequence takes"):
        cache.reserve(2**63)
    assert cache.stats() == before
    cache.reserve("256KiB")


def test_resize_keeps_what_is_reserved() -> None:
    cache = made(max_memory="4MiB")
    with cache.reserve("512KiB"):
        with pytest.raises(OutOfCapacityError, match=f"{512 * KIB} are reserved"):
            cache.resize("512KiB")
        cache.resize("2MiB")
        filled(cache)
        stats = cache.stats()
        assert (stats.budget_bytes, stats.reserved_bytes) == (2048 * KIB, 512 * KIB)
        assert stats.committed_bytes > 512 * KIB
        cache.resize("768KiB")
        assert cache.stats().committed_bytes <= 256 * KIB
    assert cache.stats().reserved_bytes == 0
    assert cache.stats().budget_bytes == 768 * KIB


def test_a_reservation_outlives_the_handle_of_its_cache() -> None:
    cache = made()
    reserved = cache.reserve("64KiB")
    del cache
    assert reserved.bytes == 64 << 10
    reserved.release()


@pytest.mark.parametrize("memory", [0, -1, 2**64, "lots", None, 1.5, True, "\u0661KiB"])
def test_what_is_no_size_is_refused(memory: object) -> None:
    with pytest.raises(InvalidArgumentError, match="memory"):
        made().reserve(memory)  # type: ignore[arg-type]


def test_a_child_process_gives_nothing_back() -> None:
    cache = made()
    reserved = cache.reserve("64KiB")

    def child() -> None:
        with pytest.raises(InvalidArgumentError, match="made before fork"):
            cache.reserve(1)
        with pytest.raises(InvalidArgumentError, match="made before fork"):
            _ = reserved.bytes
        assert repr(reserved) == "<Reservation of another process>"
        reserved.release()

    assert in_child(child) == ""
    assert cache.stats().reserved_bytes == 64 << 10
