"""Why a prompt would hit as far as it does, and what would make it hit further."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvcache import _core
from kvcache.snapshot import SnapshotFormat
from kvcache.units import format_bytes

if TYPE_CHECKING:
    from kvcache.plan import StatePlan

__all__ = ["Explanation"]

Limit = Literal["last token", "tokens", "snapshot", "window"]
Reason = Literal[
    "none", "never stored", "evicted", "erased", "other weights", "thinned", "expired", "quota"
]

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
        "mark() where prompts branch and snapshot() at prefill_stops(), or lower "
        "snapshot_interval; after decoding snapshot() before publish(), for who goes on from there"
    ),
    ("snapshot", "evicted"): f"{_MEMORY}; or snapshot() in f16 or int8",
    ("snapshot", "erased"): _ERASED,
    ("snapshot", "expired"): _EXPIRED,
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
    "quota": "the quota of its tenant had no room for",
}
_LIMITS: dict[_core.HitLimit, Limit] = {
    _core.HitLimit.NONE: "last token",
    _core.HitLimit.TOKENS: "tokens",
    _core.HitLimit.SNAPSHOT: "snapshot",
    _core.HitLimit.WINDOW: "window",
}
_REASONS: dict[_core.MissReason, Reason] = {
    _core.MissReason.NONE: "none",
    _core.MissReason.NEVER_STORED: "never stored",
    _core.MissReason.EVICTED: "evicted",
    _core.MissReason.ERASED: "erased",
    _core.MissReason.WEIGHTS: "other weights",
    _core.MissReason.THINNED: "thinned",
    _core.MissReason.EXPIRED: "expired",
    _core.MissReason.QUOTA: "quota",
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
        quota_tenant: where a quota had no room for what is missing, whose it is; None otherwise,
            and where it has no quota any more.
        quota_bytes: what it may hold.
        quota_used_bytes: what it holds now.
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
    quota_tenant: str | None = None
    quota_bytes: int = 0
    quota_used_bytes: int = 0

    @property
    def lost_tokens(self) -> int:
        """Known positions that must be computed again."""
        return self.matched_tokens - self.cached_tokens

    @property
    def advice(self) -> str:
        """What to change for a longer hit."""
        if self.reason == "quota":
            whose = "tenant, ..." if self.quota_tenant is None else f"{self.quota_tenant!r}, ..."
            return f"raise Cache.set_quota({whose}), or store less for that tenant"
        return _ADVICE.get((self.limited_by, self.reason), _LAST)

    def __str__(self) -> str:
        named = f" ({', '.join(self.components)})" if self.components else ""
        why = _WHY.get(self.reason, "")
        if self.quota_tenant is not None:
            used, most = format_bytes(self.quota_used_bytes), format_bytes(self.quota_bytes)
            why = (
                f"the quota of tenant {self.quota_tenant!r} had no room for ({used} of {most} now)"
            )
        lost = f", the last one at {self.lost_snapshot}" if self.lost_snapshot else ""
        it = "one" if self.reason == "quota" else "it"
        limit = {
            "last token": "only the last token must run",
            "tokens": f"no stored prefix continues with the token at {self.position}, which {why}",
            "snapshot": (
                f"the fixed-size state{named} has no snapshot further on, up to {self.position} "
                f"(nearest at {self.nearest_snapshot}); {it} {why}{lost}"
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


def explained(found: _core.Explanation, plan: StatePlan) -> Explanation:
    """What the core says of a cache with this plan."""
    held, quota, limit = found.snapshot_format, found.quota, _LIMITS[found.limit]
    return Explanation(
        tokens=found.tokens,
        matched_tokens=found.matched_tokens,
        cached_tokens=found.cached_tokens,
        nearest_snapshot=found.nearest_snapshot,
        limited_by=limit,
        snapshot_format=None if held is None else SnapshotFormat[held.name],
        components=_limiting(plan, limit, found.group),
        position=found.position,
        group=found.group,
        reason=_REASONS[found.reason],
        once_tokens=found.once_tokens,
        lost_snapshot=found.lost_snapshot,
        quota_tenant=None if quota is None else quota.name,
        quota_bytes=0 if quota is None else quota.quota_bytes or 0,
        quota_used_bytes=0 if quota is None else quota.bytes,
    )


def _limiting(plan: StatePlan, limit: Limit, group: int | None) -> tuple[str, ...]:
    """What a model keeps that a limit is about."""
    names: set[str] = set()
    if limit == "snapshot":
        names = {part.name for part in plan.fixed}
    elif limit == "window":
        groups = [each for each in plan.groups if each.window]
        if group is not None:
            groups = [plan.groups[group]]
        names = {part.component for each in groups for part in each.components}
    return tuple(sorted(names))
