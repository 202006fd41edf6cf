"""A router that knows a cache by its events alone, and the names that it hears, made anew."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterable
from typing import Any

from model.needs import Needs
from model.reference import ReferenceCache

from kvcache import AllBlocksCleared, BlockRemoved, BlockStored, Cache, StatePlan

__all__ = ["Names", "Routed", "Router"]


class Router:
    """Which blocks can be reused, by group: counts references, as routers of many workers do."""

    def __init__(self, groups: int) -> None:
        self.counts: list[Counter[int]] = [Counter() for _ in range(groups + 1)]
        self.cleared = 0

    @property
    def blocks(self) -> list[set[int]]:
        return [set(counts) for counts in self.counts]

    def apply(self, events: Iterable[Any]) -> None:
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.cleared += 1
                for counts in self.counts:
                    counts.clear()
                continue
            here, names = self.counts[event.group_idx], event.block_hashes
            assert names
            if isinstance(event, BlockRemoved):
                for name in names:
                    here[name] -= 1
                    assert here[name] == 0  # once, and only what was stored
                    del here[name]
                continue
            assert isinstance(event, BlockStored)
            assert len(event.token_ids) == len(names) * event.block_size
            here.update(names)
            assert all(here[name] == 1 for name in names)  # told once


class Names:
    """Names of prefixes of one space of a plan."""

    def __init__(self, plan: StatePlan, adapter: str = "") -> None:
        self.block = plan.block_tokens
        key = f"{len(adapter)}:{adapter}" if adapter else ""
        space = f"0:{len(key)}:{key}0:".encode()
        root = b"kvcache block names, version 1" + struct.pack("<Q", self.block) + space
        self.digests = {(): hashlib.sha256(root).digest()}

    def digest(self, prefix: tuple[int, ...]) -> bytes:
        if prefix not in self.digests:
            begin = (len(prefix) - 1) // self.block * self.block
            link = struct.pack(f"<Q{len(prefix) - begin}i", len(prefix) - begin, *prefix[begin:])
            link = self.digest(prefix[:begin]) + link
            self.digests[prefix] = hashlib.sha256(link).digest()
        return self.digests[prefix]

    def name(self, prefix: Iterable[int]) -> int:
        return int.from_bytes(self.digest(tuple(prefix))[:8], "big")


class Routed:
    """A cache's router, compared with the cache and, where nothing is evicted, the reference."""

    def __init__(self, cache: Cache, reference: ReferenceCache | None) -> None:
        self.cache, self.reference, self.plan = cache, reference, cache.plan
        self.router = Router(len(self.plan.groups))
        self.needs = Needs(self.plan)
        self.spaces: dict[str, Names] = {}

    def names(self, adapter: str) -> Names:
        return self.spaces.setdefault(adapter, Names(self.plan, adapter))

    def check(self) -> None:
        """The router knows what there is."""
        self.router.apply(self.cache.take_events())
        known = self.router.blocks
        snapshot = self.cache.events_snapshot()
        self.router.apply(snapshot)
        assert isinstance(snapshot[0], AllBlocksCleared)
        assert self.router.blocks == known
        if self.reference is None:
            return
        whole, snapshots = set(), set()
        for adapter, prefixes in self.reference.index.items():
            names = self.names(str(adapter))
            for prefix, known in prefixes.items():
                if len(prefix) % self.plan.block_tokens == 0:
                    whole.add(names.name(prefix))
                if known.snapshot is not None:
                    snapshots.add(names.name(prefix))
        for group, blocks in zip(self.plan.groups, self.router.blocks, strict=False):
            forgets = group.window or group.record_tokens > 1
            assert blocks <= whole if forgets else blocks == whole
        assert self.router.blocks[-1] == (snapshots if self.reference.fixed else set())

    def check_hit(self, tokens: list[int], adapter: str, hit: int) -> None:
        """Whatever a hit needs of whole blocks has been announced."""
        self.router.apply(self.cache.take_events())
        names, block = self.names(adapter), self.plan.block_tokens
        if hit and self.plan.fixed:
            assert names.name(tokens[:hit]) in self.router.blocks[-1]
        for group, layers in enumerate(self.needs.groups):
            needed = {p // block for layer in layers for p in self.needs.resumes(layer, hit)}
            if self.needs.pooling[group] > 1:
                needed = set(range(hit // block))
            for at in needed:
                if (at + 1) * block <= hit:
                    assert names.name(tokens[: (at + 1) * block]) in self.router.blocks[group]
