"""Prefixes that are kept from eviction, and for how long."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
from model.driver import SHAPES
from support.stored import PROMPT, cached, make_cache, press, store

from kvcache import InvalidArgumentError, NotFoundError, OutOfCapacityError, Pin


@pytest.mark.parametrize("shape", sorted(SHAPES.keys() - {"recurrent", "window 1"}))  # no pages
def test_pinned_prefix_of_every_kind_of_model_stays(shape: str) -> None:
    cache = make_cache(shape, capacity_blocks=60)
    store(cache, PROMPT)
    best = cached(cache, PROMPT)
    with cache.pin(PROMPT) as pin:
        assert isinstance(pin, Pin)
        assert (pin.tokens, pin.expires_ms, pin.is_held) == (22, None, True)
        press(cache)
        assert cached(cache, PROMPT) == best
        assert cached(cache, [*PROMPT, 0]) == 22
        assert cache.stats().evicted_blocks > 0
    assert not pin.is_held
    press(cache)
    assert cached(cache, PROMPT) == 0
    cache.clear()
    stats = cache.stats()
    assert (stats.pins, stats.pinned_pages, stats.pinned_bytes, stats.used_bytes) == (0, 0, 0, 0)


def test_pin_that_is_garbage_collected_lets_go() -> None:
    cache = make_cache()
    store(cache, PROMPT)
    pin = cache.pin(PROMPT)
    assert cache.stats().pins == 1
    del pin
    gc.collect()
    assert cache.stats().pins == 0


def test_pin_outlives_its_cache() -> None:
    cache = make_cache()
    store(cache, PROMPT)
    pin = cache.pin(PROMPT)
    del cache
    gc.collect()
    assert pin.is_held
    pin.release()
    pin.release()
    assert not pin.is_held


def test_lease_lapses_by_itself() -> None:
    cache = make_cache()
    store(cache, PROMPT)
    before = time.monotonic() * 1000
    pin = cache.pin(PROMPT, lease=0.02)
    assert pin.expires_ms is not None
    assert before + 19 <= pin.expires_ms <= time.monotonic() * 1000 + 21
    while time.monotonic() * 1000 < pin.expires_ms + 2:
        time.sleep(0.002)
    assert cache.stats().pins == 0
    assert cache.stats().lapsed_leases == 1
    assert not pin.is_held
    with pytest.raises(NotFoundError, match="lapsed"):
        pin.renew(1)


def test_lease_by_the_callers_clock() -> None:
    cache = make_cache()
    store(cache, PROMPT)
    pin = cache.pin(PROMPT, lease=10, now_ms=5000)
    assert pin.expires_ms == 15_000
    cache.open([1], now_ms=14_999).close(now_ms=14_999)
    assert pin.is_held
    pin.renew(1.5, now_ms=14_999)
    assert pin.expires_ms == 16_499
    cache.open([1], now_ms=3_000).close(now_ms=16_498)  # one call came late
    assert pin.is_held
    pin.renew(now_ms=16_498)
    assert pin.expires_ms is None
    cache.open([1], now_ms=10**15).close()
    assert pin.is_held


def test_clock_that_was_set_back_ends_no_lease_early_or_never() -> None:
    cache = make_cache()
    store(cache, PROMPT)
    pin = cache.pin(PROMPT, lease=100, now_ms=10**12)
    cache.open([1], now_ms=0).close(now_ms=50_000)
    assert pin.is_held
    cache.open([1], now_ms=100_000).close(now_ms=100_000)
    assert not pin.is_held


@pytest.mark.parametrize("wish", ["clear", "bump_epoch", "erase", "erase tokens"])
def test_what_the_owner_drops_is_dropped_though_pinned(wish: str) -> None:
    cache = make_cache()
    store(cache, PROMPT)
    pin = cache.pin(PROMPT)
    if wish == "erase tokens":
        assert cache.erase(PROMPT[:3]) > 0
    else:
        getattr(cache, wish)()
    assert not pin.is_held
    assert cached(cache, PROMPT) == 0
    assert cache.stats().pinned_bytes == 0
    pin.release()


@pytest.mark.parametrize("limit", [0, 0.0, 1000, "1KiB"])
def test_limit_of_all_pins_refuses_with_its_numbers(limit: float | str) -> None:
    cache = make_cache(pin_limit=limit)
    store(cache, PROMPT)
    with pytest.raises(OutOfCapacityError, match=r"22 tokens need \d+ bytes more.*pin_limit"):
        cache.pin(PROMPT)
    assert cache.stats().pins == 0


def test_limit_counts_what_two_pins_share_once() -> None:
    cache = make_cache()
    store(cache, PROMPT)
    pins = [cache.pin(PROMPT) for _ in range(1000)]
    assert cache.stats().pins == 1000
    assert cache.stats().pinned_bytes <= cache.stats().used_bytes
    pins.clear()
    assert cache.stats().pinned_bytes == 0


def test_half_of_the_budget_is_the_limit() -> None:
    cache = make_cache()
    pins = []

    def pin(first: int) -> Pin:
        store(cache, list(range(first, first + 22)))
        return cache.pin(range(first, first + 22))

    with pytest.raises(OutOfCapacityError, match="pin_limit"):
        pins.extend(pin(first) for first in range(0, 10_000, 100))
    block = cache.plan.block_bytes
    assert 10 * block < cache.stats().pinned_bytes <= 20 * block
    press(cache)  # others still find room
    assert cached(cache, list(range(22))) > 0


@pytest.mark.parametrize("space", [{"namespace": "a"}, {"adapter": ("b", "2")}, {"salt": b"c"}])
def test_pin_is_of_one_space(space: dict[str, Any]) -> None:
    cache = make_cache()
    store(cache, PROMPT, **space)
    with pytest.raises(NotFoundError, match="22 tokens"):
        cache.pin(PROMPT)
    with cache.pin(PROMPT, **space):
        press(cache)
        assert cached(cache, PROMPT, **space) > 0


def test_pin_of_an_image_ends_before_or_after_it() -> None:
    cache = make_cache("full")
    media = [(5, 6, b"cat")]
    store(cache, PROMPT, media=media)
    assert cache.pin(PROMPT, media=media).tokens == 22
    assert cache.pin([*PROMPT[:11], 1], media=media).tokens == 11
    with pytest.raises(InvalidArgumentError, match="media"):
        cache.pin(PROMPT[:8], media=media)


@pytest.mark.parametrize("lease", [0, -1, float("nan"), float("inf"), "1", True, 10**400])
def test_wrong_lease(lease: Any) -> None:
    cache = make_cache()
    store(cache, PROMPT)
    pin = cache.pin(PROMPT)
    for call in (lambda: cache.pin(PROMPT, lease=lease), lambda: pin.renew(lease)):
        with pytest.raises(InvalidArgumentError, match="lease"):
            call()
    assert cache.stats().pins == 1


@pytest.mark.parametrize("tokens", [[], [2**40], [0.5], None])
def test_wrong_tokens(tokens: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        make_cache().pin(tokens)


@pytest.mark.parametrize("now", [-1, 2**63, 1.5, "now"])
def test_wrong_time(now: Any) -> None:
    cache = make_cache()
    store(cache, PROMPT)
    with pytest.raises(InvalidArgumentError, match="now_ms"):
        cache.pin(PROMPT, now_ms=now)


@pytest.mark.parametrize("limit", [-1, 1.5, float("nan"), "much", None, True, 2**64])
def test_wrong_limit(limit: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="pin_limit"):
        make_cache(pin_limit=limit)
