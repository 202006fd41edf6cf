"""What the tiers of a cache have in common: a prompt is brought back, failures are said once."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from kvcache import _core
from kvcache._arguments import Media, as_number, as_space, as_text, as_tokens
from kvcache.errors import InvalidArgumentError, KVCacheWarning
from kvcache.lifetime import ttl_ms as as_ttl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import ArrayLike

__all__ = ["CacheTierHandle", "milliseconds"]

_LONGEST_WAIT = 1e9  # seconds


def milliseconds(seconds: float, name: str) -> int:
    """Seconds as the compiled core takes them.

    Raises:
        InvalidArgumentError: negative, not finite, or beyond any use.
    """
    number = as_number(seconds, name)
    if not 0 <= number <= _LONGEST_WAIT:
        raise InvalidArgumentError(f"{name}: seconds must be 0..{_LONGEST_WAIT:.0e}, got {number}")
    return round(number * 1000)


class CacheTierHandle:
    """One tier of a cache. Thread-safe."""

    __slots__ = ("_core", "_counted", "_kinds", "_name", "_told")

    def __init__(
        self,
        core: _core.Cache,
        name: str,
        kinds: Mapping[str, tuple[str, ...]],
        counted: Callable[[_core.Cache], Any],
    ) -> None:
        self._core = core
        self._name = name
        self._kinds = kinds  # what is warned of once, and the counters that tell it
        self._counted = counted
        self._told: set[str] = set()

    def prefetch(
        self,
        tokens: ArrayLike,
        *,
        namespace: str | bytes = "",
        adapter: str | tuple[str, str] | None = None,
        salt: bytes | str = b"",
        media: Iterable[Media] = (),
        ttl: float | None = None,
        tenant: str = "",
    ) -> int:
        """Bring back what the cache's tiers hold of a prompt beyond memory, before it is opened.

        Args:
            tokens: the prompt, at least one token.
            namespace: as in `Cache.open`.
            adapter: as in `Cache.open`.
            salt: as in `Cache.open`.
            media: as in `Cache.open`.
            ttl: seconds that what is brought back is found, as in `Cache.open`.
            tenant: who is charged for it; a quota may leave room for less.

        Returns:
            Positions that `Cache.open` would reuse now.

        Raises:
            InvalidArgumentError: no tokens, an id that does not fit int32, media that overlap or do
                not lie in the tokens, or a ttl that is not above 0.
        """
        self.warn()
        return _core.prefetch(
            self._core,
            as_tokens(tokens),
            *as_space(namespace, adapter, salt, media),
            None if ttl is None else as_ttl(ttl),
            as_text(tenant, "tenant"),
        )

    def warn(self) -> None:
        """Say what has gone wrong, each kind once; `Cache.open` and `prefetch` call this.

        The cache goes on without the tier, so that none of it is an error; ``stats`` counts what it
        costs.

        Warns:
            KVCacheWarning: with the latest error of the tier.
        """
        core = self._counted(self._core)
        for kind, counters in self._kinds.items():
            if kind in self._told or not any(getattr(core, name) for name in counters):
                continue
            self._told.add(kind)
            last = os.fsdecode(core.last_error)
            warnings.warn(
                f"{self._name}: {kind}; the cache goes on in memory: {last}",
                KVCacheWarning,
                stacklevel=3,
            )
