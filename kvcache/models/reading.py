"""`from_config`: read a configuration, find its family, cut it to one rank and stage."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcache.capability import EstimationCompleteness, ModelCapabilities
from kvcache.errors import CachePolicyError, InvalidArgumentError, LayerScheduleError
from kvcache.models import (
    compressed,
    convolutional,
    dense,
    encoder_decoder,
    latent,
    legacy,
    linear,
    mamba,
    recurrent,
    shared_kv,
    uneven,
)
from kvcache.models.context import context_lengths, stated_context
from kvcache.models.costs import model_costs
from kvcache.models.defaults import class_defaults
from kvcache.models.dtypes import cache_dtype, model_dtype
from kvcache.models.fields import Fields, Options
from kvcache.models.media import with_media_state
from kvcache.models.model import Model
from kvcache.models.nested import find_decoder, has_media, modalities
from kvcache.models.source import open_config
from kvcache.models.summary import summarize
from kvcache.policy import LayerSchedule
from kvcache.strategy import Multimodal

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from typing import Any

    from kvcache.models.registry import Decoder
    from kvcache.strategy import CacheStateStrategy

__all__ = ["FAMILY_MODULES", "from_config"]

FAMILY_MODULES = (
    compressed,
    convolutional,
    dense,
    encoder_decoder,
    latent,
    legacy,
    linear,
    mamba,
    recurrent,
    shared_kv,
    uneven,
)
"""Importing a module of families registers them."""


def from_config(
    config: str | os.PathLike[str] | Mapping[str, Any] | object,
    *,
    tp: int = 1,
    layers: tuple[int, int] | None = None,
    model_type: str | None = None,
    encoder_positions: int | None = None,
    expand_latent: bool = False,
    media: bool = False,
) -> Model:
    """Read what a model keeps between tokens from its configuration.

    Args:
        config: path of a ``config.json`` or of its folder, the object in it, or a configuration
            of ``transformers`` (anything with ``to_dict``).
        tp: tensor-parallel ranks; head counts of the result are those of one rank.
        layers: ``(start, stop)`` of the layers of one pipeline stage; draft layers belong to the
            last stage.
        model_type: read the decoder as this family, whatever the configuration says.
        encoder_positions: encoder positions that cross-attention keeps, if not the most that the
            configuration allows.
        expand_latent: count latent attention (MLA) as the keys and values of every head, which
            engines without kernels for the latent keep.
        media: count what the first layer keeps of images and audio, beside their positions.

    Raises:
        InvalidArgumentError: not a configuration, or one of its fields is missing or wrong; the
            message names the file and the field.
        UnsupportedError: the model type is not known.
        NotFoundError: no such file. KVCacheIOError: the file cannot be read.
    """
    options = Options(
        tp=_positive("tp", tp),
        encoder_positions=None
        if encoder_positions is None
        else _positive("encoder_positions", encoder_positions),
        expand_latent=bool(expand_latent),
    )
    whole = open_config(config, options)
    f, kind, family = find_decoder(whole, model_type)
    f = f.with_defaults(class_defaults(kind))
    try:
        decoder = family(f)
        if media and has_media(whole):
            decoder = with_media_state(decoder, f, kind)
        start, stop = _range(layers, len(decoder.layers))
        stage = _stage(decoder, start, stop)
        if start and stage.shared:
            f.note("layers", "layers of this stage may read keys and values of a layer before it")
        return _model(whole, f, kind, stage, (start, len(decoder.layers)))
    except (CachePolicyError, LayerScheduleError) as error:
        raise type(error)(f"{whole.source}: {error}") from error


def _model(whole: Fields, f: Fields, kind: str, stage: Decoder, place: tuple[int, int]) -> Model:
    """The model of one stage, which starts at the first of ``place`` of so many layers."""
    strategy = _strategy(whole, stage)
    dtype, kept_dtype = model_dtype(f, whole), cache_dtype(f, whole)
    context = stated_context(f)
    capabilities = _capabilities(whole, f, kind, stage, strategy)
    notes = tuple(f.notes)  # what the costs take for granted is no matter of state
    return Model(
        model_type=kind,
        schedule=LayerSchedule.new(len(stage.layers), stage.layers),
        strategy=strategy,
        notes=notes,
        dtype=dtype,
        cache_dtype=kept_dtype,
        hidden_size=stage.hidden_size,
        max_context=context,
        draft_schedule=LayerSchedule.new(len(stage.drafts), stage.drafts) if stage.drafts else None,
        layer_start=place[0],
        layer_count=place[1],
        tp=f.tp,
        granularity=stage.granularity,
        draft_offset=stage.draft_offset,
        capabilities=capabilities,
        channel_parts=tuple(f.channel_parts.items()),
        channel_gates=stage.channel_gates,
        costs=model_costs(f, kind, stage, place[0]),
    )


def _capabilities(
    whole: Fields, f: Fields, kind: str, decoder: Decoder, strategy: CacheStateStrategy
) -> ModelCapabilities:
    native, effective = context_lengths(f)
    bounded = decoder.upper_bound or has_media(whole)
    return ModelCapabilities(
        effective_model_type=kind,
        native_max_context=native,
        effective_max_context=effective,
        state_strategy=strategy,
        modalities=modalities(whole),
        estimation=EstimationCompleteness.CONSERVATIVE
        if bounded
        else EstimationCompleteness.COMPLETE,
    )


def _positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidArgumentError(f"{name}: expected a positive integer, got {value!r}")
    return value


def _range(layers: tuple[int, int] | None, count: int) -> tuple[int, int]:
    if layers is None:
        return 0, count
    try:
        start, stop = layers
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"layers: expected (start, stop), got {layers!r}") from None
    for value in (start, stop):
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgumentError(f"layers: expected two integers, got {layers!r}")
    if not 0 <= start < stop <= count:
        raise InvalidArgumentError(
            f"layers: expected 0 <= start < stop <= {count}, got {start} and {stop}"
        )
    return start, stop


def _stage(decoder: Decoder, start: int, stop: int) -> Decoder:
    return replace(
        decoder,
        layers=decoder.layers[start:stop],
        drafts=decoder.drafts if stop == len(decoder.layers) else [],
        shared={i - start: kind for i, kind in decoder.shared.items() if start <= i < stop},
    )


def _strategy(whole: Fields, decoder: Decoder) -> CacheStateStrategy:
    strategy = summarize(decoder)
    if not has_media(whole):
        return strategy
    return Multimodal(decoder=strategy, media_consumes_decoder_positions=decoder.media_positions)
