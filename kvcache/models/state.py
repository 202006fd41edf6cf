"""Declarations of the state that a layer keeps beside attention, in the shapes families share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.policy import (
    LayerCachePolicy,
    MutableStateResidency,
    StateTensorDimension,
    StateTensorDtype,
    StateTensorPolicy,
    StateTensorRole,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache.models.fields import Fields

__all__ = ["convolution", "fixed_layer", "media_keys_values", "recurrent", "recurrent_dtype"]

_BATCH = StateTensorDimension.batch()


def convolution(
    slot: int,
    kernel: int,
    channels: int,
    *,
    dtype: StateTensorDtype = StateTensorDtype.FLOATING,
) -> list[StateTensorPolicy]:
    """History of a causal convolution, ``[batch, kernel - 1, channels]``; none for kernel 1."""
    if kernel <= 1:
        return []
    return [
        StateTensorPolicy.new(
            StateTensorRole.convolution(slot),
            [_BATCH, StateTensorDimension.fixed(kernel - 1), StateTensorDimension.fixed(channels)],
            dtype,
            MutableStateResidency.ALWAYS_DEVICE_MUTABLE,
        )
    ]


def recurrent(
    *sizes: int, dtype: StateTensorDtype = StateTensorDtype.FLOAT32
) -> list[StateTensorPolicy]:
    """State of a recurrence, ``[batch, *sizes]``."""
    return [
        StateTensorPolicy.new(
            StateTensorRole.recurrent(),
            [_BATCH, *(StateTensorDimension.fixed(size) for size in sizes)],
            dtype,
            MutableStateResidency.LAYER_SCOPED_OFFLOADABLE,
        )
    ]


def recurrent_dtype(f: Fields, *names: str) -> StateTensorDtype:
    """Element type of the recurrent state: float32 unless the configuration asks for less."""
    for name in names:
        asked = f.text(name)
        if asked in ("bfloat16", "float16"):
            f.note(name, f"the recurrent state is stored in the model's floating type ({asked})")
            return StateTensorDtype.FLOATING
        if asked not in (None, "float32", "auto"):
            raise f.wrong(name, '"float32", "bfloat16" or "float16"')
    return StateTensorDtype.FLOAT32


def media_keys_values(
    positions: int, heads: int, head_dim: int, *, optional: bool
) -> StateTensorPolicy:
    """Cross-attention keys and values, written once a request: ``[batch, positions, 2*h*d]``.

    Args:
        positions: encoder or image positions.
        heads: key-value heads on this rank.
        head_dim: elements of one head of a key, and of a value.
        optional: whether requests without media go without.
    """
    tensor = StateTensorPolicy.new(
        StateTensorRole.prefix_embedding(),
        [
            _BATCH,
            StateTensorDimension.fixed(positions),
            StateTensorDimension.fixed(2 * heads * head_dim),
        ],
        StateTensorDtype.FLOATING,
        MutableStateResidency.ALWAYS_DEVICE_MUTABLE,
    )
    return tensor.optional() if optional else tensor


def fixed_layer(tensors: Sequence[StateTensorPolicy]) -> LayerCachePolicy:
    """A layer of these tensors and no attention; without tensors it keeps nothing."""
    return LayerCachePolicy.fixed_only(tensors) if tensors else LayerCachePolicy.no_state()
