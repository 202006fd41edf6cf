"""What a replay measured, as one object for programs and one table for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rich.table import Table

from kvcache.replay.lost import LostTokens
from kvcache.units import format_bytes

if TYPE_CHECKING:
    from kvcache.replay.timing import Operation
    from kvcache.tiers.disk import DiskTierStats
    from kvcache.tiers.remote import RemoteTierStats

__all__ = ["Report"]

_LOST = {
    "new": ("tokens new", "no earlier request had them"),
    "attention": ("tokens evicted", ""),
    "window": ("tokens without window", "the sliding window before them was evicted"),
    "snapshot": ("tokens without snapshot", "of the fixed-size state"),
    "last_token": ("last tokens", "of known prompts; they run for their logits"),
}


@dataclass(slots=True, kw_only=True)
class Report:
    """Counts of one replay. A request that was rejected counts as asked for, and as missed.

    Attributes:
        requests: requests of the trace, the rejected ones included.
        rejected: requests whose own state did not fit the memory.
        rejected_tokens: positions of their prompts.
        rejected_positions: positions of the shortest of them, prompt and output.
        prompt_tokens, reused_tokens: prompt positions, and those a hit made usable.
        prompt_flops, reused_flops: of computing them, where the plan knows costs.
        lost: what became of the other prompt positions; nothing where it was not asked for.
        prompt_blocks, reused_blocks: the same in blocks; a last, partial block counts as one when
            all of it was cached.
        restored_bytes: stored bytes of every component that the hits cover; shared pages count.
        verified_bytes: those that were read back and found right.
        mismatches: restored rows and states that differ from what was written.
        written_bytes, read_bytes: stored bytes that the engine side wrote and read.
        peak_bytes, budget_bytes: the arena's ledger, not the size of the process.
        disk: counters of the disk tier, where there was one.
        remote: likewise, of the remote tier.
    """

    model: str = ""
    format: str = ""
    policy: str = ""
    requests: int = 0
    rejected: int = 0
    rejected_tokens: int = 0
    rejected_positions: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    prompt_flops: float = 0.0
    reused_flops: float = 0.0
    lost: LostTokens = field(default_factory=LostTokens)
    output_tokens: int = 0
    prompt_blocks: int = 0
    reused_blocks: int = 0
    restored_bytes: int = 0
    verified_bytes: int = 0
    mismatches: int = 0
    written_bytes: int = 0
    read_bytes: int = 0
    peak_bytes: int = 0
    budget_bytes: int = 0
    snapshots: int = 0
    snapshots_refused: int = 0
    evicted_blocks: int = 0
    evicted_snapshots: int = 0
    seconds: float = 0.0
    disk: DiskTierStats | None = None
    remote: RemoteTierStats | None = None
    operations: list[Operation] = field(default_factory=list)

    @property
    def token_hit_rate(self) -> float:
        """Reused prompt positions over all prompt positions."""
        return self.reused_tokens / max(1, self.prompt_tokens)

    @property
    def block_hit_rate(self) -> float:
        """Reused prompt blocks over all prompt blocks."""
        return self.reused_blocks / max(1, self.prompt_blocks)

    @property
    def flop_hit_rate(self) -> float | None:
        """Share of the prompts' FLOPs that hits saved; None where costs are not known."""
        return self.reused_flops / self.prompt_flops if self.prompt_flops else None

    @property
    def passed(self) -> bool:
        """Whether every restored byte was checked and right."""
        return self.mismatches == 0 and self.verified_bytes == self.restored_bytes

    def to_dict(self) -> dict[str, Any]:
        """The published figures; the keys are stable."""
        flops = self.flop_hit_rate
        tiers = {"disk": self.disk, "remote": self.remote}
        counted = {name: asdict(stats) for name, stats in tiers.items() if stats is not None}
        return counted | {
            "requests": self.requests,
            "rejected": self.rejected,
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.reused_tokens,
            "token_hit_rate": round(self.token_hit_rate, 6),
            "block_hit_rate": round(self.block_hit_rate, 6),
            "restored_bytes": self.restored_bytes,
            "verified_bytes": self.verified_bytes,
            "mismatches": self.mismatches,
            "peak_bytes": self.peak_bytes,
            "budget_bytes": self.budget_bytes,
            "evicted_blocks": self.evicted_blocks,
            "evicted_snapshots": self.evicted_snapshots,
            "seconds": round(self.seconds, 3),
            "model": self.model,
            "format": self.format,
            "policy": self.policy,
            "rejected_tokens": self.rejected_tokens,
            "flop_hit_rate": None if flops is None else round(flops, 6),
            "lost_tokens": self.lost.to_dict(),
        }

    def tables(self) -> list[Table]:
        """The same and the timings, for a terminal or a pipe."""
        return [self._figures(), self._timings()]

    def _figures(self) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column()
        table.add_column(justify="right")
        table.add_column(style="dim")
        table.add_row("model", self.model, f"{self.format}, {self.policy}")
        rejected = f"{self.rejected:,} rejected"
        if self.rejected:
            rejected += f": no room for {self.rejected_positions:,} positions and more"
        table.add_row("requests", f"{self.requests:,}", rejected)
        table.add_row("prompt tokens", f"{self.prompt_tokens:,}")
        table.add_row("output tokens", f"{self.output_tokens:,}")
        reused = f"{self.token_hit_rate:.2%}"
        if (flops := self.flop_hit_rate) is not None:
            reused += f", {flops:.2%} of the prompts' FLOPs"
        table.add_row("tokens reused", f"{self.reused_tokens:,}", reused)
        for name, (title, why) in _LOST.items():
            if count := getattr(self.lost, name):
                table.add_row(title, f"{count:,}", why)
        table.add_row("blocks reused", f"{self.reused_blocks:,}", f"{self.block_hit_rate:.2%}")
        table.add_row("bytes written", format_bytes(self.written_bytes))
        table.add_row("bytes read", format_bytes(self.read_bytes))
        table.add_row("bytes restored", f"{self.restored_bytes:,}")
        table.add_row("bytes verified", f"{self.verified_bytes:,}")
        table.add_row("mismatches", f"{self.mismatches:,}", "" if self.passed else "FAILED")
        refused = f", {self.snapshots_refused:,} refused" if self.snapshots_refused else ""
        table.add_row("snapshots taken", f"{self.snapshots:,}", refused.lstrip(", "))
        table.add_row("evicted blocks", f"{self.evicted_blocks:,}")
        table.add_row("evicted snapshots", f"{self.evicted_snapshots:,}")
        share = self.peak_bytes / max(1, self.budget_bytes)
        table.add_row(
            "peak memory",
            format_bytes(self.peak_bytes),
            f"{share:.1%} of {format_bytes(self.budget_bytes)}",
        )
        if (disk := self.disk) is not None:
            held = f"{format_bytes(disk.bytes)} in {disk.records:,} records"
            table.add_row("tokens from disk", f"{disk.fetched_tokens:,}", held)
            if disk.last_error:
                table.add_row("disk tier", "FAILED", disk.last_error)
        if (remote := self.remote) is not None:
            held = f"{remote.written_records:,} records written, {remote.present_records:,} there"
            table.add_row("tokens from the server", f"{remote.fetched_tokens:,}", held)
            if remote.last_error:
                table.add_row("remote tier", "FAILED", remote.last_error)
        table.add_row("seconds", f"{self.seconds:.2f}")
        return table

    def _timings(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("operation")
        for column in ("calls", "p50", "p99", "total"):
            table.add_column(column, justify="right")
        for operation in self.operations:
            table.add_row(
                operation.name,
                f"{operation.calls:,}",
                f"{operation.p50_us:,.1f} us",
                f"{operation.p99_us:,.1f} us",
                f"{operation.total_seconds:.2f} s",
            )
        return table
