"""Under any load the cache's ledger is the plan's arithmetic, to the byte."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.corpus import corpus_path
from support.declarations import paged, recurrent

from kvcache import Cache, Sequence, StatePlan
from kvcache.errors import KVCacheError, OutOfCapacityError, UnsupportedError
from kvcache.models import from_config

BLOCK = 16
HYBRID = [
    paged(0, "attention.keys", 2, 8),
    paged(0, "attention.values", 2, 24),
    paged(1, "attention.keys", 1, 40, window=33),
    paged(2, "attention.keys", 3, 8, int8=True),
    paged(3, "attention.keys", 3, 8, window=5, int8=True),
]
PLANS: dict[str, list[Any]] = {
    "full": HYBRID[:2],
    "windows": HYBRID[:3],
    "every kind": [*HYBRID, recurrent(4, "state.recurrent", 5, 7), recurrent(4, "state.conv", 9)],
    "fixed": [recurrent(0, "state.recurrent", 129)],
}


def element_bytes(plan: StatePlan, layer: int, component: str) -> tuple[int, int]:
    [decl] = [d for d in plan.declarations if (d.layer, d.component) == (layer, component)]
    return decl.dtype.bytes, decl.row_scale_bytes


def page_bytes(plan: StatePlan, group: int) -> int:
    """One block of a group, row by row."""
    total = 0
    for part in plan.groups[group].components:
        element, scale = element_bytes(plan, part.layer, part.component)
        total += plan.block_tokens * part.heads * (part.width * element + scale)
    return total


def slot_bytes(plan: StatePlan) -> int:
    total = 0
    for part in plan.fixed:
        scalars = 1
        for axis in part.shape:
            scalars *= axis
        total += scalars * part.dtype.bytes
    return total


def check(cache: Cache, held: list[Sequence], snapshots: int) -> None:
    """Used bytes are those of the distinct pages of all block tables, of slots and snapshots."""
    plan, stats = cache.plan, cache.stats()
    expected = pages = 0
    for group in range(len(plan.groups)):
        ids = {page for seq in held for page in seq.block_table(group).tolist() if page >= 0}
        expected += len(ids) * page_bytes(plan, group)
        pages += len(ids)
    if plan.fixed:
        expected += (len(held) + snapshots) * slot_bytes(plan)
        assert (stats.slots, stats.snapshots) == (len(held), snapshots)
    assert stats.pages == pages
    assert stats.used_bytes == expected
    assert stats.used_bytes <= stats.committed_bytes - stats.idle_bytes <= stats.budget_bytes


def load(plan: StatePlan, seed: int, steps: int) -> None:
    """Random sequences, forks, rewinds and closes, nothing stored; then all gone."""
    rng = random.Random(seed)
    cache = Cache(plan, backing=False)
    held: list[Sequence] = []
    for step in range(steps):
        try:
            match rng.randrange(6):
                case 0 | 1:
                    held.append(cache.open([step] * rng.randrange(1, 90)))
                    held[-1].advance(rng.randrange(len(held[-1].tokens) + 1))
                case 2 if held:
                    held.append(rng.choice(held).fork())
                case 3 if held:
                    held.pop(rng.randrange(len(held))).close()
                case 4 if held:
                    sequence = rng.choice(held)
                    sequence.truncate(rng.randrange(sequence.length + 1))
                case _ if held:
                    sequence = rng.choice(held)
                    sequence.extend([step] * rng.randrange(40))
                    sequence.advance(len(sequence.tokens) - sequence.length)
        except (OutOfCapacityError, UnsupportedError):
            pass
        check(cache, held, 0)
    taken = 0
    for sequence in held:
        sequence.snapshot()
        taken += bool(plan.fixed) and sequence.length > 0
    check(cache, held, taken)
    while held:
        held.pop().close()
    assert cache.stats().used_bytes == 0
    assert cache.stats().idle_bytes == cache.stats().committed_bytes


@pytest.mark.parametrize("memory", ["64MiB", "512KiB"])
@pytest.mark.parametrize("name", PLANS)
def test_the_ledger_of_small_plans(name: str, memory: str) -> None:
    for seed in range(4):
        for block in (1, 7, BLOCK):
            plan = StatePlan(PLANS[name], memory=memory, block_tokens=block, sequences=12)
            load(plan, seed, 60)


def test_the_ledger_of_every_model_of_the_corpus() -> None:
    served = 0
    for seed, path in enumerate(sorted(corpus_path("configs").glob("*.json"))):
        try:
            model = from_config(path)
            plan = StatePlan.for_model(model, memory="1TiB", block_tokens=BLOCK, sequences=8)
        except KVCacheError:
            continue  # lacks a field, or keeps state that only the planner knows
        load(plan, seed, 8)
        served += 1
    assert served > 50
