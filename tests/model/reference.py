"""What a cache must do, in the fewest words: no bytes and no memory limit.

A stored prefix is a tuple of tokens; with it lie the rows of its last position that are still
there, by layer, and a snapshot of the fixed-size state if one was taken. Everything else follows,
but for which pages are shared: see `model.tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from model.needs import Needs
from model.reference_sequence import ReferenceSequence
from model.tables import Known

from kvcache import StatePlan
from kvcache.errors import InvalidArgumentError, OutOfCapacityError


class ReferenceCache(Needs):
    def __init__(self, plan: StatePlan) -> None:
        super().__init__(plan)
        self.sequences = plan.sequences
        self.fixed = bool(plan.fixed)
        self.ring_depth = plan.ring_depth
        self.open_sequences: list[ReferenceSequence] = []
        self.index: dict[Hashable, dict[tuple[int, ...], Known]] = {}
        self.now = 0  # milliseconds
        self.waiting = 0  # that have passed and that the cache was not told of
        self.keeps: Callable[[Hashable, tuple[int, ...]], bool] = lambda *_: False  # pinned

    def wait(self, ms: int) -> None:
        self.waiting += ms

    def tell_time(self) -> None:
        self.now, self.waiting = self.now + self.waiting, 0

    def lives(self, space: Hashable, prefix: tuple[int, ...]) -> bool:
        """Whether it is known, and has not ended. A hit renews no more than it finds."""
        known = self.index.get(space, {}).get(prefix)
        return known is not None and (known.end > self.now or self.keeps(space, prefix))

    def renew(self, known: Known, ttl: float) -> None:
        known.ttl = max(known.ttl, ttl)
        known.end = max(known.end, self.now + known.ttl)

    def matched(self, space: Hashable, tokens: list[int]) -> int:
        n = 0
        while n < len(tokens) and self.lives(space, tuple(tokens[: n + 1])):
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
        for p in range(1, matched + 1):
            self.renew(self.index[space][tuple(tokens[:p])], 0)
        path = [self.index[space][tuple(tokens[:p])] for p in range(1, n + 1)]
        for p, known in enumerate(path):
            for layer, row in known.rows.items():
                sequence.rows[layer][p] = row
        if path and path[-1].snapshot:
            sequence.state = path[-1].snapshot.state
        sequence.cached_tokens, sequence.matched_tokens, sequence.length = n, matched, n
        sequence.written = dict.fromkeys(self.windows, n)
        for stream, (_, r) in self.streams.items():
            sequence.records[stream] = [k.records[stream] for k in path[r - 1 :: r]]
        sequence.trim()
        sequence.tables.adopt([known.pages for known in path], pages or [])
        self.open_sequences.append(sequence)
        return sequence

    def stored(self) -> list[Known]:
        return [known for space in self.index.values() for known in space.values()]

    def clear(self) -> None:
        self.index.clear()
