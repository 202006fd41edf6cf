"""What one sequence of the reference cache must do."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING

from model.tables import Known, Row, Snapshot, State, Stream, Tables

from kvcache.errors import InvalidArgumentError, NotFoundError, OutOfCapacityError, UnsupportedError

if TYPE_CHECKING:
    from model.reference import ReferenceCache


class ReferenceSequence:
    def __init__(self, cache: ReferenceCache, space: Hashable, tokens: list[int]) -> None:
        self.cache, self.space, self.tokens = cache, space, tokens
        self.cached_tokens = self.matched_tokens = self.length = 0
        self.rows: dict[int, dict[int, Row]] = {layer: {} for layer in cache.windows}
        self.written: dict[int, int] = dict.fromkeys(cache.windows, 0)
        self.records: dict[Stream, list[Row]] = {stream: [] for stream in cache.streams}
        self.state: State = None  # None: zeros
        self.snapshots: dict[tuple[int, str], Snapshot] = {}  # (position, format); unpublished
        self.resumable: set[int] = set()  # positions of snapshots, with fixed-size state or not
        self.kept: dict[int, set[int]] = {layer: set() for layer in cache.windows}  # blocks
        self.ring: list[tuple[int, int, State]] = []  # (position, ring slot, state)
        self.ring_cursor = 0
        self.drafts: list[int] | None = None  # of an open verify session
        self.tables = Tables(cache)
        self.ttl = math.inf  # milliseconds, of what it publishes
        self.is_open = True

    def _check_open(self) -> None:
        if not self.is_open:
            raise InvalidArgumentError("closed")

    def _check_idle(self) -> None:
        self._check_open()
        if self.drafts is not None:
            raise InvalidArgumentError("a verify session is open")

    def trim(self) -> None:
        """Blocks that lie wholly before a window are let go, but for those of a snapshot's."""
        for layer, rows in self.rows.items():
            here = self.cache.kept_blocks(layer, self.length)
            kept = {b for n in self.resumable for b in self.cache.resumable_blocks(layer, n)}
            self.kept[layer] = kept - here
            blocks = here | kept
            for p in [p for p in rows if p // self.cache.block not in blocks and p < self.length]:
                del rows[p]
        self.tables.trim(self.length, self.kept)

    def let_go(self, group: int, numbers: list[int]) -> None:
        """Follows a call that trims windows only when it needs pages."""
        for block, number in enumerate(numbers):
            if number >= 0 or self.tables.pages[group][block] is None:
                continue
            self.tables.pages[group][block] = None
            for layer in self.cache.groups[group]:
                assert block not in self.cache.kept_blocks(layer, self.length) | self.kept[layer]
                rows = self.rows[layer]
                self.rows[layer] = {p: r for p, r in rows.items() if p // self.cache.block != block}

    def extend(self, tokens: list[int]) -> None:
        self._check_idle()
        self.tokens += tokens

    def write(self, layer: int, start: int, rows: list[Row], *, trims: bool = True) -> None:
        self._check_idle()
        if layer not in self.rows:
            raise InvalidArgumentError("no such layer")
        if not self.length <= start <= self.written[layer]:
            raise InvalidArgumentError("not at the end of what is written")
        if start + len(rows) > len(self.tokens):
            raise InvalidArgumentError("tokens not known")
        if rows:
            if trims:
                self.trim()
            groups = [g for g, layers in enumerate(self.cache.groups) if layer in layers]
            self.tables.own(groups, start, start + len(rows))
        for i, row in enumerate(rows):
            self.rows[layer][start + i] = row
        self.written[layer] = max(self.written[layer], start + len(rows))

    def write_records(self, stream: Stream, first: int, rows: list[Row]) -> None:
        self._check_idle()
        group, r = self.cache.streams[stream]
        known = self.records[stream]
        if not self.length // r <= first <= len(known) or first + len(rows) > len(self.tokens) // r:
            raise InvalidArgumentError("not at the end of what is written, or tokens not known")
        if rows:
            self.trim()
            self.tables.own([group], first * r, (first + len(rows)) * r)
        known[first : first + len(rows)] = rows

    def read(self, layer: int, start: int, stop: int) -> list[Row]:
        self._check_open()
        if layer not in self.rows or not start <= stop <= self.written[layer]:
            raise InvalidArgumentError("not written")
        if not {*range(start, min(stop, self.length))} <= {*self.cache.needed(layer, self.length)}:
            raise NotFoundError("left the window")
        return [self.rows[layer][p] for p in range(start, stop)]

    def view(self, layer: int, start: int, stop: int) -> list[Row]:
        rows = self.read(layer, start, stop)
        self.tables.seen(stop)
        return rows

    def advance(self, positions: int) -> None:
        self._check_idle()
        target = self.length + positions
        if target > len(self.tokens) or any(w < target for w in self.written.values()):
            raise InvalidArgumentError("tokens or rows missing")
        if any(len(self.records[s]) < target // r for s, (_, r) in self.cache.streams.items()):
            raise InvalidArgumentError("records missing")
        self.length = target

    def snapshot(self, kept: str = "exact") -> int:
        self._check_idle()
        if self.length:
            self.resumable.add(self.length)
        if self.cache.fixed and self.length:
            self.snapshots[self.length, kept] = Snapshot(self.state, kept)
        return self.length

    def record(self) -> int:
        self._check_idle()
        if self.cache.fixed:
            if not self.cache.ring_depth:
                raise UnsupportedError("no ring")
            self.ring = [entry for entry in self.ring if entry[1] != self.ring_cursor]
            self.ring.append((self.length, self.ring_cursor, self.state))
            self.ring_cursor = (self.ring_cursor + 1) % self.cache.ring_depth
        return self.length

    def publish(self) -> None:
        self._check_idle()
        known = self.cache.index.setdefault(self.space, {})
        for p in range(self.length):
            here = known.setdefault(tuple(self.tokens[: p + 1]), Known())
            self.cache.renew(here, self.ttl)
            for layer, rows in self.rows.items():
                if p in rows:
                    here.rows.setdefault(layer, rows[p])
            self.tables.publish(p, here.pages)
            for stream, (_, r) in self.cache.streams.items():
                if (p + 1) % r == 0:
                    here.records.setdefault(stream, self.records[stream][p // r])
        for (position, _), snapshot in self.snapshots.items():
            here = known[tuple(self.tokens[:position])]
            if here.snapshot is None or here.snapshot.gives_way(snapshot):
                here.snapshot = snapshot
        self.snapshots.clear()
        self.resumable.clear()
        self.tables.seen(self.length)
        self.tables.drop(self.kept)
        for layer, rows in self.rows.items():  # what only the snapshots kept
            for p in [p for p in rows if p // self.cache.block in self.kept[layer]]:
                del rows[p]
            self.kept[layer] = set()

    def fork(self) -> ReferenceSequence:
        self._check_idle()
        if len(self.cache.open_sequences) >= self.cache.sequences:
            raise OutOfCapacityError("too many open")
        child = ReferenceSequence(self.cache, self.space, list(self.tokens))
        child.cached_tokens, child.matched_tokens = self.cached_tokens, self.matched_tokens
        child.state, child.snapshots = self.state, dict(self.snapshots)
        child.rows = {layer: dict(rows) for layer, rows in self.rows.items()}
        child.written, child.kept = dict(self.written), dict(self.kept)
        child.resumable = set(self.resumable)
        child.ttl = self.ttl
        child.records = {stream: list(known) for stream, known in self.records.items()}
        child.length = self.length
        child.tables = self.tables.fork(self.length)
        child._cut(self.length)
        self.cache.open_sequences.append(child)
        return child

    def _cut(self, position: int) -> None:
        for layer, rows in self.rows.items():
            self.written[layer] = min(self.written[layer], position)
            self.rows[layer] = {p: row for p, row in rows.items() if p < position}
        for stream, (_, r) in self.cache.streams.items():
            del self.records[stream][position // r :]

    def _check_truncate(self, position: int) -> None:
        self._check_idle()
        if not 0 <= position <= self.length:
            raise InvalidArgumentError("beyond the length")
        for layer, rows in self.rows.items():
            if any(p not in rows for p in self.cache.resumes(layer, position)):
                raise UnsupportedError("a window has passed")

    def truncate(self, position: int) -> None:
        self._check_truncate(position)
        if self.cache.fixed and position != self.length:
            known = self.cache.index.get(self.space, {}).get(tuple(self.tokens[:position]), Known())
            held = [s for (at, _), s in self.snapshots.items() if at == position]
            held += [known.snapshot] if known.snapshot else []
            if position and not held:
                raise UnsupportedError("no snapshot")
            self.state = held[0].state if position else None
        self._forget_from(position)

    def rollback(self, position: int) -> None:
        self._check_truncate(position)
        if self.cache.fixed:
            states = [state for at, _, state in self.ring if at == position]
            if not states:
                raise UnsupportedError("not recorded")
            self.state = states[-1]
        self._forget_from(position)

    def _forget_from(self, position: int) -> None:
        self.length = position
        self._cut(position)
        self.tables.truncate(position)
        del self.tokens[position:]
        self.kept = {layer: set() for layer in self.rows}
        self.resumable = {n for n in self.resumable if n <= position}
        self.snapshots = {key: s for key, s in self.snapshots.items() if key[0] <= position}
        self.ring = [entry for entry in self.ring if entry[0] <= position]
        self.ring_cursor = (self.ring[-1][1] + 1) % self.cache.ring_depth if self.ring else 0

    def begin_verify(self, drafts: list[int]) -> None:
        self._check_idle()
        ready = all(w == self.length for w in self.written.values())
        if len(self.tokens) != self.length + 1 or not ready:
            raise InvalidArgumentError("not exactly one token waits")
        self.drafts = drafts
        everything = range(len(self.cache.groups))
        self.tables.own(everything, self.length, self.length + 1 + len(drafts))

    def commit(
        self,
        rows: dict[int, list[Row]],
        records: dict[Stream, list[Row]],
        states: list[State],
        accepted: int,
    ) -> int:
        """The first `accepted` of the rows that were written, by layer, and what they complete."""
        assert self.drafts is not None
        for layer, written in rows.items():
            self.rows[layer].update(enumerate(written[:accepted], self.length))
            self.written[layer] = self.length + accepted
        self.tokens += self.drafts[: accepted - 1]
        for stream, new in records.items():
            r = self.cache.streams[stream][1]
            self.records[stream] += new[: (self.length + accepted) // r - self.length // r]
        self.trim()
        self.length += accepted
        self.state = states[accepted - 1] if states else None
        self.drop_verify()
        return self.length

    def drop_verify(self) -> None:
        self.drafts = None
        self.tables.cut(self.length)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.cache.open_sequences.remove(self)
