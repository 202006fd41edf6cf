"""How an engine's tensors hold attention state, to move rows into pages and out in one pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcache import _core
from kvcache._arguments import as_count, as_integers, as_layer, as_text
from kvcache.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

__all__ = ["EngineLayout"]


@dataclass(frozen=True, slots=True)
class EngineLayout:
    """The axes of an engine's tensor, outermost first, in words.

    =========  =====================================================================
    word       size of the axis
    =========  =====================================================================
    `tokens`   positions of the call, or slots of a slot mapping
    `blocks`   the engine's blocks; their ids come by a block table or a slot mapping
    `block`    positions in a block of the engine, which need not be those of a page
    `heads`    heads of the plan; may be left out where there is one, as in MLA
    `dim`      width of a row
    `kv`       components of a layer in declared order: keys, values; latent, rotary keys
    `layers`   layers of the call, in its order
    `1`        one
    =========  =====================================================================

    Words in parentheses share an axis, the last of them running fastest; parts of unequal width
    follow each other: ``blocks block (kv dim)`` is a latent and its rotary keys side by side.

    Examples:
        Engines and what they keep, a layer each unless `layers` is said:

        - ``tokens heads dim``, ``heads tokens dim``, ``heads dim tokens`` (values of llama.cpp)
        - ``1 heads tokens dim`` (Transformers, batch of one)
        - ``kv blocks block heads dim`` (FlashAttention in vLLM)
        - ``blocks kv block heads dim``, ``blocks kv heads block dim`` (FlashInfer, NHD and HND)
        - ``blocks block (kv dim)`` (MLA), ``tokens (kv heads dim)`` (fused rows)

        >>> EngineLayout("kv blocks block  heads dim")
        EngineLayout('kv blocks block heads dim')

    Raises:
        InvalidArgumentError: an unknown word or one said twice; no ``dim``; positions that are
            neither ``tokens`` nor ``blocks`` with ``block``.
    """

    axes: str
    core: _core.EngineLayout = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        core = _core.EngineLayout(as_text(self.axes, "axes"))
        object.__setattr__(self, "core", core)
        object.__setattr__(self, "axes", core.text)

    def __repr__(self) -> str:
        return f"EngineLayout({self.axes!r})"

    def __reduce__(self) -> tuple[type[EngineLayout], tuple[str]]:
        return EngineLayout, (self.axes,)


Layouts = EngineLayout | str | tuple[EngineLayout | str, ...] | list[EngineLayout | str]


def move_rows(
    move: Callable[..., None],
    sequence: _core.Sequence,
    layers: int | Iterable[int],
    positions: tuple[int, int],
    tensors: Any,
    layout: Layouts,
    block_table: Any,
    slot_mapping: Any,
) -> None:
    """Call ``move``, one of `_core.import_rows` and `_core.export_rows`, with checked arguments."""
    start, stop = as_count(positions[0], "start"), as_count(positions[1], "stop")
    arrays = list(tensors) if isinstance(tensors, tuple | list) else [tensors]
    layouts = list(layout) if isinstance(layout, tuple | list) else [layout] * len(arrays)
    if len(layouts) != len(arrays):
        raise InvalidArgumentError(
            f"layout: expected one, or {len(arrays)} for as many tensors, got {len(layouts)}"
        )
    move(
        sequence,
        _layers(layers),
        start,
        stop,
        arrays,
        [_layout(each) for each in layouts],
        _integers(block_table, "block_table", np.int32),
        _integers(slot_mapping, "slot_mapping", np.int64),
    )


def _layers(layers: int | Iterable[int]) -> list[int]:
    if hasattr(layers, "__index__"):
        return [as_layer(layers)]
    try:
        return [as_layer(layer) for layer in layers]
    except TypeError:
        raise InvalidArgumentError(
            f"layers: expected a layer or a list of layers, got {layers!r}"
        ) from None


def _layout(layout: EngineLayout | str) -> _core.EngineLayout:
    if isinstance(layout, str):
        layout = EngineLayout(layout)
    if not isinstance(layout, EngineLayout):
        raise InvalidArgumentError(f"layout: expected an EngineLayout or its axes, got {layout!r}")
    return layout.core


def _integers(values: Any, name: str, dtype: type[np.signedinteger[Any]]) -> NDArray[Any]:
    if values is None:
        return np.empty(0, dtype)
    array = as_integers(values, name)
    info = np.iinfo(dtype)
    if not np.can_cast(array.dtype, dtype):
        low, high = int(array.min()), int(array.max())
        if low < info.min or high > info.max:
            raise InvalidArgumentError(
                f"{name}: expected values that fit {np.dtype(dtype)}, got {low}..{high}"
            )
    return np.ascontiguousarray(array, dtype)
