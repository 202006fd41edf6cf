"""A cache with a disk tier that is emptied, erased from and opened again, at random.

What is found is right to the byte and never more than what was published and not erased since; with
room for all of it, it is never less than that but for the last block.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from support.filled import MODELS, check, fill, make_cache

from kvcache import DiskTier

BLOCK = 4
SPACES: list[dict[str, Any]] = [{}, {"namespace": "n"}, {"namespace": "n", "salt": "s"}]
#: Prompts of few tokens, so that many begin alike.
prompts = st.lists(st.sampled_from([1, 2]), min_size=2, max_size=40)
spaces = st.integers(0, len(SPACES) - 1)


def common(one: list[int], other: list[int]) -> int:
    n = 0
    while n < min(len(one), len(other)) and one[n] == other[n]:
        n += 1
    return n


class Restarts(RuleBasedStateMachine):
    model: str
    cap: str

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.published: list[list[list[int]]] = [[] for _ in SPACES]
        self.open()

    def open(self) -> None:
        tier = DiskTier(Path(self.directory.name) / "tier", self.cap, wait_seconds=10)
        self.cache = make_cache(self.model, block_tokens=BLOCK, disk=tier)

    @rule(tokens=prompts, space=spaces)
    def publish(self, tokens: list[int], space: int) -> None:
        self.look(tokens, space)
        fill(self.cache, np.array(tokens, np.int32), **SPACES[space])
        self.published[space].append(tokens)

    @rule(tokens=prompts, space=spaces)
    def look(self, tokens: list[int], space: int) -> None:
        hit = check(self.cache, np.array(tokens, np.int32), **SPACES[space])
        known = [common(tokens, each) for each in self.published[space]]
        assert hit <= min(max(known, default=0), len(tokens) - 1)
        if self.cap == "64MiB" and tokens in self.published[space]:
            assert hit >= len(tokens) - 1 - BLOCK

    @rule()
    def restart(self) -> None:
        del self.cache
        self.open()

    @rule()
    def clear(self) -> None:
        self.cache.disk.flush()
        self.cache.clear()

    @rule(tokens=prompts.filter(lambda tokens: len(tokens) > 2), space=spaces)
    def erase_prompts(self, tokens: list[int], space: int) -> None:
        self.cache.erase(tokens, **SPACES[space])
        kept = [each for each in self.published[space] if each[: len(tokens)] != tokens]
        self.published[space] = kept

    @rule(space=spaces)
    def erase_namespace(self, space: int) -> None:
        namespace = SPACES[space].get("namespace", "")
        self.cache.erase(namespace=namespace)
        for number, each in enumerate(SPACES):
            if each.get("namespace", "") == namespace:
                self.published[number] = []

    def teardown(self) -> None:
        assert self.cache.disk.stats().damaged_records == 0
        del self.cache
        self.directory.cleanup()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cap", ["64MiB", "256KiB"])
def test_restarts(model: str, cap: str) -> None:
    chosen_model, chosen_cap = model, cap

    class Machine(Restarts):
        model = chosen_model
        cap = chosen_cap

    search = settings(max_examples=100, deadline=None)
    if settings.get_current_profile_name() == "ci":
        search = settings(max_examples=5, stateful_step_count=15, deadline=None)
    run_state_machine_as_test(Machine, settings=search)
