"""From a cache to the layers of `transformers`: rows, windows and fixed-size state, by batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import cache_utils

from kvcache.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from numpy.typing import NDArray

    from kvcache.integrations.transformers.layers import FixedTensor, Layer
    from kvcache.sequence import Sequence

__all__ = ["Restored", "fill", "state_tensor"]

_ONE_HEAD = "indexer_keys"  # [batch, tokens, width]


@dataclass(frozen=True, slots=True)
class Restored:
    """One row of a batch: ``columns`` from ``pad`` on hold the first positions of ``sequence``."""

    sequence: Sequence
    pad: int


def fill(
    cache: Any,
    layers: tuple[Layer, ...],
    batch: Many[Restored],
    columns: int,
    device_of: dict[int, torch.device],
) -> None:
    """Put the first ``columns`` columns of a batch into an empty cache of transformers.

    Padding becomes zeros, which an attention mask hides. Fixed-size state is that at the length of
    each sequence; rows that are all padding get zeros, the state of no tokens.
    """
    if len(cache.layers) != len(layers):
        raise InvalidArgumentError(
            f"cache: expected {len(layers)} layers, got {len(cache.layers)}; make it from the"
            " model's config"
        )
    for layer in layers:
        target, device = cache.layers[layer.index], device_of[layer.index]
        if layer.rows:
            _fill_rows(target, layer, batch, columns, device)
        for tensor in layer.fixed:
            _fill_fixed(target, layer.index, tensor, batch, device)


def _fill_rows(
    target: Any, layer: Layer, batch: Many[Restored], columns: int, device: torch.device
) -> None:
    first = max(0, columns - (layer.window - 1)) if layer.window else 0
    # A tensor for each layer: small enough for the allocator to reuse memory that was touched.
    make = torch.empty if len(batch) == 1 else torch.zeros
    tensors = [
        make((len(batch), part.heads, columns - first, part.width), dtype=part.dtype)
        for part in layer.rows
    ]
    for b, row in enumerate(batch):
        start = max(first, row.pad)
        if start < columns:
            row.sequence.export_rows(
                layer.index,
                start - row.pad,
                columns - row.pad,
                [tensor[b, :, start - first :] for tensor in tensors],
                "heads tokens dim",
            )
    held = {}
    for part, tensor in zip(layer.rows, tensors, strict=True):
        rows = tensor.to(device)
        held[part.attribute] = rows.squeeze(1) if part.attribute == _ONE_HEAD else rows
    _put_rows(target, layer, held, columns)


def _put_rows(target: Any, layer: Layer, held: dict[str, torch.Tensor], columns: int) -> None:
    keys = held.get("keys")
    if keys is None:
        raise UnsupportedError(f"layers[{layer.index}]: a cache without keys is not supported")
    values = held.get("values", keys[..., :0])
    if isinstance(target, cache_utils.StaticLayer):
        if columns > target.max_cache_len and not layer.window:
            raise InvalidArgumentError(
                f"cache: its layers hold {target.max_cache_len} positions, {columns} are known"
            )
        _put_static(target, keys, values, columns)
        if _ONE_HEAD in held:
            target.update_indexer(held[_ONE_HEAD])
        return
    target.lazy_initialization(keys, values)
    target.keys, target.values = keys, values
    if layer.window:
        target.cumulative_length = columns
    if _ONE_HEAD in held:
        target.lazy_initialization_indexer(held[_ONE_HEAD])
        target.indexer_keys = held[_ONE_HEAD]


def _put_static(target: Any, keys: torch.Tensor, values: torch.Tensor, columns: int) -> None:
    """Through `update`, which knows where a layer keeps what; a full window is put by hand."""
    if columns <= keys.shape[2]:
        target.update(keys, values)
        return
    target.lazy_initialization(keys, values)
    held = min(keys.shape[2], target.max_cache_len)
    target.keys[:, :, -held:] = keys[:, :, -held:]
    target.values[:, :, -held:] = values[:, :, -held:]
    target.cumulative_length_int = columns
    target.cumulative_length.fill_(target.max_cache_len)


def _fill_fixed(
    target: Any,
    layer: int,
    tensor: FixedTensor,
    batch: Many[Restored],
    device: torch.device,
) -> None:
    state = torch.zeros((len(batch), *tensor.shape), dtype=tensor.dtype)
    for b, row in enumerate(batch):
        if row.sequence.length:
            held = row.sequence.state(layer, tensor.component)
            state[b] = state_tensor(held, tensor.dtype)
    state = state.to(device)
    which, i = tensor.attribute, tensor.index
    target.lazy_initialization(**{which: state}, state_idx=i)
    getattr(target, which)[i].copy_(state)
    target.has_previous_state[i] = tensor.has_previous_state


def state_tensor(view: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    """A live view of fixed-size state as a tensor; bfloat16 has no dtype in numpy."""
    if dtype is torch.bfloat16:
        return torch.from_numpy(view.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(view)
