"""State that multimodal input adds to the first layer of a decoder."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcache.errors import UnsupportedError
from kvcache.policy import (
    FixedState,
    KeyValue,
    KeyValueWithFixedState,
    LayerCachePolicy,
    MutableStateResidency,
    StateTensorDimension,
    StateTensorDtype,
    StateTensorPolicy,
    StateTensorRole,
)

if TYPE_CHECKING:
    from kvcache.models.fields import Fields
    from kvcache.models.registry import Decoder

__all__ = ["with_media_state"]

# Families that place images on rotary axes of their own, so that positions and tokens differ.
_ROTARY = ("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "qwen3_omni", "qwen3_5", "glm4v")
_EMBEDDED = ("gemma3n", "gemma4")


def with_media_state(decoder: Decoder, f: Fields, model_type: str) -> Decoder:
    """The decoder with what its first layer keeps of images and audio, if it keeps anything.

    Rotary families keep the offset between tokens and positions; Gemma keeps the prepared
    embeddings of the prefix, which are there only if a request brings media.

    Raises:
        UnsupportedError: the first layer is of a kind that can hold no tensor beside.
    """
    device = MutableStateResidency.ALWAYS_DEVICE_MUTABLE
    if model_type.startswith(_ROTARY):
        tensor = StateTensorPolicy.new(
            StateTensorRole.position_delta(),
            [StateTensorDimension.scalar()],
            StateTensorDtype.INT32,
            device,
        )
    elif model_type.startswith(_EMBEDDED):
        tensor = StateTensorPolicy.new(
            StateTensorRole.prefix_embedding(),
            [
                StateTensorDimension.batch(),
                StateTensorDimension.prefix_tokens(),
                StateTensorDimension.fixed(decoder.hidden_size),
            ],
            StateTensorDtype.FLOATING,
            device,
        ).optional()
    else:
        f.note("model_type", "images and audio keep no state beyond their positions")
        return decoder
    return replace(decoder, layers=[_beside(f, decoder.layers[0], tensor), *decoder.layers[1:]])


def _beside(f: Fields, layer: LayerCachePolicy, tensor: StateTensorPolicy) -> LayerCachePolicy:
    match layer:
        case KeyValue() | KeyValueWithFixedState():
            return LayerCachePolicy.key_value_with_fixed_state(
                layer.attention,
                layer.num_key_value_heads,
                layer.head_dim,
                [*layer.fixed_state, tensor],
                value_head_dim=layer.value_head_dim,
                indexer_dim=layer.indexer_dim,
            )
        case FixedState():
            return LayerCachePolicy.fixed_only([*layer.tensors, tensor])
        case _:
            raise UnsupportedError(
                f"{f.source}: media=True: the first layer is {type(layer).__name__}, which holds "
                "no state of media"
            )
