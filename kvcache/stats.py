"""What a cache counts."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CacheStats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Counters of a cache. Bytes are the arena's ledger, not the process's memory.

    Those of what happened count from the cache's creation on and never go back.

    Attributes:
        budget_bytes: that pages, slots, snapshots and what is reserved may take.
        reserved_bytes: of the budget, that `Cache.reserve` took for memory elsewhere.
        committed_bytes: spans taken from the budget.
        peak_bytes: most spans ever taken.
        used_bytes: exact bytes of live pages, slots and snapshots.
        idle_bytes: committed, holding nothing: pages, slots and snapshots may all take them.
        max_bytes: most that `Cache.resize` can make of the budget.
        epoch: times that the weights have changed.
        open_sequences: that hold state now.
        pages: live, of all groups.
        group_pages: live, of each group.
        slots: live, one for each open sequence of a model with fixed-size state.
        snapshots: live, of sequences, of verify sessions and of the index.
        lossy_snapshots: those of them that are not exact.
        ring_snapshots: live, in the decode rings of sequences.
        indexed_blocks: of stored prefixes; a block that two of them begin inside counts twice.
        indexed_tokens: of stored prefixes.
        indexed_snapshots: of stored prefixes.
        evicted_blocks: that the policy gave up for memory.
        evicted_snapshots: that the policy gave up, or that went with their blocks.
        thinned_snapshots: that gave way to others, more than ``snapshots_per_path``.
        erased_blocks: that `Cache.erase` dropped.
        erased_snapshots: that `Cache.erase` dropped.
        dropped_blocks: that `Cache.clear` and `Cache.bump_epoch` dropped.
        dropped_snapshots: that `Cache.clear` and `Cache.bump_epoch` dropped.
        window_pages_evicted: of each group, pages given up inside a prefix that stays, because no
            window of a position to resume at needs them, or for want of memory.
        expired_blocks: dropped at the end of their time to live.
        pins: that are held.
        pinned_pages: that pins keep, of all groups.
        pinned_bytes: of those pages and of the pinned snapshots, each counted once.
        lapsed_leases: pins that ended with their lease.
        opens: sequences opened.
        hits: opens with cached tokens.
        asked_tokens: of prompts that were opened.
        cached_tokens: of those, that needed no recomputation.
        limited_by_none: opens of which only the last token had to run.
        limited_by_tokens: opens whose hit ended where no stored prefix went on.
        limited_by_snapshot: opens whose hit ended for want of a snapshot.
        limited_by_window: opens whose hit ended for want of a window.
        unknown_tokens: asked, that no stored prefix had.
        lost_snapshot_tokens: known, but computed again for want of a snapshot.
        lost_window_tokens: known, but computed again for want of a window.
        waiting_events: blocks and snapshots in events that `Cache.take_events` has not given yet.
        event_losses: times that more of them happened than ``event_capacity`` lets wait, or that a
            call which took some failed.
        hit_blocks: found at open, by a policy that keeps count.
        lru_hit_blocks: that LRU would have found with as many blocks.
    """

    budget_bytes: int
    reserved_bytes: int
    committed_bytes: int
    peak_bytes: int
    used_bytes: int
    idle_bytes: int
    max_bytes: int
    epoch: int
    open_sequences: int
    pages: int
    group_pages: tuple[int, ...]
    slots: int
    snapshots: int
    lossy_snapshots: int
    ring_snapshots: int
    indexed_blocks: int
    indexed_tokens: int
    indexed_snapshots: int
    evicted_blocks: int
    evicted_snapshots: int
    thinned_snapshots: int
    erased_blocks: int
    erased_snapshots: int
    dropped_blocks: int
    dropped_snapshots: int
    window_pages_evicted: tuple[int, ...]
    expired_blocks: int
    pins: int
    pinned_pages: int
    pinned_bytes: int
    lapsed_leases: int
    opens: int
    hits: int
    asked_tokens: int
    cached_tokens: int
    limited_by_none: int
    limited_by_tokens: int
    limited_by_snapshot: int
    limited_by_window: int
    unknown_tokens: int
    lost_snapshot_tokens: int
    lost_window_tokens: int
    waiting_events: int
    event_losses: int
    hit_blocks: int
    lru_hit_blocks: int

    @property
    def fragmentation(self) -> float:
        """Share of the memory held by live state that holds none: rounding, and free small pages.

        At most 1/8 by rounding for pages over 1 KiB. Pages of up to 32 KiB share spans of at most
        64 KiB, and a span stays as long as one of its pages is live.
        """
        held = self.committed_bytes - self.idle_bytes
        return (held - self.used_bytes) / held if held else 0.0
