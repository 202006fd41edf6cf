"""A cache with a disk tier: restarts, refusals, counters, and what they tell Prometheus."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.filled import MODELS, check, fill, make_cache, prompt
from support.native import ROOT
from support.saved import put_byte

import kvcache
from kvcache import DiskTier, DiskTierStats, Durability, TierAccess
from kvcache.errors import (
    CorruptionError,
    InvalidArgumentError,
    KVCacheIOError,
    KVCacheWarning,
    NotFoundError,
    UnsupportedError,
)
from kvcache.metrics import _DISK_METRICS


def tier(path: Path, **options: Any) -> DiskTier:
    return DiskTier(path / "tier", "64MiB", **options)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("length", [2, 9, 24, 90])
def test_a_restart_finds_what_was_published(tmp_path: Path, model: str, length: int) -> None:
    tokens = prompt(length)
    cache = make_cache(model, disk=tier(tmp_path))
    fill(cache, tokens)
    cache.disk.flush(60)
    del cache
    fresh = make_cache(model, disk=tier(tmp_path))
    hit = check(fresh, tokens)
    assert length - 1 - 4 <= hit <= length - 1
    assert check(fresh, np.append(tokens, 5)) >= hit
    if fresh.plan.fixed:
        assert hit == length - 1
    stats = fresh.disk.stats()
    assert stats.fetches >= (hit > 0)
    assert stats.damaged_records == stats.read_errors == 0
    assert stats.last_error == ""


def test_prefetch_brings_back_what_open_would_find(tmp_path: Path) -> None:
    tokens = prompt(40)
    fill(make_cache("hybrid", disk=tier(tmp_path)), tokens, salt="s")
    cache = make_cache("hybrid", disk=tier(tmp_path, at_open=False, access="read"))
    assert check(cache, tokens, salt="s") == 0
    assert cache.disk.prefetch(tokens) == 0
    assert cache.disk.prefetch(tokens, salt="s", ttl=math.inf) == 39
    assert cache.disk.prefetch(tokens, salt="s") == 39
    assert check(cache, tokens, salt="s") == 39
    assert cache.disk.stats().fetches == 1
    cache.clear()
    awaited = kvcache.AsyncCache(cache)
    assert asyncio.run(awaited.prefetch_disk(tokens, salt="s")) == 39
    asyncio.run(awaited.flush_disk(1))


def test_one_cache_writes_and_others_read(tmp_path: Path) -> None:
    writer = make_cache("hybrid", disk=tier(tmp_path))
    with pytest.raises(InvalidArgumentError, match="another process"):
        make_cache("hybrid", disk=tier(tmp_path))
    reader = make_cache("hybrid", disk=tier(tmp_path, access=TierAccess.WRITE_OR_READ))
    assert not reader.disk.stats().is_writer
    for seed in range(3):
        fill(writer, prompt(30, seed))
        writer.disk.flush()
        assert check(reader, prompt(30, seed)) == 29
    assert reader.disk.stats().written_records == 0


def test_damage_is_a_miss_and_is_counted(tmp_path: Path) -> None:
    fill(make_cache("hybrid", disk=tier(tmp_path)), prompt(40))
    (segment,) = (tmp_path / "tier").glob("segment-*")
    whole = segment.read_bytes()
    at = whole.index(prompt(40)[36:39].tobytes())  # of the boundary at 39
    put_byte(segment, at, whole[at] ^ 1)
    cache = make_cache("hybrid", disk=tier(tmp_path))
    assert check(cache, prompt(40)) < 39
    stats = cache.disk.stats()
    assert stats.damaged_records == 1
    assert str(segment) in stats.last_error
    with pytest.warns(KVCacheWarning, match=f"damaged .*{segment.name}"):
        check(cache, prompt(40))


def test_a_full_disk_stops_writing_and_nothing_else(tmp_path: Path) -> None:
    cache = make_cache("hybrid", disk=DiskTier(tmp_path / "tier", "1MiB", wait_seconds=10))
    (tmp_path / "tier").rename(tmp_path / "elsewhere")
    for each in (tmp_path / "elsewhere").iterdir():
        each.unlink()
    (tmp_path / "elsewhere").rmdir()
    fill(cache, prompt(60))
    with pytest.raises(KVCacheIOError, match="segment-"):
        cache.disk.flush()
    # It is said once, where the caller's code opens.
    with pytest.warns(KVCacheWarning, match=r"tier: some of it is not written; .*segment-") as told:
        assert check(cache, prompt(60)) == 59
    assert [Path(each.filename).name for each in told] == ["filled.py"]
    for seed in range(1, 5):
        fill(cache, prompt(60, seed))
        assert check(cache, prompt(60, seed)) == 59
    assert cache.disk.stats().write_errors > 0
    assert cache.disk.stats().dropped_records > 0


def test_wrong_options_are_refused_and_say_why(tmp_path: Path) -> None:
    for wrong, match in [
        ({"max_bytes": 10}, "max_bytes"),
        ({"max_bytes": -1}, "max_bytes"),
        ({"durability": "often"}, "durability: expected one of 'none', 'group', 'record'"),
        ({"access": 3}, "access"),
        ({"read_threads": 0}, "read_threads"),
        ({"group_seconds": math.nan}, "group_seconds"),
        ({"wait_seconds": -1}, "wait_seconds"),
        ({"queue_bytes": "much"}, "queue_bytes"),
        ({"at_open": 1}, "at_open"),
        ({"path": "a\0b"}, "names no directory"),
        ({"path": 3}, "path"),
        ({"path": ""}, "path: expected a directory"),
    ]:
        options = {"path": tmp_path / "tier", "max_bytes": "64MiB", **wrong}
        with pytest.raises(InvalidArgumentError, match=match):
            make_cache("attention", disk=DiskTier(**options))
    with pytest.raises(InvalidArgumentError, match="disk: expected a DiskTier"):
        make_cache("attention", disk=str(tmp_path))
    with pytest.raises(NotFoundError, match="no disk tier"):
        make_cache("attention", disk=tier(tmp_path, access="read"))
    with pytest.raises(KVCacheIOError):
        make_cache("attention", disk=DiskTier(tmp_path / "no" / "where", "64MiB"))
    with pytest.raises(UnsupportedError, match="ledger"):
        make_cache("attention", disk=tier(tmp_path), backing=False)
    (tmp_path / "file").write_text("x")
    with pytest.raises(CorruptionError, match="no directory"):
        make_cache("attention", disk=DiskTier(tmp_path / "file", "64MiB"))
    cache = make_cache("attention")
    assert cache.disk is None
    with pytest.raises(UnsupportedError, match="no disk tier"):
        asyncio.run(kvcache.AsyncCache(cache).flush_disk())
    with_tier = make_cache("attention", disk=tier(tmp_path, durability=Durability.RECORD))
    for wrong in ([], [1.5], [2**40]):
        with pytest.raises(InvalidArgumentError):
            with_tier.disk.prefetch(wrong)
    with pytest.raises(InvalidArgumentError, match="ttl"):
        with_tier.disk.prefetch([1, 2], ttl=0)
    with pytest.raises(InvalidArgumentError, match="timeout"):
        with_tier.disk.flush(-1)


def test_every_counter_is_shown_to_prometheus(tmp_path: Path) -> None:
    cache = make_cache("hybrid", disk=tier(tmp_path))
    fill(cache, prompt(20))
    cache.disk.flush()
    text = cache.prometheus({"model": "m"})
    shown = [name for metric in _DISK_METRICS for name in metric.names()]
    counters = {each.name for each in dataclasses.fields(DiskTierStats)} - {"last_error"}
    assert sorted(shown) == sorted(counters)
    assert f'kvcache_disk_bytes{{model="m"}} {cache.disk.stats().bytes}' in text
    assert 'kvcache_disk_failures_total{model="m",cause="damaged record"} 0' in text
    assert "kvcache_disk" not in make_cache("hybrid").prometheus()


def test_the_golden_tier_is_read() -> None:
    report = kvcache.check_stored(ROOT / "tests/golden/tier-v1", deep=True)
    assert report.kind == "disk tier"
    assert report.version == 1
    assert report.problems == []
