"""How long stored prefixes stay, beyond what an eviction policy would do by itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from kvcache._arguments import as_clock, as_count, as_number
from kvcache.errors import InvalidArgumentError
from kvcache.units import parse_bytes

if TYPE_CHECKING:
    from types import TracebackType

    from kvcache import _core

__all__ = ["Pin"]

_MOST_SECONDS = 2**53 / 1000
FOREVER = 2**64 - 1


def memory_share(value: Any, name: str) -> tuple[float, int | None]:
    """Bytes, as an integer or as text, or a float of 0..1: that share of the budget.

    Returns:
        The share, and bytes that count in its place where there are any.
    """
    if isinstance(value, float | np.floating):
        if not 0 <= value <= 1:
            raise InvalidArgumentError(
                f"{name}: a share of the budget is 0.0..1.0, got {value}; bytes are an integer"
            )
        return float(value), None
    if isinstance(value, str):
        return 1.0, parse_bytes(value, name=name, least=0)
    return 1.0, as_count(value, name)


def milliseconds(seconds: Any, name: str) -> int:
    """A time span that is more than none, rounded up."""
    number = as_number(seconds, name)
    if not 0 < number <= _MOST_SECONDS:
        raise InvalidArgumentError(
            f"{name}: must be seconds above 0, at most {_MOST_SECONDS:.3g}, got {seconds!r}"
        )
    return math.ceil(number * 1000)


def lease_ms(lease: Any) -> int | None:
    return None if lease is None else milliseconds(lease, "lease")


def ttl_ms(ttl: Any) -> int:
    """Milliseconds of a time to live; infinity never ends."""
    return FOREVER if ttl == math.inf else milliseconds(ttl, "ttl")


class Pin:
    """Keeps a stored prefix where `Cache.open` finds it. Made by `Cache.pin`.

    It holds the pages, the windows before its end and the snapshots there, but not what continues
    the prefix. It guards against the cache's own choices: eviction, times to live, quotas and
    ``snapshots_per_path``. `Cache.clear`, `Cache.erase` and `Cache.bump_epoch` are the owner's
    wishes; they drop what is pinned and end the pin.

    Leaving a ``with`` block releases it, and so does the garbage collector.
    """

    __slots__ = ("_core",)

    def __init__(self, core: _core.Pin) -> None:
        self._core = core

    @property
    def tokens(self) -> int:
        """Positions that it keeps, or has kept."""
        return self._core.tokens

    @property
    def expires_ms(self) -> int | None:
        """When the lease ends, by the clock of ``now_ms``; None for a pin without one.

        Without ``now_ms`` that is the clock of ``time.monotonic``, in milliseconds.
        """
        return self._core.expires_ms

    @property
    def is_held(self) -> bool:
        """False once it was released, has lapsed, or what it kept was dropped."""
        return self._core.is_held

    def renew(self, lease: float | None = None, *, now_ms: int | None = None) -> None:
        """Let it end ``lease`` seconds from now.

        Args:
            lease: seconds; None for no end.
            now_ms: milliseconds of the caller's clock, as in `Cache.open`.

        Raises:
            NotFoundError: it is not held any more.
            InvalidArgumentError: a lease that is not above 0.
        """
        self._core.renew(lease_ms=lease_ms(lease), now_ms=as_clock(now_ms))

    def release(self) -> None:
        """Let go; more than once is no error."""
        self._core.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
