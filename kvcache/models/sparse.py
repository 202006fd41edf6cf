"""FLOPs of sparse attention: a position reads a few chosen ones, or pooled history, not all.

An indexer scores every earlier position, or every pooled one, with narrow heads of its own, and
attention reads the best of them. Some layers choose with the scores of an earlier one.

Sources: the indexer of DeepSeek-V3.2 (arXiv:2512.02556) section 2; DeepSeek-V4's two kinds of
pooled history, one that is read as a whole and one that is chosen from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.models.feed_forward import first_size
from kvcache.policy.tensors import Fixed, Pooling, PoolingStateComponent, PrefixTokensDiv

if TYPE_CHECKING:
    from kvcache.models.fields import Fields
    from kvcache.policy import LayerCachePolicy
    from kvcache.policy.tensors import StateTensorPolicy

__all__ = ["is_sparse", "pooling_weights", "sparse_flops"]

_ALL_CHOOSE = frozenset(
    {
        "axk2",
        "deepseek_v32",
        "glm5_next_text",
        "glm_moe_dsa",
        "hy_v4",
        "hy_v4_vl_text",
        "mistral_large4_text",
    }
)
"""Families in which layers without index keys choose with the scores of an earlier layer."""
_POOLED = ("deepseek_v4", "deepseek_ref")
_PENDING = (PoolingStateComponent.PENDING_VALUES, PoolingStateComponent.PENDING_GATES)


def is_sparse(kind: str, layer: LayerCachePolicy) -> bool:
    """Whether an attention layer does not read all positions that it may."""
    indexed = getattr(layer, "indexer_dim", None) is not None
    return indexed or kind in _ALL_CHOOSE or bool(_pooled(layer))


def sparse_flops(
    f: Fields, kind: str, layer: LayerCachePolicy, each: float
) -> tuple[float, float] | None:
    """A constant, and more for each position before; what is chosen counts as if all were there.

    Args:
        f: the fields of the decoder.
        kind: its model type.
        layer: one for which `is_sparse` holds.
        each: FLOPs of attention to one position.

    Returns:
        None where the configuration does not say it in these two numbers.
    """
    streams = _pooled(layer)
    if streams and kind not in _POOLED:
        return None
    width: int | None = getattr(layer, "indexer_dim", None)
    pool = 1
    if streams:
        pool, _ = streams[0]
        if len(streams) == 1:  # all of the pooled history
            return 0, each / pool
        pool, width = streams[1]
    chosen, heads = _selection(f)
    if chosen is None or (width is not None and heads is None):
        return None
    return each * chosen, 2 * (heads or 0) * (width or 0) / pool


def pooling_weights(tensors: tuple[StateTensorPolicy, ...], hidden: int) -> int:
    """Weights of the projections into what is pooled, values and gates."""
    pending = (
        tensor
        for tensor in tensors
        if isinstance(tensor.role, Pooling) and tensor.role.component in _PENDING
    )
    return hidden * sum(_width(tensor) for tensor in pending)


def _pooled(layer: LayerCachePolicy) -> dict[int, tuple[int, int]]:
    """Positions of an entry and its width, by stream."""
    found = {}
    for tensor in layer.fixed_state:
        role = tensor.role
        if isinstance(role, Pooling) and role.component is PoolingStateComponent.POOLED:
            pool = next(axis.divisor for axis in tensor.shape if isinstance(axis, PrefixTokensDiv))
            found[role.stream] = pool, _width(tensor)
    return found


def _width(tensor: StateTensorPolicy) -> int:
    return [axis.size for axis in tensor.shape if isinstance(axis, Fixed)][-1]


def _selection(f: Fields) -> tuple[int | None, int | None]:
    """How many positions are chosen, and heads of the indexer."""
    inner = f.get("sparse_attention_config")
    nested = isinstance(inner, dict) and all(isinstance(key, str) for key in inner)
    own = (f.section("sparse_attention_config") if nested else None) or f
    heads = first_size(f, "index_n_heads") or first_size(own, "sparse_num_index_heads")
    blocks = first_size(f, "index_topk_blocks") or first_size(own, "sparse_topk_blocks")
    block = first_size(f, "index_block_size") or first_size(own, "sparse_block_size")
    chosen = blocks * block if blocks and block else first_size(f, "index_topk")
    return chosen, heads
