"""The engine's side of a replay: writes a stand-in's state, and checks what a hit restored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcache.codec import Bfloat16Array
from kvcache.enums import DType
from kvcache.errors import UnsupportedError
from kvcache.replay.workload import FixedWorkload, RowWorkload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvcache.plan import StatePlan
    from kvcache.replay.timing import Stopwatch
    from kvcache.sequence import Sequence

__all__ = ["Checked", "StandInModel"]

# Bound of the INT8 codec as a share of a row's largest magnitude, 127 steps: half a step, and what
# the two float32 roundings, of x / scale and of code * scale, add to it: 2 * 127 * 2^-24 < 2^-16.
_INT8_BOUND = np.float32((0.5 + 2.0**-16) / 127)


@dataclass(frozen=True, slots=True)
class Checked:
    """Outcome of checking a hit: stored bytes found right, and rows or states found wrong."""

    verified_bytes: int
    mismatches: int


@dataclass(frozen=True, slots=True)
class _PagedLayer:
    layer: int
    window: int  # positions a query sees; 0 for all
    rows: tuple[RowWorkload, ...]  # in the order of Sequence.write's arguments
    row_bytes: tuple[int, ...]  # stored bytes of one position
    stored: DType  # element of every component

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Cut positions so that one piece fits the workloads' tiles."""
        step = min(workload.tile_rows for workload in self.rows)
        for first in range(start, stop, step):
            yield first, min(first + step, stop)


class StandInModel:
    """Computes the state of the layers that a plan describes.

    Args:
        plan: the plan that the cache was made from.
        stopwatch: times the calls into the cache, without the making and comparing of bytes.

    Rows are made in the element that the plan stores, and must come back bit for bit; those of
    INT8 are float16 and come back within its bound.
    """

    def __init__(self, plan: StatePlan, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        self._layers = _paged_layers(plan)
        self._fixed = [FixedWorkload(fixed.layer, fixed.name, fixed.bytes) for fixed in plan.fixed]
        self.token_bytes = sum(sum(layer.row_bytes) for layer in self._layers)
        self.fixed_bytes = sum(fixed.size_bytes for fixed in self._fixed)

    def write(self, seq: Sequence, start: int, keys: NDArray[np.uint64]) -> None:
        """Write every component of the positions from `start` that have these prefix keys."""
        for layer in self._layers:
            for first, stop in layer.spans(start, start + keys.size):
                piece = keys[first - start : stop - start]
                rows: list[Any] = [workload.rows(piece) for workload in layer.rows]
                if layer.stored is DType.BF16:
                    rows = [Bfloat16Array(bits) for bits in rows]
                with self._stopwatch("write"):
                    seq.write(layer.layer, first, *rows)
        for fixed in self._fixed:
            state = _raw(seq.state(fixed.layer, fixed.name))
            for span, expected in fixed.tiles(keys[-1]):
                state[span] = expected

    def check(self, seq: Sequence, keys: NDArray[np.uint64]) -> Checked:
        """Compare all state that a hit of `len(keys)` positions restored with what was written."""
        verified, mismatches = 0, 0
        for layer in self._layers:
            begin = max(0, keys.size - (layer.window - 1)) if layer.window else 0
            for first, stop in layer.spans(begin, keys.size):
                wrong = self._wrong_rows(seq, layer, first, keys[first:stop])
                mismatches += sum(wrong)
                for row_bytes, count in zip(layer.row_bytes, wrong, strict=True):
                    verified += row_bytes * (stop - first - count)
        for fixed in self._fixed:
            state = _raw(seq.state(fixed.layer, fixed.name))
            tiles = fixed.tiles(keys[-1])
            if all(np.array_equal(state[span], expected) for span, expected in tiles):
                verified += state.size
            else:
                mismatches += 1
        return Checked(verified, mismatches)

    def _wrong_rows(
        self, seq: Sequence, layer: _PagedLayer, start: int, keys: NDArray[np.uint64]
    ) -> list[int]:
        int8 = layer.stored is DType.I8
        with self._stopwatch("read"):
            restored = seq.read(
                layer.layer, start, start + keys.size, dtype="float32" if int8 else None
            )
        compare = _wrong_int8 if int8 else _wrong_exact
        return [
            compare(workload.rows(keys), _bits(rows))
            for workload, rows in zip(layer.rows, restored, strict=False)
        ]


_ELEMENTS = {DType.F16: "float16", DType.I8: "float16", DType.BF16: "uint16", DType.F32: "float32"}


def _paged_layers(plan: StatePlan) -> list[_PagedLayer]:
    layers = []
    for group in plan.groups:
        stored = group.components[0].dtype
        if stored not in _ELEMENTS:
            raise UnsupportedError(f"rows of {stored.value} have no stand-in in a replay")
        scale = 4 if stored is DType.I8 else 0
        for layer in sorted({component.layer for component in group.components}):
            parts = plan.paged_components(layer)
            if any(part not in group.components for part in parts):
                raise UnsupportedError(
                    f"layer {layer}: its components differ in window or storage, which the engine "
                    f"of a replay does not have; `kvcache plan` sizes the model"
                )
            layers.append(
                _PagedLayer(
                    layer,
                    group.window,
                    tuple(
                        RowWorkload(layer, p.component, p.heads, p.width, _ELEMENTS[stored])
                        for p in parts
                    ),
                    tuple(p.heads * (p.width * stored.bytes + scale) for p in parts),
                    stored,
                )
            )
    return layers


def _raw(state: NDArray[Any]) -> NDArray[np.uint8]:
    return state.reshape(-1).view(np.uint8)


def _bits(rows: Any) -> NDArray[Any]:
    return rows.bits if isinstance(rows, Bfloat16Array) else np.asarray(rows)


def _wrong_exact(expected: NDArray[Any], restored: NDArray[Any]) -> int:
    unsigned = np.uint32 if expected.itemsize == 4 else np.uint16
    same = expected.view(unsigned) == restored.view(unsigned)
    return 0 if same.all() else int((~same.all(axis=(1, 2))).sum())


def _wrong_int8(expected: NDArray[np.float16], restored: NDArray[Any]) -> int:
    # Finite float16 magnitudes order like their bits, and integers reduce faster.
    bits = expected.view(np.uint16)
    largest = (bits & np.uint16(0x7FFF)).max(axis=2).view(np.float16).astype(np.float32)
    error = _float32(bits)
    error -= restored
    right = np.abs(error, out=error) <= (largest * _INT8_BOUND)[..., None]  # NaN is not
    return 0 if right.all() else int((~right.all(axis=(1, 2))).sum())


def _float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Widen finite float16 values given as bits; exact, and faster than a cast."""
    wide = bits.astype(np.uint32) << np.uint32(13)
    sign = (wide & np.uint32(1 << 28)) << np.uint32(3)
    wide &= np.uint32((1 << 28) - 1)
    value = wide.view(np.float32)
    value *= np.float32(2.0**112)  # moves the exponent's bias from 15 to 127, subnormals included
    wide |= sign
    return value
