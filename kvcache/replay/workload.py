"""The bytes of a stand-in model: every row and state is a fixed function of the tokens before it.

A real engine computes keys, values and recurrent state from the tokens so far; here a hash of
them does, so that whatever comes back from the cache can be checked to the last bit without a
model. Bytes are made at memory speed, in tiles that stay in the processor's cache.

A position's key is a 64-bit hash of all tokens up to it; word w of a component's row is that key
xor a constant of (layer, component, w). One wrong position, layer, head or token shows.
"""

from __future__ import annotations

import functools
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["FixedWorkload", "PrefixKeys", "RowWorkload"]

TILE_BYTES = 1 << 18
_U64 = np.uint64
_BASE = _U64(0x9E3779B97F4A7C15)  # odd, so its powers are invertible modulo 2^64
_MIX = _U64(0xBF58476D1CE4E5B9)
# The two top exponent bits of every 16-bit lane stay 01: each float16 is finite and normal, between
# 2^-7 and 2, and each bfloat16 and float32 is finite.
_FREE = _U64(0x9FFF_9FFF_9FFF_9FFF)
_EXPONENT = _U64(0x2000_2000_2000_2000)
_NARROW = 8  # words; below this, one strided pass per word beats a broadcast


class PrefixKeys:
    """Keys of the positions of one sequence, in order."""

    def __init__(self) -> None:
        self._length = 0
        self._sum = _U64(0)

    def extend(self, tokens: NDArray[np.int32]) -> NDArray[np.uint64]:
        """Keys `uint64 [len(tokens)]` of the positions that come next."""
        start, self._length = self._length, self._length + tokens.size
        if tokens.size == 0:
            return np.empty(0, dtype=_U64)
        # sum of token_j * base^j: one changed token changes every key from its position on.
        keys = tokens.view(np.uint32).astype(_U64)
        keys += _U64(1)
        _scatter(keys)
        keys *= _powers(1 << self._length.bit_length())[start : self._length]
        keys[:1] += self._sum
        np.add.accumulate(keys, out=keys)
        self._sum = keys[-1]
        return _scatter(keys)


class RowWorkload:
    """Rows of one paged component of one layer, `[tokens, heads, width]`.

    Elements are float32 or, of two bytes, float16; a bfloat16 is given as its bits, in uint16.
    """

    def __init__(
        self, layer: int, component: str, heads: int, width: int, element: str = "float16"
    ) -> None:
        self.layer = layer
        self.component = component
        self.heads = heads
        self.width = width
        self._element = np.dtype(element)
        words = -(-heads * width * self._element.itemsize // 8)
        self._words = _constants(layer, component, words)
        rows = max(1, TILE_BYTES // self._words.nbytes)
        self._tile = np.empty((rows, self._words.size), dtype=_U64)

    @property
    def tile_rows(self) -> int:
        """Most rows that one call of `rows` gives."""
        return int(self._tile.shape[0])

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[Any]:
        """Rows of the positions with these keys; the array is reused by the next call."""
        tile = self._tile[: keys.size]
        _fill(tile, keys & _FREE, self._words)
        elements = tile.view(self._element)[:, : self.heads * self.width]
        return elements.reshape(keys.size, self.heads, self.width)


class FixedWorkload:
    """One fixed-size state of one layer, as raw bytes."""

    def __init__(self, layer: int, name: str, size_bytes: int) -> None:
        self.layer = layer
        self.name = name
        self.size_bytes = size_bytes
        words = -(-size_bytes // 8)
        self._words = _constants(layer, name, min(words, 4096))
        self._tile_rows = min(-(-words // self._words.size), TILE_BYTES // self._words.nbytes)
        self._tile = np.empty((self._tile_rows, self._words.size), dtype=_U64)

    def tiles(self, key: np.uint64) -> Iterator[tuple[slice, NDArray[np.uint8]]]:
        """The state after the position with this key: (byte range, bytes), piece by piece."""
        step = self._tile.nbytes
        for start in range(0, self.size_bytes, step):
            first = start // self._words.nbytes
            numbers = np.arange(first + 1, first + 1 + self._tile_rows, dtype=_U64)
            row_keys = _scatter(numbers * _BASE + key) & _FREE
            _fill(self._tile, row_keys, self._words)
            stop = min(start + step, self.size_bytes)
            yield slice(start, stop), self._tile.view(np.uint8).reshape(-1)[: stop - start]


@functools.cache
def _powers(count: int) -> NDArray[np.uint64]:
    factors = np.full(count, _BASE, dtype=_U64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


def _scatter(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread every bit over the whole word, in place (after SplitMix64's finaliser)."""
    words ^= words >> _U64(32)
    words *= _MIX
    words ^= words >> _U64(29)
    return words


def _constants(layer: int, component: str, count: int) -> NDArray[np.uint64]:
    seed = _U64((zlib.crc32(component.encode()) << 32) + layer + 1)
    words = np.arange(1, count + 1, dtype=_U64) * _BASE + _scatter(np.array([seed]))
    return (_scatter(_scatter(words)) & _FREE) | _EXPONENT


def _fill(tile: NDArray[np.uint64], keys: NDArray[np.uint64], words: NDArray[np.uint64]) -> None:
    if words.size >= _NARROW:
        np.bitwise_xor(keys[:, None], words, out=tile)
        return
    for index in range(words.size):
        np.bitwise_xor(keys, words[index], out=tile[:, index])
