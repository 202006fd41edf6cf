"""Decoders that mix attention with linear attention: gated delta nets, KDA, lightning.

Source: Gated Delta Networks, arXiv:2412.06464; Kimi Linear, arXiv:2510.26692; MiniMax-01,
arXiv:2501.08313.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.models.attention import (
    attention_of,
    hidden_size,
    layer_count,
    read_heads,
    split,
)
from kvcache.models.compressed import pooling_stream
from kvcache.models.drafts import draft_count
from kvcache.models.fields import HEADS, shown
from kvcache.models.latent import GRANULARITY, index_layers, latent_layer, note_replicas
from kvcache.models.registry import Decoder, register
from kvcache.models.state import convolution, fixed_layer, recurrent, recurrent_dtype
from kvcache.policy import AttentionPolicy, LayerCachePolicy, StateTensorDtype

if TYPE_CHECKING:
    from kvcache.models.attention import Heads
    from kvcache.models.fields import Fields
    from kvcache.policy import StateTensorPolicy

__all__ = ["gated_delta_net", "kimi_delta"]

_FULL = AttentionPolicy.full()
_LINEAR = "linear_attention"


# -- gated delta net -------------------------------------------------------------------------


def gated_delta_net(f: Fields) -> list[StateTensorPolicy]:
    """A convolution over queries, keys and values; a matrix a value head."""
    key_heads = split(f, "linear_num_key_heads", f.count("linear_num_key_heads"))
    value_heads = split(f, "linear_num_value_heads", f.count("linear_num_value_heads"))
    key_dim, value_dim = f.count("linear_key_head_dim"), f.count("linear_value_head_dim")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    keys = (f.count("linear_num_key_heads"), key_dim)
    values = (f.count("linear_num_value_heads"), value_dim)
    f.channel_parts["state.convolution.0"] = (keys, keys, values)
    return [
        *convolution(0, f.count("linear_conv_kernel_dim"), channels),
        *recurrent(value_heads, key_dim, value_dim, dtype=recurrent_dtype(f, "mamba_ssm_dtype")),
    ]


def _listed_kinds(f: Fields, layers: int, interval: int) -> list[object]:
    """The listed kinds, else one attention layer at the end of every ``interval``."""
    kinds = f.per_layer("layer_types", layers)
    if kinds is not None:
        return kinds
    if f.has("full_attention_interval"):
        interval = f.count("full_attention_interval")
    return ["full_attention" if (i + 1) % interval == 0 else _LINEAR for i in range(layers)]


def _with_delta_net(f: Fields, kinds: list[object]) -> list[LayerCachePolicy]:
    linear = fixed_layer(gated_delta_net(f)) if _LINEAR in kinds else None
    heads: Heads | None = None
    policies = []
    for i, kind in enumerate(kinds):
        if kind == _LINEAR and linear is not None:
            policies.append(linear)
            continue
        heads = heads or read_heads(f)
        policies.append(heads.layer(attention_of(f, "layer_types", i, kind)))
    return policies


@register("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
def delta_net_decoder(f: Fields) -> Decoder:
    """Gated delta nets, with full attention in every fourth layer unless listed."""
    drafts = draft_count(f)
    return Decoder(
        layers=_with_delta_net(f, _listed_kinds(f, layer_count(f), 4)),
        hidden_size=hidden_size(f),
        drafts=[read_heads(f).layer(_FULL)] * drafts if drafts else [],
    )


@register("lara_mini")
def lara_decoder(f: Fields) -> Decoder:
    """Gated delta nets, sliding and full attention in a pattern of five."""
    layers = layer_count(f)
    pattern = (_LINEAR, "sliding_attention", _LINEAR, "full_attention", "sliding_attention")
    kinds = f.per_layer("layer_types", layers) or [pattern[i % 5] for i in range(layers)]
    return Decoder(layers=_with_delta_net(f, kinds), hidden_size=hidden_size(f))


@register("olmo_hybrid")
def olmo_hybrid_decoder(f: Fields) -> Decoder:
    """Gated delta nets whose sizes follow from the attention heads when left out."""
    layers = layer_count(f)
    kinds = _listed_kinds(f, layers, 4)
    if not f.has("layer_types") and "full_attention" not in kinds:
        kinds[-1] = "full_attention"
    heads, hidden = f.count(*HEADS), hidden_size(f)
    for name in ("linear_num_key_heads", "linear_num_value_heads"):
        f = f if f.has(name) else f.with_value(name, heads)
    if not f.has("linear_key_head_dim"):
        width = max(1, 3 * hidden // (4 * f.count("linear_num_key_heads")))
        f.note("linear_key_head_dim", f"absent, taken as 3/4 of hidden_size over heads = {width}")
        f = f.with_value("linear_key_head_dim", width)
    if not f.has("linear_value_head_dim"):
        f = f.with_value("linear_value_head_dim", 2 * f.count("linear_key_head_dim"))
    return Decoder(layers=_with_delta_net(f, kinds), hidden_size=hidden)


@register("qwen4_exp_text")
def qwen4_decoder(f: Fields) -> Decoder:
    """Gated delta nets and indexed attention; n-gram embeddings in some layers."""
    layers = layer_count(f)
    kinds = _listed_kinds(f, layers, 4)
    heads = read_heads(f)
    linear = gated_delta_net(f)
    indexer_dim = f.optional_count("indexer_head_dim")
    if indexer_dim is not None:
        f.note("indexer_head_dim", "one index key a position is counted; engines may pool them")
    embedded = _embedding_layers(f, layers)
    policies = []
    for i, kind in enumerate(kinds):
        extra = _ngram_state(f) if i in embedded else []
        if kind == _LINEAR:
            policies.append(fixed_layer([*linear, *extra]))
        elif kind in ("indexed_attention", "full_attention", "qwen_sparse_attention"):
            policies.append(heads.layer(_FULL, extra, indexer_dim=indexer_dim))
        else:
            raise f.error(f"layer_types[{i}]", f"unknown layer type {shown(kind)}")
    return Decoder(layers=policies, hidden_size=hidden_size(f))


def _embedding_layers(f: Fields, layers: int) -> set[int]:
    """Layers with n-gram embeddings; the list counts from 1."""
    indices = f.integers("ple_layer_ids", least=1) or []
    for i, index in enumerate(indices):
        if index > layers:
            raise f.error(f"ple_layer_ids[{i}]", f"expected at most {layers}, got {index}")
    return {index - 1 for index in indices}


def _ngram_state(f: Fields) -> list[StateTensorPolicy]:
    """A dilated convolution over the hidden state, and the last token ids."""
    grams = f.number("ngram_size", 3)
    kernel = f.number("ple_conv_kernel_size", 4)
    ids = convolution(2, grams, 1, dtype=StateTensorDtype.INT32)
    return [*convolution(1, (kernel - 1) * grams + 1, hidden_size(f)), *ids]


# -- Kimi delta attention --------------------------------------------------------------------


def kimi_delta(f: Fields, heads: int, width: int, kernel: int) -> list[StateTensorPolicy]:
    """Convolutions over queries, keys and values; a square matrix a head."""
    rank = split(f, "num_heads", heads)
    streams = [tensor for slot in range(3) for tensor in convolution(slot, kernel, rank * width)]
    return [*streams, *recurrent(rank, width, width)]


def _kimi_delta(f: Fields) -> list[StateTensorPolicy]:
    """The same, from ``linear_attn_config`` or from fields with the prefix ``linear_``."""
    settings = f.section("linear_attn_config")

    def size(inner: str, outer: str) -> int:
        if settings is not None and settings.has(inner):
            return settings.count(inner)
        return f.count(outer)

    return kimi_delta(
        f,
        size("num_heads", "linear_num_heads"),
        size("head_dim", "linear_head_dim"),
        size("short_conv_kernel_size", "linear_conv_kernel_dim"),
    )


@register("kimi_linear", "kimi_k3_text")
def kimi_decoder(f: Fields) -> Decoder:
    """Kimi delta attention, with MLA in the listed layers."""
    layers, drafts = layer_count(f), draft_count(f)
    kinds = f.per_layer("layer_types", layers) or _one_based_kinds(f, layers)
    if kinds is None:
        f.note("layer_types", "absent, taken as MLA in every fourth layer after the first")
        kinds = ["full_attention" if i and i % 4 == 0 else _LINEAR for i in range(layers)]
    return _delta_and_latent(f, kinds, _kimi_delta(f), drafts)


def _one_based_kinds(f: Fields, layers: int) -> list[object] | None:
    """Kinds from two lists of layer numbers that start at 1 and cover every layer once."""
    settings = f.section("linear_attn_config")
    if settings is None or not settings.has("full_attn_layers", "kda_layers"):
        return None
    kinds: list[object] = [None] * layers
    for name, kind in (("full_attn_layers", "full_attention"), ("kda_layers", _LINEAR)):
        for i, number in enumerate(settings.integers(name) or ()):
            if not 1 <= number <= layers:
                raise settings.error(
                    f"{name}[{i}]", f"expected a layer from 1 to {layers}, got {number}"
                )
            if kinds[number - 1] is not None:
                raise settings.error(f"{name}[{i}]", f"layer {number} is listed twice")
            kinds[number - 1] = kind
    if None in kinds:
        raise settings.error(
            "kda_layers", f"layer {kinds.index(None) + 1} of {layers} is in neither list"
        )
    return kinds


def _delta_and_latent(
    f: Fields, kinds: list[object], tensors: list[StateTensorPolicy], drafts: int
) -> Decoder:
    linear, latent = fixed_layer(tensors), latent_layer(f)
    note_replicas(f)
    policies = []
    for i, kind in enumerate(kinds):
        if kind not in (_LINEAR, "full_attention"):
            raise f.error(f"layer_types[{i}]", f"unknown layer type {shown(kind)}")
        policies.append(linear if kind == _LINEAR else latent)
    return Decoder(
        layers=policies,
        hidden_size=hidden_size(f),
        drafts=[latent] * drafts,
        granularity=GRANULARITY,
        channel_gates=True,
    )


@register("bailing_hybrid")
def bailing_hybrid_decoder(f: Fields) -> Decoder:
    """Kimi delta attention, with MLA at the end of every group of layers."""
    layers, drafts = layer_count(f), draft_count(f)
    group = f.count("layer_group_size") if not f.has("layer_types") else 1
    kinds = f.per_layer("layer_types", layers) or [
        "full_attention" if (i + 1) % group == 0 else _LINEAR for i in range(layers)
    ]
    width = f.count("linear_head_dim", "head_dim")
    heads = f.count("linear_num_heads") if f.has("linear_num_heads") else f.count(*HEADS)
    kernel = f.count("short_conv_kernel_size")
    return _delta_and_latent(f, kinds, kimi_delta(f, heads, width, kernel), drafts)


@register("glm5_next_text")
def glm5_next_decoder(f: Fields) -> Decoder:
    """Kimi delta attention, with latent keys without rotary part and a pooled index between."""
    layers, drafts = layer_count(f), draft_count(f)
    kinds = f.per_layer("layer_types", layers)
    if kinds is None:
        raise f.error("layer_types", "expected a list with one entry a layer")
    if f.number("qk_rope_head_dim"):
        raise f.error("qk_rope_head_dim", "expected 0: latent keys without a rotary part")
    linear = fixed_layer(_kimi_delta(f))
    pool, width, latent = f.count("index_kpool"), f.count("index_head_dim"), f.count("kv_lora_rank")
    index = pooling_stream(0, pool, width, overlapping=False)
    plain = LayerCachePolicy.key_only(_FULL, 1, latent)
    indexed = LayerCachePolicy.key_only_with_fixed_state(_FULL, 1, latent, index)
    note_replicas(f)
    own = index_layers(f, layers)
    policies = []
    for i, kind in enumerate(kinds):
        if kind == _LINEAR:
            policies.append(linear)
        elif kind in ("indexed_attention", "full_attention", "deepseek_sparse_attention"):
            policies.append(indexed if own[i] else plain)
        else:
            raise f.error(f"layer_types[{i}]", f"unknown layer type {shown(kind)}")
    return Decoder(
        layers=policies,
        hidden_size=hidden_size(f),
        drafts=[indexed] * drafts,
        channel_gates=True,
    )


# -- lightning attention ---------------------------------------------------------------------


def _lightning(f: Fields, kinds: list[bool], drafts: int = 0) -> Decoder:
    """Linear attention with one square matrix a head, and full attention where ``kinds`` says."""
    heads = read_heads(f)
    width = heads.key_dim
    linear = fixed_layer(recurrent(split(f, HEADS[0], f.count(*HEADS)), width, width))
    return Decoder(
        layers=[heads.layer(_FULL) if full else linear for full in kinds],
        hidden_size=hidden_size(f),
        drafts=[heads.layer(_FULL)] * drafts,
    )


@register("minimax", "minimax_text_01", "minimax_m1")
def minimax_decoder(f: Fields) -> Decoder:
    """Lightning attention, with full attention in the listed layers."""
    layers = layer_count(f)
    kinds = f.per_layer("layer_types", layers)
    name = "attn_type_list" if kinds is None else "layer_types"
    kinds = kinds or f.per_layer(name, layers)
    if kinds is None:
        f.note("layer_types", "absent, taken as full and linear attention in turn")
        return _lightning(f, [i % 2 == 0 for i in range(layers)])
    known = {1: True, 0: False, "full_attention": True, _LINEAR: False}
    for i, kind in enumerate(kinds):
        if isinstance(kind, bool) or not isinstance(kind, int | str) or kind not in known:
            raise f.error(f"{name}[{i}]", f"unknown layer type {shown(kind)}")
    return _lightning(f, [known[kind] for kind in kinds])


@register("bailing_moe_linear")
def bailing_linear_decoder(f: Fields) -> Decoder:
    """Lightning attention, with full attention at the end of every group and of the model."""
    layers, group = layer_count(f), f.count("layer_group_size")
    last = layers // group * group
    kinds = [(i + 1) % group == 0 or i >= last for i in range(layers)]
    return _lightning(f, kinds, draft_count(f))
