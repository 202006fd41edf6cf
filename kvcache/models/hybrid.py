"""Decoders that mix attention layers with gated delta net or Mamba2 layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.models.attention import (
    attention_of,
    hidden_size,
    layer_count,
    read_heads,
    split,
)
from kvcache.models.drafts import draft_count
from kvcache.models.fields import MAX_LAYERS, shown
from kvcache.models.registry import Decoder, register
from kvcache.models.state import convolution, fixed_layer, recurrent, recurrent_dtype
from kvcache.policy import AttentionPolicy, LayerCachePolicy

if TYPE_CHECKING:
    from kvcache.models.fields import Fields
    from kvcache.policy import StateTensorPolicy

__all__ = ["gated_delta_net", "mamba2"]


def gated_delta_net(f: Fields) -> list[StateTensorPolicy]:
    """Gated delta net: convolution over queries, keys and values; a matrix a value head.

    Source: Gated Delta Networks, arXiv:2412.06464.
    """
    key_heads = split(f, "linear_num_key_heads", f.count("linear_num_key_heads"))
    value_heads = split(f, "linear_num_value_heads", f.count("linear_num_value_heads"))
    key_dim = f.count("linear_key_head_dim")
    value_dim = f.count("linear_value_head_dim")
    return [
        *convolution(
            0,
            f.count("linear_conv_kernel_dim"),
            2 * key_heads * key_dim + value_heads * value_dim,
        ),
        *recurrent(
            value_heads,
            key_dim,
            value_dim,
            dtype=recurrent_dtype(f, "mamba_ssm_dtype"),
        ),
    ]


@register("qwen3_next", "qwen3_5_text")
def delta_net_decoder(f: Fields) -> Decoder:
    """Linear attention layers, with full attention in every fourth unless listed."""
    layers = layer_count(f)
    heads = read_heads(f)
    linear = fixed_layer(gated_delta_net(f))
    kinds = f.per_layer("layer_types", layers)
    if kinds is None:
        interval = f.count("full_attention_interval") if f.has("full_attention_interval") else 4
        kinds = [
            "full_attention" if (i + 1) % interval == 0 else "linear_attention"
            for i in range(layers)
        ]
    return Decoder(
        layers=[
            linear
            if kind == "linear_attention"
            else heads.layer(attention_of(f, "layer_types", i, kind))
            for i, kind in enumerate(kinds)
        ],
        hidden_size=hidden_size(f),
        drafts=[heads.layer(AttentionPolicy.full())] * draft_count(f),
    )


def mamba2(
    f: Fields, *, heads: str, head_dim: str, groups: str, state: str, kernel: str
) -> list[StateTensorPolicy]:
    """Mamba2: convolution over inputs, B and C; a matrix a head. Arguments name the fields.

    Groups that tensor parallelism cannot divide are replicated when there is only one.
    Source: Mamba-2, arXiv:2405.21060.
    """
    rank_heads = split(f, heads, f.count(heads))
    all_groups = f.count(groups)
    rank_groups = 1 if all_groups == 1 else split(f, groups, all_groups)
    width, states = f.count(head_dim), f.count(state)
    return [
        *convolution(0, f.count(kernel), rank_heads * width + 2 * rank_groups * states),
        *recurrent(
            rank_heads,
            width,
            states,
            dtype=recurrent_dtype(f, "mamba_ssm_cache_dtype", "mamba_ssm_dtype"),
        ),
    ]


@register("mamba2")
def mamba2_decoder(f: Fields) -> Decoder:
    """Mamba2 in every layer."""
    tensors = mamba2(
        f,
        heads="num_heads",
        head_dim="head_dim",
        groups="n_groups",
        state="state_size",
        kernel="conv_kernel",
    )
    return Decoder(layers=[fixed_layer(tensors)] * layer_count(f), hidden_size=hidden_size(f))


_NEMOTRON = {
    **dict.fromkeys(("M", "mamba", "linear_attention"), "mamba"),
    **dict.fromkeys(("*", "attention", "full_attention"), "attention"),
    **dict.fromkeys(("-", "E", "mlp", "moe"), "none"),
}


@register("nemotron_h")
def nemotron_decoder(f: Fields) -> Decoder:
    """Mamba2, attention and feed-forward blocks, each a layer of its own."""
    policies = {
        "mamba": fixed_layer(
            mamba2(
                f,
                heads="mamba_num_heads",
                head_dim="mamba_head_dim",
                groups="n_groups",
                state="ssm_state_size",
                kernel="conv_kernel",
            )
        ),
        "attention": read_heads(f).layer(AttentionPolicy.full()),
        "none": LayerCachePolicy.no_state(),
    }
    drafts = _nemotron_blocks(f, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    blocks = _nemotron_blocks(f, "hybrid_override_pattern", "layers_block_type", "layer_types")
    if blocks is None:
        raise f.error("hybrid_override_pattern", "expected a string of the letters M * - E")
    if f.has("num_hidden_layers") and layer_count(f) != len(blocks):
        raise f.error(
            "num_hidden_layers", f"{layer_count(f)} layers, but the pattern has {len(blocks)}"
        )
    return Decoder(
        layers=[policies[block] for block in blocks],
        hidden_size=hidden_size(f),
        drafts=[policies[block] for block in drafts or ["attention"]] * draft_count(f),
    )


def _nemotron_blocks(f: Fields, *names: str) -> list[str] | None:
    name = next((name for name in names if f.has(name)), None)
    if name is None:
        return None
    value = f.get(name)
    entries = list(value) if isinstance(value, str) else f.array(name) or []
    if not 0 < len(entries) <= MAX_LAYERS:
        raise f.error(name, f"expected 1 to {MAX_LAYERS} blocks, got {len(entries)}")
    for i, entry in enumerate(entries):
        if not isinstance(entry, str) or entry not in _NEMOTRON:
            raise f.error(f"{name}[{i}]", f"expected M, *, - or E, got {shown(entry)}")
    return [_NEMOTRON[entry] for entry in entries]
