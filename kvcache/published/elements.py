"""Elements of published arrays as what a plan stores: which keep every value, and the rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcache.codec import Bfloat16Array
from kvcache.enums import DType
from kvcache.errors import NonFiniteError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# By dtype of a manifest, what holds all its values.
_EXACT: dict[str, set[DType]] = {
    "Float16": {DType.F16, DType.F32},
    "Bfloat16": {DType.BF16, DType.F32},
    "Float32": {DType.F32},
    "Float64": set(),
    "Int32": {DType.I32},
    "Uint32": {DType.U32},
}
_FLOATING = {"Float16", "Bfloat16", "Float32", "Float64"}
_ROUNDED = {DType.F16, DType.BF16, DType.F32, DType.I8}


def check_element(dtype: str, stored: DType, name: str, *, convert: bool) -> None:
    """Whether values of ``dtype`` can be stored as ``stored``, exactly unless ``convert``.

    Raises:
        UnsupportedError: they cannot.
    """
    if stored in _EXACT.get(dtype, ()):
        return
    if dtype not in _FLOATING or stored not in _ROUNDED:
        raise UnsupportedError(f"{name}: {dtype} cannot be stored as {stored}")
    if not convert:
        raise UnsupportedError(
            f"{name}: the prompt cache holds {dtype}, the plan stores {stored}; make the plan with"
            " the format of the prompt cache, or pass convert=True to round"
        )


def as_rows(array: NDArray[Any], dtype: str, stored: DType, name: str) -> Any:
    """Rows as `Sequence.write` takes them.

    Raises:
        NonFiniteError: a finite value is infinite as float16.
    """
    if stored in (DType.I32, DType.U32):
        return array
    if stored in (DType.F16, DType.I8) and dtype != "Float16":
        return _as_float16(_as_float32(array, dtype), name)
    if dtype == "Bfloat16":
        return Bfloat16Array(np.ascontiguousarray(array))
    return _as_float32(array, dtype) if dtype == "Float64" else array


def as_state(array: NDArray[Any], dtype: str, stored: DType, name: str) -> NDArray[Any]:
    """A tensor as `Sequence.state` shows it: bfloat16 as its bits.

    Raises:
        NonFiniteError: a finite value is infinite as float16.
    """
    if stored in (DType.I32, DType.U32) or (dtype, stored) == ("Bfloat16", DType.BF16):
        return array
    wide = _as_float32(array, dtype)
    if stored is DType.F16:
        return _as_float16(wide, name)
    return _bfloat16_bits(wide) if stored is DType.BF16 else wide


def _as_float32(array: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    if dtype == "Bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):
        return array.astype(np.float32, copy=False)


def _as_float16(array: NDArray[np.float32], name: str) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float16)
    if bool(np.any(np.isinf(narrow) & np.isfinite(array))):
        raise NonFiniteError(f"{name}: a value is beyond float16; store it as bf16 or f32")
    return narrow


def _bfloat16_bits(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to nearest, ties to even; a NaN stays one."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(array), (bits >> 16) | 0x40, rounded).astype(np.uint16)
