"""Decoders from before one naming took hold: same attention, other names for its sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.models.attention import (
    full_or_window,
    hidden_size,
    layer_count,
    read_heads,
)
from kvcache.models.dense import attention_decoder
from kvcache.models.fields import HEADS, MAX_LAYERS, shown
from kvcache.models.registry import Decoder, register

if TYPE_CHECKING:
    from kvcache.models.fields import Fields

__all__: list[str] = []


def _one_head(f: Fields) -> Fields:
    """The fields with a single key-value head."""
    return f.with_value("num_key_value_heads", 1)


@register("falcon", "RefinedWeb", "RefinedWebModel")
def falcon_decoder(f: Fields) -> Decoder:
    """Grouped heads in the new architecture, one head with ``multi_query``, else all."""
    grouped = f.flag("new_decoder_architecture", default=f.has("n_head_kv"))
    if not grouped and f.flag("multi_query", default=True):
        return attention_decoder(_one_head(f))
    name = next((name for name in ("num_kv_heads", "n_head_kv") if f.has(name)), None)
    return attention_decoder(f if name is None else f.renamed(num_key_value_heads=name))


@register("gpt_bigcode")
def gpt_bigcode_decoder(f: Fields) -> Decoder:
    """One head with ``multi_query``, else all."""
    if f.flag("multi_query", default=True):
        return attention_decoder(_one_head(f))
    return attention_decoder(f.with_value("num_key_value_heads", f.count(*HEADS)))


@register("gpt2", "gpt-sw3")
def gpt2_decoder(f: Fields) -> Decoder:
    """Every head keeps keys and values, unless ``attention_head_type`` says one does."""
    kind = f.text("attention_head_type")
    if kind == "multiquery":
        return attention_decoder(_one_head(f))
    if kind not in (None, "multihead"):
        raise f.wrong("attention_head_type", '"multihead" or "multiquery"')
    return attention_decoder(f)


@register("mpt")
def mpt_decoder(f: Fields) -> Decoder:
    """Head counts in ``attn_config``."""
    settings = f.section("attn_config")
    kind = "multihead_attention" if settings is None else settings.text("attn_type")
    if kind == "multiquery_attention":
        return attention_decoder(_one_head(f))
    if settings is not None and kind == "grouped_query_attention":
        return attention_decoder(f.with_value("num_key_value_heads", settings.count("kv_n_heads")))
    if kind not in (None, "multihead_attention"):
        raise f.error("attn_config.attn_type", f"unknown kind of attention {shown(kind)}")
    return attention_decoder(f)


@register("dbrx")
def dbrx_decoder(f: Fields) -> Decoder:
    """Key-value heads in ``attn_config``."""
    settings = f.section("attn_config")
    if settings is not None and settings.has("kv_n_heads"):
        f = f.with_value("num_key_value_heads", settings.count("kv_n_heads"))
    return attention_decoder(f)


@register("chatglm", "glm_legacy")
def chatglm_decoder(f: Fields) -> Decoder:
    """``multi_query_group_num`` heads with ``multi_query_attention``, else all."""
    if f.flag("multi_query_attention"):
        return attention_decoder(f.renamed(num_key_value_heads="multi_query_group_num"))
    return attention_decoder(f.with_value("num_key_value_heads", f.count(*HEADS)))


@register("jetmoe")
def jetmoe_decoder(f: Fields) -> Decoder:
    """Mixture of attention experts over one set of keys and values."""
    heads = f.count("num_key_value_heads")
    return attention_decoder(f.with_value("num_attention_heads", heads))


@register("gpt_neo")
def gpt_neo_decoder(f: Fields) -> Decoder:
    """Global and local attention as listed, by default in turn."""
    layers = layer_count(f)
    name = "attention_layers" if f.has("attention_layers") else "attention_types"
    kinds = f.array("attention_layers") or _expanded(f, layers)
    if len(kinds) != layers:
        raise f.error(name, f"expected {layers} layers, got {len(kinds)}")
    for i, kind in enumerate(kinds):
        if kind not in ("global", "local"):
            raise f.error(f"{name}[{i}]", f'expected "global" or "local", got {shown(kind)}')
    heads = read_heads(f)
    attention = full_or_window(f, [kind == "global" for kind in kinds])
    return Decoder(layers=[heads.layer(each) for each in attention], hidden_size=hidden_size(f))


def _expanded(f: Fields, layers: int) -> list[object]:
    """Kinds from pairs of a pattern and how often it is repeated."""
    pairs = f.array("attention_types")
    if pairs is None:
        f.note("attention_types", "absent, taken as global and local attention in turn")
        return [("global", "local")[i % 2] for i in range(layers)]
    kinds: list[object] = []
    for i, pair in enumerate(pairs):
        match pair:
            case [list(pattern), int(times)] if not isinstance(times, bool):
                if not 0 <= times * len(pattern) <= MAX_LAYERS:
                    raise f.error(f"attention_types[{i}]", f"repeated {shown(times)} times")
                kinds += pattern * times
            case _:
                raise f.error(f"attention_types[{i}]", f"expected a pair, got {shown(pair)}")
    return kinds


_BERTS = """
bert bert-generation camembert data2vec-text electra ernie megatron-bert rembert roberta
roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl xmod big_bird xlm
blip_text_model
"""


@register(*_BERTS.split())
def bert_decoder(f: Fields) -> Decoder:
    """Encoders that can be used as decoders; every head keeps every position."""
    if not f.flag("is_decoder"):
        f.note("is_decoder", "false or absent: read as the decoder it can be used as")
    if f.flag("add_cross_attention"):
        f.note("add_cross_attention", "keys and values of an encoder are not counted")
    return attention_decoder(f)
