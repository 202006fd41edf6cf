"""Eviction policies on whole traces, through the cache: what they find, and how it compares."""

import numpy as np
import pytest
from support.declarations import paged, recurrent
from support.evict_traces import ADVERSARIAL, branching
from support.price_list_reference import PriceList

from kvcache import Cache, CostModel, InvalidArgumentError, RequestHints, StatePlan
from kvcache.cache import policy_names
from kvcache.replay import Replay
from kvcache.replay.bounds import clairvoyant_hits, infinite_hits
from kvcache.replay.prefix_tree import trace_paths

ATTENTION = [paged(0, f"attention.{name}", 1, 8) for name in ("keys", "values")]


def make_cache(policy, capacity=0, **options):
    plan = StatePlan(ATTENTION, memory="1MiB", block_tokens=512)
    return Cache(plan, policy=policy, backing=False, capacity_blocks=capacity, **options)


def found(requests, policy, capacity):
    """Blocks found, request by request, and the cache's counters."""
    cache = make_cache(policy, capacity)
    replay = Replay(cache, cache.plan, real_bytes=False, capacity_blocks=capacity)
    totals = []
    replay.run(requests, on_request=lambda report: totals.append(report.reused_blocks))
    return np.diff(totals, prepend=0), cache.stats()


@pytest.mark.parametrize("seed", range(3))
def test_the_price_list_on_runs_finds_what_it_finds_on_blocks(seed):
    requests = branching(np.random.default_rng(seed), 900)
    capacity = (2 + seed) * max(request.source.size for request in requests)
    ours, _ = found(requests, "price_list", capacity)
    reference = PriceList(capacity, 512)
    theirs = [
        reference.request(int(r.timestamp_ms), r.source.tolist(), r.input_length, r.output_length)
        for r in requests
    ]
    # The reference has no floor: until there is evidence, ours parts from it to stay near LRU.
    assert np.mean(ours != theirs) <= 0.02
    assert ours.sum() == pytest.approx(sum(theirs), rel=0.01)
    # Prices that are equal but for rounding leave the order open, now and then.
    assert np.mean(ours[400:] != theirs[400:]) <= 0.002
    assert ours.sum() > 900


@pytest.mark.parametrize("seed", range(2))
def test_the_meter_counts_the_hits_of_exact_lru(seed):
    requests = branching(np.random.default_rng(seed), 600)
    capacity = 3 * max(request.source.size for request in requests)
    ours, stats = found(requests, "price_list", capacity)
    lru, _ = found(requests, "lru", capacity)
    assert stats.hit_blocks == ours.sum()
    assert stats.lru_hit_blocks == lru.sum()


@pytest.mark.parametrize("share", [0.1, 0.4])
@pytest.mark.parametrize("name", ADVERSARIAL)
@pytest.mark.parametrize("count", [1500, 4000])
def test_the_price_list_is_never_much_under_lru(name, share, count):
    requests = ADVERSARIAL[name](np.random.default_rng(1), count)
    blocks = sum(request.source.size for request in requests)
    distinct = len({int(block) for request in requests for block in request.source})
    capacity = max(int(distinct * share), 2 * max(request.source.size for request in requests))
    ours, lru = (found(requests, policy, capacity)[0].sum() for policy in ("price_list", "lru"))
    assert (ours - lru) / blocks >= -0.004


@pytest.mark.parametrize("policy", policy_names())
def test_no_policy_beats_the_clairvoyant(policy):
    requests = branching(np.random.default_rng(5), 500)
    capacity = 3 * max(request.source.size for request in requests)
    paths = trace_paths(requests, 512)
    best, most = sum(clairvoyant_hits(paths, capacity)), sum(infinite_hits(paths))
    assert 0 < found(requests, policy, capacity)[0].sum() <= best <= most


def test_a_hint_tells_what_returns_from_what_does_not():
    """Two kinds of requests that nothing else tells apart: one kind is always repeated once."""

    def hits(hinted):
        cache = make_cache("price_list", 60)
        rng = np.random.default_rng(0)
        waiting, total = [], 0
        for step in range(3000):
            returns = step % 4 == 0
            document = rng.integers(1 << 20, size=1024).astype(np.int32)
            due = waiting.pop(0) if len(waiting) > 25 else None
            for tokens, kind in ((document, "chat" if returns else "once"), (due, "chat")):
                if tokens is None:
                    continue
                hints = RequestHints(kind=kind) if hinted else None
                seq = cache.open(tokens, hints=hints, now_ms=step * 1000)
                total += seq.cached_tokens > 0
                seq.advance(tokens.size - seq.length)
                seq.publish()
                seq.close(output_tokens=50, now_ms=step * 1000)
            if returns:
                waiting.append(document)
        return total

    assert hits(hinted=True) > 1.2 * hits(hinted=False)


def test_a_wrong_hint_or_cost_is_refused_and_changes_nothing():
    cache = make_cache("price_list")
    with pytest.raises(InvalidArgumentError, match="expected_reuse must be"):
        cache.open([1, 2], hints=RequestHints(expected_reuse=1.5))
    with pytest.raises(InvalidArgumentError, match="hints: expected RequestHints"):
        cache.open([1, 2], hints={"kind": "chat"})
    with pytest.raises(InvalidArgumentError, match=r"hints\.kind: expected text"):
        cache.open([1, 2], hints=RequestHints(kind=3))
    with pytest.raises(InvalidArgumentError, match="now_ms"):
        cache.open([1, 2], now_ms=-1)
    assert cache.stats().open_sequences == 0
    seq = cache.open([1, 2])
    with pytest.raises(InvalidArgumentError, match="output_tokens"):
        seq.close(output_tokens=-1)
    assert seq.is_open
    seq.close(session_closed=True)
    for costs in (CostModel(flops_per_token=-1), CostModel(flops_per_token=float("nan"))):
        with pytest.raises(InvalidArgumentError, match="costs: FLOPs must be"):
            make_cache("lru", costs=costs)


@pytest.mark.parametrize("policy", policy_names())
def test_recomputing_may_cost_nothing_and_pages_there_may_be_none(policy):
    plan = StatePlan([recurrent(0, "state.s", 64, 64)], memory="256KiB", block_tokens=4)
    cache = Cache(plan, policy=policy, costs=CostModel(flops_per_token=0))
    random = np.random.default_rng(0)
    for _ in range(200):
        tokens = random.integers(0, 4, size=random.integers(2, 40))
        with cache.open(tokens) as sequence:
            sequence.advance(max(0, len(tokens) - sequence.length - 1))
            sequence.snapshot()
            sequence.publish()
    cache.clear()
    assert cache.stats().snapshots == cache.stats().indexed_snapshots == 0
