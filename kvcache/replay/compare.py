"""Several policies and capacities on one trace, each in a process of its own, beside the bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvcache.cache import Cache
from kvcache.plan import StatePlan
from kvcache.replay.bounds import clairvoyant_hits, gap_closed, infinite_hits, trace_paths
from kvcache.replay.demo import generate_trace
from kvcache.replay.serve import Replay
from kvcache.replay.trace import read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from kvcache.models import Model
    from kvcache.replay.report import Report
    from kvcache.replay.trace import Request

__all__ = ["CLAIRVOYANT", "INFINITE", "Job", "Outcome", "compare", "run_job"]

CLAIRVOYANT = "clairvoyant"
INFINITE = "infinite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One replay, as a process can be told of it.

    Attributes:
        model: whose state is kept.
        trace: JSON lines, or None for the generated chat trace.
        limit: requests to serve, or None for all.
        memory: budget in bytes.
        format: how attention state is stored, as `StatePlan.for_model` takes it.
        block_tokens: positions in a block; None for what the model takes.
        policy: eviction policy.
        capacity_blocks: blocks that may be kept; 0 for as many as the memory holds.
        real_bytes: whether state is moved and checked.
    """

    model: Model
    trace: Path | None
    limit: int | None
    memory: int
    format: str = "f16"
    block_tokens: int | None = None
    policy: str = "lru"
    capacity_blocks: int = 0
    real_bytes: bool = True

    def plan(self) -> StatePlan:
        """The plan of its model."""
        return StatePlan.for_model(
            self.model,
            memory=self.memory,
            block_tokens=self.block_tokens,
            format=self.format,
        )

    def requests(self) -> list[Request]:
        """The trace, read or generated anew."""
        if self.trace is None:
            return generate_trace()[: self.limit]
        return read_trace(self.trace, limit=self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Blocks found by one policy with one capacity, or by a bound.

    Attributes:
        policy: its name, ``"clairvoyant"`` or ``"infinite"``.
        capacity_blocks: blocks that were kept; 0 where the memory was the limit.
        blocks: prompt blocks of the first and of the second half of the requests.
        hits: those that were found.
        token_hit_rate: reused prompt positions over all; None for a bound.
        gap_closed: share of what the clairvoyant finds beyond LRU: of the whole trace and of its
            halves; None without both.
        seconds: of the replay.
        passed: whether every restored byte was right.
    """

    policy: str
    capacity_blocks: int
    blocks: tuple[int, int]
    hits: tuple[int, int]
    token_hit_rate: float | None = None
    gap_closed: tuple[float, float, float] | None = None
    seconds: float = 0.0
    passed: bool = True

    @property
    def block_hit_rate(self) -> float:
        """Of the whole trace."""
        return sum(self.hits) / max(1, sum(self.blocks))

    def to_dict(self) -> dict[str, Any]:
        """Stable keys for programs."""
        return {
            "policy": self.policy,
            "capacity_blocks": self.capacity_blocks,
            "blocks": sum(self.blocks),
            "block_hits": sum(self.hits),
            "block_hits_by_half": list(self.hits),
            "block_hit_rate": round(self.block_hit_rate, 6),
            "token_hit_rate": self.token_hit_rate,
            "gap_closed": None if self.gap_closed is None else self.gap_closed[0],
            "gap_closed_by_half": None if self.gap_closed is None else list(self.gap_closed[1:]),
            "seconds": round(self.seconds, 3),
        }


def run_job(
    job: Job,
    *,
    on_start: Callable[[int], None] | None = None,
    on_request: Callable[[Report], None] | None = None,
) -> Report:
    """Serve a job's trace in this process; `on_start` is told how many requests there are."""
    plan, requests = job.plan(), job.requests()
    cache = Cache(
        plan,
        policy=job.policy,
        backing=job.real_bytes,
        capacity_blocks=job.capacity_blocks,
    )
    replay = Replay(
        cache,
        plan,
        real_bytes=job.real_bytes,
        capacity_blocks=job.capacity_blocks,
    )
    if on_start is not None:
        on_start(len(requests))
    report = replay.run(requests, on_request=on_request)
    report.model, report.format, report.policy = job.model.model_type, job.format, job.policy
    return report


def compare(
    job: Job,
    policies: Iterable[str],
    capacities: Iterable[int],
    *,
    processes: int | None = None,
) -> list[Outcome]:
    """Replay `job` with each policy and capacity.

    Where blocks are the limit and no bytes are moved, LRU and the bounds come along: what a
    clairvoyant finds, and what would be found with infinite memory.

    Args:
        job: what all have in common.
        policies: names of eviction policies.
        capacities: blocks that may be kept; 0 for the memory's limit.
        processes: at once; by default as many as there are processors.

    Returns:
        By capacity, then in the order of `policies`, then the bounds.
    """
    # Only here, for they take long to import.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    capacities = list(capacities)
    names = list(dict.fromkeys(policies))
    bounded = not job.real_bytes and all(capacities)
    if bounded and "lru" not in names:
        names.insert(0, "lru")
    jobs = [
        replace(job, policy=name, capacity_blocks=size) for size in capacities for name in names
    ]
    # Not fork(): threads of this process may hold locks.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        futures = [pool.submit(_outcome, each) for each in jobs]
        bounds = pool.submit(_bounds, job, capacities) if bounded else None
        outcomes = [future.result() for future in futures]
        extra = bounds.result() if bounds is not None else []
    ordered = []
    for size in capacities:
        mine = [outcome for outcome in [*outcomes, *extra] if outcome.capacity_blocks == size]
        ordered += _with_gaps(mine) if bounded else mine
    return ordered


def _outcome(job: Job) -> Outcome:
    half = 0
    first = (0, 0)

    def start(requests: int) -> None:
        nonlocal half
        half = requests // 2

    def watch(report: Report) -> None:
        nonlocal first
        if report.requests == half:
            first = (report.prompt_blocks, report.reused_blocks)

    report = run_job(job, on_start=start, on_request=watch)
    return Outcome(
        policy=job.policy,
        capacity_blocks=job.capacity_blocks,
        blocks=(first[0], report.prompt_blocks - first[0]),
        hits=(first[1], report.reused_blocks - first[1]),
        token_hit_rate=report.token_hit_rate,
        seconds=report.seconds,
        passed=report.passed,
    )


def _bounds(job: Job, capacities: Sequence[int]) -> list[Outcome]:
    paths = trace_paths(job.requests(), job.plan().block_tokens)
    half = len(paths) // 2
    blocks = (sum(map(len, paths[:half])), sum(map(len, paths[half:])))
    most = infinite_hits(paths)
    outcomes = []
    for size in capacities:
        for name, hits in ((CLAIRVOYANT, clairvoyant_hits(paths, size)), (INFINITE, most)):
            outcomes.append(
                Outcome(
                    policy=name,
                    capacity_blocks=size,
                    blocks=blocks,
                    hits=(sum(hits[:half]), sum(hits[half:])),
                )
            )
    return outcomes


def _with_gaps(outcomes: list[Outcome]) -> list[Outcome]:
    hits = {outcome.policy: outcome.hits for outcome in outcomes}
    least, most = hits["lru"], hits[CLAIRVOYANT]
    bounds = (CLAIRVOYANT, INFINITE)

    def gaps(outcome: Outcome) -> tuple[float, float, float]:
        first, second = (gap_closed(outcome.hits[half], least[half], most[half]) for half in (0, 1))
        return gap_closed(sum(outcome.hits), sum(least), sum(most)), first, second

    return [
        outcome if outcome.policy in bounds else replace(outcome, gap_closed=gaps(outcome))
        for outcome in outcomes
    ]
