"""Decoders in which every layer is ordinary attention: one head geometry, full or sliding."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kvcache.models.attention import (
    attention_of,
    chunk_window,
    every_layer,
    full_only,
    full_or_window,
    hidden_size,
    layer_count,
    layers_from,
    per_layer_fields,
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


def attention_decoder(f: Fields, *, pattern: Pattern = full_only) -> Decoder:
    """A decoder whose layers differ in their window, and by ``per_layer_config`` in their heads."""
    layers, drafts = layer_count(f), draft_count(f)
    attention = layers_from(f, layers, pattern, drafts)
    heads = read_heads(f)
    return Decoder(
        layers=[
            (heads if own is f else read_heads(own)).layer(kind)
            for own, kind in zip(per_layer_fields(f, layers), attention, strict=True)
        ],
        hidden_size=hidden_size(f),
        drafts=[heads.layer(kind) for kind in draft_attention(f, layers, drafts)],
    )


def draft_attention(f: Fields, layers: int, drafts: int) -> list[AttentionPolicy]:
    """Attention of the draft layers where a list says it, else full."""
    name = "mtp_layer_types" if f.has("mtp_layer_types") else "layer_types"
    kinds = f.array(name) or []
    first = 0 if name == "mtp_layer_types" else layers
    stated = [attention_of(f, name, i, kinds[i]) for i in range(first, len(kinds))]
    return (stated + [AttentionPolicy.full()] * drafts)[:drafts]


# -- patterns of one family ------------------------------------------------------------------


def _rotary_layers(f: Fields, layers: int) -> list[bool]:
    """Layers with rotary positions: 1 in the list, or all but the last of every four."""
    if f.array("no_rope_layers"):
        return [bool(each) for each in f.per_layer("no_rope_layers", layers) or ()]
    interval = f.count("no_rope_layer_interval") if f.has("no_rope_layer_interval") else 4
    return [(i + 1) % interval != 0 for i in range(layers)]


def _smollm(f: Fields, layers: int) -> list[AttentionPolicy]:
    if not f.flag("use_sliding_window"):
        return [AttentionPolicy.full()] * layers
    return full_or_window(f, _rotary_layers(f, layers))


def _llama4(f: Fields, layers: int) -> list[AttentionPolicy]:
    chunked = _rotary_layers(f, layers)
    chunk = chunk_window(f) if any(chunked) else AttentionPolicy.full()
    return [chunk if each else AttentionPolicy.full() for each in chunked]


def _flint(f: Fields, layers: int) -> list[AttentionPolicy]:
    return full_or_window(f, [i < 2 or i % 4 == 1 or i == layers - 1 for i in range(layers)])


def _cohere2_moe(f: Fields, layers: int) -> list[AttentionPolicy]:
    prefix = min(f.number("first_k_dense_replace"), layers)
    first = f.number("prefix_dense_sliding_window_pattern", 1) or 1
    then = f.number("sliding_window_pattern", 4) or 4
    full = [(i + 1) % first == 0 for i in range(prefix)]
    return full_or_window(f, full + [(i + 1) % then == 0 for i in range(layers - prefix)])


# -- the families ----------------------------------------------------------------------------


def _register(pattern: Pattern, names: str) -> None:
    register(*names.split())(partial(attention_decoder, pattern=pattern))


_register(
    full_only,
    """
    llama apertus apertus1p5_text arcee aria_text bitnet cohere cohere_compass_text diffllama
    emu3_text_model ernie4_5 ernie4_5_moe exaone flex_olmo glm glm4 glm4_moe glm4v_text
    glm4v_moe_text granite granitemoe granitemoeshared helium hy_v3
    hyperclovax internlm internlm2 internlm3 iquestcoder jais2 minimax_m2 nanochat nemotron olmo
    olmo2 olmoe persimmon phi seed_oss solar_open stablelm stablelm_epoch sarvam_moe doge
    gpt_neox gpt_neox_japanese biogpt opt codegen gptj bloom xglm ctrl openai-gpt git
    cpmant baichuan xverse qwen minicpm minicpmv minicpmo orion aquila Yi deepseek bailing_moe
    bailing_moe_v2 arctic grok-1 telechat skywork mimo mimo_mtp phi3small step3_text
    chameleon llava llava_llama vipllava jais Keye KeyeVL1_5 ernie4_5_moe_vl ernie4_5_vl mellum
    laguna molmo molmo2_text
    ernie4_5_vl_moe_text cosmos3_edge_text glm_image_text glm_ocr_text hunyuan_vl_text
    paddleocr_vl_text granite_docling_text granite4_vision_text higgs_audio_v2
    kosmos_2_text_model kosmos_2_5_text_model
    """,
)
_register(
    every_layer,
    """
    mistral mixtral ministral ministral3 phi3 phi3_v phi4mm phi4_multimodal phimoe starcoder2
    moshi csm llava_mistral voxtral_realtime_text kyutai_speech_to_text
    """,
)
_register(
    upper_layers(flagged=True),
    """
    qwen2 qwen2_moe qwen3 qwen3_moe qwen2_vl qwen2_5_vl qwen2_vl_text qwen2_5_vl_text
    qwen2_5_omni_text qwen3_vl_text qwen3_vl_moe_text qwen3_omni_moe_text
    qwen3_omni_moe_talker_text llava_qwen2
    """,
)
_register(upper_layers(flagged=False), "dots1 deepseek_ocr2_text")
_register(periodic(2), "gemma2 gpt_oss vaultgemma")
_register(
    periodic(6, "sliding_window_pattern", "_sliding_window_pattern"),
    "gemma3_text embedding_gemma2_text",
)
_register(periodic(4, "sliding_window_pattern", "_sliding_window_pattern"), "cohere2 exaone4")
_register(periodic(4, "sliding_window_pattern"), "exaone_moe")
_register(periodic(4), "olmo3")
_register(periodic(5), "kolibri1")
_register(periodic(4, "global_attn_every_n_layers"), "afmoe")
_register(periodic(4, first_full=True), "cwm granite_swa granitemoe_swa")
_register(periodic(3, "global_attn_every_n_layers", first_full=True), "modernbert-decoder")
_register(periodic(6, last_full=True), "beam")
_register(periodic(4, from_end=True), "muse_glimmer_text muse_spark_text")
_register(_smollm, "smollm3")
_register(_llama4, "llama4_text")
_register(_flint, "flint")
_register(_cohere2_moe, "cohere2_moe")
register("gemma")(attention_decoder)
