"""What is stored for whom, and quotas."""

from __future__ import annotations

import dataclasses
import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.prometheus_text import parse
from support.stored import cached, make_cache, store

from kvcache import (
    Cache,
    InvalidArgumentError,
    OutOfCapacityError,
    RequestHints,
    TenantUsage,
)


def of(tenant: str) -> dict[str, Any]:
    return {"hints": RequestHints(tenant=tenant)}


def numbered(first: int, count: int) -> list[int]:
    return list(range(first, first + count))


def block_bytes(cache: Cache) -> int:
    return cache.plan.block_bytes


def test_what_is_stored_is_charged_to_who_stored_it_first() -> None:
    cache = make_cache("full")
    store(cache, numbered(1, 8), **of("acme"))
    store(cache, numbered(1, 12), **of("other"))
    store(cache, numbered(100, 8))
    usage = cache.tenants()
    assert list(usage) == ["acme", "other"]
    assert usage["acme"] == TenantUsage(
        bytes=2 * block_bytes(cache),
        blocks=2,
        snapshots=0,
        quota_bytes=None,
        evicted_blocks=0,
        evicted_snapshots=0,
        refused_blocks=0,
    )
    assert usage["other"].blocks == 1
    cache.clear()
    assert cache.tenants() == {}


@pytest.mark.parametrize("policy", ["lru", "gdsf", "s3fifo", "flop_aware", "price_list"])
@pytest.mark.parametrize("shape", ["full", "hybrid", "sliding", "everything"])
def test_a_tenant_never_has_more_than_its_quota_and_others_keep_theirs(
    policy: str, shape: str
) -> None:
    cache = make_cache(shape, policy=policy, capacity_blocks=400)
    store(cache, numbered(5000, 22), **of("other"))
    kept = cached(cache, numbered(5000, 22))
    assert kept > 0
    quota = 12 * block_bytes(cache) + 3 * cache.plan.slot_bytes
    cache.set_quota("acme", quota)
    for first in range(0, 4000, 100):
        store(cache, numbered(first, 17 + first // 100 % 7), **of("acme"))
        assert cache.tenants()["acme"].bytes <= quota
        assert cached(cache, numbered(5000, 22)) == kept
    usage = cache.tenants()["acme"]
    assert usage.evicted_blocks > 100
    assert usage.refused_blocks == 0
    assert usage.bytes > quota // 2


def test_a_quota_is_bytes_or_text_or_a_share_that_follows_the_budget() -> None:
    cache = make_cache("full", backing=True, capacity_blocks=0)
    for quota, expected in [(1000, 1000), ("64KiB", 65536), (0.25, 4 << 20), (0, 0), (0.0, 0)]:
        cache.set_quota("acme", quota)
        assert cache.tenants()["acme"].quota_bytes == expected
    cache.set_quota("acme", 0.5)
    cache.resize("8MiB")
    assert cache.tenants()["acme"].quota_bytes == 4 << 20
    cache.set_quota("acme", None)
    assert cache.tenants() == {}


@pytest.mark.parametrize(
    "quota",
    [-1, -0.1, 1.5, np.float32(1.5), math.nan, math.inf, 2**64, True, "much", b"1", [], "-1KiB"],
)
def test_a_quota_that_is_none_is_refused_and_changes_nothing(quota: Any) -> None:
    cache = make_cache("full")
    cache.set_quota("acme", 5000)
    with pytest.raises(InvalidArgumentError, match=r"quota"):
        cache.set_quota("acme", quota)
    assert cache.tenants()["acme"].quota_bytes == 5000


@pytest.mark.parametrize(
    ("quota", "bytes_"), [(0, 0), ("0", 0), (np.int32(7), 7), (np.float32(0.5), None)]
)
def test_a_quota_is_nothing_too_and_a_number_of_any_kind(quota: Any, bytes_: int | None) -> None:
    cache = make_cache("full")
    cache.set_quota("acme", quota)
    cache.set_quota("other", 0.5)
    half = cache.tenants()["other"].quota_bytes
    assert cache.tenants()["acme"].quota_bytes == (half if bytes_ is None else bytes_)


@pytest.mark.parametrize("tenant", ["", None, 1, b"acme"])
def test_a_tenant_has_a_name(tenant: Any) -> None:
    cache = make_cache("full")
    with pytest.raises(InvalidArgumentError, match="tenant"):
        cache.set_quota(tenant, 1)
    if tenant is not None:
        with pytest.raises(InvalidArgumentError, match="tenant"):
            cache.erase(tenant=tenant)
    assert cache.tenants() == {}


def test_an_unknown_tenant_has_no_quota_to_lose_and_nothing_to_erase() -> None:
    cache = make_cache("full")
    cache.set_quota("nobody", None)
    assert cache.erase(tenant="nobody") == 0
    assert cache.tenants() == {}


def test_a_quota_below_what_is_stored_evicts_down_but_for_what_is_pinned() -> None:
    cache = make_cache("full", policy="lru")
    for first in (0, 100, 200):
        store(cache, numbered(first, 8), **of("acme"))
    pin = cache.pin(numbered(0, 8))
    cache.set_quota("acme", block_bytes(cache))
    assert cache.tenants()["acme"].bytes == 2 * block_bytes(cache)
    assert pin.is_held
    assert cached(cache, numbered(0, 9)) == 8
    store(cache, numbered(300, 8), **of("acme"))
    assert cached(cache, numbered(300, 8)) == 0
    assert cache.tenants()["acme"].refused_blocks == 2
    pin.release()
    store(cache, numbered(400, 4), **of("acme"))
    assert cache.tenants()["acme"].bytes == block_bytes(cache)
    assert cached(cache, numbered(400, 5)) == 4


def test_erasing_a_tenant_leaves_what_others_continue() -> None:
    cache = make_cache("full")
    store(cache, numbered(1, 8), **of("acme"))
    store(cache, numbered(1, 16), **of("other"))
    store(cache, numbered(500, 8), **of("acme"))
    store(cache, numbered(500, 8), namespace="n", **of("acme"))
    assert cache.erase(namespace="n", tenant="acme") == 2
    assert cache.erase(numbered(500, 4), tenant="other") == 0
    assert cache.erase(numbered(500, 4), tenant="acme") == 2
    assert cache.erase(tenant="acme") == 0
    assert cached(cache, numbered(1, 17)) == 16
    assert list(cache.tenants()) == ["other"]
    assert cache.stats().erased_blocks == 4
    assert cache.explain(numbered(500, 8)).reason == "erased"


def test_load_is_charged_to_a_tenant_or_refused_whole(tmp_path: Path) -> None:
    cache = make_cache("full", backing=True, capacity_blocks=0)
    with cache.open(numbered(1, 12)) as sequence:
        for layer in (0, 1):
            sequence.write(layer, 0, np.zeros((12, 2, 4), "f2"), np.zeros((12, 2, 8), "f2"))
        sequence.advance(12)
        sequence.publish()
    cache.save(tmp_path / "saved", numbered(1, 12))
    cache.clear()
    assert cache.load(tmp_path / "saved", tenant="acme") == 12
    held = cache.tenants()["acme"].bytes
    assert held == 3 * block_bytes(cache)
    cache.clear()
    cache.set_quota("acme", held - 1)
    with pytest.raises(OutOfCapacityError, match=r"quota of tenant 'acme'.*set_quota"):
        cache.load(tmp_path / "saved", tenant="acme")
    assert cache.tenants()["acme"].bytes == cache.stats().indexed_blocks == 0
    cache.set_quota("acme", held)
    assert cache.load(tmp_path / "saved", tenant="acme") == 12
    with pytest.raises(InvalidArgumentError, match="tenant"):
        cache.load(tmp_path / "saved", tenant=5)  # type: ignore[arg-type]


def test_prometheus_shows_tenants_with_a_quota() -> None:
    cache = make_cache("full")
    store(cache, numbered(1, 8), **of("free"))
    assert "tenant" not in cache.prometheus()
    cache.set_quota('a "b"', 2 * block_bytes(cache))
    for first in (100, 200):
        store(cache, numbered(first, 8), **of('a "b"'))
    store(cache, numbered(300, 20), **of('a "b"'))
    metrics = parse(cache.prometheus({"model": "m"}))
    labels = (("model", "m"), ("tenant", 'a "b"'))
    held = 2 * block_bytes(cache)
    assert metrics["kvcache_tenant_bytes"][2] == {labels: held}
    assert metrics["kvcache_tenant_quota_bytes"][2] == {labels: held}
    assert metrics["kvcache_tenant_evicted_blocks_total"][0] == "counter"
    assert metrics["kvcache_tenant_evicted_blocks_total"][2] == {labels: 4}
    assert metrics["kvcache_tenant_refused_blocks_total"][2] == {labels: 3}
    with pytest.raises(InvalidArgumentError, match="tenant"):
        cache.prometheus({"tenant": "x"})


def test_a_tenants_name_may_be_any_text() -> None:
    cache = make_cache("full")
    names = ["\u00fc", "a\0b", "x" * 10_000, "0"]
    for i, name in enumerate(names):
        store(cache, numbered(i * 100, 4), **of(name))
    assert set(cache.tenants()) == set(names)


def test_every_attribute_is_documented() -> None:
    text = inspect.getdoc(TenantUsage) or ""
    for field in dataclasses.fields(TenantUsage):
        assert f"{field.name}:" in text


def test_a_tenant_at_open_is_pointed_to_the_hints() -> None:
    wrong: Any = {"tenant": "acme"}
    with pytest.raises(TypeError, match=r"'tenant'; it is a hint: open\(.*RequestHints\(tenant="):
        make_cache("full").open([1, 2], **wrong)
    wrong = {"speed": 1}
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'speed'$"):
        make_cache("full").open([1, 2], **wrong)
