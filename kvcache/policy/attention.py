"""Which positions a query sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvcache.errors import LayerScheduleError
from kvcache.serde import PositiveU32, Variant

__all__ = ["AttentionPolicy", "Full", "Sliding"]

_I32_MAX = 2**31 - 1


class AttentionPolicy(Variant):
    """Which positions a query sees: all of them, or a window that ends with its own.

    One field goes beyond the published policies and is left out of the JSON while unset, so that
    every published document reads and writes unchanged: ``chunked`` of `Sliding`. A reader that
    does not know it takes the window to slide, which keeps no position too few.
    """

    __slots__ = ()
    ERROR = LayerScheduleError
    EXTENSIONS = frozenset({"chunked"})

    @staticmethod
    def full() -> AttentionPolicy:
        """Every position up to the query's own."""
        return Full()

    @staticmethod
    def sliding(window: int) -> AttentionPolicy:
        """The last ``window`` positions; the query's own counts as one of them."""
        if window == 0:
            raise LayerScheduleError("sliding window: expected a positive integer, got 0")
        return Sliding(window)

    @staticmethod
    def in_chunks(size: int) -> AttentionPolicy:
        """Positions from the last multiple of ``size`` on, as in Llama 4."""
        if size == 0:
            raise LayerScheduleError("attention chunk: expected a positive integer, got 0")
        return Sliding(size, chunked=True)

    @staticmethod
    def from_sliding_window(window: int | None) -> AttentionPolicy:
        """Full attention for None, else a window."""
        return Full() if window is None else Sliding(window)

    if TYPE_CHECKING:

        @property
        def window(self) -> int | None:
            """Most positions a query sees, itself included; None when all of them."""

        @property
        def chunked(self) -> bool:
            """Whether the window starts anew at each multiple of its length."""

    def sliding_window_i32(self) -> int | None:
        """The window, if it fits 32 bits signed as tensor libraries need.

        Raises:
            LayerScheduleError: it does not.
        """
        if self.window is not None and self.window > _I32_MAX:
            raise LayerScheduleError(f"sliding window {self.window} is more than {_I32_MAX}")
        return self.window

    def sees(self, position: int) -> range:
        """The key positions that the query at ``position`` attends to."""
        if self.window is None:
            return range(position + 1)
        if self.chunked:
            return range(position // self.window * self.window, position + 1)
        return range(max(0, position - self.window + 1), position + 1)


@dataclass(frozen=True, slots=True)
class Full(AttentionPolicy):
    """Every position."""

    TAG: ClassVar[str] = "full"

    @property
    def window(self) -> None:
        """No window."""
        return None

    @property
    def chunked(self) -> bool:
        """No window."""
        return False


@dataclass(frozen=True, slots=True)
class Sliding(AttentionPolicy):
    """A window that counts the current token.

    Attributes:
        window: most positions that a query sees.
        chunked: the window does not slide but starts anew at each multiple of its length.
    """

    TAG: ClassVar[str] = "sliding"
    window: PositiveU32
    chunked: bool = False
