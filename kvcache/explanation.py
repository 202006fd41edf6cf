"""Why a prompt would hit as far as it does, and what would make it hit further."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from kvcache.snapshot import SnapshotFormat

__all__ = ["Explanation"]

Limit = Literal["last token", "tokens", "snapshot", "window"]
Reason = Literal["none", "never stored", "evicted", "erased", "other weights", "thinned", "expired"]

_LAST = "nothing: the last token of a prompt always runs"
_MEMORY = "raise memory (Cache.resize), or keep what is worth more: another policy, hints at open()"
_ERASED = "erase() dropped it; publish() it again"
_EXPIRED = "raise ttl, which open() may give, or pin() it"
_WEIGHTS = "bump_epoch() dropped it, because other weights compute other state"
#: What to change, by limit and reason.
_ADVICE: dict[tuple[str, str], str] = {
    ("tokens", "never stored"): (
        "publish() what others begin with; check that namespace, adapter, salt and media agree"
    ),
    ("tokens", "evicted"): _MEMORY,
    ("tokens", "erased"): _ERASED,
    ("tokens", "other weights"): _WEIGHTS,
    ("tokens", "expired"): _EXPIRED,
    ("snapshot", "never stored"): (
        "mark() where prompts branch and snapshot() at prefill_stops(), or lower snapshot_interval"
    ),
    ("snapshot", "evicted"): f"{_MEMORY}; or snapshot() in f16 or int8",
    ("snapshot", "erased"): _ERASED,
    ("snapshot", "thinned"): "raise snapshots_per_path, or mark() the positions that matter",
    ("window", "never stored"): (
        "publish() before the window moves on, or snapshot() at a mark(), which keeps its window"
    ),
    ("window", "evicted"): f"snapshot() at a mark() keeps its window; else {_MEMORY}",
    ("window", "erased"): _ERASED,
}
_WHY: dict[str, str] = {
    "never stored": "was never stored, or is forgotten",
    "evicted": "was evicted",
    "erased": "was erased",
    "other weights": "was of other weights",
    "expired": "has outlived its time to live",
    "thinned": "gave way to other snapshots of its path",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a prompt would hit as far as it does.

    The cache remembers the latest blocks, snapshots and windows that left it, by 64-bit keys of
    their whole paths in at most 1 MiB. What fell out of that memory counts as never stored, and so
    does part of a block that went whole. A wrong "evicted" takes a collision, about one in 2^58.

    Attributes:
        tokens: asked.
        matched_tokens: longest prefix whose tokens are known.
        cached_tokens: what a hit would cover.
        nearest_snapshot: deepest resident snapshot at or below ``matched_tokens``.
        limited_by: what ends the hit: the ``last token``, which always runs; ``tokens``, with which
            no stored prefix goes on; a ``snapshot`` of the fixed-size state, or a sliding
            ``window``, that is not there.
        snapshot_format: of the snapshot that a hit would restore.
        components: what the limit is about, such as ``state.recurrent``.
        position: where it is missing: the first token that is not known, the end of what a snapshot
            would give back, or the first position of the block that the window lacks.
        group: the group whose window it is.
        reason: why it is missing; ``none`` where nothing is.
        once_tokens: of the prompt, how much is or was stored.
        lost_snapshot: deepest position up to ``matched_tokens`` whose snapshot left; 0 for none.
    """

    tokens: int
    matched_tokens: int
    cached_tokens: int
    nearest_snapshot: int
    limited_by: Limit
    snapshot_format: SnapshotFormat | None = None
    components: tuple[str, ...] = ()
    position: int = 0
    group: int | None = None
    reason: Reason = "never stored"
    once_tokens: int = 0
    lost_snapshot: int = 0

    @property
    def lost_tokens(self) -> int:
        """Known positions that must be computed again."""
        return self.matched_tokens - self.cached_tokens

    @property
    def advice(self) -> str:
        """What to change for a longer hit."""
        return _ADVICE.get((self.limited_by, self.reason), _LAST)

    def __str__(self) -> str:
        named = f" ({', '.join(self.components)})" if self.components else ""
        why = _WHY.get(self.reason, "")
        lost = f", the last one at {self.lost_snapshot}" if self.lost_snapshot else ""
        limit = {
            "last token": "only the last token must run",
            "tokens": f"no stored prefix continues with the token at {self.position}, which {why}",
            "snapshot": (
                f"the fixed-size state{named} has no snapshot further on, up to {self.position} "
                f"(nearest at {self.nearest_snapshot}); it {why}{lost}"
            ),
            "window": f"a sliding group{named} lacks the block at {self.position}, which {why}",
        }[self.limited_by]
        once = ""
        if self.once_tokens > self.matched_tokens:
            once = f" ({self.once_tokens} once)"
        return (
            f"{self.cached_tokens} of {self.tokens} tokens reusable, {self.matched_tokens} known"
            f"{once}, {self.lost_tokens} lost: {limit}"
            + ("" if self.reason == "none" else f". To do: {self.advice}")
        )
