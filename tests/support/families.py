"""Small configurations of every family of decoders, and what each must be read as.

Sizes are those of published models where the comment names one, else small and unlike each other.
``kept`` counts layers by window (None: every position) and scalars a position; layers without
attention count as ``("-", 0)``. ``fixed`` is the scalars of all state that does not grow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["FAMILIES", "Family"]

Kept = dict[tuple[Any, int], int]


@dataclass(frozen=True)
class Family:
    """A configuration and its meaning."""

    config: dict[str, Any]
    kept: Kept
    fixed: int = 0
    drafts: int = 0
    strategy: str = "FullKv"
    indexed: int = field(default=0)  # layers with index keys


def dense(model_type: str, **fields: Any) -> dict[str, Any]:
    """Eight layers of four heads of 16, two of them for keys and values."""
    return {
        "model_type": model_type,
        "num_hidden_layers": 8,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        **fields,
    }


NONE = ("-", 0)
FULL = (None, 64)
_SLIDE = ["sliding_attention"] * 5 + ["full_attention"]

DENSE = {
    "llama": Family(dense("llama", sliding_window=16), {FULL: 8}),
    "qwen3_moe": Family(dense("qwen3_moe", sliding_window=16, use_sliding_window=False), {FULL: 8}),
    "qwen2 upper layers": Family(
        dense("qwen2", sliding_window=16, use_sliding_window=True, max_window_layers=6),
        {FULL: 6, (16, 64): 2},
        strategy="MixedKv",
    ),
    "mistral": Family(dense("mistral", sliding_window=16), {(16, 64): 8}, strategy="SlidingKv"),
    "mistral without its window": Family(
        dense("mistral", sliding_window=16, use_sliding_window=False), {FULL: 8}
    ),
    "mistral with two windows": Family(
        dense("mistral", sliding_window=16, per_layer_config={"1": {"sliding_window": 32}}),
        {(16, 64): 7, (32, 64): 1},
        strategy="MixedKv",
    ),
    "mixtral": Family(dense("mixtral", sliding_window=None), {FULL: 8}),
    "gemma2": Family(
        dense("gemma2", sliding_window=16), {FULL: 4, (16, 64): 4}, strategy="MixedKv"
    ),
    "cohere2": Family(
        dense("cohere2", sliding_window=16, sliding_window_pattern=4),
        {FULL: 2, (16, 64): 6},
        strategy="MixedKv",
    ),
    "exaone4 letters": Family(
        dense("exaone4", sliding_window=16, sliding_window_pattern="LLLG"),
        {FULL: 2, (16, 64): 6},
        strategy="MixedKv",
    ),
    "olmo3": Family(dense("olmo3", sliding_window=16), {FULL: 2, (16, 64): 6}, strategy="MixedKv"),
    "cwm": Family(dense("cwm", sliding_window=16), {FULL: 2, (16, 64): 6}, strategy="MixedKv"),
    "llama4_text": Family(
        dense("llama4_text", attention_chunk_size=32, no_rope_layers=[]),
        {FULL: 2, (32, 64): 6},
        strategy="MixedKv",
    ),
    "smollm3": Family(dense("smollm3", use_sliding_window=False, sliding_window=16), {FULL: 8}),
    "beam": Family(dense("beam", sliding_window=16), {FULL: 2, (16, 64): 6}, strategy="MixedKv"),
    "flint": Family(dense("flint", sliding_window=17), {FULL: 4, (17, 64): 4}, strategy="MixedKv"),
    "muse_glimmer_text": Family(
        dense("muse_glimmer_text", sliding_window=16, num_hidden_layers=6),
        {FULL: 2, (16, 64): 4},
        strategy="MixedKv",
    ),
    "glm4_moe": Family(dense("glm4_moe", num_nextn_predict_layers=1), {FULL: 8}, drafts=1),
    "minimax_m2": Family(
        dense("minimax_m2", use_mtp=True, num_mtp_modules=3, mtp_transformer_layers=1),
        {FULL: 8},
        drafts=3,
    ),
    "mimo": Family(
        dense("mimo", sliding_window=16, use_sliding_window=False, num_nextn_predict_layers=1),
        {FULL: 8},
        drafts=1,
    ),
}

LEGACY = {
    "falcon, one head": Family(
        {
            "model_type": "falcon",
            "num_hidden_layers": 2,
            "hidden_size": 4544,
            "num_attention_heads": 71,
            "multi_query": True,
            "num_kv_heads": 71,
        },
        {(None, 128): 2},
    ),
    "falcon, new architecture": Family(
        {
            "model_type": "falcon",
            "n_layer": 2,
            "hidden_size": 8192,
            "n_head": 128,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
        },
        {(None, 1024): 2},
    ),
    "RefinedWeb": Family(
        {"model_type": "RefinedWeb", "n_layer": 2, "hidden_size": 64, "n_head": 8, "n_head_kv": 2},
        {(None, 32): 2},
    ),
    "gpt2": Family(
        {"model_type": "gpt2", "n_layer": 2, "n_head": 4, "n_embd": 64}, {(None, 128): 2}
    ),
    "gpt_bigcode": Family(
        {"model_type": "gpt_bigcode", "n_layer": 2, "n_head": 4, "n_embd": 64}, {(None, 32): 2}
    ),
    "mpt": Family(
        {
            "model_type": "mpt",
            "n_layers": 2,
            "n_heads": 4,
            "d_model": 64,
            "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 2},
        },
        {(None, 64): 2},
    ),
    "dbrx": Family(
        {
            "model_type": "dbrx",
            "n_layers": 2,
            "n_heads": 4,
            "d_model": 64,
            "attn_config": {"kv_n_heads": 2},
        },
        {(None, 64): 2},
    ),
    "chatglm": Family(
        {
            "model_type": "chatglm",
            "num_layers": 2,
            "num_attention_heads": 4,
            "hidden_size": 64,
            "kv_channels": 8,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
        },
        {(None, 32): 2},
    ),
    "gpt_neo": Family(
        {
            "model_type": "gpt_neo",
            "num_layers": 4,
            "num_heads": 4,
            "hidden_size": 64,
            "attention_types": [[["global", "local"], 2]],
            "window_size": 8,
        },
        {(None, 128): 2, (8, 128): 2},
        strategy="MixedKv",
    ),
    "jetmoe": Family(
        {
            "model_type": "jetmoe",
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "num_key_value_heads": 4,
            "kv_channels": 8,
        },
        {(None, 64): 2},
    ),
}

_MLA = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}

LATENT = {
    "deepseek_v3": Family(
        {"model_type": "deepseek_v3", "num_nextn_predict_layers": 1, **_MLA},
        {(None, 40): 4},
        drafts=1,
        strategy="CompressedMla",
    ),
    "deepseek_v2 without latent": Family(
        {
            "model_type": "deepseek_v2",
            **_MLA,
            "use_mla": False,
            "kv_lora_rank": None,
            "num_key_value_heads": 8,
            "head_dim": 8,
        },
        {(None, 128): 4},
    ),
    "longcat_flash": Family(
        {"model_type": "longcat_flash", **_MLA, "num_layers": 4},
        {(None, 40): 8},
        strategy="CompressedMla",
    ),
    "deepseek_v32": Family(
        {"model_type": "deepseek_v32", **_MLA, "index_head_dim": 16},
        {(None, 56): 4},
        strategy="CompressedMla",
        indexed=4,
    ),
    "glm_moe_dsa": Family(
        {
            "model_type": "glm_moe_dsa",
            **_MLA,
            "index_head_dim": 16,
            "indexer_types": ["full", "full", "shared", "shared"],
            "num_nextn_predict_layers": 1,
        },
        {(None, 56): 2, (None, 40): 2},
        drafts=1,
        strategy="CompressedMla",
        indexed=2,
    ),
    "mistral_large4_text": Family(
        {
            "model_type": "mistral_large4_text",
            **_MLA,
            "index_head_dim": 16,
            "indexer_types": ["full", "full", "shared", "shared"],
            "kv_source_layers": [0, 1, 1, 3],
        },
        {(None, 56): 2, (None, 40): 1, NONE: 1},
        strategy="SharedFullKv",
        indexed=2,
    ),
    "dots3_note_text": Family(
        {
            "model_type": "dots3_note_text",
            **_MLA,
            "index_head_dim": 16,
            "sliding_window": 32,
            "swa_kv_lora_rank": 64,
            "swa_qk_rope_head_dim": 4,
            "layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 2,
        },
        {(None, 56): 2, (32, 68): 2},
        strategy="MixedKv",
        indexed=2,
    ),
    "deepseek_v4": Family(
        {
            "model_type": "deepseek_v4",
            "num_hidden_layers": 4,
            "hidden_size": 64,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "index_head_dim": 8,
            "sliding_window": 16,
            "num_nextn_predict_layers": 1,
            "compress_ratios": [0, 0, 4, 128, 0],
        },
        {(16, 32): 4},
        fixed=4 * 2 * (32 + 8),  # the overlap pairs of the layer of ratio 4
        drafts=1,
        strategy="SlidingKey",
    ),
}

_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
_DELTA_STATE = 3 * (2 * 2 * 8 + 4 * 16) + 4 * 8 * 16
_KDA = {"head_dim": 8, "num_heads": 4, "short_conv_kernel_size": 4}
_KDA_STATE = 3 * 3 * 32 + 4 * 8 * 8

LINEAR = {
    "qwen3_next": Family(
        dense("qwen3_next", mtp_num_hidden_layers=1, **_DELTA),
        {FULL: 2, NONE: 6},
        fixed=6 * _DELTA_STATE,
        drafts=1,
        strategy="HybridRecurrent",
    ),
    "qwen3_5_text": Family(
        dense("qwen3_5_text", layer_types=["linear_attention"] * 7 + ["full_attention"], **_DELTA),
        {FULL: 1, NONE: 7},
        fixed=7 * _DELTA_STATE,
        strategy="HybridRecurrent",
    ),
    "olmo_hybrid": Family(
        dense("olmo_hybrid", **_DELTA),
        {FULL: 2, NONE: 6},
        fixed=6 * _DELTA_STATE,
        strategy="HybridRecurrent",
    ),
    "lara_mini": Family(
        dense("lara_mini", sliding_window=16, **_DELTA),
        {FULL: 1, (16, 64): 3, NONE: 4},
        fixed=4 * _DELTA_STATE,
        strategy="HybridRecurrent",
    ),
    "qwen4_exp_text": Family(
        dense("qwen4_exp_text", indexer_head_dim=8, **_DELTA),
        {(None, 72): 2, NONE: 6},
        fixed=6 * _DELTA_STATE,
        strategy="HybridRecurrent",
        indexed=2,
    ),
    "kimi_linear": Family(
        {
            "model_type": "kimi_linear",
            **_MLA,
            "linear_attn_config": {**_KDA, "full_attn_layers": [3, 4], "kda_layers": [1, 2]},
        },
        {(None, 40): 2, NONE: 2},
        fixed=2 * _KDA_STATE,
        strategy="HybridRecurrent",
    ),
    "bailing_hybrid": Family(
        {
            "model_type": "bailing_hybrid",
            **_MLA,
            "head_dim": 8,
            "layer_group_size": 2,
            "short_conv_kernel_size": 4,
        },
        {(None, 40): 2, NONE: 2},
        fixed=2 * (3 * 3 * 64 + 8 * 8 * 8),
        strategy="HybridRecurrent",
    ),
    "minimax": Family(
        dense("minimax_text_01", attn_type_list=[0] * 7 + [1]),
        {FULL: 1, NONE: 7},
        fixed=7 * 4 * 16 * 16,
        strategy="HybridRecurrent",
    ),
    "bailing_moe_linear": Family(
        dense("bailing_moe_linear", layer_group_size=4),
        {FULL: 2, NONE: 6},
        fixed=6 * 4 * 16 * 16,
        strategy="HybridRecurrent",
    ),
}

_MAMBA2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
_MAMBA2_STATE = 3 * (128 + 2 * 2 * 8) + 128 * 8
_MAMBA1 = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2}
_MAMBA1_STATE = 3 * 128 + 128 * 8

MAMBA = {
    "mamba": Family(
        {
            "model_type": "mamba",
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "state_size": 8,
            "conv_kernel": 4,
            "expand": 2,
        },
        {NONE: 2},
        fixed=2 * _MAMBA1_STATE,
        strategy="HybridRecurrent",
    ),
    "falcon_mamba": Family(
        {
            "model_type": "falcon_mamba",
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "state_size": 8,
            "conv_kernel": 4,
            "expand": 16,
        },
        {NONE: 2},
        fixed=2 * _MAMBA1_STATE,
        strategy="HybridRecurrent",
    ),
    "mamba_ssm": Family(
        {"d_model": 64, "n_layer": 2, "ssm_cfg": {"d_state": 8}},
        {NONE: 2},
        fixed=2 * _MAMBA1_STATE,
        strategy="HybridRecurrent",
    ),
    "mamba_ssm, second": Family(
        {"d_model": 64, "n_layer": 2, "ssm_cfg": {"layer": "Mamba2"}},
        {NONE: 2},
        fixed=2 * (3 * (128 + 2 * 128) + 128 * 128),
        strategy="HybridRecurrent",
    ),
    "bamba": Family(
        dense("bamba", attn_layer_indices=[3], **_MAMBA2),
        {FULL: 1, NONE: 7},
        fixed=7 * _MAMBA2_STATE,
        strategy="HybridRecurrent",
    ),
    "granitemoehybrid": Family(
        dense("granitemoehybrid", layer_types=["mamba"] * 7 + ["attention"], **_MAMBA2),
        {FULL: 1, NONE: 7},
        fixed=7 * _MAMBA2_STATE,
        strategy="HybridRecurrent",
    ),
    "granitemoehybrid without Mamba": Family(
        dense("granitemoehybrid", layer_types=["attention"] * 8), {FULL: 8}
    ),
    "jamba": Family(
        dense("jamba", attn_layer_period=4, attn_layer_offset=2, **_MAMBA1),
        {FULL: 2, NONE: 6},
        fixed=6 * _MAMBA1_STATE,
        strategy="HybridRecurrent",
    ),
    "falcon_h1": Family(
        dense("falcon_h1", **_MAMBA2, mamba_d_ssm=128),
        {FULL: 8},
        fixed=8 * _MAMBA2_STATE,
        strategy="HybridRecurrent",
    ),
    "zamba": Family(
        {
            **dense("zamba", layers_block_type=["mamba", "hybrid"] * 4, **_MAMBA1),
            "head_dim": None,
            "num_key_value_heads": 4,
        },
        {(None, 256): 4, NONE: 4},
        fixed=8 * _MAMBA1_STATE,
        strategy="HybridRecurrent",
    ),
    "zamba2": Family(
        dense(
            "zamba2",
            layers_block_type=["mamba", "hybrid"] * 4,
            attention_head_dim=32,
            n_mamba_heads=8,
            mamba_ngroups=2,
            mamba_d_state=8,
            mamba_d_conv=4,
            mamba_expand=2,
        ),
        {(None, 128): 4, NONE: 4},
        fixed=8 * _MAMBA2_STATE,
        strategy="HybridRecurrent",
    ),
}

CONVOLUTIONAL = {
    "lfm2": Family(
        dense("lfm2", conv_L_cache=3, layer_types=["conv"] * 6 + ["full_attention"] * 2),
        {FULL: 2, NONE: 6},
        fixed=6 * 2 * 64,
        strategy="HybridRecurrent",
    ),
    "lfm3": Family(
        dense("lfm3", conv_L_cache=7, sliding_window=16),
        {FULL: 2, (16, 64): 1, NONE: 5},
        fixed=5 * 6 * 64,
        strategy="HybridRecurrent",
    ),
    "zaya": Family(
        dense("zaya", cca_time0=2, cca_time1=2),
        {FULL: 8},
        fixed=8 * (2 * (32 + 64) + 16),
        strategy="HybridRecurrent",
    ),
    "inkling_text": Family(
        dense(
            "inkling_text",
            num_hidden_layers=6,
            swa_num_attention_heads=4,
            swa_num_key_value_heads=4,
            swa_head_dim=16,
            sliding_window_size=32,
            conv_kernel_size=4,
        ),
        {FULL: 1, (32, 128): 5},
        fixed=3 * (6 * 2 * 64 + 5 * 2 * 64 + 2 * 32),
        strategy="HybridRecurrent",
    ),
    "inkling2_loop_text": Family(
        dense(
            "inkling2_loop_text",
            layer_types=["hybrid"] * 8,
            conv_kernel_size=2,
            loop_layer_index_start=2,
            loop_layer_index_end=4,
            loop_num_passes=3,
        ),
        {FULL: 12},
        fixed=12 * (2 * 64 + 2 * 32),
        strategy="HybridRecurrent",
    ),
    "yuan": Family(dense("yuan"), {FULL: 8}, fixed=8 * 2 * 64, strategy="HybridRecurrent"),
    "dory": Family(
        dense(
            "dory",
            layer_types=["full_attention", "mlp"] * 4,
            n_input_layers=2,
            n_recurrent_layers=4,
            n_output_layers=2,
            n_recurrent_loops=2,
        ),
        {FULL: 6, NONE: 6},
    ),
    "hrm_text": Family(dense("hrm_text", num_hidden_layers=2, H_cycles=2, L_cycles=3), {FULL: 16}),
}

RECURRENT = {
    "rwkv": Family(
        {"model_type": "rwkv", "num_hidden_layers": 2, "hidden_size": 64},
        {NONE: 2},
        fixed=2 * (2 * 64 + 3 * 64),
        strategy="HybridRecurrent",
    ),
    "rwkv6": Family(
        {"model_type": "rwkv6", "num_hidden_layers": 2, "hidden_size": 64, "head_size": 16},
        {NONE: 2},
        fixed=2 * (2 * 64 + 4 * 16 * 16),
        strategy="HybridRecurrent",
    ),
    "rwkv7": Family(
        {
            "model_type": "rwkv7",
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "head_dim": 16,
            "num_heads": 32,
        },
        {NONE: 2},
        fixed=2 * (2 * 64 + 4 * 16 * 16),
        strategy="HybridRecurrent",
    ),
    "xlstm": Family(
        {"model_type": "xlstm", "num_hidden_layers": 2, "hidden_size": 256, "num_heads": 4},
        {NONE: 2},
        fixed=2 * 4 * (32 * 64 + 32 + 1),
        strategy="HybridRecurrent",
    ),
    "recurrent_gemma": Family(
        dense("recurrent_gemma", lru_width=64, attention_window_size=16, conv1d_width=4),
        {(16, 64): 2, NONE: 6},
        fixed=6 * (3 * 64 + 64),
        strategy="HybridRecurrent",
    ),
}

UNEVEN = {
    "mimo_v2_flash": Family(
        dense(
            "mimo_v2_flash",
            v_head_dim=8,
            swa_num_key_value_heads=4,
            swa_head_dim=16,
            swa_v_head_dim=8,
            sliding_window=16,
            attention_chunk_size=16,
            hybrid_layer_pattern=[0, 1, 1, 1, 1, 0, 1, 1],
        ),
        {(None, 48): 2, (16, 96): 6},
        strategy="MixedKv",
    ),
    "step3p5": Family(
        {
            **dense("step3p5", num_attention_groups=2, sliding_window=16),
            "num_key_value_heads": None,
            "num_nextn_predict_layers": 1,
            "layer_types": ["full_attention", *["sliding_attention"] * 3] * 2 + ["full_attention"],
            "attention_other_setting": {"num_attention_heads": 8, "num_attention_groups": 4},
        },
        {FULL: 2, (16, 128): 6},
        drafts=1,
        strategy="MixedKv",
    ),
    "nemotron-nas": Family(
        {
            "model_type": "nemotron-nas",
            "num_hidden_layers": 3,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": None,
            "block_configs": [
                {"attention": {"n_heads_in_group": 2, "no_op": False}},
                {"attention": {"n_heads_in_group": None, "no_op": True}},
                {"attention": {"n_heads_in_group": 4, "no_op": False}},
            ],
        },
        {(None, 64): 1, (None, 32): 1, NONE: 1},
    ),
    "deci": Family(
        {
            "model_type": "deci",
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads_per_layer": [4, 1],
        },
        {(None, 128): 1, (None, 32): 1},
    ),
    "openelm": Family(
        {
            "model_type": "openelm",
            "num_transformer_layers": 2,
            "model_dim": 64,
            "head_dim": 16,
            "num_kv_heads": [3, 4],
        },
        {(None, 96): 1, (None, 128): 1},
    ),
    "hunyuan": Family(
        {**dense("hunyuan", attention_head_dim=16, use_cla=False, cla_share_factor=2)},
        {FULL: 8},
    ),
    "hunyuan with CLA": Family(
        dense("hunyuan", use_cla=True, cla_share_factor=2),
        {FULL: 4, NONE: 4},
        strategy="SharedFullKv",
    ),
    "minimax_m3": Family(
        dense(
            "minimax_m3",
            sparse_attention_config={
                "use_sparse_attention": True,
                "sparse_index_dim": 8,
                "sparse_attention_freq": [0, 0, 0, 1, 1, 1, 1, 1],
            },
        ),
        {FULL: 3, (None, 72): 5},
        indexed=5,
    ),
    "per_layer_config": Family(
        dense("llama", per_layer_config={"03": {"num_key_value_heads": 4}}),
        {FULL: 7, (None, 128): 1},
    ),
}

SHARED = {
    "gemma3n_text": Family(
        dense("gemma3n_text", num_hidden_layers=10, num_kv_shared_layers=5, sliding_window=16),
        {FULL: 1, (16, 64): 4, NONE: 5},
        strategy="SharedFullKv",
    ),
    "gemma4_text": Family(
        dense(
            "gemma4_text",
            num_hidden_layers=12,
            num_kv_shared_layers=6,
            global_head_dim=32,
            num_global_key_value_heads=None,
            sliding_window=16,
        ),
        {(None, 128): 1, (16, 64): 5, NONE: 6},
        strategy="SharedFullKv",
    ),
    "gemma4_text, K equals V": Family(
        dense(
            "gemma4_text",
            num_hidden_layers=6,
            attention_k_eq_v=True,
            global_head_dim=32,
            num_global_key_value_heads=1,
            sliding_window=16,
        ),
        {(None, 64): 1, (16, 64): 5},
        strategy="SharedFullKv",
    ),
}

ENCODER_DECODER = {
    "bart": Family(
        {
            "model_type": "bart",
            "d_model": 64,
            "decoder_layers": 2,
            "decoder_attention_heads": 4,
            "num_hidden_layers": 6,
            "max_position_embeddings": 32,
        },
        {(None, 128): 2},
    ),
    "whisper": Family(
        {
            "model_type": "whisper",
            "d_model": 64,
            "decoder_layers": 2,
            "decoder_attention_heads": 4,
            "max_source_positions": 1500,
        },
        {(None, 128): 2},
    ),
    "t5": Family(
        {
            "model_type": "t5",
            "d_model": 64,
            "d_kv": 8,
            "num_heads": 6,
            "num_layers": 4,
            "num_decoder_layers": 2,
        },
        {(None, 96): 2},
    ),
    "t5gemma": Family(
        {
            "model_type": "t5gemma",
            "decoder": dense("t5_gemma_module", sliding_window=16),
            "encoder": dense("t5_gemma_module", max_position_embeddings=32),
        },
        {FULL: 4, (16, 64): 4},
        strategy="MixedKv",
    ),
    "mllama": Family(
        {
            "model_type": "mllama",
            "text_config": dense("mllama_text_model", cross_attention_layers=[3]),
            "vision_config": {"image_size": 28, "patch_size": 14, "max_num_tiles": 4},
        },
        {FULL: 7, NONE: 1},
        strategy="Multimodal",
    ),
}

FAMILIES: dict[str, Family] = {
    **DENSE,
    **LEGACY,
    **LATENT,
    **LINEAR,
    **MAMBA,
    **CONVOLUTIONAL,
    **RECURRENT,
    **UNEVEN,
    **SHARED,
    **ENCODER_DECODER,
}
