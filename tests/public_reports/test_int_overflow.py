"""Public reports on offsets and sizes that pass 2^31."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from model.driver import AMPLE, make_driver
from support.declarations import paged, recurrent

from kvcache import Cache, StatePlan
from kvcache.errors import InvalidArgumentError, KVCacheError


def test_more_blocks_than_a_table_addresses_are_refused_by_the_limit() -> None:
    """vllm-project/vllm#50483: caches that int32 cannot address must be rejected."""
    plan = StatePlan([paged(0, "attention.keys", 1, 8)], memory="100TB", block_tokens=1)
    for backing in [True, False]:
        with pytest.raises(InvalidArgumentError, match=r"2147483647.*raise block_tokens or lower"):
            Cache(plan, backing=backing)


def test_blocks_beyond_a_32_bit_offset_are_counted() -> None:
    """vllm-project/vllm-xpu-kernels#445: block * stride wrapped at stride 1,039,680, block 2066.

    The bytes at such an offset are checked by the arena's own test.
    """
    plan = StatePlan(
        [paged(0, "attention.keys", 1, 4061)], memory="6GiB", block_tokens=128, sequences=1
    )
    assert 1_039_000 < plan.block_bytes < 1_040_000
    cache = Cache(plan, backing=False)
    with cache.open(np.zeros(128 * 2070, np.int32)) as sequence:
        sequence.advance(128 * 2070)
        assert cache.stats().used_bytes == 2070 * plan.block_bytes > 2**31


@pytest.mark.parametrize(
    ("block", "width", "block_id"),
    [(1280, 512, 3277), (1024, 2048, 1024)],
    ids=["vllm-project/vllm#56037", "vllm-project/vllm#50427"],
)
def test_more_than_2_to_31_elements_are_counted_exactly(
    block: int, width: int, block_id: int
) -> None:
    """vllm-project/vllm#56037 (3277 * 1280 * 512 > 2^31), #50427 (2^31 elements in one layer)."""
    plan = StatePlan(
        [paged(0, "attention.latent", 1, width)], memory="16GiB", block_tokens=block, sequences=1
    )
    tokens = block * (block_id + 1)
    assert tokens * width > 2**31
    assert plan.hit_bytes(tokens) == tokens * width * 2
    assert plan.sequence_bytes(tokens) == tokens * width * 2
    with Cache(plan, backing=False).open(np.zeros(tokens, np.int32)) as sequence:
        sequence.advance(tokens)
        assert sequence.length == tokens


@pytest.mark.parametrize(
    ("heads", "width", "block"),
    [(2**22, 2**23, 2**20), (2**32 - 1, 1, 2**20), (2**23, 2**22, 2**18), (2**20, 2**20, 2**20)],
)
def test_a_page_that_does_not_fit_is_refused(heads: int, width: int, block: int) -> None:
    """Sizes whose product wraps 64 bits, to zero in the first case."""
    with pytest.raises(InvalidArgumentError, match="lower block_tokens"):
        StatePlan([paged(0, "attention.keys", heads, width)], memory=2**64 - 1, block_tokens=block)


def test_bytes_of_huge_token_counts_are_refused_not_wrapped() -> None:
    plan = StatePlan(
        [paged(0, "attention.keys", 8, 128), recurrent(1, "state.recurrent", 4)], memory="1GiB"
    )
    assert plan.hit_bytes(2**50) == 2**50 * 2048 + 16
    for size in [plan.hit_bytes, plan.sequence_bytes]:
        with pytest.raises(InvalidArgumentError, match="does not fit 64 bits"):
            size(2**63 - 1)


ROWS = (np.zeros((1, 2, 4), np.float16), np.zeros((1, 2, 8), np.float16))

#: Calls that take a position or a count.
POSITIONS: dict[str, Callable[[Any, int], object]] = {
    "write": lambda seq, n: seq.write(0, n, *ROWS),
    "read start": lambda seq, n: seq.read(0, n, n),
    "read stop": lambda seq, n: seq.read(0, 0, n),
    "views": lambda seq, n: seq.views(0, 0, n),
    "advance": lambda seq, n: seq.advance(n),
    "truncate": lambda seq, n: seq.truncate(n),
    "rollback": lambda seq, n: seq.rollback(n),
    "layer": lambda seq, n: seq.write(n, 0, *ROWS),
    "state": lambda seq, n: seq.state(n, "state.recurrent"),
    "block_table": lambda seq, n: seq.block_table(n),
}


@pytest.mark.parametrize("number", [2**31, 2**32, 2**32 + 1, 2**63 - 1, 2**64 - 1, 2**64, -1])
@pytest.mark.parametrize("call", POSITIONS)
def test_a_position_beyond_any_width_is_an_error_and_changes_nothing(
    call: str, number: int
) -> None:
    driver = make_driver("hybrid", AMPLE)
    pair = driver.open([1, 2, 3, 4, 5])
    assert pair is not None
    driver.complete(pair, 3)
    before = driver.cache.stats()
    with pytest.raises(KVCacheError):
        POSITIONS[call](pair.real, number)
    assert driver.cache.stats() == before
    driver.check(pair)
    driver.finish()


@pytest.mark.parametrize("accepted", [2**32 + 1, 2**63, 2**64 - 1, 2**64, -1, 0])
def test_an_accepted_count_beyond_any_width_leaves_the_session_open(accepted: int) -> None:
    driver = make_driver("full", AMPLE)
    with driver.cache.open([1]) as sequence, sequence.begin_verify([2]) as session:
        with pytest.raises(InvalidArgumentError):
            session.commit(accepted)
        assert session.is_open
