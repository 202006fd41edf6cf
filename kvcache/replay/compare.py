"""Policies, models, formats and budgets on one trace, in parallel, beside what bounds them."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from kvcache.errors import InvalidArgumentError, OutOfCapacityError
from kvcache.replay.bounds import clairvoyant_hits, gap_closed, infinite_hits
from kvcache.replay.job import (
    available_memory,
    blank_outcome,
    check_machine,
    known_positions,
    run_job,
    serve_job,
)
from kvcache.replay.prefix_tree import trace_paths
from kvcache.replay.workers import run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvcache.models import Model
    from kvcache.replay.job import Job, Outcome
    from kvcache.replay.prefix_tree import TracePaths
    from kvcache.replay.trace import Request

__all__ = ["CLAIRVOYANT", "INFINITE", "compare"]

CLAIRVOYANT = "clairvoyant"
INFINITE = "infinite"
_MOST_RUNS = 4096


def compare(
    job: Job,
    policies: Iterable[str],
    capacities: Iterable[int] = (0,),
    *,
    models: Iterable[tuple[str, Model]] = (),
    formats: Iterable[str] = (),
    memories: Iterable[int] = (),
    processes: int | None = None,
    on_start: Callable[[int], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Replay `job` with each model, format, budget and policy.

    The trace is read once. The bounds come along: what a clairvoyant finds in the same budget,
    who needs no snapshots and no room for running requests, and what infinite memory finds. Where
    no bytes are moved, so does LRU.

    The processes import the module that the interpreter was started with: a script calls this
    under ``if __name__ == "__main__":`` only, or each process starts the comparison anew.

    Args:
        job: what all have in common, and the single value of what is not given.
        policies: names of eviction policies.
        capacities: blocks that may be kept; 0 for the memory's limit.
        models: names for the tables, and models.
        formats: how attention state is stored.
        memories: budgets in bytes.
        processes: at once; by default as many as there are processors, and as can have their
            budget together.
        on_start: told how many requests are served, those of all replays together.
        on_progress: told the number of a replay and how many requests it has served.

    Returns:
        By model, format, memory and capacity; in each, in the order of `policies`, then the bounds.

    Raises:
        OutOfCapacityError: in no budget any request fits, or bytes are to be moved and the machine
            has no memory for the largest budget.
        InvalidArgumentError: no policy, no budget, fewer than one process, more than 4096 replays,
            or a model or trace that is not valid.
    """
    names = _names(policies, with_lru=not job.real_bytes)
    settings = _settings(job, models, formats, memories, capacities)
    _check_counts(len(settings) * len(names), processes)
    check_machine(settings)
    for setting in settings:
        setting.plan()  # refuses what cannot be, before any work
    requests = job.requests()
    known = known_positions(requests)
    jobs = [replace(setting, policy=name) for setting in settings for name in names]
    if on_start is not None:
        on_start(len(jobs) * len(requests))
    found = run_tasks(
        serve_job,
        (requests, known),
        jobs,
        processes=_processes(jobs) if processes is None else processes,
        on_progress=on_progress,
    )
    if all(outcome.rejected == outcome.requests for outcome in found):
        _refuse(jobs, requests)
    bounds = _Bounds(requests, known)
    ordered = []
    for number, setting in enumerate(settings):
        mine = found[number * len(names) : (number + 1) * len(names)]
        ordered += _with_gaps(mine, bounds.outcomes(setting), by_blocks=not setting.memory_limit)
    return ordered


def _names(policies: Iterable[str], *, with_lru: bool) -> list[str]:
    """Each policy once, LRU before them where it is to come along."""
    names = list(dict.fromkeys(policies))
    if not names:
        raise InvalidArgumentError("policies: nothing to compare; name at least one")
    return ["lru", *names] if with_lru and "lru" not in names else names


def _check_counts(runs: int, processes: int | None) -> None:
    if runs == 0:
        raise InvalidArgumentError("capacities: nothing to compare; name at least one, or 0")
    if runs > _MOST_RUNS:
        raise InvalidArgumentError(
            f"{runs} replays are more than {_MOST_RUNS}; name fewer policies, models, formats or "
            "budgets"
        )
    if processes is not None and processes < 1:
        raise InvalidArgumentError(f"processes: expected at least 1, got {processes}")


def _settings(
    job: Job,
    models: Iterable[tuple[str, Model]],
    formats: Iterable[str],
    memories: Iterable[int],
    capacities: Iterable[int],
) -> list[Job]:
    """A job for all that is asked for but the policies."""
    return [
        replace(job, name=name, model=model, format=form, memory=memory, capacity_blocks=size)
        for (name, model), form, memory, size in product(
            list(models) or [(job.name, job.model)],
            list(formats) or [job.format],
            list(memories) or [job.memory],
            capacities,
        )
    ]


def _refuse(jobs: Sequence[Job], requests: Sequence[Request]) -> None:
    """Say what is missing where no request fits."""
    run_job(max(jobs, key=lambda each: (each.memory, each.capacity_blocks)), requests=requests)
    raise OutOfCapacityError("no request fits in any of the budgets; raise --memory")


def _processes(jobs: Sequence[Job]) -> int:
    """As many as there are processors, and as have memory for their state."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    largest = max(job.memory for job in jobs) if jobs[0].real_bytes else 0
    if largest:
        count = min(count, available_memory() // largest)
    return max(1, count)


class _Bounds:
    """Bounds of one trace; what several settings share is found once."""

    def __init__(self, requests: Sequence[Request], known: Sequence[int]) -> None:
        self._requests = requests
        self._known = known
        self._paths: dict[int, TracePaths] = {}
        self._hits: dict[tuple[int, int | None], list[int]] = {}

    def outcomes(self, job: Job) -> list[Outcome]:
        """The clairvoyant and the infinite cache, in blocks and in positions."""
        blank, block = blank_outcome(job, self._requests), job.plan().block_tokens
        capacity = _capacity(job)
        found = []
        for name, size in ((CLAIRVOYANT, capacity), (INFINITE, None)):
            hits = self._find(block, size)
            tokens = self._find(1, None if size is None else size * block)
            # The last position of a prompt always runs.
            asked = (request.input_length - 1 for request in self._requests)
            half = len(hits) // 2
            found.append(
                replace(
                    blank,
                    policy=name,
                    hits=(sum(hits[:half]), sum(hits[half:])),
                    reused_tokens=sum(map(min, tokens, asked)),
                )
            )
        return found

    def _find(self, block: int, capacity: int | None) -> list[int]:
        """Blocks found by each request; a capacity of None is infinite."""
        if block == 1 and capacity is None:
            return list(self._known)
        if (block, capacity) not in self._hits:
            if block not in self._paths:
                self._paths[block] = trace_paths(self._requests, block)
            paths = self._paths[block]
            self._hits[block, capacity] = (
                infinite_hits(paths) if capacity is None else clairvoyant_hits(paths, capacity)
            )
        return self._hits[block, capacity]


def _capacity(job: Job) -> int | None:
    """Blocks of full attention that the budget holds at most, or None for no limit."""
    plan = job.plan()
    block_bytes = sum(group.page_bytes for group in plan.groups if not group.window)
    limits = []
    if job.memory_limit and block_bytes:
        limits.append(job.memory_limit // block_bytes)
    if job.capacity_blocks:
        limits.append(job.capacity_blocks)
    return min(limits, default=None)


def _with_gaps(outcomes: list[Outcome], bounds: list[Outcome], *, by_blocks: bool) -> list[Outcome]:
    lru = next((outcome for outcome in outcomes if outcome.policy == "lru"), None)
    if lru is None:
        return [*outcomes, *bounds]
    best = bounds[0]

    def gaps(outcome: Outcome) -> tuple[float | None, float | None, float | None]:
        first, second = (gap_closed(outcome.hits[i], lru.hits[i], best.hits[i]) for i in (0, 1))
        if by_blocks:
            return gap_closed(sum(outcome.hits), sum(lru.hits), sum(best.hits)), first, second
        tokens = [each.reused_tokens for each in (outcome, lru, best)]
        return gap_closed(*tokens), first, second

    return [*(replace(outcome, gap_closed=gaps(outcome)) for outcome in outcomes), *bounds]
