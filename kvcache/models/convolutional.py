"""Decoders whose layers keep the history of short convolutions, with or without attention.

Source: LFM2, arXiv:2511.23404; compressed convolutional attention (Zaya), arXiv:2510.04476.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.models.attention import (
    attention_of,
    hidden_size,
    layer_count,
    layer_window,
    read_heads,
    split,
)
from kvcache.models.drafts import draft_count
from kvcache.models.fields import HEADS, HIDDEN, MAX_LAYERS, shown
from kvcache.models.registry import Decoder, register
from kvcache.models.state import convolution, fixed_layer
from kvcache.policy import AttentionPolicy

if TYPE_CHECKING:
    from kvcache.models.fields import Fields
    from kvcache.policy import LayerCachePolicy, StateTensorPolicy

__all__: list[str] = []

_FULL = AttentionPolicy.full()


# -- LFM2 ------------------------------------------------------------------------------------


def _short_convolution(f: Fields, kinds: list[object]) -> Decoder:
    """Gated short convolutions over the hidden state, and attention as listed."""
    channels = split(f, HIDDEN[0], hidden_size(f))
    conv = fixed_layer(convolution(0, f.count("conv_L_cache"), channels))
    heads = read_heads(f)
    return Decoder(
        layers=[
            conv if kind == "conv" else heads.layer(attention_of(f, "layer_types", i, kind))
            for i, kind in enumerate(kinds)
        ],
        hidden_size=hidden_size(f),
        granularity=256,
    )


@register("lfm2", "lfm2_moe")
def lfm2_decoder(f: Fields) -> Decoder:
    """Attention where ``layer_types`` or ``full_attn_idxs`` say so."""
    layers = layer_count(f)
    kinds = f.per_layer("layer_types", layers)
    if kinds is None:
        indices = f.integers("full_attn_idxs")
        if indices is None:
            raise f.error("layer_types", 'expected a list of "conv" and "full_attention"')
        kinds = ["full_attention" if i in set(indices) else "conv" for i in range(layers)]
    return _short_convolution(f, kinds)


@register("lfm3")
def lfm3_decoder(f: Fields) -> Decoder:
    """Full and sliding attention, each after an odd convolution."""
    layers = layer_count(f)
    kinds = f.per_layer("layer_types", layers) or [
        "full_attention" if i % 4 == 2 else "sliding_attention" if i % 4 == 0 and i else "conv"
        for i in range(layers)
    ]
    return _short_convolution(f, kinds)


# -- attention with convolutions in the same layer -------------------------------------------


@register("zaya")
def zaya_decoder(f: Fields) -> Decoder:
    """Two convolutions over queries and keys, and half a value that comes one token late."""
    layers, heads = layer_count(f), read_heads(f)
    queries = split(f, HEADS[0], f.count(*HEADS))
    kernel = f.count("cca_time0") + f.count("cca_time1") - 1
    keys = heads.count * heads.key_dim
    for slot in range(2):  # which channels are whose is the engine's choice
        f.channel_parts[f"state.convolution.{slot}"] = ()
    tensors = [
        *convolution(0, kernel, keys + queries * heads.key_dim),
        *convolution(1, 2, max(1, keys // 2)),
    ]
    kinds = f.per_layer("layer_types", layers) or ["hybrid"] * layers
    return Decoder(
        layers=[
            heads.layer(_hybrid_attention(f, i, kind), tensors) for i, kind in enumerate(kinds)
        ],
        hidden_size=hidden_size(f),
    )


def _hybrid_attention(f: Fields, index: int, kind: object) -> AttentionPolicy:
    if kind == "hybrid":
        return _FULL
    if kind == "hybrid_sliding":
        return layer_window(f, "layer_types has sliding layers")
    raise f.error(f"layer_types[{index}]", f"unknown layer type {shown(kind)}")


@register("inkling_text", "inkling2_text")
def inkling_decoder(f: Fields) -> Decoder:
    """Convolutions over keys, values and both residual branches of every layer."""
    drafts = draft_count(f)
    policies = inkling_layers(f, _inkling_kinds(f, layer_count(f)))
    local = f.integers("mtp_local_layer_ids")
    kinds: list[object] = [
        "hybrid_sliding" if i in (local or ()) else "hybrid" for i in range(drafts)
    ]
    return Decoder(layers=policies, hidden_size=hidden_size(f), drafts=inkling_layers(f, kinds))


def _inkling_kinds(f: Fields, layers: int) -> list[object]:
    kinds = f.per_layer("layer_types", layers)
    if kinds is not None:
        return kinds
    local = f.integers("local_layer_ids")
    sliding = {i for i in range(layers) if (i + 1) % 6} if local is None else set(local)
    return ["hybrid_sliding" if i in sliding else "hybrid" for i in range(layers)]


def inkling_layers(f: Fields, kinds: list[object]) -> list[LayerCachePolicy]:
    """Policies of the listed kinds; sliding layers have head counts of their own."""
    sliding = f.renamed(
        num_attention_heads="swa_num_attention_heads",
        num_key_value_heads="swa_num_key_value_heads",
        head_dim="swa_head_dim",
    )
    policies = []
    for i, kind in enumerate(kinds):
        heads = read_heads(sliding if kind == "hybrid_sliding" else f)
        tensors = _inkling_convolutions(f, heads.count * heads.key_dim)
        policies.append(heads.layer(_hybrid_attention(f, i, kind), tensors))
    return policies


def _inkling_convolutions(f: Fields, width: int) -> list[StateTensorPolicy]:
    kernel = f.count("conv_kernel_size", "sconv_kernel_size")
    widths = (width, width, hidden_size(f), hidden_size(f))
    return [tensor for slot in range(4) for tensor in convolution(slot, kernel, widths[slot])]


@register("yuan")
def yuan_decoder(f: Fields) -> Decoder:
    """Full attention over inputs that a local filter mixes with the two tokens before."""
    f.note("model_type", "the localized filter of each layer keeps its last 2 inputs")
    layer = read_heads(f).layer(_FULL, convolution(0, 3, hidden_size(f)))
    return Decoder(layers=[layer] * layer_count(f), hidden_size=hidden_size(f))


# -- layers that run more than once ----------------------------------------------------------


def _looped(
    f: Fields, layers: list[LayerCachePolicy], start: int, stop: int, passes: int, name: str
) -> list[LayerCachePolicy]:
    """The layers, and after them a copy of those of the loop for each further pass."""
    if not 0 <= start <= stop <= len(layers):
        raise f.error(name, f"layers {start} to {stop} of {len(layers)} cannot be a loop")
    if (stop - start) * passes > MAX_LAYERS:
        raise f.error(name, f"expected at most {MAX_LAYERS} layers in all passes")
    extra = layers[start:stop] * (passes - 1)
    if extra:
        f.note(name, f"each of {passes} passes keeps its own state: {len(extra)} layers more")
    return layers + extra


@register("inkling2_loop_text")
def inkling_loop_decoder(f: Fields) -> Decoder:
    """Inkling, with a range of layers that runs several times."""
    layers = inkling_layers(f, _inkling_kinds(f, layer_count(f)))
    start, stop = f.number("loop_layer_index_start"), f.number("loop_layer_index_end")
    passes = f.count("loop_num_passes")
    return Decoder(
        layers=_looped(f, layers, start, stop, passes, "loop_num_passes"),
        hidden_size=hidden_size(f),
    )


@register("dory")
def dory_decoder(f: Fields) -> Decoder:
    """Attention and feed-forward blocks listed apart, and a middle part that runs twice."""
    count = layer_count(f)
    kinds = f.per_layer("layer_types", count) or [
        "full_attention" if (i + 1) % 4 == 0 else "sliding_attention" for i in range(count)
    ]
    heads = read_heads(f)
    empty = fixed_layer([])
    layers = [
        empty if kind == "mlp" else heads.layer(attention_of(f, "layer_types", i, kind))
        for i, kind in enumerate(kinds)
    ]
    first = f.number("n_input_layers", 8)
    middle = f.number("n_recurrent_layers", max(0, count - first - f.number("n_output_layers", 8)))
    passes = f.number("n_recurrent_loops", 2) or 1
    if f.text("recurrent_kv_cache_mode") == "last_loop":
        f.note("recurrent_kv_cache_mode", "only the last pass keeps keys and values")
        passes = 1
    return Decoder(
        layers=_looped(f, layers, first, first + middle, passes, "n_recurrent_loops"),
        hidden_size=hidden_size(f),
    )


@register("hrm_text")
def hrm_decoder(f: Fields) -> Decoder:
    """Two stacks that run in cycles; every run of a layer keeps its own keys and values."""
    count = layer_count(f)
    if not f.has("num_layers_per_stack"):
        high, low = f.number("H_cycles", 2), f.number("L_cycles", 3)
        count *= high * (low + 1)
        f.note("num_hidden_layers", f"{count} runs of a layer: layers * H_cycles * (L_cycles + 1)")
    if not 0 < count <= MAX_LAYERS:
        raise f.error("H_cycles", f"expected 1 to {MAX_LAYERS} runs of a layer, got {count}")
    return Decoder(layers=[read_heads(f).layer(_FULL)] * count, hidden_size=hidden_size(f))
