"""Part of a cache's byte budget for memory that lies elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from kvcache._handles import described
from kvcache.units import format_bytes

if TYPE_CHECKING:
    from types import TracebackType

    from kvcache import _core

__all__ = ["Reservation"]


class Reservation:
    """Bytes of a cache's budget, made by `Cache.reserve`; given back by `release`.

    Also a context manager, and released with its last reference.
    """

    __slots__ = ("_core",)

    def __init__(self, core: _core.Reservation) -> None:
        self._core = core

    @property
    def bytes(self) -> int:
        """Bytes that are reserved; 0 once released."""
        return self._core.bytes

    def release(self) -> None:
        """Give them back; again does nothing."""
        self._core.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return described("Reservation", lambda: f"of {format_bytes(self.bytes)}")
