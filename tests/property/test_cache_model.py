"""The cache and the reference, driven by the same operations, never disagree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from model.driver import AMPLE, FEW_BLOCKS, FEW_BYTES, SHAPES, Pair, make_driver

TOKENS = st.lists(st.sampled_from([1, 2, -7]), max_size=14)
ADAPTERS = st.sampled_from(["", "a"])
AT = st.integers(0, 5)
COUNT = st.integers(0, 13)


class CacheAndReference(RuleBasedStateMachine):
    """Operations on up to six sequences; `memory` decides how strict the comparison is."""

    shape: str
    memory: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self.driver = make_driver(self.shape, self.memory)

    def pair(self, at: int) -> Pair:
        pair = self.driver.pick(at)
        assert pair is not None
        return pair

    has_sequences = precondition(lambda self: self.driver.pairs)

    @rule(tokens=TOKENS, adapter=ADAPTERS)
    def open(self, tokens: list[int], adapter: str) -> None:
        self.driver.open(tokens, adapter)

    @has_sequences
    @rule(at=AT, keep=COUNT, tokens=TOKENS, adapter=ADAPTERS)
    def open_a_continuation(self, at: int, keep: int, tokens: list[int], adapter: str) -> None:
        tokens = self.pair(at).twin.tokens[:keep] + tokens
        if tokens:
            self.driver.explain(tokens, adapter)
        self.driver.open(tokens, adapter)

    @has_sequences
    @rule(at=AT, tokens=TOKENS)
    def extend(self, at: int, tokens: list[int]) -> None:
        self.driver.extend(self.pair(at), tokens)

    @has_sequences
    @rule(at=AT, layer=st.integers(0, 3), start=COUNT, count=COUNT, draft=st.integers(0, 1))
    def write(self, at: int, layer: int, start: int, count: int, draft: int) -> None:
        pair = self.pair(at)
        self.driver.write(pair, layer, max(0, pair.twin.length + start - 3), count, draft)

    @has_sequences
    @rule(at=AT, count=COUNT)
    def advance(self, at: int, count: int) -> None:
        self.driver.advance(self.pair(at), count)

    @has_sequences
    @rule(at=AT, count=COUNT)
    def complete(self, at: int, count: int) -> None:
        self.driver.complete(self.pair(at), count)

    @has_sequences
    @rule(at=AT)
    def turn(self, at: int) -> None:
        self.driver.turn(self.pair(at))

    @has_sequences
    @rule(at=AT, layer=st.integers(0, 3), start=COUNT, count=COUNT)
    def read(self, at: int, layer: int, start: int, count: int) -> None:
        self.driver.read(self.pair(at), layer, start, start + count)

    @has_sequences
    @rule(at=AT, kept=st.sampled_from(["exact", "exact", "f16", "int8"]))
    def snapshot(self, at: int, kept: str) -> None:
        # INT8 keeps rows below 16 elements as they are; the large shape has longer ones.
        lossless = "f16" if self.shape == "large" and kept == "int8" else kept
        self.driver.snapshot(self.pair(at), lossless)

    @has_sequences
    @rule(at=AT)
    def publish(self, at: int) -> None:
        self.driver.publish(self.pair(at))

    @has_sequences
    @rule(at=AT)
    def fork(self, at: int) -> None:
        self.driver.fork(self.pair(at))

    @has_sequences
    @rule(at=AT, position=COUNT)
    def truncate(self, at: int, position: int) -> None:
        pair = self.pair(at)
        self.driver.truncate(pair, max(0, pair.twin.length + 2 - position))

    @has_sequences
    @rule(at=AT)
    def close(self, at: int) -> None:
        self.driver.close(self.pair(at))

    @rule()
    def clear(self) -> None:
        self.driver.clear()

    @invariant()
    def nothing_differs(self) -> None:
        for pair in self.driver.pairs:
            self.driver.check(pair)
        self.driver.check_ledger()

    def teardown(self) -> None:
        self.driver.finish()


def run(chosen_shape: str, chosen_memory: dict[str, Any]) -> None:
    class Machine(CacheAndReference):
        shape = chosen_shape
        memory = chosen_memory

    search = settings()
    if settings.get_current_profile_name() == "ci":
        search = settings(max_examples=12, stateful_step_count=30)
    run_state_machine_as_test(Machine, settings=search)


@pytest.mark.parametrize("shape", SHAPES)
def test_with_ample_memory_every_answer_is_the_reference(shape: str) -> None:
    run(shape, AMPLE)


@pytest.mark.parametrize("shape", SHAPES)
def test_with_few_blocks_what_is_there_is_right(shape: str) -> None:
    run(shape, FEW_BLOCKS)


def test_with_few_bytes_what_is_there_is_right() -> None:
    run("large", FEW_BYTES)
