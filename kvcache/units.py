"""Sizes as people write them: ``2GiB``, ``512 MiB``, ``4096``."""

from __future__ import annotations

import operator
import re
from typing import SupportsIndex

from kvcache.errors import InvalidArgumentError

__all__ = ["format_bytes", "parse_bytes"]

_UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    **{
        prefix + suffix: 1024**power
        for power, letter in enumerate("kmgt", start=1)
        for prefix, suffix in [(letter, ""), (letter, "ib")]
    },
    **{letter + "b": 1000**power for power, letter in enumerate("kmgt", start=1)},
}
_PATTERN = re.compile(r"\s*(\d{1,40}(?:\.\d{1,40})?)\s*([a-zA-Z]*)\s*", re.ASCII)
_MAX = 2**64 - 1


def parse_bytes(size: str | SupportsIndex, *, name: str = "memory", least: int = 1) -> int:
    """Bytes in ``size``: an integer, or text with an optional unit.

    KiB, MiB, GiB, TiB and the bare letters are powers of 1024; kB, MB, GB, TB of 1000.

    Raises:
        InvalidArgumentError: not a size, below ``least`` bytes, or above 64 bits; ``name`` is in
            the text.
    """
    if isinstance(size, str):
        match = _PATTERN.fullmatch(size)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise InvalidArgumentError(f"{name}: expected a size such as 2GiB, got {size!r}")
        whole, _, fraction = match[1].partition(".")
        value = int(whole) * unit + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)
    else:
        try:
            if isinstance(size, bool):
                raise TypeError
            value = operator.index(size)
        except TypeError:
            raise InvalidArgumentError(
                f"{name}: expected a size such as 2GiB, got {size!r}"
            ) from None
    if not least <= value <= _MAX:
        raise InvalidArgumentError(f"{name}: must be {least} to 2^64-1 bytes, got {size!r}")
    return value


def format_bytes(count: int) -> str:
    """``count`` bytes for people: three significant digits and a binary unit."""
    value = float(count)
    for unit in ["B", "KiB", "MiB", "GiB"]:
        if value < (1024 if unit == "B" else 999.5):  # what three digits can say
            return f"{count} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"
