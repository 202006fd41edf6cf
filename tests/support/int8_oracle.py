"""The INT8 row format, written from its definition with numpy's IEEE arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def encode(x: Array) -> tuple[Array, Array]:
    """Codes and scales of finite rows `[..., head_dim]` of float16 or float32 elements."""
    h = x.astype(np.float16).astype(np.float32)
    largest = np.abs(h).max(axis=-1)
    scales = np.where(largest == 0, np.float32(1), largest / np.float32(127))
    quotients = h / scales[..., None]
    assert scales.dtype == quotients.dtype == np.float32
    return np.clip(np.rint(quotients), -127, 127).astype(np.int8), scales


def decode(codes: Array, scales: Array) -> Array:
    """float32 elements."""
    return codes.astype(np.float32) * scales[..., None]


def bfloat16_bits(x: Array) -> Array:
    """Finite float32 elements rounded to nearest even, as uint16."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16_bits(bits: Array) -> Array:
    """float32 elements."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
