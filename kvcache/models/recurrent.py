"""Decoders that keep the state of a recurrence and no keys: RWKV, xLSTM, Griffin.

Source: RWKV, arXiv:2305.13048 (4), 2404.05892 (5 and 6), 2503.14456 (7); xLSTM, 2405.04517;
Griffin (RecurrentGemma), 2402.19427.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.models.attention import hidden_size, layer_count, layer_window, read_heads, split
from kvcache.models.fields import HEADS, shown
from kvcache.models.registry import Decoder, refuse, register
from kvcache.models.state import convolution, fixed_layer, recurrent

if TYPE_CHECKING:
    from kvcache.models.fields import Fields
    from kvcache.policy import StateTensorPolicy

__all__: list[str] = []


def _token_shifts(f: Fields) -> list[StateTensorPolicy]:
    """The last input of the time mix and of the channel mix."""
    return [*convolution(0, 2, hidden_size(f)), *convolution(1, 2, hidden_size(f))]


def _everywhere(f: Fields, tensors: list[StateTensorPolicy]) -> Decoder:
    layers = [fixed_layer(tensors)] * layer_count(f)
    return Decoder(layers=layers, hidden_size=hidden_size(f), channel_gates=True)


@register("rwkv")
def rwkv4_decoder(f: Fields) -> Decoder:
    """Numerator, denominator and maximum of each channel."""
    name = "attention_hidden_size" if f.has("attention_hidden_size") else "hidden_size"
    return _everywhere(f, [*_token_shifts(f), *recurrent(3, split(f, name, f.count(name)))])


@register("rwkv5", "rwkv6", "rwkv6qwen2")
def rwkv_matrix_decoder(f: Fields) -> Decoder:
    """A square matrix a head."""
    name = "attention_hidden_size" if f.has("attention_hidden_size") else "hidden_size"
    return _matrices(f, name, f.count("head_size", "head_dim"))


@register("rwkv7")
def rwkv7_decoder(f: Fields) -> Decoder:
    """A square matrix a head; the number of heads follows from the hidden size."""
    if f.has("attn"):
        raise f.error("attn", "layers with attention are not understood in rwkv7")
    return _matrices(f, "hidden_size", f.count("head_dim", "head_size"))


def _matrices(f: Fields, name: str, width: int) -> Decoder:
    size = f.count(name)
    if size % width:
        raise f.error(name, f"{size} is no multiple of heads of {width}")
    heads = size // width
    stated = next((n for n in ("num_heads", "num_attention_heads") if f.has(n)), None)
    if stated is not None and f.count(stated) != heads:
        f.note(stated, f"{f.count(stated)} is not {name} / head size = {heads}; not used")
    return _everywhere(f, [*_token_shifts(f), *recurrent(split(f, name, heads), width, width)])


@register("xlstm")
def xlstm_decoder(f: Fields) -> Decoder:
    """Cell matrix, normaliser and maximum of each head, one after the other."""
    heads, size = f.count(*HEADS), hidden_size(f)
    key_dim = f.scaled("qk_dim_factor", size, 0.5, multiple=64) // heads
    value_dim = f.scaled("v_dim_factor", size, 1.0, multiple=64) // heads
    width = key_dim * value_dim + key_dim + 1
    return _everywhere(f, recurrent(split(f, HEADS[0], heads), max(1, width)))


@register("recurrent_gemma")
def griffin_decoder(f: Fields) -> Decoder:
    """Gated linear recurrences, with sliding attention in the listed places."""
    layers = layer_count(f)
    name = "block_types" if f.has("block_types") else "_block_types"
    pattern = f.array(name) or ["recurrent", "recurrent", "attention"]
    width = f.optional_count("lru_width") or hidden_size(f)
    rank = split(f, "lru_width", width)
    block = fixed_layer([*convolution(0, f.count("conv1d_width"), rank), *recurrent(rank)])
    attention = read_heads(f).layer(layer_window(f, "attention layers slide"))
    policies = []
    for i in range(layers):
        kind = pattern[i % len(pattern)]
        if kind not in ("recurrent", "attention"):
            raise f.error(f"{name}[{i % len(pattern)}]", f"unknown block type {shown(kind)}")
        policies.append(block if kind == "recurrent" else attention)
    return Decoder(layers=policies, hidden_size=hidden_size(f))


refuse(
    "it keeps hidden states of earlier segments, not keys and values of positions",
    "xlnet",
    "transfo-xl",
    "reformer",
)
refuse("its window slides over the answer only and never over the prompt", "unlimited_ocr_text")
refuse("its cross-attention keeps images whose number nothing bounds", "idefics", "evolla")
refuse("its heads read hidden states and keep none of their own", "medusa", "mlp_speculator")
refuse(
    "its global layers count patches of bytes, whose number depends on the text",
    "blt",
    "blt_local_decoder",
)
