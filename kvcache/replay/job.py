"""One replay as a process can be told of it, and what it found."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcache.cache import Cache
from kvcache.errors import KVCacheIOError, OutOfCapacityError
from kvcache.plan import StatePlan
from kvcache.replay.bounds import infinite_hits
from kvcache.replay.demo import generate_trace
from kvcache.replay.prefix_tree import trace_paths
from kvcache.replay.serve import Replay
from kvcache.replay.stand_in import STAND_IN_WEIGHTS
from kvcache.replay.trace import read_trace
from kvcache.tiers.disk import DiskTier
from kvcache.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcache.models import Model
    from kvcache.replay.lost import LostTokens
    from kvcache.replay.report import Report
    from kvcache.replay.trace import Request
    from kvcache.tiers.remote import ValkeyTier

__all__ = [
    "Job",
    "Outcome",
    "available_memory",
    "blank_outcome",
    "check_machine",
    "known_positions",
    "run_job",
    "serve_job",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One replay.

    Attributes:
        model: whose state is kept.
        name: what the model is called in tables; its type by default.
        trace: JSON lines, or None for the generated chat trace.
        limit: requests to serve, or None for all.
        seed: of the generated trace.
        memory: budget in bytes.
        format: how attention state is stored, as `StatePlan.for_model` takes it.
        block_tokens: positions in a block; None for what the model takes.
        policy: eviction policy.
        capacity_blocks: blocks that may be kept; 0 for as many as the memory holds.
        real_bytes: whether state is moved and checked.
        snapshot_interval: tokens between the snapshots of a prompt that nobody marked; 0 for none.
        disk: directory of a disk tier, which a later replay of the model goes on with; or None.
        disk_bytes: its cap.
        remote: server of a remote tier, which other replays of the model go on with; or None.
    """

    model: Model
    name: str = ""
    trace: Path | None
    limit: int | None
    seed: int = 0
    memory: int
    format: str = "f16"
    block_tokens: int | None = None
    policy: str = "price_list"
    capacity_blocks: int = 0
    real_bytes: bool = True
    snapshot_interval: int = 1024
    disk: Path | None = None
    disk_bytes: int = 16 << 30
    remote: ValkeyTier | None = None

    def tier(self) -> DiskTier | None:
        """The disk tier, which every record waits for, so that replays are alike."""
        if self.disk is None:
            return None
        return DiskTier(self.disk, self.disk_bytes, wait_seconds=3600.0)

    def plan(self) -> StatePlan:
        """The plan of its model."""
        return StatePlan.for_model(
            self.model,
            memory=self.memory,
            block_tokens=self.block_tokens,
            format=self.format,
        )

    @property
    def memory_limit(self) -> int:
        """The bytes that limit it, or 0 where `capacity_blocks` alone does."""
        return self.memory if self.real_bytes or not self.capacity_blocks else 0

    def requests(self) -> list[Request]:
        """The trace, read or generated anew."""
        if self.trace is None:
            return generate_trace(seed=self.seed)[: self.limit]
        return read_trace(self.trace, limit=self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one policy found with one model, format and budget, or what a bound says.

    Attributes:
        model, format: of the job.
        policy: its name, ``"clairvoyant"`` or ``"infinite"``.
        memory: budget in bytes; 0 where blocks were the limit.
        capacity_blocks: blocks that were kept; 0 where the memory was the limit.
        requests, rejected: asked, and without room for their own state; these are misses.
        rejected_tokens: prompt positions of the latter.
        blocks: prompt blocks of the first and of the second half of the requests.
        hits: those that were found.
        prompt_tokens, reused_tokens: the same in positions.
        flop_hit_rate: share of the prompts' FLOPs that was saved; None for a bound, or where the
            model's configuration does not say what a position costs.
        lost: what became of the other positions; None for a bound.
        gap_closed: share of what the clairvoyant finds beyond LRU: of the whole trace and of its
            halves, each None where that is nothing. None without both.
        seconds: of the replay.
        passed: whether every restored byte was right.
    """

    model: str
    format: str
    policy: str
    memory: int
    capacity_blocks: int
    requests: int
    rejected: int = 0
    rejected_tokens: int = 0
    blocks: tuple[int, int]
    hits: tuple[int, int] = (0, 0)
    prompt_tokens: int
    reused_tokens: int = 0
    flop_hit_rate: float | None = None
    lost: LostTokens | None = None
    gap_closed: tuple[float | None, float | None, float | None] | None = None
    seconds: float = 0.0
    passed: bool = True

    @property
    def block_hit_rate(self) -> float:
        """Of the whole trace."""
        return sum(self.hits) / max(1, sum(self.blocks))

    @property
    def token_hit_rate(self) -> float:
        """Of the whole trace."""
        return self.reused_tokens / max(1, self.prompt_tokens)

    def to_dict(self) -> dict[str, Any]:
        """Stable keys for programs."""
        rate = self.flop_hit_rate
        return {
            "model": self.model,
            "format": self.format,
            "policy": self.policy,
            "memory_bytes": self.memory or None,
            "capacity_blocks": self.capacity_blocks,
            "requests": self.requests,
            "rejected": self.rejected,
            "rejected_tokens": self.rejected_tokens,
            "blocks": sum(self.blocks),
            "block_hits": sum(self.hits),
            "block_hits_by_half": list(self.hits),
            "block_hit_rate": round(self.block_hit_rate, 6),
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.reused_tokens,
            "token_hit_rate": round(self.token_hit_rate, 6),
            "flop_hit_rate": None if rate is None else round(rate, 6),
            "lost_tokens": None if self.lost is None else self.lost.to_dict(),
            "gap_closed": None if self.gap_closed is None else self.gap_closed[0],
            "gap_closed_by_half": None if self.gap_closed is None else list(self.gap_closed[1:]),
            "seconds": round(self.seconds, 3),
            "passed": self.passed,
        }


def known_positions(requests: Sequence[Request]) -> list[int]:
    """Positions of each prompt that earlier requests had, its last one included."""
    return infinite_hits(trace_paths(requests, 1))


def check_machine(jobs: Sequence[Job]) -> None:
    """Refuse budgets of real bytes that this machine has no memory for.

    Raises:
        OutOfCapacityError: the largest is more than is free.
    """
    largest = max((job.memory for job in jobs if job.real_bytes), default=0)
    free = available_memory()
    if largest > free:
        raise OutOfCapacityError(
            f"a budget of {format_bytes(largest)} is more than the {format_bytes(free)} of memory "
            "that are free here; choose a smaller --memory, or --bytes none, which needs none"
        )


def available_memory() -> int:
    """Bytes that new work can take without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        # macOS tells only how much there is at all.
        pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def run_job(
    job: Job,
    *,
    requests: Sequence[Request] | None = None,
    known: Sequence[int] | None = None,
    on_start: Callable[[int], None] | None = None,
    on_request: Callable[[Report], None] | None = None,
) -> Report:
    """Serve a job's trace in this process.

    Args:
        job: what to do.
        requests: its trace, if it is read already.
        known: their `known_positions`, if they are known already.
        on_start: told how many requests there are.
        on_request: sees the running report after each.

    Raises:
        OutOfCapacityError: no request fits.
    """
    plan = job.plan()
    requests = job.requests() if requests is None else requests
    known = known_positions(requests) if known is None else known
    cache = Cache(
        plan,
        policy=job.policy,
        backing=job.real_bytes,
        capacity_blocks=job.capacity_blocks,
        snapshot_interval=job.snapshot_interval,
        weights=STAND_IN_WEIGHTS,
        disk=job.tier(),
        remote=job.remote,
    )
    replay = Replay(
        cache,
        plan,
        real_bytes=job.real_bytes,
        capacity_blocks=job.capacity_blocks,
        known=known,
    )
    if on_start is not None:
        on_start(len(requests))
    report = replay.run(requests, on_request=on_request)
    report.model, report.format, report.policy = job.model.model_type, job.format, job.policy
    if cache.disk is not None:
        cache.disk.flush()
        report.disk = cache.disk.stats()
    if cache.remote is not None:
        with suppress(KVCacheIOError):  # which the counters tell
            cache.remote.flush()
        report.remote = cache.remote.stats()
    return report


def serve_job(
    shared: tuple[Sequence[Request], Sequence[int]], job: Job, tell: Callable[[int], None]
) -> Outcome:
    """Run one job of a comparison; a budget in which no request fits finds nothing."""
    requests, known = shared
    half = len(requests) // 2
    first = 0

    def watch(report: Report) -> None:
        nonlocal first
        if report.requests == half:
            first = report.reused_blocks
        tell(report.requests)

    asked = blank_outcome(job, requests)
    try:
        report = run_job(job, requests=requests, known=known, on_request=watch)
    except OutOfCapacityError:
        return replace(asked, rejected=asked.requests, rejected_tokens=asked.prompt_tokens)
    return replace(
        asked,
        rejected=report.rejected,
        rejected_tokens=report.rejected_tokens,
        hits=(first, report.reused_blocks - first),
        reused_tokens=report.reused_tokens,
        flop_hit_rate=report.flop_hit_rate,
        seconds=report.seconds,
        lost=report.lost,
        passed=report.passed,
    )


def blank_outcome(job: Job, requests: Sequence[Request]) -> Outcome:
    """What was asked for, and nothing found."""
    block = job.plan().block_tokens
    blocks = [-(-request.input_length // block) for request in requests]
    half = len(blocks) // 2
    return Outcome(
        model=job.name or job.model.model_type,
        format=job.format,
        policy=job.policy,
        memory=job.memory_limit,
        capacity_blocks=job.capacity_blocks,
        requests=len(requests),
        blocks=(sum(blocks[:half]), sum(blocks[half:])),
        prompt_tokens=sum(request.input_length for request in requests),
    )
