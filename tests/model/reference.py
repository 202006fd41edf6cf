"""What a cache must do, in the fewest words: no bytes and no memory limit.

A stored prefix is a tuple of tokens; with it lie the rows of its last position that are still
there, by layer, and a snapshot of the fixed-size state if one was taken. Everything else follows,
but for which pages are shared: see `model.tables`.
"""

from __future__ import annotations

from collections.abc import Hashable

from model.needs import Needs
from model.tables import Known, Row, Snapshot, State, Tables

from kvcache import StatePlan
from kvcache.errors import InvalidArgumentError, NotFoundError, OutOfCapacityError, UnsupportedError


class ReferenceCache(Needs):
    def __init__(self, plan: StatePlan) -> None:
        super().__init__(plan)
        self.sequences = plan.sequences
        self.fixed = bool(plan.fixed)
        self.ring_depth = plan.ring_depth
        self.open_sequences: list[ReferenceSequence] = []
        self.index: dict[Hashable, dict[tuple[int, ...], Known]] = {}

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
        if self.fixed and known[tuple(tokens[:n])].snapshot is None:
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
        while n and self.index[space][tuple(tokens[:n])].snapshot is None:
            n -= 1
        return n

    def open(
        self,
        tokens: list[int],
        space: Hashable = "",
        at: int | None = None,
        pages: list[list[int]] | None = None,
    ) -> ReferenceSequence:
        """Start at the longest hit, or at `at` where a cache with less memory got to.

        `pages`: the block tables it starts with. They must be of pages published for this prefix.
        """
        if not tokens:
            raise InvalidArgumentError("no tokens")
        if len(self.open_sequences) >= self.sequences:
            raise OutOfCapacityError("too many open")
        matched = self.matched(space, tokens)
        n = self.hit(space, tokens) if at is None else at
        assert n <= matched
        assert self.can_hit(space, tokens, n)
        sequence = ReferenceSequence(self, space, list(tokens))
        path = [self.index[space][tuple(tokens[:p])] for p in range(1, n + 1)]
        for p, known in enumerate(path):
            for layer, row in known.rows.items():
                sequence.rows[layer][p] = row
        if path and path[-1].snapshot:
            sequence.state = path[-1].snapshot.state
        sequence.cached_tokens, sequence.matched_tokens, sequence.length = n, matched, n
        sequence.written = dict.fromkeys(self.windows, n)
        sequence.trim()
        sequence.tables.adopt([known.pages for known in path], pages or [])
        self.open_sequences.append(sequence)
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
        self.state: State = None  # None: zeros
        self.snapshots: dict[int, Snapshot] = {}  # not published yet
        self.ring: list[tuple[int, int, State]] = []  # (position, ring slot, state)
        self.ring_cursor = 0
        self.drafts: list[int] | None = None  # of an open verify session
        self.tables = Tables(cache)
        self.is_open = True

    def _check_open(self) -> None:
        if not self.is_open:
            raise InvalidArgumentError("closed")

    def _check_idle(self) -> None:
        self._check_open()
        if self.drafts is not None:
            raise InvalidArgumentError("a verify session is open")

    def trim(self) -> None:
        """Blocks that lie wholly before a window are let go."""
        for layer, rows in self.rows.items():
            blocks = self.cache.kept_blocks(layer, self.length)
            for p in [p for p in rows if p // self.cache.block not in blocks and p < self.length]:
                del rows[p]
        self.tables.trim(self.length)

    def let_go(self, group: int, numbers: list[int]) -> None:
        """Follows a call that trims windows only when it needs pages."""
        for block, number in enumerate(numbers):
            if number >= 0 or self.tables.pages[group][block] is None:
                continue
            self.tables.pages[group][block] = None
            for layer in self.cache.groups[group]:
                assert block not in self.cache.kept_blocks(layer, self.length)
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
        self.length = target

    def snapshot(self) -> int:
        self._check_idle()
        if self.cache.fixed and self.length:
            self.snapshots[self.length] = Snapshot(self.state)
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
            for layer, rows in self.rows.items():
                if p in rows:
                    here.rows.setdefault(layer, rows[p])
            self.tables.publish(p, here.pages)
        for position, snapshot in self.snapshots.items():
            here = known[tuple(self.tokens[:position])]
            here.snapshot = here.snapshot or snapshot
        self.snapshots.clear()
        self.tables.seen(self.length)

    def fork(self) -> ReferenceSequence:
        self._check_idle()
        if len(self.cache.open_sequences) >= self.cache.sequences:
            raise OutOfCapacityError("too many open")
        child = ReferenceSequence(self.cache, self.space, list(self.tokens))
        child.cached_tokens, child.matched_tokens = self.cached_tokens, self.matched_tokens
        child.state, child.snapshots = self.state, dict(self.snapshots)
        child.rows = {layer: dict(rows) for layer, rows in self.rows.items()}
        child.written = dict(self.written)
        child.length = self.length
        child.tables = self.tables.fork(self.length)
        child._cut(self.length)
        self.cache.open_sequences.append(child)
        return child

    def _cut(self, position: int) -> None:
        for layer, rows in self.rows.items():
            self.written[layer] = min(self.written[layer], position)
            self.rows[layer] = {p: row for p, row in rows.items() if p < position}

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
            snapshot = self.snapshots.get(position, known.snapshot)
            if position and snapshot is None:
                raise UnsupportedError("no snapshot")
            self.state = snapshot.state if snapshot else None
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
        self.snapshots = {p: s for p, s in self.snapshots.items() if p <= position}
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

    def commit(self, rows: dict[int, list[Row]], states: list[State], accepted: int) -> int:
        """The first `accepted` of the rows that were written, by layer, and of the states."""
        assert self.drafts is not None
        for layer, written in rows.items():
            self.rows[layer].update(enumerate(written[:accepted], self.length))
            self.written[layer] = self.length + accepted
        self.tokens += self.drafts[: accepted - 1]
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
