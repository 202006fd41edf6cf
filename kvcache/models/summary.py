"""The summary label of a decoder, from its layers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvcache.policy import CompressedLatentRotary, KeyOnly, KeyOnlyWithFixedState
from kvcache.policy.tensors import Convolution, Pooling, Recurrent
from kvcache.strategy import (
    CacheStateStrategy,
    CompressedMla,
    FullKv,
    HybridRecurrent,
    MixedKv,
    SharedFullKv,
    SlidingKey,
    SlidingKv,
    SlidingWindowLayerCount,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache.models.registry import Decoder
    from kvcache.policy import AttentionPolicy, LayerCachePolicy

__all__ = ["summarize"]


def summarize(decoder: Decoder) -> CacheStateStrategy:
    """Which kind of decoder state this is; bytes come from the layers, never from here."""
    layers = decoder.layers
    attention = [layer.attention for layer in layers if layer.attention is not None]
    if decoder.shared or decoder.masked_windows:
        masks = [*attention, *decoder.shared.values()]
        return SharedFullKv(
            cached_layers=len(attention),
            shared_layers=len(decoder.shared),
            full_attention_layers=_full(masks),
            sliding_attention=_sliding(masks),
        )
    recurrent = sum(_has(layer, Recurrent, Convolution) for layer in layers)
    if recurrent:
        return HybridRecurrent(
            full_attention_layers=_full(attention),
            sliding_attention=_sliding(attention),
            recurrent_layers=recurrent,
        )
    return _latent(layers) or _by_window(layers, attention)


def _latent(layers: Sequence[LayerCachePolicy]) -> CacheStateStrategy | None:
    """The label of a model of latents of one width over all positions, with or without index."""
    widths = {
        (layer.attention, layer.latent_dim, layer.rotary_dim)
        for layer in layers
        if isinstance(layer, CompressedLatentRotary)
    }
    if len(widths) != 1 or not all(isinstance(each, CompressedLatentRotary) for each in layers):
        return None
    ((_, latent, rotary),) = widths
    return CompressedMla(latent_width=latent, rotary_width=rotary)


def _by_window(
    layers: Sequence[LayerCachePolicy], attention: Sequence[AttentionPolicy]
) -> CacheStateStrategy:
    sliding = _sliding(attention)
    full = _full(attention)
    if not sliding:
        return FullKv()
    if full == 0 and len(sliding) == 1:
        window = sliding[0].window
        if all(isinstance(layer, KeyOnly | KeyOnlyWithFixedState) for layer in layers):
            pooling = sum(_has(layer, Pooling) for layer in layers)
            return SlidingKey(window=window, layers=len(layers), pooling_layers=pooling)
        return SlidingKv(window=window)
    return MixedKv(full_layers=full, sliding=sliding)


def _has(layer: LayerCachePolicy, *roles: type) -> bool:
    return any(isinstance(tensor.role, roles) for tensor in layer.fixed_state)


def _full(attention: Sequence[AttentionPolicy]) -> int:
    return sum(policy.window is None for policy in attention)


def _sliding(attention: Sequence[AttentionPolicy]) -> tuple[SlidingWindowLayerCount, ...]:
    windows = Counter(policy.window for policy in attention if policy.window is not None)
    return tuple(
        SlidingWindowLayerCount(window=window, layers=windows[window]) for window in sorted(windows)
    )
