"""From the layers of `transformers` to a cache: what a forward pass has left, row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import cache_utils

from kvcache.errors import UnsupportedError
from kvcache.integrations.transformers.restore import state_tensor

if TYPE_CHECKING:
    from kvcache.integrations.transformers.layers import FixedTensor, Layer
    from kvcache.sequence import Sequence

__all__ = ["Place", "columns_of", "first_columns", "keep_past", "reduce_past", "write"]


def columns_of(cache: Any, layers: tuple[Layer, ...]) -> int | None:
    """Positions that a cache has seen, padding included; None where no layer counts them."""
    counting = [layer.index for layer in layers if layer.rows]
    if not counting:
        return None
    return int(cache.layers[counting[0]].get_seq_length())


def first_columns(cache: Any, layer: Layer, columns: int) -> int:
    """The first column whose rows a layer still has."""
    held = cache.layers[layer.index]
    if not layer.window:
        return 0
    if isinstance(held, cache_utils.StaticLayer):
        return max(0, columns - int(held.max_cache_len))
    return columns - (int(held.keys.shape[2]) if held.is_initialized else 0)


def keep_past(cache: Any) -> None:
    """Let sliding layers keep the rows that leave their window, until `reduce_past`."""
    for layer in cache.layers:
        if isinstance(layer, cache_utils.DynamicSlidingWindowLayer):
            layer.activate_past_recording()


def reduce_past(cache: Any) -> None:
    """Drop what sliding layers kept beyond their window. They go on keeping what comes."""
    for layer in cache.layers:
        if not isinstance(layer, cache_utils.DynamicSlidingWindowLayer) or not layer.record_past:
            continue
        if layer.is_initialized:
            layer.keys = layer.keys[:, :, -layer.sliding_window + 1 :]
            layer.values = layer.values[:, :, -layer.sliding_window + 1 :]
        if isinstance(layer, cache_utils.LinearAttentionCacheLayerMixin):
            for i, state in layer.conv_states.items():
                if state is not None:
                    layer.conv_states[i] = _last(state, layer.conv_kernel_size[i])


@dataclass(frozen=True, slots=True)
class Place:
    """A row of a batch, and the columns of padding before its first position."""

    row: int
    pad: int


def write(
    sequence: Sequence,
    cache: Any,
    layers: tuple[Layer, ...],
    place: Place,
    stop: int,
    columns: int,
) -> None:
    """Store one row's positions from the sequence's length to ``stop``; then `advance`.

    Args:
        sequence: what is known of the row, its tokens included.
        cache: the self-attention cache, which has seen ``columns`` columns.
        layers: what it keeps.
        place: where the row lies in it.
        stop: one past the last position to store.
        columns: what the cache has seen. Fixed-size state is stored where ``stop`` is there too.
    """
    start, pad = sequence.length, place.pad
    for layer in layers:
        if layer.rows:
            first = first_columns(cache, layer, columns)
            tensors = [_held(cache.layers[layer.index], part.attribute) for part in layer.rows]
            sequence.import_rows(
                layer.index,
                start,
                stop,
                [_row(t, place.row, start + pad - first, stop + pad - first) for t in tensors],
                "heads tokens dim",
            )
    if stop + pad == columns:
        for layer in layers:
            for tensor in layer.fixed:
                held = cache.layers[layer.index]
                _write_fixed(sequence, held, layer.index, tensor, place.row)
    sequence.advance(stop - start)


def _held(layer: Any, attribute: str) -> torch.Tensor:
    """``[batch, heads, tokens, width]``."""
    held: torch.Tensor = getattr(layer, attribute)
    return held.unsqueeze(1) if attribute == "indexer_keys" else held


def _row(tensor: torch.Tensor, row: int, start: int, stop: int) -> torch.Tensor:
    return tensor[row, :, start:stop].detach().cpu()


def _write_fixed(sequence: Sequence, layer: Any, index: int, tensor: FixedTensor, row: int) -> None:
    held = getattr(layer, tensor.attribute)[tensor.index][row].detach()
    if tensor.attribute == "conv_states":
        held = _last(held, tensor.shape[-1])
    if tuple(held.shape) != tensor.shape or held.dtype is not tensor.dtype:
        raise UnsupportedError(
            f"layers[{index}].{tensor.attribute}[{tensor.index}]: {tuple(held.shape)} of"
            f" {held.dtype}, expected {tensor.shape} of {tensor.dtype}: state whose size changes"
            " is not supported"
        )
    view = sequence.state(index, tensor.component)
    state_tensor(view, tensor.dtype).copy_(held)


def _last(state: torch.Tensor, size: int) -> torch.Tensor:
    """The last ``size`` inputs of a convolution, zeros before the first one."""
    if state.shape[-1] < size:
        return torch.nn.functional.pad(state, (size - state.shape[-1], 0))
    return state[..., -size:]
