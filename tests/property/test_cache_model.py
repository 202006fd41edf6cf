"""The cache and the reference, driven by the same operations, never disagree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

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
from model.driver import AMPLE, FEW_BLOCKS, FEW_BYTES, SHAPES, make_driver
from model.operations import OPERATIONS, Operation, perform
from model.soak import soak

T = TypeVar("T")


class DataDraw:
    """Choices of an operation, made by hypothesis."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data

    def integer(self, least: int, most: int) -> int:
        return self.data.draw(st.integers(least, most))

    def pick(self, values: Sequence[T]) -> T:
        return values[self.data.draw(st.integers(0, len(values) - 1))]


class CacheAndReference(RuleBasedStateMachine):
    """Every operation of `model.operations`; `memory` decides how strict the comparison is."""

    shape: str
    memory: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self.driver = make_driver(self.shape, self.memory)

    @invariant()
    def nothing_differs(self) -> None:
        for pair in self.driver.pairs:
            self.driver.check(pair)

    def teardown(self) -> None:
        self.driver.finish()


def _rule_of(operation: Operation) -> Any:
    @rule(data=st.data())
    def run(self: CacheAndReference, data: st.DataObject) -> None:
        perform(operation, self.driver, DataDraw(data))

    if not operation.needs_sequence:
        return run
    return precondition(lambda self: self.driver.pairs)(run)


for _operation in OPERATIONS:
    setattr(CacheAndReference, _operation.name, _rule_of(_operation))


def run(chosen_shape: str, chosen_memory: dict[str, Any]) -> None:
    class Machine(CacheAndReference):
        shape = chosen_shape
        memory = chosen_memory

    # Each example is many operations; for great numbers of them there is model/soak.py.
    search = settings(max_examples=200)
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


@pytest.mark.parametrize("memory", ["ample", "few-blocks"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_seeded_run_agrees_with_the_reference(shape: str, memory: str) -> None:
    soak(shape, memory, operations=300, seed=1)
