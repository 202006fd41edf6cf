"""Gemma 3n and 4: the last layers read the keys and values of an earlier layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.models.attention import (
    hidden_size,
    layer_count,
    layers_from,
    per_layer_fields,
    periodic,
    read_heads,
)
from kvcache.models.registry import Decoder, register
from kvcache.policy import LayerCachePolicy

if TYPE_CHECKING:
    from kvcache.models.fields import Fields
    from kvcache.policy import AttentionPolicy

__all__: list[str] = []


def _decoder(
    f: Fields, attention: list[AttentionPolicy], policies: list[LayerCachePolicy]
) -> Decoder:
    """The policies, with nothing for the layers that share."""
    layers = len(policies)
    shared_count = f.number("num_kv_shared_layers")
    if shared_count > layers:
        raise f.wrong("num_kv_shared_layers", f"at most {layers} layers")
    first = layers - shared_count
    if first == 0:
        f.note("num_kv_shared_layers", "every layer reads the cache of another model")
    last = {attention[i]: i for i in range(first)}
    for i in range(first, layers) if first else ():
        source = last.get(attention[i])
        if source is None:
            raise f.error(
                "num_kv_shared_layers",
                f"layer {i} shares, but no layer before {first} has its kind of attention",
            )
        if policies[source] != policies[i]:
            raise f.error(
                "num_kv_shared_layers", f"layers {source} and {i} share but differ in their heads"
            )
    return Decoder(
        layers=policies[:first] + [LayerCachePolicy.no_state()] * shared_count,
        hidden_size=hidden_size(f),
        shared=dict(enumerate(attention[first:], first)),
        masked_windows=any(kind.window is not None for kind in attention),
        granularity=256,
    )


@register("gemma3n_text")
def gemma3n_decoder(f: Fields) -> Decoder:
    """One full layer in five; one head geometry."""
    layers = layer_count(f)
    attention = layers_from(f, layers, periodic(5))
    heads = read_heads(f)
    return _decoder(f, attention, [heads.layer(kind) for kind in attention])


@register("gemma4_text", "gemma4_unified_text", "diffusion_gemma_text")
def gemma4_decoder(f: Fields) -> Decoder:
    """One full layer in six and at the end; full layers have heads of another width and count.

    With ``attention_k_eq_v`` full layers share one projection, but their keys are rotated and
    normed and their values are not, so both are kept.
    """
    if f.get("use_bidirectional_attention") == "all":
        raise f.error("use_bidirectional_attention", '"all" makes an encoder, which keeps no cache')
    layers = layer_count(f)
    attention = layers_from(f, layers, periodic(6, last_full=True))
    own = per_layer_fields(f, layers)
    stated = f.has("per_layer_config")
    wide = f if stated else _global_fields(f)
    policies = []
    for kind, one in zip(attention, own, strict=True):
        fields = wide if kind.window is None and one is f else one
        policies.append(read_heads(fields).layer(kind))
    return _decoder(f, attention, policies)


def _global_fields(f: Fields) -> Fields:
    """The fields of a full layer."""
    if f.has("global_head_dim"):
        f = f.with_value("head_dim", f.count("global_head_dim"))
    else:
        f.note("global_head_dim", "absent, taken as 512, the default of this model_type")
        f = f.with_value("head_dim", 512)
    if not f.has("num_global_key_value_heads"):
        return f
    if not f.flag("attention_k_eq_v", default=True):
        f.note("num_global_key_value_heads", "not used, since attention_k_eq_v is false")
        return f
    return f.with_value("num_key_value_heads", f.count("num_global_key_value_heads"))
