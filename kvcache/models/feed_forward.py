"""How many weights of a layer's feed-forward part one token meets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcache.models.fields import MAX_DIMENSION
from kvcache.policy import NoState

if TYPE_CHECKING:
    from kvcache.models.fields import Fields
    from kvcache.policy import LayerCachePolicy

__all__ = ["feed_forward_weights", "first_size", "size_at"]

_WIDTHS = (
    "intermediate_size",
    "ffn_dim",
    "decoder_ffn_dim",
    "n_inner",
    "ffn_hidden_size",
    "d_ff",
    "inner_dim",
)
_EXPERTS = (
    "num_experts",
    "n_routed_experts",
    "num_local_experts",
    "moe_num_experts",
    "num_routed_experts",
)
_CHOSEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_topk",
    "moe_top_k",
    "top_k_experts",
    "moe_k",
    "router_topk",
)
_EXPERT_WIDTHS = (
    "moe_intermediate_size",
    "expert_intermediate_size",
    "expert_ffn_hidden_size",
    "moe_ffn_hidden_size",
)
_SHARED_WIDTHS = (
    "moe_shared_expert_intermediate_size",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "share_expert_dim",
)
_SHARED_COUNTS = (
    "n_shared_experts",
    "num_shared_experts",
    "num_shared_expert",
    "moe_num_shared_experts",
)
_FIRST_DENSE = (
    "first_k_dense_replace",
    "num_dense_layers",
    "moe_layer_start_index",
    "n_dense_layers",
)
# Families with one matrix in and one out; all others have a gate beside.
_UNGATED_NAMES = """
    apertus arcee bart biogpt bloom codegen ctrl fairseq falcon git gpt2 gpt_bigcode gpt_neo
    gpt_neox gpt_neox_japanese gptj imagegpt jais mpt nemotron nemotron_h openai-gpt opt persimmon
    phi starcoder2 whisper xglm
"""
_UNGATED = frozenset(_UNGATED_NAMES.split())
_NO_FEED_FORWARD = frozenset({"mamba", "mamba2", "falcon_mamba", "mamba_ssm"})


def first_size(f: Fields, *names: str) -> int | None:
    """The first of the fields that holds a size; never an error."""
    return next((size for name in names if (size := _size(f.get(name))) is not None), None)


def size_at(f: Fields, index: int, *names: str) -> int | None:
    """The same, where a field may also list one size a layer."""
    for name in names:
        value = f.get(name)
        if isinstance(value, list | tuple) and index < len(value):
            value = value[index]
        if (size := _size(value)) is not None:
            return size
    return None


def feed_forward_weights(
    f: Fields, kind: str, layer: LayerCachePolicy, index: int, hidden: int
) -> int | None:
    """Weights that one token meets, the router's included; None where a width is not said."""
    if kind in _NO_FEED_FORWARD:
        return 0
    if kind == "nemotron_h":
        return _block_weights(f, layer, index, hidden)
    inner = _inner(f)
    matrices = 2 if kind in _UNGATED or f.get("is_gated_act") is False else 3
    dense = _dense_width(f, kind, index, hidden)
    if dense and isinstance(layer, NoState) and f.get("use_double_wide_mlp") is True:
        dense *= 2  # Gemma 4: layers that share keys and values are wider
    experts, chosen = size_at(inner, index, *_EXPERTS), size_at(inner, index, *_CHOSEN)
    if not experts or experts == 1 or not _has_experts(f, index):
        wide = size_at(f, index, "intermediate_size_mlp", "dense_intermediate_size") or dense
        if kind == "granitemoehybrid":
            wide = size_at(f, index, *_SHARED_WIDTHS) or wide
        return None if wide is None else matrices * hidden * wide
    width = size_at(inner, index, *_EXPERT_WIDTHS) or dense
    if width is None or chosen is None:
        return None
    routed = matrices * min(chosen, experts) * width
    shared = matrices * _shared_width(f, kind, index, width, dense)
    return hidden * (experts + shared) + _routed_weights(f, hidden, routed)


def _shared_width(f: Fields, kind: str, index: int, width: int, dense: int | None) -> int:
    """Width of what every token meets beside the experts it is routed to."""
    stated = size_at(f, index, *_SHARED_WIDTHS)
    if stated is not None:
        return stated
    if kind == "llama4_text":
        return width
    if kind == "gemma4_text":
        return dense or 0
    return (size_at(f, index, *_SHARED_COUNTS) or 0) * width


def _routed_weights(f: Fields, hidden: int, width: int) -> int:
    """Experts of this width in all, which may work on a projection of the hidden state."""
    narrow = first_size(f, "moe_latent_size", "routed_expert_hidden_size")
    return hidden * width if narrow is None else narrow * width + 2 * hidden * narrow


def _block_weights(f: Fields, layer: LayerCachePolicy, index: int, hidden: int) -> int | None:
    """Nemotron-H: a layer is a mixer or a feed-forward block, without a gate."""
    if layer.attention is not None or layer.fixed_state:
        return 0
    experts = first_size(f, *_EXPERTS)
    entry = _entry(f, index, "hybrid_override_pattern", "layers_block_type", "layer_types")
    if entry not in ("E", "moe") or not experts:
        width = first_size(f, *_WIDTHS)
        return None if width is None else 2 * hidden * width
    width, chosen = first_size(f, *_EXPERT_WIDTHS), first_size(f, *_CHOSEN)
    if width is None or chosen is None:
        return None
    shared = first_size(f, *_SHARED_WIDTHS) or 0
    routed = _routed_weights(f, hidden, 2 * width * min(chosen, experts))
    return hidden * (experts + 2 * shared) + routed


def _dense_width(f: Fields, kind: str, index: int, hidden: int) -> int | None:
    width = size_at(_inner(f), index, *_WIDTHS)
    if width is None and kind in _UNGATED:
        return 4 * hidden  # the default of the GPT family
    if width is not None and kind == "qwen":
        return width // 2  # it counts both matrices
    if width is not None and f.get("block_auto_adjust_ff_dim") is True:  # LFM2
        wide, multiple = 2 * width // 3, first_size(f, "block_multiple_of") or 1
        factor = f.get("block_ffn_dim_multiplier")
        if isinstance(factor, int | float) and not isinstance(factor, bool) and 0 < factor < 1024:
            wide = int(factor * wide)
        return -(-wide // multiple) * multiple
    return width


def _has_experts(f: Fields, index: int) -> bool:
    """Whether this layer of a model with experts has them."""
    if f.get("is_moe") is False or f.get("enable_moe_block") is False:
        return False
    entry = _entry(f, index, "mlp_layer_types", "moe_layer_freq", "moe_layers")
    if entry in ("dense", 0) and entry is not False:
        return False
    if index < (first_size(f, *_FIRST_DENSE) or 0):
        return False
    listed = f.get("mlp_only_layers")
    if isinstance(listed, list | tuple) and index in listed:
        return False
    for name, offset in (
        ("decoder_sparse_step", 1),
        ("interleave_moe_layer_step", 1),
        ("moe_layer_interval", 1),
    ):
        step = first_size(f, name)
        if step is not None and (index + offset) % step:
            return False
    period = first_size(f, "expert_layer_period")
    start = first_size(f, "expert_layer_offset") or 0
    return period is None or index % period == start % period


def _entry(f: Fields, index: int, *names: str) -> Any:
    """What the first of the fields that is a list, or a string of letters, says of a layer."""
    for name in names:
        value = f.get(name)
        if isinstance(value, list | tuple | str) and index < len(value):
            entry = value[index]
            return entry if isinstance(entry, str | int) else None
    return None


def _inner(f: Fields) -> Fields:
    """Where the fields of the feed-forward part are: some have an object of their own."""
    value = f.get("ffn_config")
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return f.section("ffn_config") or f
    return f


def _size(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 < value <= MAX_DIMENSION else None
