"""Mamba and Mamba2 decoders, alone or mixed with attention.

Source: Mamba, arXiv:2312.00752; Mamba-2, arXiv:2405.21060.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.models.attention import Heads, hidden_size, layer_count, read_heads, split
from kvcache.models.drafts import draft_count
from kvcache.models.fields import HEADS, MAX_LAYERS, shown
from kvcache.models.registry import Decoder, register
from kvcache.models.state import convolution, fixed_layer, recurrent, recurrent_dtype
from kvcache.policy import AttentionPolicy, LayerCachePolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache.models.fields import Fields
    from kvcache.policy import StateTensorPolicy

__all__ = ["mamba1", "mamba2"]

_FULL = AttentionPolicy.full()
_ATTENTION = ("attention", "full_attention", "*")
_MAMBA = ("mamba", "mamba2", "linear_attention", "M")
_NOTHING = ("mlp", "moe", "-", "E")


def _inner_size(f: Fields, *expand: str) -> int:
    """Width of the inner state: stated, else a multiple of the hidden size."""
    return hidden_size(f) * f.count(*expand)


def mamba1(
    f: Fields, *, inner: int, inner_name: str, state: str, kernel: str
) -> list[StateTensorPolicy]:
    """Mamba: a convolution over the inner width, and ``state`` numbers for each of its channels."""
    channels = split(f, inner_name, inner)
    return [
        *convolution(0, f.count(kernel), channels),
        *recurrent(channels, f.count(state), dtype=recurrent_dtype(f, "mamba_ssm_dtype")),
    ]


def mamba2(
    f: Fields, *, heads: str, head_dim: int, groups: str, state: str, kernel: str
) -> list[StateTensorPolicy]:
    """Mamba2: a convolution over inputs, B and C; a matrix a head. Strings name fields.

    One group is replicated on every tensor-parallel rank; more are divided.
    """
    rank_heads = split(f, heads, f.count(heads))
    all_groups = f.count(groups)
    rank_groups = 1 if all_groups == 1 else split(f, groups, all_groups)
    states = f.count(state)
    inputs, group = (f.count(heads), head_dim), (all_groups, states)
    f.channel_parts["state.convolution.0"] = (inputs, group, group)
    return [
        *convolution(0, f.count(kernel), rank_heads * head_dim + 2 * rank_groups * states),
        *recurrent(
            rank_heads,
            head_dim,
            states,
            dtype=recurrent_dtype(f, "mamba_ssm_cache_dtype", "mamba_ssm_dtype"),
        ),
    ]


# -- only Mamba ------------------------------------------------------------------------------


@register("mamba", "falcon_mamba")
def mamba_decoder(f: Fields) -> Decoder:
    """Mamba in every layer."""
    name = "intermediate_size" if f.has("intermediate_size") else "expand"
    inner = f.count(name) if name == "intermediate_size" else _inner_size(f, "expand")
    if f.has("expand") and inner != _inner_size(f, "expand"):
        f.note("expand", f"{f.get('expand')} times hidden_size is not intermediate_size; not used")
    tensors = mamba1(f, inner=inner, inner_name=name, state="state_size", kernel="conv_kernel")
    return Decoder(layers=[fixed_layer(tensors)] * layer_count(f), hidden_size=hidden_size(f))


@register("mamba2")
def mamba2_decoder(f: Fields) -> Decoder:
    """Mamba2 in every layer."""
    tensors = mamba2(
        f,
        heads="num_heads",
        head_dim=f.count("head_dim"),
        groups="n_groups",
        state="state_size",
        kernel="conv_kernel",
    )
    return Decoder(layers=[fixed_layer(tensors)] * layer_count(f), hidden_size=hidden_size(f))


_SSM_DEFAULTS = {
    "Mamba1": {"expand": 2, "d_state": 16, "d_conv": 4},
    "Mamba2": {"expand": 2, "d_state": 128, "d_conv": 4, "headdim": 64, "ngroups": 1},
}


@register("mamba_ssm")
def mamba_ssm_decoder(f: Fields) -> Decoder:
    """Checkpoints of the ``mamba_ssm`` package, which have an ``ssm_cfg`` and no model type."""
    settings = f.section("ssm_cfg")
    if settings is None:
        raise f.error("ssm_cfg", "expected an object")
    layer = settings.text("layer") or "Mamba1"
    if layer not in _SSM_DEFAULTS:
        raise settings.wrong("layer", '"Mamba1" or "Mamba2"')
    if f.array("attn_layer_idx"):
        raise f.error("attn_layer_idx", "layers with attention are not understood in mamba_ssm")
    settings = settings.with_defaults(_SSM_DEFAULTS[layer])
    inner = hidden_size(f) * settings.count("expand")
    if layer == "Mamba1":
        tensors = mamba1(
            settings, inner=inner, inner_name="expand", state="d_state", kernel="d_conv"
        )
    else:
        width = settings.count("headdim")
        if inner % width:
            raise settings.error("headdim", f"{inner} inner channels in heads of {width}")
        tensors = mamba2(
            settings.with_value("nheads", inner // width),
            heads="nheads",
            head_dim=width,
            groups="ngroups",
            state="d_state",
            kernel="d_conv",
        )
    return Decoder(layers=[fixed_layer(tensors)] * layer_count(f), hidden_size=hidden_size(f))


# -- mixed, one kind a layer -----------------------------------------------------------------


def _mixed(
    f: Fields, kinds: list[str], mamba: Callable[[Fields], list[StateTensorPolicy]]
) -> Decoder:
    """Layers of the listed kinds; what no layer needs is not read."""
    policies: dict[str, LayerCachePolicy] = {}
    if "attention" in kinds:
        policies["attention"] = read_heads(f).layer(_FULL)
    if "mamba" in kinds:
        policies["mamba"] = fixed_layer(mamba(f))
    policies["none"] = LayerCachePolicy.no_state()
    return Decoder(layers=[policies[kind] for kind in kinds], hidden_size=hidden_size(f))


def _kind(f: Fields, name: str, index: int, entry: object) -> str:
    for kind, names in (("attention", _ATTENTION), ("mamba", _MAMBA), ("none", _NOTHING)):
        if entry in names:
            return kind
    raise f.error(f"{name}[{index}]", f"unknown layer type {shown(entry)}")


def _listed_kinds(f: Fields, layers: int, *names: str) -> list[str] | None:
    """Kinds from the first of the lists that is there."""
    name = next((name for name in names if f.has(name)), None)
    if name is None:
        return None
    entries = f.per_layer(name, layers) or []
    return [_kind(f, name, i, entry) for i, entry in enumerate(entries)]


def _head_size(f: Fields, heads: str, head_dim: str, expand: str) -> int:
    """Width of a Mamba2 head; absent or ``"auto"`` divides the inner width over the heads."""
    if f.has(head_dim) and f.get(head_dim) != "auto":
        return f.count(head_dim)
    inner, count = _inner_size(f, expand), f.count(heads)
    if inner % count:
        raise f.error(heads, f"{inner} inner channels cannot be divided over {count} heads")
    f.note(head_dim, f"taken as {expand} * hidden_size / {heads} = {inner // count}")
    return inner // count


def _prefixed_mamba2(f: Fields) -> list[StateTensorPolicy]:
    return mamba2(
        f,
        heads="mamba_n_heads",
        head_dim=_head_size(f, "mamba_n_heads", "mamba_d_head", "mamba_expand"),
        groups="mamba_n_groups",
        state="mamba_d_state",
        kernel="mamba_d_conv",
    )


@register("bamba")
def bamba_decoder(f: Fields) -> Decoder:
    """Mamba2, with attention in the listed layers."""
    layers = layer_count(f)
    kinds = _listed_kinds(f, layers, "layer_types", "layers_block_type")
    if kinds is None:
        indices = f.integers("attn_layer_indices") or []
        for i, index in enumerate(indices):
            if index >= layers:
                raise f.error(f"attn_layer_indices[{i}]", f"expected an index below {layers}")
        chosen = set(indices)
        kinds = ["attention" if i in chosen else "mamba" for i in range(layers)]
    return _mixed(f, kinds, _prefixed_mamba2)


@register("granitemoehybrid")
def granite_hybrid_decoder(f: Fields) -> Decoder:
    """Mamba2 and attention as listed."""
    layers = layer_count(f)
    kinds = _listed_kinds(f, layers, "layer_types", "layers_block_type")
    if kinds is None:
        f.note("layer_types", "absent, taken as that of Granite 4.0: attention in 5, 15, 25, ...")
        kinds = ["attention" if i % 10 == 5 else "mamba" for i in range(layers)]
    return _mixed(f, kinds, _prefixed_mamba2)


@register("jamba")
def jamba_decoder(f: Fields) -> Decoder:
    """Mamba, with attention in one of every ``attn_layer_period`` layers."""
    layers = layer_count(f)
    kinds = _listed_kinds(f, layers, "layer_types", "layers_block_type")
    if kinds is None:
        period = f.count("attn_layer_period")
        offset = f.number("attn_layer_offset")
        kinds = ["attention" if i % period == offset else "mamba" for i in range(layers)]
    return _mixed(f, kinds, _prefixed_mamba1)


def _prefixed_mamba1(f: Fields) -> list[StateTensorPolicy]:
    return mamba1(
        f,
        inner=_inner_size(f, "mamba_expand"),
        inner_name="mamba_expand",
        state="mamba_d_state",
        kernel="mamba_d_conv",
    )


@register("nemotron_h")
def nemotron_decoder(f: Fields) -> Decoder:
    """Mamba2, attention and feed-forward blocks, each a layer of its own."""
    kinds = _nemotron_kinds(f, "hybrid_override_pattern", "layers_block_type", "layer_types")
    if kinds is None:
        raise f.error("hybrid_override_pattern", "expected a string of the letters M * - E")
    if f.has("num_hidden_layers") and layer_count(f) != len(kinds):
        raise f.error(
            "num_hidden_layers", f"{layer_count(f)} layers, but the pattern has {len(kinds)}"
        )
    drafts = draft_count(f)
    head = _nemotron_kinds(f, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    decoder = _mixed(f, kinds, _nemotron_mamba2)
    head = head or ["attention"]
    if len(head) * drafts > MAX_LAYERS:
        raise f.error("num_nextn_predict_layers", f"expected at most {MAX_LAYERS} draft layers")
    return Decoder(
        layers=decoder.layers,
        hidden_size=decoder.hidden_size,
        drafts=_mixed(f, head, _nemotron_mamba2).layers * drafts if drafts else [],
    )


def _nemotron_mamba2(f: Fields) -> list[StateTensorPolicy]:
    return mamba2(
        f,
        heads="mamba_num_heads",
        head_dim=f.count("mamba_head_dim"),
        groups="n_groups",
        state="ssm_state_size",
        kernel="conv_kernel",
    )


def _nemotron_kinds(f: Fields, *names: str) -> list[str] | None:
    """Kinds from a string of one letter a block, or from a list of words."""
    name = next((name for name in names if f.has(name)), None)
    if name is None:
        return None
    value = f.get(name)
    entries = list(value) if isinstance(value, str) else f.array(name) or []
    if not 0 < len(entries) <= MAX_LAYERS:
        raise f.error(name, f"expected 1 to {MAX_LAYERS} blocks, got {len(entries)}")
    return [_kind(f, name, i, entry) for i, entry in enumerate(entries)]


# -- both in one layer -----------------------------------------------------------------------


@register("falcon_h1")
def falcon_h1_decoder(f: Fields) -> Decoder:
    """Attention and Mamba2 side by side in every layer."""
    inner = f.optional_count("mamba_d_ssm") or _inner_size(f, "mamba_expand")
    heads = f.count("mamba_n_heads")
    if inner % heads:
        raise f.error("mamba_n_heads", f"{inner} inner channels over {heads} heads")
    tensors = mamba2(
        f,
        heads="mamba_n_heads",
        head_dim=inner // heads,
        groups="mamba_n_groups",
        state="mamba_d_state",
        kernel="mamba_d_conv",
    )
    layer = read_heads(f).layer(_FULL, tensors)
    return Decoder(layers=[layer] * layer_count(f), hidden_size=hidden_size(f))


def _zamba(f: Fields, mamba: list[StateTensorPolicy], kinds: list[bool]) -> Decoder:
    """Mamba in every layer; the shared attention block, of twice the width, in some of them."""
    query_heads = f.count(*HEADS)
    if f.has("attention_head_dim"):
        width = f.count("attention_head_dim")
    else:
        width = max(1, 2 * hidden_size(f) // query_heads)
        f.note("attention_head_dim", f"taken as 2 * hidden_size / num_attention_heads = {width}")
    base = read_heads(f.with_value("head_dim", width))
    both = Heads(base.count, width, width).layer(_FULL, mamba)
    return Decoder(
        layers=[both if hybrid else fixed_layer(mamba) for hybrid in kinds],
        hidden_size=hidden_size(f),
    )


def _zamba_kinds(f: Fields, layers: int) -> list[bool] | None:
    for name in ("layers_block_type", "layer_types"):
        entries = f.per_layer(name, layers)
        if entries is None:
            continue
        for i, entry in enumerate(entries):
            if entry not in ("hybrid", *_MAMBA):
                raise f.error(f"{name}[{i}]", f"unknown layer type {shown(entry)}")
        return [entry == "hybrid" for entry in entries]
    indices = f.integers("hybrid_layer_ids")
    return None if indices is None else [i in set(indices) for i in range(layers)]


@register("zamba")
def zamba_decoder(f: Fields) -> Decoder:
    """Mamba with a shared attention block in one of every ``attn_layer_period`` layers."""
    layers = layer_count(f)
    kinds = _zamba_kinds(f, layers)
    if kinds is None:
        period = f.count("attn_layer_period")
        offset = f.number("attn_layer_offset")
        kinds = [i == 2 or (i > 2 and (i - 3) % period == offset) for i in range(layers)]
    return _zamba(f, _prefixed_mamba1(f), kinds)


@register("zamba2")
def zamba2_decoder(f: Fields) -> Decoder:
    """Mamba2 with a shared attention block in the listed layers."""
    layers = layer_count(f)
    kinds = _zamba_kinds(f, layers)
    if kinds is None:
        raise f.error("layers_block_type", 'expected a list of "mamba" and "hybrid"')
    inner, heads = _inner_size(f, "mamba_expand"), f.count("n_mamba_heads")
    if inner % heads:
        raise f.error("n_mamba_heads", f"{inner} inner channels over {heads} heads")
    tensors = mamba2(
        f,
        heads="n_mamba_heads",
        head_dim=inner // heads,
        groups="mamba_ngroups",
        state="mamba_d_state",
        kernel="mamba_d_conv",
    )
    return _zamba(f, tensors, kinds)
