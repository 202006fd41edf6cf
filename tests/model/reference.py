"""What a cache must do, in the fewest words: no pages, no sharing, no memory limit.

A stored prefix is a tuple of tokens; with it lie the rows of its last position that are still
there, by layer, and a snapshot of the fixed-size state if one was taken. Everything else follows.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from kvcache import StatePlan
from kvcache.errors import (
    InvalidArgumentError,
    NotFoundError,
    OutOfCapacityError,
    UnsupportedError,
)

Row = Any  # what was written for one layer and one position
State = Any  # all fixed-size tensors of one sequence
Stream = tuple[int, str]  # layer and component of pooled state


@dataclass
class Known:
    """One position of a stored prefix: its rows by layer, the state after it."""

    rows: dict[int, Row] = field(default_factory=dict)
    records: dict[Stream, Row] = field(default_factory=dict)  # those that end here
    state: State = None


class ReferenceCache:
    def __init__(self, plan: StatePlan) -> None:
        self.block = plan.block_tokens
        self.sequences = plan.sequences
        self.fixed = bool(plan.fixed)
        groups = [(group, group.record_tokens) for group in plan.core.groups]
        self.windows = {p.layer: g for g, r in groups if r == 1 for p in g.components}
        self.streams = {
            (p.layer, plan.declarations[p.decl].component): r
            for g, r in groups
            if r > 1
            for p in g.components
        }
        self.open_count = 0
        self.index: dict[Hashable, dict[tuple[int, ...], Known]] = {}

    def needed(self, layer: int, end: int) -> list[int]:
        """Positions before `end` that the query there sees."""
        group = self.windows[layer]
        window = group.window
        if window and group.chunked:
            return [p for p in range(end) if p // window == end // window]
        return [p for p in range(end) if not window or p < group.sinks or p > end - window]

    def resumes(self, layer: int, end: int) -> set[int]:
        """Positions without whose rows nobody goes on at `end`: whole rows of a begun block too."""
        tail = range(end // self.block * self.block, end)
        return {*self.needed(layer, end), *(tail if self.windows[layer].window != 1 else ())}

    def matched(self, space: Hashable, tokens: list[int]) -> int:
        known = self.index.get(space, {})
        n = 0
        while n < len(tokens) and tuple(tokens[: n + 1]) in known:
            n += 1
        return n

    def can_hit(self, space: Hashable, tokens: list[int], n: int) -> bool:
        """Whether every component of the model is there for the first `n` tokens."""
        if n == 0:
            return True
        known = self.index[space]
        if self.fixed and known[tuple(tokens[:n])].state is None:
            return False
        return all(
            layer in known[tuple(tokens[: p + 1])].rows
            for layer in self.windows
            for p in self.resumes(layer, n)
        )

    def hit(self, space: Hashable, tokens: list[int]) -> int:
        """Longest reusable prefix; the last token of a prompt always runs."""
        n = min(self.matched(space, tokens), len(tokens) - 1)
        while not self.can_hit(space, tokens, n):
            n -= 1
        return n

    def nearest_snapshot(self, space: Hashable, tokens: list[int]) -> int:
        n = self.matched(space, tokens)
        while n and self.index[space][tuple(tokens[:n])].state is None:
            n -= 1
        return n

    def open(
        self, tokens: list[int], space: Hashable = "", at: int | None = None
    ) -> ReferenceSequence:
        """Start at the longest hit, or at `at` where a cache with less memory got to."""
        if not tokens:
            raise InvalidArgumentError("no tokens")
        if self.open_count >= self.sequences:
            raise OutOfCapacityError("too many open")
        matched = self.matched(space, tokens)
        n = self.hit(space, tokens) if at is None else at
        assert n <= matched
        assert self.can_hit(space, tokens, n)
        sequence = ReferenceSequence(self, space, list(tokens))
        for p in range(n):
            for layer, row in self.index[space][tuple(tokens[: p + 1])].rows.items():
                sequence.rows[layer][p] = row
        if n and self.fixed:
            sequence.state = self.index[space][tuple(tokens[:n])].state
        sequence.cached_tokens, sequence.matched_tokens, sequence.length = n, matched, n
        sequence.written = dict.fromkeys(self.windows, n)
        for stream, r in self.streams.items():
            ends = range(r, n + 1, r)
            known = [self.index[space][tuple(tokens[:end])].records[stream] for end in ends]
            sequence.records[stream] = known
        sequence.trim()
        self.open_count += 1
        return sequence

    def stored(self) -> list[Known]:
        return [known for space in self.index.values() for known in space.values()]

    def clear(self) -> None:
        self.index.clear()


class ReferenceSequence:
    def __init__(self, cache: ReferenceCache, space: Hashable, tokens: list[int]) -> None:
        self.cache, self.space, self.tokens = cache, space, tokens
        self.cached_tokens = self.matched_tokens = self.length = 0
        self.rows: dict[int, dict[int, Row]] = {layer: {} for layer in cache.windows}
        self.written: dict[int, int] = dict.fromkeys(cache.windows, 0)
        self.records: dict[Stream, list[Row]] = {stream: [] for stream in cache.streams}
        self.kept: dict[int, set[int]] = {layer: set() for layer in cache.windows}  # blocks
        self.state: State = None  # None: zeros
        self.snapshots: dict[int, State] = {}  # not published yet
        self.is_open = True

    def _check_open(self) -> None:
        if not self.is_open:
            raise InvalidArgumentError("closed")

    def trim(self) -> None:
        """Blocks that lie wholly before a window are let go, but for those of a snapshot's."""
        block = self.cache.block
        for layer, rows in self.rows.items():
            here = {p // block for p in self.cache.needed(layer, self.length)}
            sinks = range(self.cache.windows[layer].sinks)
            here |= {p // block for p in (*sinks, self.length)}
            kept = {p // block for n in self.snapshots for p in self.cache.needed(layer, n)}
            if self.cache.windows[layer].window != 1:  # which never reads a page
                kept |= {n // block for n in self.snapshots if n % block}
            self.kept[layer] = kept - here
            blocks = here | kept
            for p in [p for p in rows if p // block not in blocks and p < self.length]:
                del rows[p]

    def extend(self, tokens: list[int]) -> None:
        self._check_open()
        self.tokens += tokens

    def write(self, layer: int, start: int, rows: list[Row]) -> None:
        self._check_open()
        if layer not in self.rows:
            raise InvalidArgumentError("no such layer")
        if not self.length <= start <= self.written[layer]:
            raise InvalidArgumentError("not at the end of what is written")
        if start + len(rows) > len(self.tokens):
            raise InvalidArgumentError("tokens not known")
        if rows:
            self.trim()
        for i, row in enumerate(rows):
            self.rows[layer][start + i] = row
        self.written[layer] = max(self.written[layer], start + len(rows))

    def write_records(self, stream: Stream, first: int, rows: list[Row]) -> None:
        self._check_open()
        if stream not in self.records:
            raise NotFoundError("no such stream")
        r, known = self.cache.streams[stream], self.records[stream]
        if not self.length // r <= first <= len(known):
            raise InvalidArgumentError("not at the end of what is written")
        if first + len(rows) > len(self.tokens) // r:
            raise InvalidArgumentError("tokens not known")
        if rows:
            self.trim()
        known[first : first + len(rows)] = rows

    def read(self, layer: int, start: int, stop: int) -> list[Row]:
        self._check_open()
        if layer not in self.rows or not start <= stop <= self.written[layer]:
            raise InvalidArgumentError("not written")
        if not {*range(start, min(stop, self.length))} <= {*self.cache.needed(layer, self.length)}:
            raise NotFoundError("left the window")
        return [self.rows[layer][p] for p in range(start, stop)]

    def advance(self, positions: int) -> None:
        self._check_open()
        target = self.length + positions
        if target > len(self.tokens) or any(w < target for w in self.written.values()):
            raise InvalidArgumentError("tokens or rows missing")
        if any(len(known) < target // self.cache.streams[s] for s, known in self.records.items()):
            raise InvalidArgumentError("records missing")
        self.length = target

    def snapshot(self) -> int:
        self._check_open()
        if self.length and (
            self.cache.fixed or any(group.window for group in self.cache.windows.values())
        ):
            self.snapshots[self.length] = self.state
        return self.length

    def publish(self) -> None:
        self._check_open()
        known = self.cache.index.setdefault(self.space, {})
        for p in range(self.length):
            here = known.setdefault(tuple(self.tokens[: p + 1]), Known())
            for layer, rows in self.rows.items():
                if p in rows:
                    here.rows.setdefault(layer, rows[p])
        for stream, r in self.cache.streams.items():
            for j in range(self.length // r):
                here = known[tuple(self.tokens[: (j + 1) * r])]
                here.records.setdefault(stream, self.records[stream][j])
        for position, state in self.snapshots.items():
            here = known[tuple(self.tokens[:position])]
            if here.state is None:
                here.state = state
        self.snapshots.clear()
        for layer, rows in self.rows.items():  # what only the snapshots kept
            for p in [p for p in rows if p // self.cache.block in self.kept[layer]]:
                del rows[p]
            self.kept[layer] = set()

    def fork(self) -> ReferenceSequence:
        self._check_open()
        if self.cache.open_count >= self.cache.sequences:
            raise OutOfCapacityError("too many open")
        child = ReferenceSequence(self.cache, self.space, list(self.tokens))
        child.cached_tokens, child.matched_tokens = self.cached_tokens, self.matched_tokens
        child.state, child.snapshots = self.state, dict(self.snapshots)
        child.rows = {layer: dict(rows) for layer, rows in self.rows.items()}
        child.written, child.kept = dict(self.written), dict(self.kept)
        child.records = {stream: list(known) for stream, known in self.records.items()}
        child.length = self.length
        child._cut(self.length)
        self.cache.open_count += 1
        return child

    def _cut(self, position: int) -> None:
        for layer, rows in self.rows.items():
            self.written[layer] = min(self.written[layer], position)
            self.rows[layer] = {p: row for p, row in rows.items() if p < position}
        for stream, known in self.records.items():
            del known[position // self.cache.streams[stream] :]

    def truncate(self, position: int) -> None:
        self._check_open()
        if not 0 <= position <= self.length:
            raise InvalidArgumentError("beyond the length")
        for layer, rows in self.rows.items():
            if any(p not in rows for p in self.cache.resumes(layer, position)):
                raise UnsupportedError("a window has passed")
        if self.cache.fixed and position != self.length:
            known = self.cache.index.get(self.space, {}).get(tuple(self.tokens[:position]), Known())
            state = self.snapshots.get(position, known.state)
            if position and state is None:
                raise UnsupportedError("no snapshot")
            self.state = state
        self.length = position
        self._cut(position)
        del self.tokens[position:]
        self.kept = {layer: set() for layer in self.rows}
        self.snapshots = {p: s for p, s in self.snapshots.items() if p <= position}

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.cache.open_count -= 1
