"""Tiny models of transformers with random weights, one for each way of keeping state."""

from __future__ import annotations

import functools
from typing import Any

import torch
import transformers

VOCABULARY = 97
WINDOW = 24  # of layers that slide

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,  # else a model with random weights says its last token again
}
_MOE = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
_GATED_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
}
_MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 2,
}
_MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {"sliding_window": WINDOW, "sliding_window_pattern": 2},
    "gpt_oss": {
        "sliding_window": WINDOW,
        **_MOE,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "qwen3_next": {**_GATED_DELTA, **_MOE},
    "qwen3_5_text": _GATED_DELTA,
    "mamba2": {
        "num_heads": 8,
        "head_dim": 8,
        "state_size": 8,
        "n_groups": 1,
        "chunk_size": 16,
        "expand": 2,
    },
    "mamba": {"state_size": 8, "expand": 2, "time_step_rank": 4},
    "jamba": {
        **_MOE,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
    },
    "bamba": {**_MAMBA, "attn_layer_indices": [1, 3]},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64, "embedding_multiplier": 1.0},
    "lfm2": {
        "layer_types": ["conv", "full_attention"] * 2,
        "block_multiple_of": 16,
        "tie_embedding": False,
    },
    "nemotron_h": {
        **_MOE,
        "layers_block_type": ["mamba", "attention", "mamba", "moe"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "n_groups": 1,
        "chunk_size": 16,
        "n_routed_experts": 4,
        "moe_shared_expert_intermediate_size": 16,
    },
    "granitemoehybrid": {
        **_MAMBA,
        **_MOE,
        "layer_types": ["mamba", "attention"] * 2,
        "shared_intermediate_size": 16,
    },
    "gemma3n_text": {
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "inkling2_text": {  # four convolutions beside the attention of each layer
        "unpadded_vocab_size": VOCABULARY,
        "layer_types": ["hybrid_sliding", "hybrid"] * 2,
        "sliding_window_size": WINDOW,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 8,
        "d_rel": 4,
        "rel_extent": 32,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "n_layers_per_attn_res_block": 2,
        "final_logit_softcapping": 30.0,
    },
    "deepseek_v3": _MLA,
    "deepseek_v32": {**_MLA, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 16},
}

# Pieces of a prompt are multiplied in other shapes than the whole, so sums round otherwise. Where
# that flips what sparse attention selects, plain runs of transformers differ among themselves.
ROUNDING: dict[str, dict[str, Any]] = {"deepseek_v32": {"index_topk": 1024}}


def tiny_config(model_type: str, **changes: Any) -> Any:
    """The configuration of one of `CONFIGS`."""
    fields = {**_COMMON, **CONFIGS[model_type], **changes}
    return transformers.AutoConfig.for_model(model_type, **fields)


@functools.cache
def tiny_model(
    model_type: str, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any
) -> Any:
    """A model of it with random weights, whose greedy continuations do not repeat themselves."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(tiny_config(model_type, **changes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "conv" not in name:
                parameter.mul_(3)
    return model.to(dtype).eval()


def prompt(tokens: int, seed: int = 0) -> torch.Tensor:
    """``[1, tokens]`` of random ids, none of them padding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (1, tokens), generator=generator)
