"""What the configuration classes of model types fill in for fields that a file leaves out.

The table next to this module was read from the classes of the ``transformers`` package; it holds
facts only: one integer a field, and no field that its class derives from another one.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FIELDS", "class_defaults"]

_NAMES = """
    num_hidden_layers n_layer n_layers num_layers decoder_layers num_decoder_layers
    hidden_size n_embd d_model emb_dim
    num_attention_heads n_head n_heads num_heads decoder_attention_heads
    num_decoder_attention_heads attention_heads
    num_key_value_heads num_kv_heads n_head_kv head_dim attention_head_dim kv_channels d_kv
    dim_head d_head attention_head_size v_head_dim global_head_dim num_global_key_value_heads
    swa_num_key_value_heads swa_num_attention_heads swa_head_dim
    sliding_window sliding_window_size window_size attention_window_size attention_chunk_size
    max_window_layers local_attention num_kv_shared_layers
    kv_lora_rank qk_rope_head_dim qk_nope_head_dim index_head_dim
    linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim linear_num_key_heads
    linear_num_value_heads linear_head_dim linear_num_heads short_conv_kernel_size
    layer_group_size
    mamba_num_heads mamba_head_dim mamba_n_heads mamba_d_head mamba_n_groups mamba_d_state
    mamba_d_conv mamba_expand mamba_d_ssm mamba_ngroups n_mamba_heads mamba_headdim
    ssm_state_size n_groups conv_kernel state_size expand time_step_rank
    attn_layer_period attn_layer_offset conv_L_cache conv_kernel_size conv1d_width lru_width
    max_source_positions
    cca_time0 cca_time1
"""

FIELDS = frozenset(_NAMES.split())
"""Fields that the table covers."""


# Model types of code outside that package, with the classes that their own ones copy.
_SAME_AS = {
    "deepseek_ref": "deepseek_v4",
    "kimi_k2": "deepseek_v3",
    "minimax_m1": "minimax",
    "minimax_text_01": "minimax",
    "mimo_v2": "mimo_v2_flash",
    "rwkv5": "rwkv",
    "rwkv6": "rwkv",
}


@cache
def _table() -> dict[str, dict[str, int]]:
    text = files("kvcache.models").joinpath("class_defaults.json").read_text(encoding="utf-8")
    table: dict[str, dict[str, int]] = json.loads(text)
    return table


def class_defaults(model_type: str) -> Mapping[str, int]:
    """Default of each field of a model type; empty for a type that the table does not have."""
    row = _table().get(_SAME_AS.get(model_type, model_type))
    return row if isinstance(row, dict) else {}
