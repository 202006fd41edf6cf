"""Without bytes, a replay evicts as exact LRU over blocks does, request by request."""

from collections import OrderedDict

import numpy as np
import pytest
from support.declarations import paged
from support.evict_traces import branching

from kvcache import Cache, StatePlan
from kvcache.replay import Replay

ATTENTION = [paged(0, f"attention.{name}", 1, 8) for name in ("keys", "values")]


def exact_lru(requests, capacity):
    """Blocks found, request by request: longest resident prefix, then a tail-first touch."""
    resident, found = OrderedDict(), []
    for request in requests:
        blocks = request.source.tolist()
        found.append(next((i for i, b in enumerate(blocks) if b not in resident), len(blocks)))
        for block in reversed(blocks):
            resident[block] = None
            resident.move_to_end(block)
        while len(resident) > capacity:
            resident.popitem(last=False)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_the_ledger_evicts_as_exact_lru(seed):
    requests = branching(np.random.default_rng(seed), 600)
    capacity = 4 * max(request.source.size for request in requests)
    plan = StatePlan(ATTENTION, memory="1MiB", block_tokens=512)
    cache = Cache(plan, policy="lru", backing=False, capacity_blocks=capacity)
    replay = Replay(cache, plan, real_bytes=False, capacity_blocks=capacity)
    totals = []
    report = replay.run(requests, on_request=lambda r: totals.append(r.reused_blocks))
    assert np.diff(totals, prepend=0).tolist() == exact_lru(requests, capacity)
    assert report.rejected == 0
    assert report.evicted_blocks > capacity
    assert 0.2 < report.block_hit_rate < 0.9
