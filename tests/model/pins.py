"""Pins of the random tests: what is pinned can be resumed, however little memory there is."""

from __future__ import annotations

from model.outcome import outcome
from model.reference import ReferenceCache

from kvcache import Cache, Pin
from kvcache.errors import NotFoundError, OutOfCapacityError


class Pins:
    """Those that are held, with the space and the prefix they keep."""

    def __init__(self, cache: Cache, reference: ReferenceCache, exact: bool) -> None:
        self.cache, self.reference, self.exact = cache, reference, exact
        self.held: list[tuple[Pin, str, list[int]]] = []

    def add(self, tokens: list[int], adapter: str) -> None:
        """Keeps the longest hit, which the last token counts for."""
        best = self.reference.hit(adapter, [*tokens, 0])
        pin, refused = outcome(lambda: self.cache.pin(tokens, adapter=adapter))
        if refused is not None:
            assert isinstance(refused, NotFoundError | OutOfCapacityError)
            assert best == 0 or not self.exact, refused
            return
        assert pin.tokens == best if self.exact else 0 < pin.tokens <= best
        self.held.append((pin, adapter, tokens[: pin.tokens]))

    def drop(self, at: int, releases: int) -> None:
        """Lets one go, by the garbage collector alone if it is not released at all."""
        pin, _, _ = self.held.pop(at)
        for _ in range(releases):
            pin.release()

    def dropped(self) -> None:
        """The cache has let go of everything."""
        assert not any(pin.is_held for pin, _, _ in self.held)
        self.held.clear()

    def forget_dropped(self) -> None:
        """Some were ended by an erase."""
        self.held = [each for each in self.held if each[0].is_held]

    def keeps(self, space: object, prefix: tuple[int, ...]) -> bool:
        return any(
            adapter == space and tuple(tokens[: len(prefix)]) == prefix
            for _, adapter, tokens in self.held
        )

    def check(self) -> None:
        for pin, adapter, tokens in self.held:
            assert pin.is_held
            assert self.cache.explain([*tokens, 0], adapter=adapter).cached_tokens >= len(tokens)
        stats = self.cache.stats()
        assert stats.pins == len(self.held)
        assert stats.pinned_bytes <= stats.used_bytes
        assert self.held or stats.pinned_bytes == 0
