"""Rows as callers give and get them: their dtypes, and arrays to read into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcache import _core
from kvcache._arguments import FLOAT_DTYPES, as_float_dtype, as_layer
from kvcache.enums import DType
from kvcache.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvcache.plan import PagedComponent, StatePlan

Rows = Any  # an array [tokens, heads, width]
# What rows of a stored element are read as when the caller does not say.
_NATURAL_DTYPES = {
    DType.F16: "float16",
    DType.I8: "float16",
    DType.BF16: "bfloat16",
    DType.F32: "float32",
    DType.U8: "uint8",
    DType.U32: "uint32",
    DType.I32: "int32",
    DType.U64: "uint64",
}


def as_row_dtype(dtype: Any) -> str | None:
    """A dtype that rows can be read as, or None for the natural one of what is stored."""
    return None if dtype is None else as_float_dtype(dtype)


def empty_rows(part: PagedComponent, rows: int, dtype: str | None) -> Any:
    """Room for rows of a component, in ``dtype`` where it can be read as that."""
    natural = _NATURAL_DTYPES[part.dtype]
    dtype = natural if dtype is None or natural not in FLOAT_DTYPES else dtype
    shape = (rows, part.heads, part.width)
    if dtype == "bfloat16":
        return _core.Bfloat16Array(np.empty(shape, np.uint16))
    return np.empty(shape, dtype)


def empty_parts(plan: StatePlan, layer: int, count: int, dtype: Any) -> list[Any]:
    """Room for `count` rows of each component of a layer; None for their natural types."""
    return [empty_rows(part, count, dtype) for part in plan.paged_components(layer)]


def given_parts(keys: Rows, values: Rows | None, index_keys: Rows | None) -> list[Rows]:
    """The components of a layer that a caller writes."""
    return [keys, *(rows for rows in (values, index_keys) if rows is not None)]


def as_parts(parts: list[Any]) -> tuple[Any, ...]:
    """Components of a layer as a caller unpacks them: at least two, None for values without any."""
    return tuple(parts) if len(parts) > 1 else (parts[0], None)


def as_layers(layers: Mapping[int, Iterable[Rows]]) -> list[tuple[int, list[Rows]]]:
    """Rows by layer, as the core takes them."""
    try:
        return [
            (as_layer(layer), [part for part in rows if part is not None])
            for layer, rows in layers.items()
        ]
    except (AttributeError, TypeError):
        raise InvalidArgumentError(
            f"layers: expected {{layer: (keys, values)}}, got {type(layers).__name__}"
        ) from None
