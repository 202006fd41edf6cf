"""Decoders in which every layer is ordinary attention: one head geometry, full or sliding."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kvcache.models.attention import (
    attention_of,
    every_layer,
    full_only,
    hidden_size,
    layer_count,
    layers_from,
    periodic,
    read_heads,
    upper_layers,
)
from kvcache.models.drafts import draft_count
from kvcache.models.registry import Decoder, register
from kvcache.policy import AttentionPolicy

if TYPE_CHECKING:
    from kvcache.models.attention import Pattern
    from kvcache.models.fields import Fields

__all__ = ["attention_decoder"]


def attention_decoder(f: Fields, tp: int, *, pattern: Pattern) -> Decoder:
    """A decoder whose layers differ at most in their window."""
    layers = layer_count(f)
    drafts = draft_count(f)
    heads = read_heads(f, tp)
    return Decoder(
        layers=[heads.layer(attention) for attention in layers_from(f, layers, pattern, drafts)],
        hidden_size=hidden_size(f),
        drafts=[heads.layer(attention) for attention in draft_attention(f, layers, drafts)],
    )


def draft_attention(f: Fields, layers: int, drafts: int) -> list[AttentionPolicy]:
    """Attention of the draft layers: what a longer ``layer_types`` says of them, else full."""
    kinds = (f.array("layer_types") or [])[layers:]
    stated = [attention_of(f, "layer_types", layers + i, kind) for i, kind in enumerate(kinds)]
    return (stated + [AttentionPolicy.full()] * drafts)[:drafts]


def _register(pattern: Pattern, *model_types: str) -> None:
    register(*model_types)(partial(attention_decoder, pattern=pattern))


_register(full_only, "llama")
_register(every_layer, "mistral", "mixtral")
_register(upper_layers, "qwen2", "qwen3")
_register(periodic(6, "sliding_window_pattern", "_sliding_window_pattern"), "gemma3_text")
_register(periodic(2), "gpt_oss", "gemma2")
