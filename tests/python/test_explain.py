"""`explain`: what limits a hit, why more is not there, and what to change."""

from __future__ import annotations

import random
from typing import Any

import pytest
from model.driver import SHAPES
from support.declarations import paged, recurrent

from kvcache import Cache, Explanation, InvalidArgumentError, RequestHints, StatePlan
from kvcache.explanation import _ADVICE

LARGE = [paged(0, "attention.keys", 2, 2048)]  # 32 KiB a block of 4
HYBRID = [*LARGE, recurrent(1, "state.recurrent", 64, 64)]
SLIDING = [paged(1, "attention.keys", 2, 2048, window=8), *LARGE]


def make_cache(declarations: list[Any], memory: str = "4MiB", **options: Any) -> Cache:
    plan = StatePlan(declarations, memory=memory, block_tokens=4)
    return Cache(plan, **{"backing": False, **options})


def store(cache: Cache, tokens: list[int], snapshots: tuple[int, ...] = (), **space: Any) -> None:
    with cache.open(tokens, **space) as sequence:
        for stop in (*snapshots, len(tokens)):
            if stop < sequence.length:
                continue
            sequence.advance(stop - sequence.length)
            if stop in snapshots:
                sequence.snapshot()
        sequence.publish()


def push_out(cache: Cache, blocks: int = 200) -> None:
    """Enough other prompts that nothing else stays."""
    for i in range(blocks // 8):
        store(cache, [1000 + i] * 32)


def said(explanation: Explanation) -> tuple[str, str]:
    return explanation.limited_by, explanation.reason


# ---- Tokens ---------------------------------------------------------------------------------


def test_what_nobody_stored_was_never_stored() -> None:
    cache = make_cache(LARGE)
    store(cache, [1] * 8)
    found = cache.explain([1] * 6 + [2] * 6)
    assert said(found) == ("tokens", "never stored")
    assert (found.position, found.once_tokens, found.lost_tokens) == (6, 6, 0)
    assert "publish()" in found.advice
    assert said(cache.explain([])) == ("tokens", "never stored")


def test_a_whole_hit_misses_nothing() -> None:
    cache = make_cache(LARGE)
    store(cache, [1] * 8)
    found = cache.explain([1] * 8)
    assert said(found) == ("last token", "none")
    assert (found.position, found.cached_tokens) == (7, 7)
    assert found.advice.startswith("nothing")


@pytest.mark.parametrize("length", [1, 3, 4, 7, 8, 21])
def test_what_was_evicted_was_evicted_up_to_its_very_end(length: int) -> None:
    cache = make_cache(LARGE, "1MiB")
    prompt = list(range(length))
    store(cache, prompt)
    push_out(cache)
    longer = [*prompt, 99, 98]
    found = cache.explain(longer)
    assert said(found) == ("tokens", "evicted")
    assert (found.matched_tokens, found.position, found.once_tokens) == (0, 0, length)
    assert "memory" in found.advice
    assert f"({length} once)" in str(found)
    other = [*prompt[:-1], 77]  # nothing of the last block is told of another path
    assert cache.explain(other).once_tokens == (length - 1) // 4 * 4


def test_the_end_of_a_prompt_goes_first_and_the_rest_is_still_known() -> None:
    cache = make_cache(LARGE, capacity_blocks=6)
    prompt = list(range(20))
    store(cache, prompt)
    store(cache, [50] * 12)
    found = cache.explain(prompt)
    assert said(found) == ("tokens", "evicted")
    assert 0 < found.matched_tokens == found.position < 20 == found.once_tokens


def test_a_prompt_that_is_stored_again_is_known_again() -> None:
    cache = make_cache(LARGE, "1MiB")
    prompt = list(range(9))
    store(cache, prompt)
    push_out(cache)
    store(cache, prompt)
    assert said(cache.explain([*prompt, 1])) == ("tokens", "never stored")


def test_another_space_or_image_was_never_stored() -> None:
    cache = make_cache(LARGE, "1MiB")
    prompt = list(range(12))
    media = [(2, 3, b"cat"), (6, 5, b"dog")]
    store(cache, prompt, namespace="n", media=media)
    push_out(cache)
    assert cache.explain(prompt, namespace="n", media=media).reason == "evicted"
    assert cache.explain(prompt, media=media).reason == "never stored"
    for others in ([], [(2, 3, b"cow"), media[1]], [(2, 2, b"cat"), media[1]], [(3, 2, b"cat")]):
        found = cache.explain(prompt, namespace="n", media=others)
        assert found.once_tokens == 2, "before the first image nothing differs"
    other = cache.explain(prompt, namespace="n", media=[media[0], (6, 5, b"fox")])
    assert (other.reason, other.once_tokens) == ("evicted", 6)


def test_what_erase_dropped_was_erased() -> None:
    cache = make_cache(LARGE)
    prompt = list(range(10))
    store(cache, prompt)
    store(cache, prompt, namespace="n")
    cache.erase(prompt, namespace="", adapter="", salt="")
    found = cache.explain(prompt)
    assert said(found) == ("tokens", "erased")
    assert (found.once_tokens, "erase()" in found.advice) == (10, True)
    cache.erase(namespace="n")
    assert said(cache.explain(prompt, namespace="n")) == ("tokens", "erased")


def test_new_weights_are_the_reason_while_old_state_is_being_given_back() -> None:
    cache = make_cache(LARGE)
    prompt = list(range(10))
    store(cache, prompt)
    store(cache, prompt, namespace="n")
    cache.bump_epoch()
    found = cache.explain(prompt)
    assert said(found) == ("tokens", "other weights")
    assert (found.once_tokens, "bump_epoch()" in found.advice) == (10, True)
    assert said(cache.explain([5, 6])) == ("tokens", "never stored")


def test_what_left_before_everything_was_dropped_is_not_told_any_more() -> None:
    for drop in (Cache.clear, Cache.bump_epoch):
        cache = make_cache(LARGE, "1MiB")
        store(cache, [1] * 8)
        push_out(cache)
        assert cache.explain([1] * 8).reason == "evicted"
        drop(cache)
        assert cache.explain([1] * 8).reason == "never stored"


# ---- Snapshots ------------------------------------------------------------------------------


def test_a_state_without_a_snapshot_was_never_stored() -> None:
    cache = make_cache(HYBRID)
    store(cache, list(range(20)), (6,))
    found = cache.explain(list(range(16)))
    assert said(found) == ("snapshot", "never stored")
    assert (found.cached_tokens, found.matched_tokens, found.position) == (6, 16, 15)
    assert (found.nearest_snapshot, found.lost_tokens, found.lost_snapshot) == (6, 10, 0)
    assert found.components == ("state.recurrent",)
    assert "mark()" in found.advice
    assert "state.recurrent" in str(found)


def test_a_snapshot_that_was_evicted_is_named() -> None:
    declarations = [paged(0, "attention.keys", 1, 8), recurrent(1, "state.recurrent", 256, 256)]
    cache = make_cache(declarations, "2MiB")  # seven states
    store(cache, list(range(20)), (5, 13))
    held = [cache.open(list(range(14)))]  # the pages stay
    held += [cache.open([100 + i] * 3) for i in range(6)]
    found = cache.explain(list(range(14)))
    assert said(found) == ("snapshot", "evicted")
    assert (found.cached_tokens, found.matched_tokens, found.lost_snapshot) == (0, 14, 13)
    assert "int8" in found.advice
    assert "the last one at 13" in str(found)
    for sequence in held:
        sequence.close()


def test_a_snapshot_over_the_limit_of_its_path_is_told_apart() -> None:
    cache = make_cache(HYBRID, snapshots_per_path=2)
    store(cache, list(range(20)), (4, 8, 12, 16))
    kept = [n for n in (4, 8, 12, 16) if cache.explain(list(range(n + 1))).cached_tokens == n]
    assert len(kept) == 2
    gone = max({4, 8, 12, 16} - set(kept))
    found = cache.explain(list(range(gone + 1)))
    assert (said(found), found.lost_snapshot) == (("snapshot", "thinned"), gone)
    assert "snapshots_per_path" in found.advice
    stats = cache.stats()
    assert (stats.thinned_snapshots, stats.evicted_snapshots) == (2, 0)


# ---- Windows --------------------------------------------------------------------------------


def window_group(cache: Cache) -> int:
    return next(i for i, group in enumerate(cache.plan.groups) if group.window)


def test_a_window_that_was_let_go_before_it_was_published_was_never_stored() -> None:
    cache = make_cache(SLIDING)
    with cache.open(list(range(32))) as sequence:
        for _ in range(8):  # each step lets go what the window has passed
            sequence.advance(4)
        sequence.publish()
    found = cache.explain([*range(14), 99])
    assert said(found) == ("window", "never stored")
    assert (found.group, found.cached_tokens, found.matched_tokens) == (window_group(cache), 0, 14)
    assert "publish()" in found.advice


def test_a_window_that_gave_way_is_named_with_its_group_and_block() -> None:
    cache = make_cache(SLIDING, "1MiB")
    prompt = list(range(64))
    store(cache, prompt)
    for i in range(3):
        store(cache, [1000 + i] * 16)
    found = cache.explain([*prompt[:40], 7])
    assert said(found) == ("window", "evicted")
    group = window_group(cache)
    assert (found.group, found.matched_tokens, found.position) == (group, 40, 36)
    assert found.components == ("attention.keys",)
    assert "snapshot() at a mark()" in found.advice
    assert cache.stats().window_pages_evicted[group] > 0
    assert cache.stats().window_pages_evicted[1 - group] == 0


# ---- Counters -------------------------------------------------------------------------------


def test_opens_and_lost_tokens_are_counted_by_what_limited_them() -> None:
    cache = make_cache(HYBRID)
    store(cache, list(range(20)), (6,))  # nothing is known
    store(cache, list(range(7)))  # all but the last token
    store(cache, [*range(6), 99])  # up to other tokens
    store(cache, list(range(16)))  # up to the snapshot
    stats = cache.stats()
    limits = (
        stats.limited_by_none,
        stats.limited_by_tokens,
        stats.limited_by_snapshot,
        stats.limited_by_window,
    )
    assert limits == (1, 2, 1, 0)
    assert sum(limits) == stats.opens
    assert (stats.unknown_tokens, stats.lost_snapshot_tokens) == (20 + 1, 15 - 6)
    missed = stats.unknown_tokens + stats.lost_snapshot_tokens + stats.lost_window_tokens
    last = stats.opens - 2  # of what was known whole
    assert stats.cached_tokens + missed + last == stats.asked_tokens


def test_what_leaves_is_counted_by_reason() -> None:
    cache = make_cache(HYBRID)
    store(cache, list(range(20)), (6, 19))
    store(cache, list(range(20)), (6, 19), namespace="n")
    cache.erase(namespace="n")
    cache.bump_epoch()
    store(cache, [1] * 4)
    cache.clear()
    stats = cache.stats()
    assert (stats.erased_blocks, stats.erased_snapshots) == (5, 2)
    assert (stats.dropped_blocks, stats.dropped_snapshots) == (6, 2)
    assert (stats.evicted_blocks, stats.evicted_snapshots, stats.thinned_snapshots) == (0, 0, 0)


# ---- Against what happened ------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["full", "hybrid", "everything", "sinks in two blocks"])
@pytest.mark.parametrize("policy", ["lru", "s3fifo", "price_list"])
def test_evicted_is_said_of_nothing_that_was_never_stored(shape: str, policy: str) -> None:
    """Random prompts under pressure: every answer fits the list of what was ever stored."""
    plan = StatePlan(SHAPES[shape], memory="256MiB", block_tokens=4)  # so that none is forgotten
    cache = Cache(plan, backing=False, capacity_blocks=15, policy=policy)
    rng = random.Random(f"{shape} {policy}")
    ever: set[tuple[int, ...]] = set()
    evicted = 0
    for _ in range(400):
        tokens = [rng.choice([1, 2]) for _ in range(rng.randint(1, 24))]
        found = cache.explain(tokens)
        stored = [n for n in range(1, len(tokens) + 1) if tuple(tokens[:n]) in ever]
        known = max(stored, default=0)
        assert found.matched_tokens <= found.once_tokens <= known
        assert found.cached_tokens <= found.matched_tokens
        if found.limited_by == "tokens":
            gone = known // 4 > found.matched_tokens // 4  # a whole block of it
            assert found.reason == "evicted" or not gone
            assert found.reason == "never stored" or known > found.matched_tokens
        evicted += found.reason == "evicted"
        assert (found.limited_by, found.reason) in {*_ADVICE, ("last token", "none")}
        store(cache, tokens, tuple(sorted({rng.randint(1, len(tokens)), len(tokens)})))
        ever.update(tuple(tokens[:n]) for n in range(1, len(tokens) + 1))
    assert evicted > 20


# ---- Wrong input ----------------------------------------------------------------------------


def test_wrong_tokens_and_media_are_refused() -> None:
    cache = make_cache(LARGE)
    with pytest.raises(InvalidArgumentError, match="int32"):
        cache.explain([2**31])
    with pytest.raises(InvalidArgumentError, match="media"):
        cache.explain([1, 2], media=[(1, 5, b"x")])
    with pytest.raises(InvalidArgumentError, match="adapter"):
        cache.explain([1, 2], adapter=3)  # type: ignore[arg-type]


# ---- Quotas ---------------------------------------------------------------------------------


def of(tenant: str) -> dict[str, Any]:
    return {"hints": RequestHints(tenant=tenant)}


def test_what_a_quota_refused_names_tenant_numbers_and_knob() -> None:
    cache = make_cache(LARGE)
    quota = 3 * cache.plan.block_bytes
    cache.set_quota("other", 0)
    cache.set_quota("acme", quota)
    store(cache, [1] * 32, **of("acme"))
    found = cache.explain([1] * 40)
    assert said(found) == ("tokens", "quota")
    assert (found.position, found.once_tokens) == (12, 32)
    assert (found.quota_tenant, found.quota_bytes, found.quota_used_bytes) == ("acme", quota, quota)
    assert "set_quota('acme'" in found.advice
    assert "the quota of tenant 'acme' had no room for (96 KiB of 96 KiB now)" in str(found)


def test_what_gave_way_to_a_quota_was_not_evicted_for_memory() -> None:
    cache = make_cache(LARGE)
    cache.set_quota("acme", 3 * cache.plan.block_bytes)
    store(cache, [1] * 12, **of("acme"))
    store(cache, [2] * 12, **of("acme"))
    found = cache.explain([1] * 12)
    assert (*said(found), found.quota_tenant) == ("tokens", "quota", "acme")
    assert cache.tenants()["acme"].evicted_blocks == cache.stats().evicted_blocks == 3
    cache.set_quota("acme", None)  # whose it was is not known any more, only why it went
    found = cache.explain([1] * 12)
    assert (*said(found), found.quota_tenant) == ("tokens", "quota", None)
    assert "set_quota(tenant" in found.advice
    push_out(cache)
    store(cache, [3] * 8)
    push_out(cache)
    assert said(cache.explain([3] * 8)) == ("tokens", "evicted")


def test_a_snapshot_that_a_quota_refused() -> None:
    cache = make_cache(HYBRID)
    cache.set_quota("acme", 5 * cache.plan.block_bytes + cache.plan.slot_bytes)
    store(cache, [1] * 20, snapshots=(8, 16), **of("acme"))
    found = cache.explain([1] * 16)
    assert said(found) == ("snapshot", "quota")
    assert (found.lost_snapshot, found.quota_tenant) == (8, "acme")
    assert "had no room for" in str(found)


def test_snapshot_advice_thinks_of_what_was_generated() -> None:
    cache = make_cache(HYBRID)
    store(cache, [1] * 20)
    assert "after decoding snapshot()" in cache.explain([1] * 20).advice
