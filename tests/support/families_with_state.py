"""Families whose layers keep latents, pooled history, convolutions or recurrent state."""

from __future__ import annotations

from support.family import FULL, NONE, Family, dense

__all__ = ["CONVOLUTIONAL", "LATENT", "LINEAR", "MAMBA", "RECURRENT"]

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
