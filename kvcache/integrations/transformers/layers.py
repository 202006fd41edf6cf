"""What each class of cache layer of `transformers` keeps, and how it is filled again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import cache_utils

from kvcache.enums import DType, Section, StateKind, VerifyRule
from kvcache.errors import UnsupportedError
from kvcache.state import StateDecl
from kvcache.storage import Storage, parse_storage, stored_as

__all__ = ["FixedTensor", "Layer", "Rows", "declare", "layers_of", "self_attention"]

_DTYPES = {torch.float32: DType.F32, torch.float16: DType.F16, torch.bfloat16: DType.BF16}

# By exact class: a subclass that keeps more would be restored without it.
_FULL = {
    cache_utils.DynamicLayer,
    cache_utils.StaticLayer,
    cache_utils.DynamicIndexedLayer,
    cache_utils.StaticIndexedLayer,
    cache_utils.LinearAttentionAndFullAttentionLayer,
    cache_utils.LinearAttentionAndStaticFullAttentionLayer,
}
_SLIDING = {
    cache_utils.DynamicSlidingWindowLayer,
    cache_utils.StaticSlidingWindowLayer,
    cache_utils.LinearAttentionAndSlidingWindowAttentionLayer,
    cache_utils.LinearAttentionAndStaticSlidingWindowAttentionLayer,
}
_WITHOUT_ROWS = {cache_utils.LinearAttentionLayer, cache_utils.DummyLayer}
_STATIC = (cache_utils.StaticLayer,)
_LINEAR = cache_utils.LinearAttentionCacheLayerMixin


@dataclass(frozen=True, slots=True)
class Rows:
    """One component with a row a position: ``[heads, width]`` of ``dtype``."""

    component: str  #: name in the plan
    attribute: str  #: name in the cache layer
    heads: int
    width: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class FixedTensor:
    """One tensor that does not grow, without its batch axis."""

    component: str
    attribute: str  #: ``conv_states`` or ``recurrent_states``
    index: int  #: which of them
    shape: tuple[int, ...]
    dtype: torch.dtype
    has_previous_state: bool  #: what the layer says of itself once it holds this one


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer keeps."""

    index: int
    window: int  #: positions a query sees, itself included; 0 for all
    rows: tuple[Rows, ...]
    fixed: tuple[FixedTensor, ...]


def self_attention(cache: Any) -> Any:
    """The part of a cache that grows by decoding.

    Raises:
        UnsupportedError: no cache of transformers, or one that is quantised.
    """
    if isinstance(cache, cache_utils.EncoderDecoderCache):
        cache = cache.self_attention_cache
    if not isinstance(cache, cache_utils.Cache):
        raise UnsupportedError(
            f"past_key_values: expected a Cache of transformers, got {type(cache).__name__}; models"
            " with a cache class of their own are not supported"
        )
    return cache


def layers_of(cache: Any) -> tuple[Layer, ...]:
    """What a cache that has seen at least one token keeps, layer by layer.

    Raises:
        UnsupportedError: a class of layer, or an element type, that is not known here.
    """
    return tuple(_layer(index, layer) for index, layer in enumerate(cache.layers))


def _layer(index: int, layer: Any) -> Layer:
    kind = type(layer)
    if kind not in _FULL | _SLIDING | _WITHOUT_ROWS:
        raise UnsupportedError(
            f"layers[{index}]: cache layers of class {kind.__name__} are not supported"
        )
    if getattr(layer, "indexer_position_ids", None) is not None:
        raise UnsupportedError(f"layers[{index}]: an indexer that keeps positions is not supported")
    window = 0
    if kind in _SLIDING:
        window = layer.max_cache_len if isinstance(layer, _STATIC) else layer.sliding_window
    return Layer(index, window, tuple(_rows(index, layer)), tuple(_fixed(index, layer)))


def _rows(index: int, layer: Any) -> list[Rows]:
    found = []
    if type(layer) not in _WITHOUT_ROWS and layer.is_initialized:
        for attribute in ("keys", "values"):
            tensor = getattr(layer, attribute)
            if tensor is None:
                continue
            heads, width = tensor.shape[1], tensor.shape[3]
            dtype = _known(index, attribute, tensor)
            if width:
                found.append(Rows(f"attention.{attribute}", attribute, heads, width, dtype))
    if getattr(layer, "is_indexer_initialized", False):
        keys = layer.indexer_keys
        dtype = _known(index, "indexer_keys", keys)
        found.append(Rows("attention.indexer_keys", "indexer_keys", 1, keys.shape[2], dtype))
    return found


def _fixed(index: int, layer: Any) -> list[FixedTensor]:
    found: list[FixedTensor] = []
    if not isinstance(layer, _LINEAR):
        return found
    for attribute, name in (("conv_states", "convolution"), ("recurrent_states", "recurrent")):
        for i, tensor in getattr(layer, attribute).items():
            if tensor is None:
                continue
            shape = list(tensor.shape[1:])
            if attribute == "conv_states":  # a layer that records its past keeps more
                shape[-1] = layer.conv_kernel_size[i]
            plain = attribute == "recurrent_states" and i == 0
            found.append(
                FixedTensor(
                    component=f"state.{name}" if plain else f"state.{name}.{i}",
                    attribute=attribute,
                    index=i,
                    shape=tuple(shape),
                    dtype=_known(index, attribute, tensor),
                    has_previous_state=layer.has_previous_state[i],
                )
            )
    return found


def _known(index: int, name: str, tensor: torch.Tensor) -> torch.dtype:
    if tensor.dtype not in _DTYPES:
        raise UnsupportedError(
            f"layers[{index}].{name}: elements of {tensor.dtype} are not supported;"
            " expected float32, float16 or bfloat16"
        )
    return tensor.dtype


def declare(
    layers: tuple[Layer, ...],
    format: Storage | str | None,  # noqa: A002 - the field's word
) -> tuple[StateDecl, ...]:
    """The declarations of a plan.

    Args:
        layers: what the cache keeps.
        format: storage of keys and values; None for the model's own elements, which is exact. The
            keys of an indexer, which select positions, and fixed-size state are always exact.
    """
    storage = None if format is None else parse_storage(format)
    declared = []
    for layer in layers:
        for rows in layer.rows:
            dtype, scale = _DTYPES[rows.dtype], 0
            if storage is not None and rows.attribute != "indexer_keys":
                dtype, scale = stored_as(storage)
            declared.append(
                StateDecl(
                    id=f"l{layer.index}.{rows.component}",
                    layer=layer.index,
                    component=rows.component,
                    kind=StateKind.PAGED_KV,
                    section=Section.MAIN,
                    dtype=dtype,
                    shape=(rows.heads, rows.width),
                    row_scale_bytes=scale,
                    window=layer.window,
                )
            )
        for tensor in layer.fixed:
            recurrent = tensor.attribute == "recurrent_states"
            declared.append(
                StateDecl(
                    id=f"l{layer.index}.{tensor.component}",
                    layer=layer.index,
                    component=tensor.component,
                    kind=StateKind.RECURRENT,
                    section=Section.MAIN,
                    dtype=_DTYPES[tensor.dtype],
                    shape=tensor.shape,
                    verify=VerifyRule.H_STEPS if recurrent else VerifyRule.CONV_STEPS,
                )
            )
    return tuple(declared)
