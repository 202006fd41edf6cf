"""Public reports of planners that read a configuration wrong, each as the smallest such input."""

from __future__ import annotations

from typing import Any

import pytest
from support.counting import fixed_scalars, position_scalars, scalars_at

from kvcache.errors import InvalidArgumentError
from kvcache.models import from_config

BF16 = 2


def token_bytes(model: Any) -> int:
    """Bytes of a position while it is inside every window, at two bytes a scalar."""
    return BF16 * sum(position_scalars(layer, indexer=False) for layer in model.schedule)


def llama(**fields: Any) -> dict[str, Any]:
    """Llama 3 8B, with some fields changed."""
    return {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        **fields,
    }


def test_a_null_head_dim_is_derived() -> None:
    """llm-d/llm-d-benchmark#426: ``head_dim`` is there but null."""
    config = llama(head_dim=None, hidden_size=6144, num_attention_heads=48)
    layer: Any = from_config(config).schedule[0]
    assert layer.head_dim == 128


def test_null_global_heads_fall_back_to_the_local_ones() -> None:
    """modular/modular#6665: ``num_global_key_value_heads: null`` of Gemma 4 E4B."""
    text = {
        "model_type": "gemma4_text",
        "num_hidden_layers": 6,
        "hidden_size": 2560,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": None,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 512,
        "attention_k_eq_v": False,
    }
    full: Any = from_config({"model_type": "gemma4", "text_config": text}).schedule[5]
    assert (full.num_key_value_heads, full.head_dim) == (2, 512)


def gpt_oss_120b() -> dict[str, Any]:
    """The fields of gpt-oss-120b that matter."""
    return {
        "model_type": "gpt_oss",
        "num_hidden_layers": 36,
        "hidden_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
    }


def test_sliding_layers_count_too() -> None:
    """alvarobartt/hf-mem#60: one token of gpt-oss-120b is 73,728 bytes, not half of it."""
    assert token_bytes(from_config(gpt_oss_120b())) == 73_728


def test_deepseek_v4_is_read_as_itself_wherever_it_is_read() -> None:
    """vllm-project/vllm#44376: one path took the dimensions of multi-head attention."""
    config = {
        "model_type": "deepseek_v4",
        "num_hidden_layers": 4,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "index_head_dim": 128,
        "sliding_window": 128,
        "compress_ratios": [0, 0, 4, 128],
    }
    model = from_config(config, tp=2)
    assert [position_scalars(layer) for layer in model.schedule] == [512] * 4
    assert scalars_at(model.schedule, 30_000) == 4 * 128 * 512


def test_kimi_linear_has_a_fixed_and_a_growing_part() -> None:
    """vllm-project/vllm#28228: 7 latent layers grow, 20 delta layers do not."""
    config = {
        "model_type": "kimi_linear",
        "num_hidden_layers": 27,
        "hidden_size": 2304,
        "num_attention_heads": 32,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "linear_attn_config": {
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "kda_layers": [i for i in range(1, 27) if i % 4],
            "num_heads": 32,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
        },
    }
    model = from_config(config)
    assert token_bytes(model) == 7 * 576 * BF16
    assert fixed_scalars(model.schedule) == 20 * (3 * 3 * 4096 + 32 * 128 * 128)


def test_only_the_attention_layers_of_granite_4_grow() -> None:
    """ollama/ollama#12692: a hybrid priced as full attention."""
    kinds = ["attention" if i % 10 == 5 else "mamba" for i in range(40)]
    config = llama(
        model_type="granitemoehybrid",
        num_hidden_layers=40,
        layer_types=kinds,
        mamba_n_heads=128,
        mamba_d_head=64,
        mamba_n_groups=1,
        mamba_d_state=128,
        mamba_d_conv=4,
    )
    assert token_bytes(from_config(config)) == 4 * 2 * 8 * 128 * BF16


def qwen3_5_27b() -> dict[str, Any]:
    """The fields of Qwen3.5-27B that matter."""
    return {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
    }


def test_three_linear_layers_of_four_do_not_grow() -> None:
    """LMCache/LMCache#3080: 65,536 bytes a token, not four times that."""
    assert token_bytes(from_config(qwen3_5_27b())) == 65_536


def test_latent_attention_is_priced_by_its_latent() -> None:
    """gguf-parser-go#8: DeepSeek-V3 priced as multi-head attention."""
    config = llama(
        model_type="deepseek_v3",
        num_hidden_layers=61,
        num_attention_heads=128,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
    )
    assert token_bytes(from_config(config)) == 61 * 576 * BF16
    every_head = from_config(config, expand_latent=True)
    assert token_bytes(every_head) == 61 * 128 * (192 + 128) * BF16


def test_a_long_context_of_a_hybrid_is_its_full_layers_and_a_constant() -> None:
    """lmstudio-bug-tracker#1862: 16,384 MiB at 262,144 tokens, and the recurrent state once."""
    model = from_config(qwen3_5_27b())
    assert token_bytes(model) * 262_144 == 16_384 * 2**20
    one_sequence = fixed_scalars(model.schedule) * 4
    assert one_sequence * 4 == 598.5 * 2**20


def test_the_window_caps_what_gemma_4_31b_keeps() -> None:
    """lmstudio-bug-tracker#1740: sliding layers keep 1,024 of 8,192 tokens."""
    text = {
        "model_type": "gemma4_text",
        "num_hidden_layers": 60,
        "hidden_size": 5376,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 1024,
        "attention_k_eq_v": True,
    }
    model = from_config(text)
    expected = 50 * 1024 * 2 * 16 * 256 + 10 * 8192 * 2 * 4 * 512
    assert scalars_at(model.schedule, 8192) == expected


def test_attention_heads_do_not_multiply_key_value_heads() -> None:
    """jranaraki/vllm-fit#2: an extra factor of the head count, and no grouped heads."""
    many = from_config(llama(num_key_value_heads=32))
    assert token_bytes(many) == 2 * 32 * 4096 * BF16
    assert token_bytes(from_config(llama())) * 4 == token_bytes(many)


def test_grouped_heads_make_llama_3_8b_131072_bytes_a_token() -> None:
    """vllm-project/vllm#29736: twice the hidden size ignores grouped heads."""
    assert token_bytes(from_config(llama())) == 131_072


def test_llama_405b_has_eight_key_value_heads() -> None:
    """huggingface/blog#2345: the published row for 128,000 tokens is twice the right 61.5 GiB."""
    config = llama(num_hidden_layers=126, hidden_size=16_384, num_attention_heads=128)
    gib = token_bytes(from_config(config)) * 128_000 / 2**30
    assert round(gib, 1) == 61.5


def test_fewer_heads_than_ranks_are_replicated_or_refused() -> None:
    """huggingface/transformers#47811: three heads on eight ranks; four heads on eight ranks."""
    with pytest.raises(InvalidArgumentError, match="num_key_value_heads: 3 key-value heads"):
        from_config(llama(num_attention_heads=24, head_dim=128, num_key_value_heads=3), tp=8)
    model: Any = from_config(llama(num_key_value_heads=4), tp=8)
    assert model.schedule[0].num_key_value_heads == 1
    assert any("kept on 2 ranks" in note for note in model.notes)
