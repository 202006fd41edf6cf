"""Prefixes that end by themselves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.stored import PROMPT, cached, make_cache, press

from kvcache import Cache, InvalidArgumentError


def store(cache: Cache, tokens: list[int], now: int, **options: Any) -> None:
    """At `now` seconds of the caller's clock."""
    with cache.open(tokens, now_ms=now * 1000, **options) as sequence:
        for stop in [*sequence.prefill_stops(), len(tokens)]:
            sequence.advance(max(0, stop - sequence.length))
            sequence.snapshot()
        sequence.publish()


def hit(cache: Cache, tokens: list[int], now: int) -> int:
    with cache.open(tokens, now_ms=now * 1000) as sequence:
        return sequence.cached_tokens


@pytest.mark.parametrize("shape", ["full", "hybrid", "sliding", "everything"])
def test_what_continues_a_prefix_without_an_end_has_its_own(shape: str) -> None:
    cache = make_cache(shape)
    store(cache, PROMPT[:8], 0)
    store(cache, PROMPT, 0, ttl=60)
    assert hit(cache, PROMPT, 59) == 21
    assert hit(cache, PROMPT, 400) == 8
    with cache.open(PROMPT, now_ms=400_000) as sequence:
        assert sequence.matched_tokens == 8


@pytest.mark.parametrize("shape", ["full", "hybrid", "sliding", "everything"])
def test_prefix_ends_when_nobody_used_it_for_so_long(shape: str) -> None:
    cache = make_cache(shape)
    store(cache, PROMPT, 0, ttl=60)
    assert hit(cache, PROMPT, 59) == 21
    assert hit(cache, PROMPT, 118) > 0
    assert hit(cache, PROMPT, 400) == 0
    assert cache.stats().expired_blocks == 0
    assert cache.drop_expired() == 6
    stats = cache.stats()
    assert (stats.expired_blocks, stats.indexed_blocks, stats.used_bytes) == (6, 0, 0)
    assert cache.drop_expired() == 0


def test_default_of_the_cache_and_one_that_says_otherwise() -> None:
    cache = make_cache("full", ttl=10)
    store(cache, PROMPT, 0)
    store(cache, list(range(50)), 0, ttl=math.inf)
    store(cache, list(range(60, 90)), 0, ttl=20)
    hit(cache, [1], 10)
    assert cached(cache, PROMPT) == 0
    assert cached(cache, list(range(50))) == 49
    assert cached(cache, list(range(60, 90))) == 29
    hit(cache, [1], 10**6)
    assert cached(cache, list(range(60, 90))) == 0
    assert cached(cache, list(range(50))) == 49


def test_what_has_ended_goes_before_anything_is_evicted() -> None:
    cache = make_cache("full")
    store(cache, PROMPT, 0)
    store(cache, list(range(30)), 1, ttl=5)
    store(cache, list(range(500, 560)), 100)
    store(cache, list(range(600, 650)), 101)
    assert cache.stats().expired_blocks == 8
    assert cache.stats().evicted_blocks == 0
    assert hit(cache, PROMPT, 102) == 21


def test_longest_time_of_those_who_store_a_prefix_counts() -> None:
    cache = make_cache("full")
    store(cache, PROMPT, 0, ttl=10)
    store(cache, [*PROMPT[:12], *range(8)], 5, ttl=100)
    store(cache, [*PROMPT[:6], 1, 2], 6, ttl=1)
    hit(cache, [1], 50)
    assert cached(cache, PROMPT) == 12
    assert cached(cache, [*PROMPT[:12], *range(8)]) == 19
    assert cached(cache, [*PROMPT[:6], 1, 2, 3]) == 6
    hit(cache, [1], 106)
    assert cache.drop_expired() > 0
    assert cached(cache, PROMPT) == 0
    assert cache.stats().used_bytes == 0


def test_explain_tells_the_end_from_eviction() -> None:
    cache = make_cache("full")
    store(cache, PROMPT, 0, ttl=60)
    hit(cache, [1], 60)
    said = cache.explain(PROMPT)
    assert (said.cached_tokens, said.reason, said.once_tokens) == (0, "expired", 22)
    assert "ttl" in str(said)


def test_what_is_stored_again_after_its_end_is_found_again() -> None:
    cache = make_cache("full")
    store(cache, [*PROMPT, 1, 2, 3], 0, ttl=10)
    store(cache, PROMPT, 20, ttl=10)
    assert hit(cache, [*PROMPT, 1, 2, 3], 21) == 22
    cache.drop_expired()
    assert hit(cache, [*PROMPT, 1, 2, 3], 22) == 22
    cache.clear()
    assert cache.stats().used_bytes == 0


def test_pin_keeps_what_has_outlived_its_time() -> None:
    cache = make_cache("full")
    store(cache, [*PROMPT, *range(10)], 0, ttl=10)
    pin = cache.pin(PROMPT)
    hit(cache, [1], 100)
    assert cache.drop_expired() > 0
    assert cached(cache, [*PROMPT, *range(10)]) == 22
    press(cache)
    assert cached(cache, PROMPT) == 21
    pin.release()
    assert cache.drop_expired() == 6
    assert cached(cache, PROMPT) == 0


def test_many_runs_end_in_any_order() -> None:
    cache = make_cache("full", capacity_blocks=100_000)
    for at in range(200):
        branch = [*range(at % 7), at, *range(900, 900 + at % 13)]
        store(cache, branch, at, ttl=1 + at * 37 % 101)
    for now in range(200, 330, 10):
        hit(cache, [-1], now)
        cache.drop_expired()
        for at in range(200):
            branch = [*range(at % 7), at, *range(900, 900 + at % 13), 0]
            ends = at + 1 + at * 37 % 101
            assert cached(cache, branch) <= len(branch) - 1
            assert (cached(cache, branch) == len(branch) - 1) or ends <= now
    assert cache.stats().used_bytes == 0
    assert cache.stats().indexed_tokens == 0


def test_ended_prefix_is_not_saved_and_a_loaded_one_ends(tmp_path: Path) -> None:
    cache = make_cache("full", backing=True, capacity_blocks=0)
    with cache.open([1, 2, 3], now_ms=0, ttl=5) as sequence:
        for layer in (0, 1):
            rows = [np.ones((3, 2, width), np.float16) for width in (4, 8)]
            sequence.write(layer, 0, *rows)
        sequence.advance(3)
        sequence.publish()
    assert cache.save(tmp_path / "kept", [1, 2, 3]) == 3
    hit(cache, [9], 6)
    with pytest.raises(LookupError):
        cache.save(tmp_path / "other", [1, 2, 3])
    assert cache.load(tmp_path / "kept", ttl=2) == 3
    assert hit(cache, [1, 2, 3, 4], 7) == 3
    assert cache.load(tmp_path / "kept", ttl=50) == 3
    assert hit(cache, [1, 2, 3, 4], 50) == 3
    assert hit(cache, [1, 2, 3, 4], 101) == 0


@pytest.mark.parametrize("ttl", [0, -1, -math.inf, math.nan, "1", True, 10**400, [1]])
def test_wrong_time(ttl: Any, tmp_path: Path) -> None:
    cache = make_cache("full")
    with pytest.raises(InvalidArgumentError, match="ttl"):
        make_cache("full", ttl=ttl)
    with pytest.raises(InvalidArgumentError, match="ttl"):
        cache.open([1], ttl=ttl)
    with pytest.raises(InvalidArgumentError, match="ttl"):
        cache.load(tmp_path, ttl=ttl)
