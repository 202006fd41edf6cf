"""What a cache counts, and why a prompt would hit as far as it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from kvcache.snapshot import SnapshotFormat

__all__ = ["CacheStats", "Explanation"]

Limit = Literal["last token", "tokens", "snapshot", "window"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Counters of a cache. Bytes are the arena's ledger, not the process's memory."""

    budget_bytes: int
    committed_bytes: int  #: spans taken from the budget
    peak_bytes: int  #: most spans ever taken
    used_bytes: int  #: exact bytes of live pages, slots and snapshots
    idle_bytes: int  #: committed, holding nothing: pages, slots and snapshots may all take them
    max_bytes: int  #: most that `Cache.resize` can make of the budget
    epoch: int  #: times that the weights have changed
    open_sequences: int
    pages: int  #: live, of all groups
    slots: int
    snapshots: int  #: live, of sequences, of verify sessions and of the index
    lossy_snapshots: int  #: those of them that are not exact
    ring_snapshots: int  #: live, in the decode rings of sequences
    indexed_blocks: int
    indexed_tokens: int
    indexed_snapshots: int
    evicted_blocks: int
    evicted_snapshots: int
    pins: int
    pinned_pages: int  #: that pins keep, of all groups
    pinned_bytes: int  #: those pages and snapshots, each counted once
    lapsed_leases: int
    opens: int
    hits: int  #: opens with cached tokens
    asked_tokens: int
    cached_tokens: int
    hit_blocks: int  #: found at open, by a policy that keeps count
    lru_hit_blocks: int  #: that LRU would have found with as many blocks

    @property
    def fragmentation(self) -> float:
        """Share of the memory held by live state that holds none: rounding, and free small pages.

        At most 1/8 by rounding for pages over 1 KiB. Pages of up to 32 KiB share spans of at most
        64 KiB, and a span stays as long as one of its pages is live.
        """
        held = self.committed_bytes - self.idle_bytes
        return (held - self.used_bytes) / held if held else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a prompt would hit as far as it does."""

    tokens: int  #: asked
    matched_tokens: int  #: longest prefix whose tokens are known
    cached_tokens: int  #: what a hit would cover
    nearest_snapshot: int  #: deepest resident snapshot at or below ``matched_tokens``
    limited_by: Limit
    snapshot_format: SnapshotFormat | None = None  #: of the snapshot that a hit would restore
    components: tuple[str, ...] = ()  #: what the limit is about, such as ``state.recurrent``

    @property
    def lost_tokens(self) -> int:
        """Known positions that must be computed again."""
        return self.matched_tokens - self.cached_tokens

    def __str__(self) -> str:
        named = f" ({', '.join(self.components)})" if self.components else ""
        reason = {
            "last token": "only the last token must run",
            "tokens": "no stored prefix continues with these tokens",
            "snapshot": (
                f"the fixed-size state{named} has no snapshot further on "
                f"(nearest at {self.nearest_snapshot}); mark() where prompts branch"
            ),
            "window": (
                f"a sliding group{named} has lost its window there; snapshot() at a mark() keeps it"
            ),
        }[self.limited_by]
        return (
            f"{self.cached_tokens} of {self.tokens} tokens reusable, {self.matched_tokens} known, "
            f"{self.lost_tokens} lost: {reason}"
        )
