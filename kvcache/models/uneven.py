"""Decoders whose attention layers differ in their heads, or share keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.models.attention import (
    attention_of,
    head_width,
    hidden_size,
    layer_count,
    layer_window,
    layers_from,
    per_layer_fields,
    periodic,
    rank_heads,
    read_heads,
)
from kvcache.models.dense import draft_attention
from kvcache.models.drafts import draft_count
from kvcache.models.fields import HEADS, MAX_LAYERS, shown
from kvcache.models.registry import Decoder, register
from kvcache.policy import AttentionPolicy, LayerCachePolicy

if TYPE_CHECKING:
    from kvcache.models.attention import Heads
    from kvcache.models.fields import Fields

__all__: list[str] = []

_FULL = AttentionPolicy.full()


# -- sliding layers with heads of their own --------------------------------------------------


@register("mimo_v2_flash", "mimo_v2")
def mimo_v2_decoder(f: Fields) -> Decoder:
    """Full and sliding layers with different head counts; values narrower than keys."""
    layers = layer_count(f)
    pattern = f.per_layer("hybrid_layer_pattern", layers)
    kinds = f.per_layer("layer_types", layers)
    if pattern is not None:
        for i, entry in enumerate(pattern):
            if entry not in (0, 1) or isinstance(entry, bool | float):
                raise f.error(f"hybrid_layer_pattern[{i}]", f"expected 0 or 1, got {shown(entry)}")
        windows = [entry == 1 for entry in pattern]
    elif kinds is not None:
        windows = [
            attention_of(f, "layer_types", i, kind).window is not None
            for i, kind in enumerate(kinds)
        ]
    else:
        windows = [i != 0 and (i + 1) % 6 != 0 for i in range(layers)]
    full = read_heads(f, value_dim="v_head_dim")
    sliding = _mimo_sliding(f) if any(windows) else full
    window = layer_window(f, "some layers slide") if any(windows) else _FULL
    if f.has("attention_chunk_size"):
        f.note("attention_chunk_size", "not used by this model_type: its layers slide")
    drafts = draft_count(f)
    return Decoder(
        layers=[sliding.layer(window) if each else full.layer(_FULL) for each in windows],
        hidden_size=hidden_size(f),
        drafts=[sliding.layer(window)] * drafts,
    )


def _mimo_sliding(f: Fields) -> Heads:
    if not f.has("swa_num_key_value_heads"):
        twice = 2 * f.count("num_key_value_heads")
        f.note("swa_num_key_value_heads", f"absent, taken as twice num_key_value_heads = {twice}")
        f = f.with_value("num_key_value_heads", twice)
    renamed = f.renamed(
        num_attention_heads="swa_num_attention_heads",
        num_key_value_heads="swa_num_key_value_heads",
        head_dim="swa_head_dim",
        v_head_dim="swa_v_head_dim",
    )
    return read_heads(renamed, value_dim="v_head_dim")


@register("step3p5", "step3p7")
def step3_decoder(f: Fields) -> Decoder:
    """Full and sliding layers; ``attention_other_setting`` gives sliding ones other heads."""
    layers, drafts = layer_count(f), draft_count(f)
    attention = layers_from(f, layers, periodic(4, first_full=True), drafts)
    attention += draft_attention(f, layers, drafts)
    own = per_layer_fields(f, layers) + [f] * drafts
    other = f.section("attention_other_setting")
    policies = []
    for kind, one in zip(attention, own, strict=True):
        if kind.window is not None and other is not None and one is f:
            one = f.overlaid(other)
            if other.has("num_attention_groups"):
                one = one.renamed(num_key_value_heads="num_attention_groups")
        policies.append(read_heads(one).layer(kind))
    return Decoder(layers=policies[:layers], hidden_size=hidden_size(f), drafts=policies[layers:])


# -- one head count a layer ------------------------------------------------------------------


@register("nemotron-nas")
def nemotron_nas_decoder(f: Fields) -> Decoder:
    """Blocks found by architecture search: some have fewer heads, some no attention."""
    layers, heads = layer_count(f), f.count(*HEADS)
    blocks = f.per_layer("block_configs", layers)
    if blocks is None:
        raise f.error("block_configs", "expected a list with one entry a layer")
    width = head_width(f, heads, hidden_size(f))
    policies = []
    for i in range(layers):
        attention = f.entry("block_configs", i).section("attention")
        if attention is None:
            raise f.error(f"block_configs[{i}].attention", "expected an object")
        if attention.flag("no_op") or attention.flag("replace_with_linear"):
            policies.append(LayerCachePolicy.no_state())
            continue
        group = attention.count("n_heads_in_group")
        if heads % group:
            raise attention.wrong("n_heads_in_group", f"a divisor of {heads} attention heads")
        count = rank_heads(f, heads // group, attention.where("n_heads_in_group"))
        window = attention.optional_count("window_length")
        kind = AttentionPolicy.from_sliding_window(window)
        policies.append(LayerCachePolicy.key_value(kind, count, width))
    return Decoder(layers=policies, hidden_size=hidden_size(f))


@register("deci", "decilm")
def deci_decoder(f: Fields) -> Decoder:
    """A list of key-value head counts."""
    name = "num_key_value_heads_per_layer"
    layers, heads = layer_count(f), f.count(*HEADS)
    counts = f.integers(name, least=1)
    if counts is None or len(counts) != layers:
        raise f.error(name, f"expected {layers} entries, one a layer")
    width = head_width(f, heads, hidden_size(f))
    return Decoder(
        layers=[
            LayerCachePolicy.key_value(_FULL, rank_heads(f, count, f"{name}[{i}]"), width)
            for i, count in enumerate(counts)
        ],
        hidden_size=hidden_size(f),
    )


@register("openelm")
def openelm_decoder(f: Fields) -> Decoder:
    """A list of key-value head counts, and a layer count of its own name."""
    layers = f.count("num_transformer_layers", most=MAX_LAYERS)
    counts = f.integers("num_kv_heads", least=1)
    if counts is None or len(counts) != layers:
        raise f.error("num_kv_heads", f"expected {layers} entries, one a layer")
    width = f.count("head_dim")
    return Decoder(
        layers=[
            LayerCachePolicy.key_value(_FULL, rank_heads(f, count, f"num_kv_heads[{i}]"), width)
            for i, count in enumerate(counts)
        ],
        hidden_size=f.count("model_dim"),
    )


# -- shared or indexed -----------------------------------------------------------------------


@register("hunyuan", "hunyuan_v1_dense", "hunyuan_v1_moe")
def hunyuan_decoder(f: Fields) -> Decoder:
    """With ``use_cla``, groups of layers read the keys and values of their first one."""
    layers = layer_count(f)
    if f.flag("use_mla"):
        raise f.error("use_mla", "latent attention is not understood in this model_type")
    layer = read_heads(f).layer(_FULL)
    factor = f.count("cla_share_factor") if f.flag("use_cla") else 1
    shared = {i: _FULL for i in range(layers) if i % factor}
    return Decoder(
        layers=[LayerCachePolicy.no_state() if i in shared else layer for i in range(layers)],
        hidden_size=hidden_size(f),
        shared=shared,
    )


@register("minimax_m3", "minimax_m3_vl", "minimax_m3_vl_text")
def minimax_m3_decoder(f: Fields) -> Decoder:
    """Grouped attention, with one index key a position in the sparse layers."""
    layers, drafts = layer_count(f), draft_count(f)
    heads = read_heads(f)
    settings = f.section("sparse_attention_config")
    sparse = [False] * layers
    kinds = f.per_layer("layer_types", layers)
    if kinds is not None:
        for i, kind in enumerate(kinds):
            if kind not in ("minimax_m3_sparse", "full_attention"):
                raise f.error(f"layer_types[{i}]", f"unknown layer type {shown(kind)}")
        sparse = [kind == "minimax_m3_sparse" for kind in kinds]
    elif settings is not None and settings.flag("use_sparse_attention", default=True):
        settings.per_layer("sparse_attention_freq", layers, spare=drafts)
        stated = settings.integers("sparse_attention_freq")
        sparse = [bool(stated[i]) if stated else True for i in range(layers)]
    width = None
    if any(sparse):
        from_settings = settings is not None and settings.has("sparse_index_dim")
        width = (
            settings.count("sparse_index_dim")
            if from_settings and settings is not None
            else f.count("index_head_dim")
        )
    return Decoder(
        layers=[heads.layer(_FULL, indexer_dim=width if each else None) for each in sparse],
        hidden_size=hidden_size(f),
        drafts=[heads.layer(_FULL, indexer_dim=width)] * drafts,
    )
