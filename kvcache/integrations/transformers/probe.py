"""What a model keeps, seen in the cache that it fills with one token."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import cache_utils

from kvcache import models
from kvcache.errors import InvalidArgumentError, KVCacheError, UnsupportedError
from kvcache.integrations.transformers.forward import Pieces, evaluating, try_pieces
from kvcache.integrations.transformers.layers import Layer, layers_of, self_attention
from kvcache.integrations.transformers.record import columns_of

if TYPE_CHECKING:
    from kvcache.hints import CostModel

__all__ = ["Probe", "probe"]

_REGROWING_ROPE = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True)
class Probe:
    """What a model keeps, and how its cache is made anew."""

    config: Any  #: of the decoder
    layers: tuple[Layer, ...]
    device_of: dict[int, torch.device]  #: of each layer
    is_encoder_decoder: bool
    pieces: Pieces  #: how the model goes on from its state
    costs: CostModel | None  #: of a position; None where the configuration does not say
    most_positions: int | None  #: beyond which rows depend on the length of the prompt; None: none

    def empty_cache(self) -> Any:
        """A cache without positions, of the classes that the model uses."""
        return transformers.DynamicCache(config=self.config)


def probe(model: Any) -> Probe:
    """Run one token and look at the cache; and a few, to see how the model goes on from there.

    Args:
        model: a model of transformers that generates, or the configuration of one, which is built
            without weights.

    Raises:
        InvalidArgumentError: neither of them.
        UnsupportedError: its cache, or a layer of it, is of a class that is not known here; its
            state depends on how a prompt was divided; or a model without weights cannot run, or
            has recurrent state, so that how it goes on cannot be tried.
    """
    is_config = isinstance(model, transformers.PretrainedConfig)
    if is_config:
        model = _without_weights(model)
    if not isinstance(model, transformers.PreTrainedModel):
        raise InvalidArgumentError(
            f"model_or_config: expected a model or a config of transformers, got {model!r:.200}"
        )
    config = model.config.get_text_config(decoder=True)
    with evaluating(model):
        filled = self_attention(_one_token(model))
    layers = layers_of(filled)
    if not any(layer.rows or layer.fixed for layer in layers):
        raise UnsupportedError(f"{type(model).__name__}: its cache keeps nothing")
    made = transformers.DynamicCache(config=config)
    kinds, expected = ([type(each) for each in cache.layers] for cache in (filled, made))
    if kinds != expected:
        raise UnsupportedError(
            f"{type(model).__name__}: its cache has layers {_names(kinds)}, one made from its"
            f" config {_names(expected)}"
        )
    if columns_of(filled, layers) not in (1, None):
        raise UnsupportedError(f"{type(model).__name__}: it keeps more positions than it is given")

    def empty_cache() -> Any:
        return transformers.DynamicCache(config=config)

    pieces, is_empty = Pieces.ANY, is_config or model.device.type == "meta"
    if is_empty and any(layer.fixed for layer in layers):
        raise UnsupportedError(
            f"{type(model).__name__}: how it goes on from recurrent state has to be tried; pass a"
            " model with its weights"
        )
    if not is_empty and not model.config.is_encoder_decoder:
        pieces = try_pieces(model, layers, empty_cache)
    return Probe(
        config=config,
        pieces=pieces,
        layers=layers,
        device_of={layer.index: _device(filled.layers[layer.index]) for layer in layers},
        is_encoder_decoder=bool(model.config.is_encoder_decoder),
        costs=_costs(model.config),
        most_positions=_most_positions(config),
    )


def _without_weights(config: Any) -> Any:
    auto = transformers.AutoModelForCausalLM
    if config.is_encoder_decoder:
        auto = transformers.AutoModelForSeq2SeqLM
    try:
        with torch.device("meta"):
            model = auto.from_config(copy.deepcopy(config))
        if model._can_set_experts_implementation():
            model.set_experts_implementation("batched_mm")  # others need real numbers
    except Exception as error:
        raise UnsupportedError(
            f"model_or_config: no model could be built from a {type(config).__name__}: {error};"
            " pass the model itself"
        ) from error
    return model


def _one_token(model: Any) -> Any:
    token = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    inputs = {"input_ids": token, "use_cache": True}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = token
    try:
        return model(**inputs, return_dict=True).cache
    except Exception as error:
        raise UnsupportedError(f"{type(model).__name__}: one token did not run: {error}") from error


def _device(layer: cache_utils.CacheLayerMixin) -> torch.device:
    device = getattr(layer, "device", None)
    return device if device is not None and device.type != "meta" else torch.device("cpu")


def _names(kinds: list[type]) -> str:
    return "[" + ", ".join(kind.__name__ for kind in kinds) + "]"


def _costs(config: Any) -> CostModel | None:
    try:
        return models.from_config(config.to_dict()).costs
    except KVCacheError:  # a family that nobody has priced is cached all the same
        return None


def _most_positions(config: Any) -> int | None:
    """Where rotary frequencies start to depend on the length of the sequence."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [each for each in rope.values() if isinstance(each, dict)] or [rope]
    if not any(each.get("rope_type") in _REGROWING_ROPE for each in nested):
        return None
    original = [each.get("original_max_position_embeddings") for each in nested]
    known = [each for each in original if each]
    return int(min(known)) if known else int(config.max_position_embeddings)
