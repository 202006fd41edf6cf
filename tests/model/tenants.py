"""Tenants of the random tests: who is charged for which page, told from outside of the cache.

A page is charged to whom it was published for when it was first seen among the indexed ones, until
it is none of them any more.
"""

from __future__ import annotations

from typing import Any

from model.tables import FORMATS

from kvcache import Cache, _core

__all__ = ["NAMES", "Tenants"]

NAMES = ("", "t", "u")  # the first is nobody


class Tenants:
    def __init__(self, cache: Cache) -> None:
        self.cache, self.plan = cache, cache.plan
        self.pages: dict[tuple[int, int], str] = {}  # (group, page) -> tenant
        self.limits: dict[str, int] = {}
        self.is_known = True  # who was charged

    def look(self, tenant: str = "") -> None:
        """Pages that are indexed now and were not before are the tenant's."""
        indexed = {
            (group, page)
            for group in range(len(self.plan.groups))
            for page, _, indexed in _core.page_refs(self.cache._core, group)
            if indexed
        }
        self.pages = {page: self.pages.get(page, tenant) for page in indexed}

    def set_quota(self, name: str, quota: int | None) -> None:
        self.cache.set_quota(name, quota)
        self.limits.pop(name, None)
        if quota is not None:  # what could not go stays, and nothing is added to it
            self.limits[name] = max(quota, self.cache.tenants()[name].bytes)

    def erase(self, name: str) -> None:
        self.cache.erase(tenant=name)
        self.pages = {page: "" if who == name else who for page, who in self.pages.items()}
        assert self.usage(name) == (0, 0, 0)

    def cleared(self) -> None:
        self.look()
        assert not self.pages
        self.is_known = True

    def usage(self, name: str) -> tuple[int, int, int]:
        usage: Any = self.cache.tenants().get(name)
        return (0, 0, 0) if usage is None else (usage.bytes, usage.blocks, usage.snapshots)

    def check(self) -> None:
        self.look()
        stats = self.cache.stats()
        totals = [0, 0]
        for name in NAMES[1:]:
            total, blocks, snapshots = self.usage(name)
            totals = [totals[0] + blocks, totals[1] + snapshots]
            sizes = [self.plan.snapshot_bytes(kept) for kept in FORMATS] if snapshots else [0]
            paged = sum(
                self.plan.groups[group].page_bytes
                for (group, _), who in self.pages.items()
                if who == name
            )
            if self.is_known:
                assert min(sizes) * snapshots <= total - paged <= max(sizes) * snapshots
            if name in self.limits:
                quota = self.cache.tenants()[name].quota_bytes
                assert quota is not None
                assert total <= self.limits[name]
                self.limits[name] = max(quota, total)
        assert totals[0] <= stats.indexed_blocks
        assert totals[1] <= stats.indexed_snapshots
