"""Configurations whose state is divided over tensor-parallel ranks, one of each kind of family."""

from __future__ import annotations

from typing import Any

DENSE = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 8, "head_dim": 8}
MAMBA = {"num_heads": 16, "head_dim": 4, "state_size": 6, "conv_kernel": 4}
DELTA = {
    **DENSE,
    "model_type": "qwen3_next",
    "num_key_value_heads": 2,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 3,
    "linear_value_head_dim": 5,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention"],
}
CONFIGS: dict[str, dict[str, Any]] = {
    "gqa": {**DENSE, "model_type": "llama", "num_key_value_heads": 8},
    "gqa, two heads": {**DENSE, "model_type": "llama", "num_key_value_heads": 2},
    "mqa": {**DENSE, "model_type": "llama", "num_key_value_heads": 1},
    "mla": {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 12,
    },
    "gated delta net": DELTA,
    "mamba2": {
        **MAMBA,
        "model_type": "mamba2",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "n_groups": 8,
        "expand": 2,
    },
    "mamba2, one group": {
        **MAMBA,
        "model_type": "mamba2",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "n_groups": 1,
        "expand": 2,
    },
    "mamba": {
        "model_type": "mamba",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "state_size": 4,
        "conv_kernel": 4,
    },
}
