"""DeepSeek-V4: keys that are their own values over a window, and pooled history of the rest.

A layer of ratio 0 keeps its window only. A layer of ratio 128 pools every 128 positions into one
entry; one of ratio 4 pools twice, for attention and for its indexer, each entry overlapping the
last one. What is pending for the next entry is kept beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.models.attention import hidden_size, layer_count, layer_window
from kvcache.models.drafts import draft_count
from kvcache.models.fields import shown
from kvcache.models.registry import Decoder, register
from kvcache.policy import (
    AttentionPolicy,
    LayerCachePolicy,
    PoolingStateComponent,
    StateResidencyClass,
    StateTensorDimension,
    StateTensorDtype,
    StateTensorPolicy,
    StateTensorRole,
)

if TYPE_CHECKING:
    from kvcache.models.fields import Fields

__all__ = ["pooling_stream"]

_OVERLAPPING, _DISJOINT = 4, 128
_RATIOS = {
    "sliding_attention": 0,
    "compressed_sparse_attention": _OVERLAPPING,
    "heavily_compressed_attention": _DISJOINT,
}
_BATCH = StateTensorDimension.batch()


def _tensor(
    stream: int, part: PoolingStateComponent, rows: StateTensorDimension, width: int
) -> StateTensorPolicy:
    role = StateTensorRole.pooling(stream, part)
    return StateTensorPolicy.new_with_residency(
        role,
        [_BATCH, rows, StateTensorDimension.fixed(width)],
        StateTensorDtype.FLOATING,
        StateResidencyClass.SEALABLE_PAGED
        if part is PoolingStateComponent.POOLED
        else StateResidencyClass.ALWAYS_DEVICE_MUTABLE,
    )


def pooling_stream(
    stream: int, ratio: int, width: int, *, overlapping: bool
) -> list[StateTensorPolicy]:
    """Tensors of one stream that pools every ``ratio`` positions into a row of ``width``.

    An overlapping stream projects both halves of a pair of windows, so what is pending is twice
    as wide, and it keeps the first half of the last complete window.
    """
    pending_width = 2 * width if overlapping else width
    pending = StateTensorDimension.prefix_tokens_rem(ratio)
    part = PoolingStateComponent
    tensors = [
        _tensor(stream, part.PENDING_VALUES, pending, pending_width),
        _tensor(stream, part.PENDING_GATES, pending, pending_width),
    ]
    tensors = [tensor.when_prefix_remainder_nonzero(ratio) for tensor in tensors]
    later = [_tensor(stream, part.POOLED, StateTensorDimension.prefix_tokens_div(ratio), width)]
    if overlapping:
        rows = StateTensorDimension.fixed(ratio)
        later += [
            _tensor(stream, part.OVERLAP_VALUES, rows, width),
            _tensor(stream, part.OVERLAP_GATES, rows, width),
        ]
    return tensors + [tensor.when_prefix_at_least(ratio) for tensor in later]


@register("deepseek_v4", "deepseek_ref")
def deepseek_v4_decoder(f: Fields) -> Decoder:
    """One shared key head; each layer by its compression ratio."""
    layers, drafts = layer_count(f), draft_count(f)
    window = layer_window(f, "every layer slides")
    heads, width = f.count("num_key_value_heads"), f.count("head_dim")
    if f.tp > 1:
        f.note("num_key_value_heads", f"keys are replicated on all {f.tp} tensor-parallel ranks")
    ratios = _ratios(f, layers, drafts)
    kinds = {ratio: _layer(f, window, heads, width, ratio) for ratio in sorted(set(ratios))}
    policies = [kinds[ratio] for ratio in ratios]
    return Decoder(
        layers=policies[:layers],
        hidden_size=hidden_size(f),
        drafts=policies[layers:],
        granularity=128,
        draft_offset=-1,
        upper_bound=True,
    )


def _layer(
    f: Fields, window: AttentionPolicy, heads: int, width: int, ratio: int
) -> LayerCachePolicy:
    if ratio == 0:
        return LayerCachePolicy.key_only(window, heads, width)
    overlapping = ratio == _OVERLAPPING
    tensors = pooling_stream(0, ratio, width, overlapping=overlapping)
    if overlapping:
        tensors += pooling_stream(1, ratio, f.count("index_head_dim"), overlapping=True)
    return LayerCachePolicy.key_only_with_fixed_state(window, heads, width, tensors)


def _ratios(f: Fields, layers: int, drafts: int) -> list[int]:
    """Compression ratio of every layer, then of the draft layers."""
    stated = f.integers("compress_ratios")
    if stated is not None:
        f.per_layer("compress_ratios", layers, spare=drafts)
        ratios = stated
    elif f.has("layer_types"):
        ratios = _named_ratios(f, layers)
    else:
        raise f.error("compress_ratios", "expected a list of 0, 4 and 128, one a layer")
    for i, ratio in enumerate(ratios):
        if ratio not in (0, _OVERLAPPING, _DISJOINT):
            raise f.error(f"compress_ratios[{i}]", f"expected 0, 4 or 128, got {shown(ratio)}")
    return ratios + [0] * (layers + drafts - len(ratios))


def _named_ratios(f: Fields, layers: int) -> list[int]:
    rates = f.section("compress_rates")
    for name, ratio in _RATIOS.items():
        if rates is not None and rates.has(name) and rates.number(name) != ratio:
            raise rates.wrong(name, str(ratio))
    kinds = f.per_layer("layer_types", layers) or []
    for i, kind in enumerate(kinds):
        if not isinstance(kind, str) or kind not in _RATIOS:
            raise f.error(f"layer_types[{i}]", f"unknown layer type {shown(kind)}")
    return [_RATIOS[kind] for kind in kinds]
