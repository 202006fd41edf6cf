"""How long each call into the cache takes, kept per kind of call."""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass

import numpy as np

__all__ = ["Operation", "Stopwatch"]


@dataclass(frozen=True, slots=True)
class Operation:
    """How long the calls of one kind took."""

    name: str
    calls: int
    p50_us: float
    p99_us: float
    total_seconds: float


class _Timer:
    """Adds the duration of each body that did not raise."""

    __slots__ = ("_begin", "durations_ns")

    def __init__(self) -> None:
        self.durations_ns: array[int] = array("q")
        self._begin = 0

    def __enter__(self) -> None:
        self._begin = time.perf_counter_ns()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.durations_ns.append(time.perf_counter_ns() - self._begin)


class Stopwatch:
    """Records durations; not thread-safe, and a kind of call is not timed within itself."""

    def __init__(self) -> None:
        self._timers: dict[str, _Timer] = {}

    def __call__(self, operation: str) -> _Timer:
        """Time the body of a `with` statement, unless it raises."""
        timer = self._timers.get(operation)
        if timer is None:
            timer = self._timers[operation] = _Timer()
        return timer

    def operations(self) -> list[Operation]:
        """Summaries, in the order in which each kind was first seen."""
        return [
            _summary(name, timer.durations_ns)
            for name, timer in self._timers.items()
            if timer.durations_ns
        ]


def _summary(name: str, durations_ns: array[int]) -> Operation:
    p50, p99 = np.percentile(durations_ns, (50, 99))
    return Operation(
        name, len(durations_ns), float(p50) / 1e3, float(p99) / 1e3, sum(durations_ns) / 1e9
    )
