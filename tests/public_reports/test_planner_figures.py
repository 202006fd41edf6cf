"""Public reports of planners whose figures mislead, each as the smallest input that shows it."""

from typing import Any

import pytest

from kvcache.models import from_config
from kvcache.planner import parse_format, plan_model
from kvcache.planner.engines import Deployment, engine_report, vllm

MIB, GIB = 2**20, 2**30

QWEN_27B = {
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


def gpt_oss(layers: int) -> dict[str, Any]:
    return {
        "model_type": "gpt_oss",
        "num_hidden_layers": layers,
        "hidden_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
    }


def llama(**fields: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        **fields,
    }


def test_pages_that_a_short_prompt_pins_are_in_the_plan() -> None:
    """vllm-project/vllm#54458: a prompt of 12 tokens pins a page of every group."""
    model = from_config(QWEN_27B)
    deployment = Deployment(tokens=12, format=parse_format("bf16"))
    layout = vllm.page_layout(vllm.declarations(model, deployment), deployment)
    report = engine_report("vllm", model, deployment)
    pinned = sum(part.units for part in report.allocations)
    assert pinned == layout.request_blocks(deployment) == 1 + 3 * 2  # full, and states twice
    assert report.bytes == pinned * layout.block_bytes
    assert report.bytes > 40 * 12 * plan_model(model, tokens=12).token_bytes
    assert any("padded" in note for note in report.notes)


def test_capacity_is_reported_as_intercept_and_slope() -> None:
    """vllm-project/vllm#51041: a number of tokens that depends on the longest sequence."""
    plan = plan_model(from_config(QWEN_27B), tokens=1)
    assert (plan.growth.fixed_bytes, plan.growth.token_bytes) == (149.625 * MIB, 65_536)
    lengths = (121_344, 912_128)
    sizes = [plan_model(from_config(QWEN_27B), tokens=tokens) for tokens in lengths]
    for tokens, size in zip(lengths, sizes, strict=True):
        assert size.growth == plan.growth
        assert size.sequence_bytes == plan.growth.fixed_bytes + 65_536 * tokens


def test_a_hybrid_in_llama_cpp_is_its_full_layers_and_four_states() -> None:
    """lmstudio-bug-tracker#1862: 16,384 MiB and 598.5 MiB at 262,144 tokens and four slots."""
    deployment = Deployment(tokens=262_144, sequences=4)
    cells, *states = engine_report("llama.cpp", from_config(QWEN_27B), deployment).allocations
    assert cells.bytes == 16_384 * MIB
    assert sum(part.bytes for part in states) == 598.5 * MIB


def test_what_is_kept_and_what_is_reserved_are_two_numbers() -> None:
    """alvarobartt/hf-mem#60, #70: 6.09 GiB kept, 12 GiB where windows get whole pages."""
    model = from_config(gpt_oss(24))
    kept = plan_model(model, tokens=8192, batch=32)
    assert round(kept.total_bytes / GIB, 2) == 6.09
    whole = Deployment(tokens=8192, sequences=32, full_windows=True)
    assert engine_report("vllm", model, whole).bytes == 12 * GIB


def test_the_draft_head_adds_a_layer_and_copies_of_state() -> None:
    """LMCache/LMCache#3080, ggml-org/llama.cpp: drafting costs a layer and states to roll back."""
    model = from_config(QWEN_27B | {"mtp_num_hidden_layers": 1})
    plain, drafting = (plan_model(model, tokens=1000, drafts=n) for n in (0, 2))
    assert (plain.token_bytes, drafting.token_bytes) == (65_536, 65_536 + 4096)
    states = [
        sum(part.bytes for part in report.allocations if "recurrent" in part.name)
        for report in (
            engine_report("llama.cpp", model, Deployment(tokens=1000, drafts=n)) for n in (0, 2)
        )
    ]
    assert states[1] == 3 * states[0]


@pytest.mark.parametrize(("ranks", "heads"), [(1, 4), (2, 2), (4, 1), (8, 1)])
def test_heads_are_split_over_ranks_and_never_below_one(ranks: int, heads: int) -> None:
    """huggingface/transformers#47811: four key-value heads on eight ranks are kept twice."""
    model = from_config(llama(num_key_value_heads=4, head_dim=128), tp=ranks)
    assert plan_model(model, tokens=1).token_bytes == 32 * 2 * heads * 128 * 2
