"""Which page holds which block of a sequence: identities alone, without numbers or bytes.

A page is shared until somebody writes in its block: who does takes a fresh one, and is its owner.
Numbers are what a cache calls its pages; they are noted when a page is first seen and never change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FORMATS", "Known", "Page", "Row", "Snapshot", "State", "Stream", "Tables"]

Row = Any  # what was written for one layer and one position
State = Any  # all fixed-size tensors of one sequence
Stream = tuple[int, str]  # layer and component of pooled state
FORMATS = ("exact", "f16", "int8")  # of snapshots, the most precise first


class Page:
    """One page; `number` is what the cache calls it, -1 until it was seen."""

    def __init__(self, number: int = -1) -> None:
        self.number = number


@dataclass(eq=False)
class Snapshot:
    """One copy of the fixed-size state; what it loses in its format is none of our bytes."""

    state: State
    kept: str = "exact"

    def gives_way(self, other: Snapshot) -> bool:
        return FORMATS.index(other.kept) < FORMATS.index(self.kept)


@dataclass
class Known:
    """One position of a stored prefix: its rows by layer, their pages, the state after it."""

    rows: dict[int, Row] = field(default_factory=dict)
    records: dict[Stream, Row] = field(default_factory=dict)  # those that end here
    pages: dict[int, list[Page]] = field(default_factory=dict)  # by group; what may hold the rows
    snapshot: Snapshot | None = None
    ttl: float = 0  # milliseconds
    end: float = 0  # of its time, at the latest


class Tables:
    """The block tables of one sequence, by group."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache  # model.reference.ReferenceCache
        self.pages: list[list[Page | None]] = [[] for _ in cache.groups]
        self.owned: set[Page] = set()
        self.seen_until = 0  # rows below are visible to others

    def adopt(self, known: list[dict[int, list[Page]]], tables: list[list[int]]) -> None:
        """Starts with these numbers, of pages that were published for each position, by group."""
        self.seen_until = len(known)
        for group, numbers in enumerate(tables):
            layers, pool = self.cache.groups[group], self.cache.pooling[group]
            # Pooled state keeps every block that has a record.
            kept = {*range(-(-(len(known) // pool * pool) // self.cache.block))}
            if layers:
                kept = self.cache.kept_blocks(layers[0], len(known))
            for block, number in enumerate(numbers):
                at = min(len(known), (block + 1) * self.cache.block) - 1
                # Earlier pages of the number were evicted, and it was given out again.
                found = [page for page in known[at].get(group, []) if page.number == number]
                self.pages[group].append(found[-1] if found else None)
                assert bool(found) == (number >= 0), "of another prefix"
                never_read = layers and self.cache.windows[layers[0]].window == 1
                assert found or block not in kept or never_read

    def publish(self, position: int, known: dict[int, list[Page]]) -> None:
        for group, table in enumerate(self.pages):
            block = position // self.cache.block
            page = table[block] if block < len(table) else None
            if page is not None and page not in known.setdefault(group, []):
                known[group].append(page)

    def own(self, groups: Iterable[int], start: int, stop: int) -> None:
        """Writing in [start, stop) takes a fresh page for each block that is not owned."""
        for group in groups:
            table, pool = self.pages[group], self.cache.pooling[group]
            first, last = start // pool * pool, stop // pool * pool
            if first == last:
                continue  # no record is complete then
            for block in range(first // self.cache.block, -(-last // self.cache.block)):
                if block == len(table):
                    table.append(None)
                if table[block] not in self.owned:
                    table[block] = page = Page()
                    self.owned.add(page)

    def trim(self, length: int, kept: dict[int, set[int]]) -> None:
        for layers, table in zip(self.cache.groups, self.pages, strict=True):
            keep = self.cache.kept_blocks(layers[0], length) | kept[layers[0]] if layers else set()
            for block in range(len(table) if layers else 0):
                if block not in keep and block * self.cache.block < length:
                    table[block] = None

    def drop(self, blocks: dict[int, set[int]]) -> None:
        """Lets go of these blocks of each layer."""
        for layers, table in zip(self.cache.groups, self.pages, strict=True):
            for block in blocks[layers[0]] if layers else ():
                table[block] = None

    def cut(self, position: int) -> None:
        for table in self.pages:
            del table[-(-position // self.cache.block) :]

    def seen(self, position: int) -> None:
        self.seen_until = max(self.seen_until, position)

    def truncate(self, position: int) -> None:
        """Rows that others may see are not written again: the block is shared from now on."""
        self.cut(position)
        if position < self.seen_until and position % self.cache.block:
            for table in self.pages:
                self.owned -= {*table[position // self.cache.block :]}
        self.seen_until = min(self.seen_until, position)

    def fork(self, length: int) -> Tables:
        child = Tables(self.cache)
        child.pages = [list(table) for table in self.pages]
        child.cut(length)
        child.seen_until = length
        self.seen(length)
        return child

    def resync(self, group: int, numbers: list[int]) -> None:
        """Follows a call that failed half way: what is new in the table is fresh and owned."""
        table = self.pages[group]
        del table[len(numbers) :]
        for block, number in enumerate(numbers):
            here = table[block] if block < len(table) else None
            if number < 0:
                table[block : block + 1] = [None]
            elif here is None or here.number != number:
                table[block : block + 1] = [page := Page(number)]
                self.owned.add(page)
