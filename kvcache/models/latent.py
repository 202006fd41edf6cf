"""Multi-head latent attention (MLA): one latent and one rotary key a position, for all heads.

Source: DeepSeek-V2 (arXiv:2405.04434) section 2.1; the sparse indexer, one more key a position:
DeepSeek-V3.2 (arXiv:2512.02556) section 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.models.attention import (
    Heads,
    hidden_size,
    layer_count,
    layer_window,
    per_layer_fields,
    split,
)
from kvcache.models.dense import attention_decoder
from kvcache.models.drafts import draft_count
from kvcache.models.fields import HEADS, MAX_LAYERS, shown
from kvcache.models.registry import Decoder, register
from kvcache.policy import AttentionPolicy, LayerCachePolicy

if TYPE_CHECKING:
    from kvcache.models.fields import Fields

__all__ = ["GRANULARITY", "index_layers", "latent_decoder", "latent_layer", "note_replicas"]

GRANULARITY = 256
"""Positions by which engines grow a cache of latents."""


def latent_layer(
    f: Fields, attention: AttentionPolicy | None = None, *, indexed: bool = False
) -> LayerCachePolicy:
    """The policy of one MLA layer; every tensor-parallel rank keeps all of the latent."""
    attention = attention or AttentionPolicy.full()
    indexer_dim = f.count("index_head_dim") if indexed else None
    rotary = f.count("qk_rope_head_dim")
    if f.options.expand_latent:
        heads = split(f, HEADS[0], f.count(*HEADS))
        key_dim = f.count("qk_nope_head_dim") + rotary
        return Heads(heads, key_dim, f.count("v_head_dim")).layer(
            attention, indexer_dim=indexer_dim
        )
    return LayerCachePolicy.compressed_latent_rotary(
        attention, f.count("kv_lora_rank"), rotary, indexer_dim=indexer_dim
    )


def note_replicas(f: Fields) -> None:
    """Note that the latent does not shrink with tensor parallelism."""
    if f.tp > 1 and not f.options.expand_latent:
        f.note("kv_lora_rank", f"the latent is replicated on all {f.tp} tensor-parallel ranks")


@register(
    "deepseek_v3",
    "deepseek_mtp",
    "kimi_k2",
    "axk1",
    "glm4_moe_lite",
    "mistral4",
    "minicpm3",
    "youtu",
    "sarvam_mla",
)
def latent_decoder(f: Fields) -> Decoder:
    """Every layer is MLA over all positions."""
    layer = latent_layer(f)
    note_replicas(f)
    return Decoder(
        layers=[layer] * layer_count(f),
        hidden_size=hidden_size(f),
        drafts=[layer] * draft_count(f),
        granularity=GRANULARITY,
    )


@register("deepseek_v2")
def deepseek_v2_decoder(f: Fields) -> Decoder:
    """MLA, but for the small models that say they have none."""
    if f.flag("use_mla", default=not f.is_null("kv_lora_rank")):
        return latent_decoder(f)
    f.note("use_mla", "no latent attention: ordinary keys and values")
    return attention_decoder(f)


@register("longcat_flash")
def longcat_decoder(f: Fields) -> Decoder:
    """Two MLA sublayers in every layer; both keep their own latent."""
    layer = latent_layer(f)
    note_replicas(f)
    double = f.has("num_layers")
    layers = f.count("num_layers", most=MAX_LAYERS) * 2 if double else layer_count(f)
    f.note("num_layers", "each layer has two attention sublayers, listed one after the other")
    return Decoder(
        layers=[layer] * layers,
        hidden_size=hidden_size(f),
        drafts=[layer] * draft_count(f),
        granularity=GRANULARITY,
    )


# -- with an indexer -------------------------------------------------------------------------


def index_layers(f: Fields, layers: int) -> list[bool]:
    """Which layers keep index keys of their own; the others select with those of an earlier one."""
    name = "indexer_types"
    kinds = f.per_layer(name, layers)
    if kinds is None and f.has("index_topk_pattern"):
        name = "index_topk_pattern"
        pattern = f.get(name)
        kinds = list(pattern) if isinstance(pattern, str) else f.per_layer(name, layers)
        if kinds is not None and len(kinds) != layers:
            raise f.error(name, f"expected {layers} letters, one a layer, got {len(kinds)}")
    if kinds is None:
        every = f.number("index_topk_freq", 1) or 1
        offset = f.number("index_skip_topk_offset", 2)
        return [max(i - offset + 1, 0) % every == 0 for i in range(layers)]
    own = {"full": True, "F": True, "shared": False, "S": False}
    for i, kind in enumerate(kinds):
        if not isinstance(kind, str) or kind not in own:
            raise f.error(f"{name}[{i}]", f'expected "full" or "shared", got {shown(kind)}')
    return [own[kind] for kind in kinds]


@register("deepseek_v32", "glm_moe_dsa", "axk2", "mistral_large4_text")
def indexed_decoder(f: Fields) -> Decoder:
    """MLA with an indexer in every layer or in those that are listed."""
    layers = layer_count(f)
    return _indexed(f, index_layers(f, layers))


@register("hy_v4", "hy_v4_vl_text")
def hunyuan_v4_decoder(f: Fields) -> Decoder:
    """MLA with an indexer in the first layer and then in one of every four."""
    layers = layer_count(f)
    if f.has("indexer_types", "index_topk_pattern"):
        return _indexed(f, index_layers(f, layers))
    return _indexed(f, [i == 0 or (i - 1) % 4 == 0 for i in range(layers)])


def _indexed(f: Fields, own: list[bool]) -> Decoder:
    note_replicas(f)
    indexed = latent_layer(f, indexed=True)
    plain = latent_layer(f)
    policies = [indexed if each else plain for each in own]
    shared = _shared_layers(f, len(own))
    for i in shared:
        if own[i]:
            raise f.error(
                f"kv_source_layers[{i}]",
                "the layer reads the latent of another one but has index keys of its own, "
                "which is not supported",
            )
        policies[i] = LayerCachePolicy.no_state()
    return Decoder(
        layers=policies,
        hidden_size=hidden_size(f),
        drafts=[indexed] * draft_count(f),
        granularity=GRANULARITY,
        shared=dict.fromkeys(shared, AttentionPolicy.full()),
    )


def _shared_layers(f: Fields, layers: int) -> list[int]:
    sources = f.integers("kv_source_layers")
    if sources is None:
        return []
    f.per_layer("kv_source_layers", layers)
    for i, source in enumerate(sources):
        if source > i or sources[source] != source:
            raise f.error(f"kv_source_layers[{i}]", f"layer {source} keeps no cache that is there")
    return [i for i, source in enumerate(sources) if source != i]


@register("dots3_note_text")
def dots3_decoder(f: Fields) -> Decoder:
    """Indexed MLA, and between it MLA layers of another width over a window."""
    layers = layer_count(f)
    kinds = f.per_layer("layer_types", layers)
    if kinds is None:
        sliding = f.flag("use_sliding_window", default=True)
        kinds = [
            "indexed_attention" if not sliding or i < 2 or i % 4 == 1 else "sliding_attention"
            for i in range(layers)
        ]
    indexed = f.flag("use_dsa", default=True)
    own = per_layer_fields(f, layers)
    window = _dots3_window(f)
    policies = []
    for i, kind in enumerate(kinds):
        one = own[i]
        if kind == "sliding_attention":
            one = window if one is f else one
            policies.append(latent_layer(one, layer_window(f, "layer_types has sliding layers")))
        elif kind in ("indexed_attention", "full_attention"):
            full_only = kind == "full_attention" and f.has("per_layer_config")
            policies.append(latent_layer(one, indexed=indexed and not full_only))
        else:
            raise f.error(f"layer_types[{i}]", f"unknown layer type {shown(kind)}")
    note_replicas(f)
    return Decoder(layers=policies, hidden_size=hidden_size(f), granularity=GRANULARITY)


def _dots3_window(f: Fields) -> Fields:
    """The fields of a sliding layer, where no ``per_layer_config`` gives them."""
    for name, value in (("kv_lora_rank", 1024), ("qk_rope_head_dim", 64)):
        own = f"swa_{name}"
        if f.has(own):
            f = f.renamed(**{name: own})
        else:
            if not f.has("per_layer_config"):
                f.note(own, f"absent, taken as {value}, the default of this model_type")
            f = f.with_value(name, value)
    return f
