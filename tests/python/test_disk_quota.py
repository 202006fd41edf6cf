"""Quotas of tenants together with a disk tier."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.declarations import paged

from kvcache import Cache, DiskTier, RequestHints, StatePlan

PROMPT = list(range(100, 132))


def make_cache(path: Path) -> Cache:
    plan = StatePlan([paged(0, "attention.keys", 2, 64)], memory="1MiB", block_tokens=4)
    return Cache(plan, disk=DiskTier(path / "tier", "64MiB"))


def rows(tokens: list[int]) -> np.ndarray:
    return np.repeat(np.repeat(np.array(tokens, np.float16)[:, None, None], 2, 1), 64, 2)


def serve(cache: Cache, tokens: list[int], tenant: str = "") -> int:
    with cache.open(tokens, hints=RequestHints(tenant=tenant)) as sequence:
        hit = sequence.cached_tokens
        np.testing.assert_array_equal(sequence.read(0, 0, hit)[0], rows(tokens[:hit]))
        sequence.write(0, hit, rows(tokens[hit:]))
        sequence.advance(len(tokens) - hit)
        sequence.publish()
    return hit


def fetches(cache: Cache) -> tuple[int, int]:
    assert cache.disk is not None
    stats = cache.disk.stats()
    return stats.fetches, stats.no_room


def test_what_a_quota_would_refuse_is_not_read_from_disk_again_and_again(tmp_path: Path) -> None:
    cache = make_cache(tmp_path)
    assert cache.disk is not None
    serve(cache, PROMPT)
    cache.disk.flush()
    cache.clear()
    quota = 3 * cache.plan.block_bytes
    cache.set_quota("acme", quota)
    asked = [*PROMPT, 1]
    assert [serve(cache, asked, "acme") for _ in range(3)] == [12, 12, 12]
    assert fetches(cache) == (1, 2)
    assert cache.tenants()["acme"].bytes == quota
    # Its other prefixes give way: the part that is known is what counts.
    assert serve(cache, [7] * 12, "acme") == 0
    cache.disk.flush()  # what is being written cannot give way yet
    assert serve(cache, asked, "acme") == 12
    assert fetches(cache) == (2, 2)
    # Who has room gets all of it, and a larger quota does too.
    cache.set_quota("acme", 9 * cache.plan.block_bytes)
    assert serve(cache, asked, "acme") == 32
    cache.clear()
    assert serve(cache, asked) == 32


def test_a_quota_of_nothing_reads_nothing(tmp_path: Path) -> None:
    cache = make_cache(tmp_path)
    assert cache.disk is not None
    serve(cache, PROMPT)
    cache.disk.flush()
    cache.clear()
    cache.set_quota("acme", 0)
    assert serve(cache, [*PROMPT, 1], "acme") == 0
    assert fetches(cache) == (0, 1)
    assert cache.tenants()["acme"].bytes == 0
