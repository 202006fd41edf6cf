"""How precisely a snapshot keeps the fixed-size state, and what that loses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcache.enums import DType
from kvcache.errors import InvalidArgumentError
from kvcache.serde import OrderedStrEnum, describe

if TYPE_CHECKING:
    from kvcache import _core

__all__ = ["SnapshotError", "SnapshotFormat"]


class SnapshotFormat(OrderedStrEnum):
    """Storage of a snapshot, in order of precision."""

    EXACT = "exact"  # a copy
    F16 = "f16"  # float32 tensors as float16; all others as they are
    #: floating tensors as int8 with one float32 scale for each row of their last axis: one for each
    #: head and key channel of a matrix ``[heads, k, v]``. Integers, rows below 16 elements and the
    #: inputs of convolutions stay as they are.
    INT8 = "int8"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotError:
    """What a snapshot lost of one tensor that it does not keep exactly."""

    layer: int
    name: str  #: stable name, e.g. ``state.recurrent``
    stored: DType  #: element in the snapshot
    max_abs: float  #: largest difference of an element and what it is restored as
    relative_rms: float  #: root mean square of the differences over that of the elements


def core_format(format: SnapshotFormat | str) -> _core.SnapshotFormat:  # noqa: A002
    """The core's number for a format or its name."""
    from kvcache import _core

    try:
        return _core.SnapshotFormat[SnapshotFormat(format).name]
    except ValueError:
        known = ", ".join(repr(known.value) for known in SnapshotFormat)
        raise InvalidArgumentError(
            f"format: expected one of {known}, got {describe(format)}"
        ) from None


def from_core(error: _core.SnapshotError) -> SnapshotError:
    """The core's report on one tensor."""
    return SnapshotError(
        layer=error.layer,
        name=error.name,
        stored=DType[error.stored.name],
        max_abs=error.max_abs,
        relative_rms=error.relative_rms,
    )
