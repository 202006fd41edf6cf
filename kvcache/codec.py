"""The INT8 and F16 row codec: attention rows to int8 codes with one float32 scale each, and back.

The format is ``int8-per-token-head-f32-scale-v1``: for one head's vector of one position,
``h = float16(x)``, ``scale = max|h| / 127`` (1 for a row of zeros) and
``code = round-half-even(h / scale)``, both IEEE float32 divisions. Every instruction set gives the
same bytes; ``KVCACHE_ISA`` forces one.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from kvcache import _core
from kvcache._arguments import FLOAT_DTYPES, as_float_dtype, as_threads
from kvcache.errors import InvalidArgumentError

__all__ = ["Bfloat16Array", "active_isa", "decode", "encode"]

Bfloat16Array = _core.Bfloat16Array

Dtype: TypeAlias = Literal["float32", "float16", "bfloat16"]


class SupportsDLPack(Protocol):
    """A tensor of any library."""

    def __dlpack__(self, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


# Also anything with the buffer protocol or __array_interface__.
Array: TypeAlias = np.ndarray[Any, Any] | SupportsDLPack | Any


def active_isa() -> str:
    """Name of the instruction set in use: ``scalar``, ``avx2``, ``avx512`` or ``neon``.

    Raises:
        InvalidArgumentError: ``KVCACHE_ISA`` names no instruction set.
        UnsupportedError: it names one that this build or this processor lacks.
    """
    return _core.active_isa()


def encode(
    x: Array, *, threads: int = 1, out: tuple[Array, Array] | None = None
) -> tuple[Any, Any]:
    """Encode rows to int8 codes and one float32 scale a row.

    Args:
        x: float32, float16 or bfloat16 ``[..., head_dim]`` in host memory; read where it lies, at
            any strides as long as the last axis is contiguous.
        threads: at most this many work on the call; small inputs use one.
        out: ``(codes, scales)`` to write to, contiguous, of the shapes and dtypes returned.

    Returns:
        ``codes`` int8 ``[..., head_dim]`` and ``scales`` float32 ``[...]``: ``out``, or new arrays.

    Raises:
        NonFiniteError: an element is NaN, infinite, or at least 65520 in magnitude (infinite in
            float16); names the first such row, counted in row-major order. ``out`` is unspecified.
        InvalidArgumentError: wrong dtype, shape, strides or device, or arrays that overlap.
    """
    codes: Any
    scales: Any
    if out is None:
        shape, _ = _core.describe_array(x, "x")
        codes, scales = np.empty(shape, np.int8), np.empty(shape[:-1], np.float32)
    else:
        try:
            codes, scales = out
        except (TypeError, ValueError):
            raise InvalidArgumentError("out must be a pair (codes, scales)") from None
    _core.encode_int8(x, codes, scales, as_threads(threads))
    return codes, scales


def decode(
    codes: Array,
    scales: Array,
    *,
    dtype: Dtype = "float32",
    out: Array | None = None,
    threads: int = 1,
) -> Any:
    """Decode rows: ``float32(code) * scale``, rounded once more when ``dtype`` is narrower.

    Args:
        codes: int8 ``[..., head_dim]``, contiguous.
        scales: float32 ``[...]``, contiguous.
        dtype: what to return.
        out: array of that dtype and the shape of ``codes`` to write to, at any strides as long as
            the last axis is contiguous and no element lies on another.
        threads: at most this many work on the call; small inputs use one.

    Returns:
        ``out``, or a new numpy array; for bfloat16, which numpy lacks, a `Bfloat16Array`, which any
        DLPack consumer reads without a copy (``torch.from_dlpack``).

    Raises:
        InvalidArgumentError: wrong dtype, shape, strides or device, or arrays that overlap.
    """
    name = as_float_dtype(dtype)
    result = out
    if out is None:
        shape, _ = _core.describe_array(codes, "codes")
        bf16 = name == "bfloat16"
        result = Bfloat16Array(np.empty(shape, np.uint16)) if bf16 else np.empty(shape, name)
    else:
        _, given = _core.describe_array(out, "out")
        if given != FLOAT_DTYPES[name]:
            raise InvalidArgumentError(f"out: dtype is {given}, but dtype={dtype!r} was asked for")
    _core.decode_int8(codes, scales, result, as_threads(threads))
    return result
