"""Small configurations of every family of decoders, and what each must be read as.

Sizes are small and unlike each other, so that a confusion of two shows.
"""

from __future__ import annotations

from support.families_with_state import CONVOLUTIONAL, LATENT, LINEAR, MAMBA, RECURRENT
from support.family import FULL, NONE, Family, dense

__all__ = ["FAMILIES", "Family"]

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
    "dia": Family(
        {
            "model_type": "dia",
            "decoder_config": dense("dia_decoder", cross_num_key_value_heads=4, cross_head_dim=8),
        },
        {FULL: 8},
    ),
    "moonshine": Family(
        {
            "model_type": "moonshine",
            "hidden_size": 64,
            "encoder_num_hidden_layers": 3,
            "decoder_num_hidden_layers": 2,
            "decoder_num_attention_heads": 4,
            "decoder_num_key_value_heads": 2,
        },
        {FULL: 2},
    ),
    "kosmos-2": Family(
        {
            "model_type": "kosmos-2",
            "text_config": {
                "model_type": "kosmos_2_text_model",
                "layers": 2,
                "embed_dim": 64,
                "attention_heads": 4,
            },
        },
        {(None, 128): 2},
    ),
    "t5gemma2": Family(
        {
            "model_type": "t5gemma2",
            "decoder": dense("t5gemma2_decoder", sliding_window=16),
            "encoder": {"text_config": dense("t5gemma2_text", max_position_embeddings=32)},
        },
        {FULL: 1, (16, 64): 7},
        strategy="MixedKv",
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
