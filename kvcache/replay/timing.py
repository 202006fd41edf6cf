"""How long each call into the cache takes, kept per kind of call."""

from __future__ import annotations

import time
from array import array
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Operation", "Stopwatch"]


@dataclass(frozen=True, slots=True)
class Operation:
    """How long the calls of one kind took."""

    name: str
    calls: int
    p50_us: float
    p99_us: float
    total_seconds: float


class Stopwatch:
    """Records durations; not thread-safe."""

    def __init__(self) -> None:
        self._durations_ns: dict[str, array[int]] = {}

    @contextmanager
    def __call__(self, operation: str) -> Iterator[None]:
        """Time the body of a `with` statement, unless it raises."""
        begin = time.perf_counter_ns()
        yield
        duration = time.perf_counter_ns() - begin
        self._durations_ns.setdefault(operation, array("q")).append(duration)

    def operations(self) -> list[Operation]:
        """Summaries, in the order in which each kind was first seen."""
        return [_summary(*item) for item in self._durations_ns.items()]


def _summary(name: str, durations_ns: array[int]) -> Operation:
    p50, p99 = np.percentile(durations_ns, (50, 99))
    return Operation(
        name, len(durations_ns), float(p50) / 1e3, float(p99) / 1e3, sum(durations_ns) / 1e9
    )
