"""What is stored for each tenant, and how much may be.

A tenant is what `RequestHints.tenant` names. Who stores a page or a snapshot first is charged for
it, until it leaves the cache; others find and use it free of charge. Requests that name no tenant
are charged to nobody.

A quota is a limit, no reservation. What a tenant stores never makes it hold more: its own prefixes
give way first, in the order of the cache's policy among them, and never those of others; what
still does not fit is not stored, from the end of the prompt on. When the memory of the cache runs
out, the policy chooses among all prefixes as if there were no quotas.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from kvcache._arguments import as_text
from kvcache.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kvcache import _core

__all__ = ["TenantUsage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUsage:
    """A tenant that has something stored, or a quota.

    Counters begin anew once it has had neither.

    Attributes:
        bytes: of the pages and snapshots that it is charged for.
        blocks: of the prefixes that it has stored, as in ``CacheStats.indexed_blocks``.
        snapshots: that it is charged for.
        quota_bytes: what ``bytes`` may become; None for no limit.
        evicted_blocks: given up by the policy, for the quota or for memory.
        evicted_snapshots: likewise.
        refused_blocks: not stored, because the quota had no room.
    """

    bytes: int
    blocks: int
    snapshots: int
    quota_bytes: int | None
    evicted_blocks: int
    evicted_snapshots: int
    refused_blocks: int


_FIELDS = tuple(field.name for field in fields(TenantUsage))

#: Metrics of tenants with a quota: name, summary, field.
_METRICS = (
    ("tenant_bytes", "Bytes stored for a tenant with a quota.", "bytes"),
    ("tenant_quota_bytes", "Bytes that may be stored for it.", "quota_bytes"),
    ("tenant_evicted_blocks_total", "Blocks it had to give up.", "evicted_blocks"),
    ("tenant_refused_blocks_total", "Blocks its quota had no room for.", "refused_blocks"),
)


def tenant_name(value: Any, name: str = "tenant") -> str:
    """A tenant's name, which is not empty."""
    text = as_text(value, name)
    if not text:
        raise InvalidArgumentError(f"{name}: expected a name")
    return text


def usage_by_name(tenants: Iterable[_core.TenantUsage]) -> dict[str, TenantUsage]:
    """What the core says of each."""
    return {
        each.name: TenantUsage(**{name: getattr(each, name) for name in _FIELDS})
        for each in tenants
    }


def tenant_samples(
    usage: Mapping[str, TenantUsage],
) -> Iterator[tuple[str, str, list[tuple[str, int]]]]:
    """Metrics of those with a quota: name, summary, and value by tenant; none without any."""
    limited = {name: each for name, each in usage.items() if each.quota_bytes is not None}
    for metric, summary, field in _METRICS if limited else ():
        yield metric, summary, [(name, getattr(each, field)) for name, each in limited.items()]
