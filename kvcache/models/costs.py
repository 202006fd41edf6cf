"""What computing one position costs, from the sizes of a model's matrices.

Two FLOPs for each weight that a token meets (of experts only those it is routed to), the attention
over the positions before it, and the recurrences. Embeddings and the output layer are left out: a
prefill needs no logits. These are estimates for weighing recomputation against memory; small parts
(norms, biases, low-rank adapters of gates, projections of indexers) are not counted.

Source: the FLOPs of a transformer's layers as in "Scaling Laws for Neural Language Models",
arXiv:2001.08361, section 2.1, with grouped heads, experts and recurrences.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from kvcache.hints import CostModel
from kvcache.models.feed_forward import feed_forward_weights, first_size, size_at
from kvcache.models.fields import HEADS
from kvcache.models.sparse import is_sparse, pooling_weights, sparse_flops
from kvcache.policy import CompressedLatentRotary, KeyOnly, KeyOnlyWithFixedState
from kvcache.policy.tensors import Convolution, Fixed, Recurrent

if TYPE_CHECKING:
    from kvcache.models.fields import Fields
    from kvcache.models.registry import Decoder
    from kvcache.policy import AttentionPolicy, LayerCachePolicy, StateTensorPolicy

__all__ = ["model_costs"]

_GATED = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")  # their attention has an output gate
_LONG_WINDOW = 16_384  # prompts that fill a longer one are rare: it counts as no window
_STATE_FLOPS = 6  # decay, update (an outer product) and read of one element of a recurrent state


@dataclass(frozen=True, slots=True)
class _Heads:
    """Query heads of a layer and the widths of their dot products."""

    count: int
    key_dim: int
    value_dim: int


def model_costs(f: Fields, kind: str, decoder: Decoder, first: int = 0) -> CostModel | None:
    """FLOPs of one position in all layers of a decoder, on all ranks together.

    Attention over a window counts as constant: as the window, or half of a chunk. A window over
    16,384 positions counts as none. What sparse attention chooses counts as constant too.

    Args:
        f: the fields of the decoder.
        kind: its model type.
        decoder: what its family made of them, perhaps one stage of it.
        first: index in the whole model of the decoder's first layer.

    Returns:
        None where the configuration does not say how wide the layers are, and where these two
        numbers do not say it: the decoder reads an encoder's output as well.
    """
    if decoder.encoded:
        return None
    weights = constant = growing = 0.0
    for i, layer in enumerate(decoder.layers):
        width = feed_forward_weights(f, kind, layer, first + i, decoder.hidden_size)
        if width is None:
            return None
        weights += width
        attention = layer.attention or decoder.shared.get(i)
        if attention is not None:
            heads = _query_heads(f, layer, first + i)
            if heads is None:
                return None
            weights += _attention_weights(f, kind, layer, heads, decoder.hidden_size)
            flops = _attention_flops(f, kind, layer, attention, heads)
            if flops is None:
                return None
            constant += flops[0]
            growing += flops[1]
        if layer.fixed_state:
            more, elements = _state_sizes(f, layer.fixed_state, decoder.hidden_size)
            weights += more
            constant += _STATE_FLOPS * elements
    return CostModel(flops_per_token=2 * weights + constant, flops_per_token_per_position=growing)


# -- attention -------------------------------------------------------------------------------


def _query_heads(f: Fields, layer: LayerCachePolicy, index: int) -> _Heads | None:
    count = size_at(f, index, *HEADS) or f.class_default(*HEADS)
    if count is None:
        return None
    if isinstance(layer, CompressedLatentRotary):
        nope = first_size(f, "qk_nope_head_dim") or layer.latent_dim
        return _Heads(count, nope + layer.rotary_dim, first_size(f, "v_head_dim") or nope)
    key_dim = getattr(layer, "head_dim", None)
    if key_dim is None:  # it reads the keys of another layer
        key_dim = first_size(f, "head_dim")
        if key_dim is None or f.has("kv_lora_rank"):
            return None
    return _Heads(count, key_dim, getattr(layer, "value_head_dim", None) or key_dim)


def _attention_weights(
    f: Fields, kind: str, layer: LayerCachePolicy, heads: _Heads, hidden: int
) -> int:
    """Weights of the projections of one attention layer."""
    queries, outputs = heads.count * heads.key_dim, heads.count * heads.value_dim
    rank = first_size(f, "q_lora_rank")
    asked = hidden * rank + rank * queries if rank else hidden * queries
    if f.flag("attn_output_gate", default=kind in _GATED) or f.get("mla_use_output_gate") is True:
        asked += hidden * outputs
    if isinstance(layer, CompressedLatentRotary):
        latent = layer.latent_dim
        expanded = latent * heads.count * (heads.key_dim - layer.rotary_dim + heads.value_dim)
        kept = hidden * (latent + layer.rotary_dim) + expanded
        return asked + kept + outputs * hidden
    if isinstance(layer, KeyOnly | KeyOnlyWithFixedState):
        groups, group_rank = first_size(f, "o_groups"), first_size(f, "o_lora_rank")
        out = outputs * hidden
        if groups and group_rank:  # a low rank for each group of heads
            out = outputs * group_rank + groups * group_rank * hidden
        return asked + hidden * heads.key_dim * layer.num_key_heads + out
    kept_heads = getattr(layer, "num_key_value_heads", 0) * f.tp
    return asked + hidden * kept_heads * (heads.key_dim + heads.value_dim) + outputs * hidden


def _attention_flops(
    f: Fields, kind: str, layer: LayerCachePolicy, attention: AttentionPolicy, heads: _Heads
) -> tuple[float, float] | None:
    """FLOPs of a position's attention: a constant, and more for each position before it."""
    each = 2 * heads.count * (heads.key_dim + heads.value_dim)
    near = 0.0
    if attention.window is not None and attention.window <= _LONG_WINDOW:
        near = each * (attention.window / 2 if attention.chunked else attention.window)
    if is_sparse(kind, layer):
        chosen = sparse_flops(f, kind, layer, each)
        return None if chosen is None else (near + chosen[0], chosen[1])
    return (near, 0) if near else (0, each)


# -- recurrences and convolutions ------------------------------------------------------------


def _state_sizes(f: Fields, tensors: tuple[StateTensorPolicy, ...], hidden: int) -> tuple[int, int]:
    """Weights of the projections around recurrent state and convolutions, and its elements."""
    shapes = [_sizes(tensor) for tensor in tensors if isinstance(tensor.role, Recurrent)]
    channels = sum(_sizes(t)[-1] for t in tensors if isinstance(t.role, Convolution)) * f.tp
    if not shapes and channels == 0:
        return pooling_weights(tensors, hidden), 0
    if not shapes:
        # A gated short convolution: two gates and the input, and the way back.
        gated = channels == hidden and f.has("conv_L_cache")
        return (4 * hidden * hidden if gated else 0), 0
    elements = sum(prod(shape) for shape in shapes) * f.tp
    shape = max(shapes, key=len)
    if len(shape) < 3:  # Mamba: the state of each channel
        inner = shape[0] * f.tp
        rank = first_size(f, "time_step_rank", "mamba_dt_rank") or -(-hidden // 16)
        return 3 * hidden * inner + inner * (2 * rank + 2 * shape[-1]), elements
    heads, rows, columns = shape
    linear = f.has("linear_num_value_heads", "linear_attn_config", "linear_num_heads")
    inner = heads * f.tp * (columns if linear or not channels else rows)
    taken = channels or 3 * inner  # lightning attention has no convolution
    gate = heads * f.tp * (2 if linear else 1)
    return hidden * (taken + inner + gate) + inner * hidden, elements


def _sizes(tensor: StateTensorPolicy) -> list[int]:
    return [axis.size for axis in tensor.shape if isinstance(axis, Fixed)]
