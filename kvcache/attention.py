"""Which positions a query sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvcache.errors import LayerScheduleError
from kvcache.serde import PositiveU32, Variant

__all__ = ["AttentionPolicy", "Full", "Sliding"]

_I32_MAX = 2**31 - 1


class AttentionPolicy(Variant):
    """Which positions a query sees: all of them, or a window that ends with its own."""

    __slots__ = ()
    ERROR = LayerScheduleError

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
    def from_sliding_window(window: int | None) -> AttentionPolicy:
        """Full attention for None, else a window."""
        return Full() if window is None else Sliding(window)

    if TYPE_CHECKING:

        @property
        def window(self) -> int | None:
            """Positions a query sees, itself included; None when all of them."""

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
        first = 0 if self.window is None else max(0, position - self.window + 1)
        return range(first, position + 1)


@dataclass(frozen=True, slots=True)
class Full(AttentionPolicy):
    """Every position."""

    TAG: ClassVar[str] = "full"

    @property
    def window(self) -> None:
        """No window."""
        return None


@dataclass(frozen=True, slots=True)
class Sliding(AttentionPolicy):
    """A window that counts the current token."""

    TAG: ClassVar[str] = "sliding"
    window: PositiveU32
