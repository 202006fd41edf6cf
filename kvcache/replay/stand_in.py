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

    from kvcache import _core
    from kvcache.plan import PagedComponent, StatePlan
    from kvcache.replay.timing import Stopwatch
    from kvcache.sequence import Sequence

__all__ = ["STAND_IN_WEIGHTS", "Checked", "StandInModel"]

#: Names what computes the state, in files: raise it when the same tokens get other bytes.
STAND_IN_WEIGHTS = "kvcache stand-in 1"

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
    needs: _core.Group  # which positions a hit restores
    rows: tuple[RowWorkload, ...]  # in the order of Sequence.write's arguments
    row_bytes: tuple[int, ...]  # stored bytes of one position
    stored: DType  # element of every component

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Cut positions so that one piece fits the workloads' tiles."""
        step = min(workload.tile_rows for workload in self.rows)
        for first in range(start, stop, step):
            yield first, min(first + step, stop)


@dataclass(frozen=True, slots=True)
class _Stream:
    """Records pooled over positions; each is what the last of its positions makes it."""

    layer: int
    name: str
    record_tokens: int
    rows: RowWorkload
    row_bytes: int  # stored bytes of one record
    stored: DType

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, slice]]:
        """First record and positions of pieces of the records that [start, stop) completes."""
        step, last = self.rows.tile_rows, stop // self.record_tokens
        for first in range(start // self.record_tokens, last, step):
            end = min(first + step, last) * self.record_tokens
            yield first, slice((first + 1) * self.record_tokens - 1, end, self.record_tokens)


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
        self._streams = _streams(plan)
        self._fixed = [FixedWorkload(fixed.layer, fixed.name, fixed.bytes) for fixed in plan.fixed]

    def write(self, seq: Sequence, start: int, keys: NDArray[np.uint64]) -> int:
        """Write every component of the positions from `start` that have these prefix keys.

        Returns:
            Stored bytes written.
        """
        written = sum(fixed.size_bytes for fixed in self._fixed)
        for layer in self._layers:
            for first, stop in layer.spans(start, start + keys.size):
                piece = keys[first - start : stop - start]
                rows = [_given(layer.stored, workload.rows(piece)) for workload in layer.rows]
                with self._stopwatch("write"):
                    seq.write(layer.layer, first, *rows)
                written += sum(layer.row_bytes) * piece.size
        for stream in self._streams:
            for first, ends in stream.spans(start, start + keys.size):
                records = stream.rows.rows(_shifted(keys, ends, start))
                written += stream.row_bytes * len(records)
                given = _given(stream.stored, records)
                with self._stopwatch("write"):
                    seq.write_records(stream.layer, stream.name, first, given)
        for fixed in self._fixed:
            state = _raw(seq.state(fixed.layer, fixed.name))
            for span, expected in fixed.tiles(keys[-1]):
                state[span] = expected
        return written

    def check(self, seq: Sequence, keys: NDArray[np.uint64]) -> Checked:
        """Compare all state that a hit of `len(keys)` positions restored with what was written."""
        verified, mismatches = 0, 0
        for layer in self._layers:
            sinks, window = layer.needs.sink_end(keys.size), layer.needs.live_start(keys.size)
            for first, stop in (*layer.spans(0, sinks), *layer.spans(window, keys.size)):
                wrong = self._wrong_rows(seq, layer, first, keys[first:stop])
                mismatches += sum(wrong)
                for row_bytes, count in zip(layer.row_bytes, wrong, strict=True):
                    verified += row_bytes * (stop - first - count)
        for stream in self._streams:
            for first, ends in stream.spans(0, keys.size):
                expected = stream.rows.rows(keys[ends])
                stop = first + len(expected)
                with self._stopwatch("read"):
                    records = seq.read_records(
                        stream.layer, stream.name, first, stop, _asked(stream.stored)
                    )
                count = _wrong(stream.stored, expected, records)
                mismatches += count
                verified += stream.row_bytes * (len(expected) - count)
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
        with self._stopwatch("read"):
            restored = seq.read(layer.layer, start, start + keys.size, dtype=_asked(layer.stored))
        return [
            _wrong(layer.stored, workload.rows(keys), rows)
            for workload, rows in zip(layer.rows, restored, strict=False)
        ]


_ELEMENTS = {DType.F16: "float16", DType.I8: "float16", DType.BF16: "uint16", DType.F32: "float32"}


def _paged_layers(plan: StatePlan) -> list[_PagedLayer]:
    layers = []
    for group, core in zip(plan.groups, plan.core.groups, strict=True):
        if group.record_tokens > 1:
            continue
        stored = group.components[0].dtype
        for layer in sorted({component.layer for component in group.components}):
            parts = plan.paged_components(layer)
            if any(part not in group.components for part in parts):
                raise UnsupportedError(
                    f"layer {layer}: its components differ in window or storage, which the engine "
                    f"of a replay does not have; `kvcache plan` sizes the model"
                )
            rows = tuple(_workload(part) for part in parts)
            row_bytes = tuple(_row_bytes(part) for part in parts)
            layers.append(_PagedLayer(layer, core, rows, row_bytes, stored))
    return layers


def _streams(plan: StatePlan) -> list[_Stream]:
    return [
        _Stream(
            part.layer,
            part.component,
            part.record_tokens,
            _workload(part),
            _row_bytes(part),
            part.dtype,
        )
        for group in plan.groups
        for part in group.components
        if part.record_tokens > 1
    ]


def _workload(part: PagedComponent) -> RowWorkload:
    if part.dtype not in _ELEMENTS:
        raise UnsupportedError(f"rows of {part.dtype.value} have no stand-in in a replay")
    return RowWorkload(part.layer, part.component, part.heads, part.width, _ELEMENTS[part.dtype])


def _row_bytes(part: PagedComponent) -> int:
    scale = 4 if part.dtype is DType.I8 else 0
    return part.heads * (part.width * part.dtype.bytes + scale)


def _given(stored: DType, rows: NDArray[Any]) -> Any:
    """Rows as `Sequence.write` takes them."""
    return Bfloat16Array(rows) if stored is DType.BF16 else rows


def _asked(stored: DType) -> str | None:
    """The dtype to read rows in: INT8 wider than it was written, else as stored."""
    return "float32" if stored is DType.I8 else None


def _wrong(stored: DType, expected: NDArray[Any], restored: Any) -> int:
    """How many rows are not what was written."""
    compare = _wrong_int8 if stored is DType.I8 else _wrong_exact
    return compare(expected, _bits(restored))


def _shifted(keys: NDArray[np.uint64], at: slice, start: int) -> NDArray[np.uint64]:
    """The keys at these positions, where the first key is that of position `start`."""
    return keys[at.start - start : at.stop - start : at.step]


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
