"""What handles have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["described"]


def described(kind: str, text: Callable[[], str]) -> str:
    """The repr of a handle: also where it is of no use, as in a child of ``fork()``."""
    try:
        return f"<{kind} {text()}>"
    except InvalidArgumentError:
        return f"<{kind} of another process>"
