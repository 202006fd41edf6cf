"""FLOPs of a position, read from a model's configuration, beside published sizes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from support.corpus import corpus_path

from kvcache import Cache, CostModel, InvalidArgumentError, StatePlan
from kvcache.models import from_config

QWEN3_NEXT_80B: dict[str, Any] = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
NEMOTRON_H_8B: dict[str, Any] = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "hidden_size": 4096,
    "intermediate_size": 21504,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "attention_head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "expand": 2,
}
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 100,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


def costs(config: Any, **options: Any) -> CostModel:
    found = from_config(config, **options).costs
    assert found is not None
    return found


# ---- Worked examples ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "active", "growing"),
    [(QWEN3_NEXT_80B, 6e9, 196_608), (NEMOTRON_H_8B, 16e9, 65_536)],
    ids=["qwen3-next", "nemotron-h"],
)
def test_hybrids_cost_twice_their_active_parameters_and_their_few_attention_layers(
    config: dict[str, Any], active: float, growing: int
) -> None:
    found = costs(config)
    assert found.flops_per_token_per_position == growing
    assert found.flops_per_token == pytest.approx(active, rel=0.12)


def test_a_dense_model_costs_two_flops_a_weight_and_its_dot_products() -> None:
    found = costs(LLAMA)
    layer = 64 * 128 + 2 * 64 * 32 + 128 * 64 + 3 * 64 * 100
    assert found == CostModel(
        flops_per_token=2 * 4 * layer, flops_per_token_per_position=4 * 4 * 128
    )


def test_of_experts_only_those_a_token_is_routed_to_count() -> None:
    one, two = costs(MIXTRAL), costs(LLAMA)
    assert one.flops_per_token - two.flops_per_token == 2 * 4 * (64 * 8 + 3 * 64 * 100)
    more = costs(MIXTRAL | {"num_local_experts": 64})
    assert more.flops_per_token - one.flops_per_token == 2 * 4 * 64 * (64 - 8)  # the router


def test_a_window_costs_as_much_at_any_position() -> None:
    window = costs(LLAMA | {"model_type": "mistral", "sliding_window": 512})
    assert window.flops_per_token_per_position == 0
    assert window.flops_per_token == costs(LLAMA).flops_per_token + 4 * 512 * 4 * 128
    wide = costs(LLAMA | {"model_type": "mistral", "sliding_window": 1 << 20})
    assert wide == costs(LLAMA)


@pytest.mark.parametrize("config", [LLAMA, MIXTRAL, QWEN3_NEXT_80B, NEMOTRON_H_8B])
def test_ranks_and_stages_share_the_cost_of_the_whole(config: dict[str, Any]) -> None:
    whole, layers = costs(config), from_config(config).layer_count
    assert costs(config, tp=2) == whole
    first, second = costs(config, layers=(0, 3)), costs(config, layers=(3, layers))
    assert first.flops_per_token + second.flops_per_token == pytest.approx(whole.flops_per_token)


def test_what_the_configuration_does_not_say_is_not_guessed() -> None:
    assert from_config({k: v for k, v in LLAMA.items() if k != "intermediate_size"}).costs is None
    for wrong in (None, "wide", -1, 0, True, 1.5, [], 2**40):
        assert from_config(LLAMA | {"intermediate_size": wrong}).costs is None


# ---- Sparse attention ---------------------------------------------------------------------------


def test_layers_that_choose_with_the_scores_of_another_read_as_few_positions() -> None:
    found = costs(corpus_path("configs/zai-org--GLM-5.2.json"))
    assert found.flops_per_token_per_position == 21 * 2 * 32 * 128  # of 78 layers
    all_own = costs(corpus_path("configs/zai-org--GLM-5.1.json"))
    assert all_own.flops_per_token_per_position == 78 * 2 * 32 * 128
    assert found.flops_per_token == all_own.flops_per_token
    assert found.flops_per_token / 2e9 == pytest.approx(40 + 78 * 2048 * 64 * 512 / 1e9, rel=0.15)


def test_pooled_history_is_read_as_a_whole_or_chosen_from() -> None:
    path = corpus_path("configs/deepseek-ai--DeepSeek-V4-Flash.json")
    config = json.loads(path.read_text())
    ratios = config["compress_ratios"][:43]
    chosen, whole, each = ratios.count(4), ratios.count(128), 2 * 64 * 2 * 512
    assert (chosen, whole) == (21, 20)
    found = costs(config)
    growing = whole * each / 128 + chosen * 2 * 64 * 128 / 4
    assert found.flops_per_token_per_position == growing == 106_496
    bare = costs(config | {"compress_ratios": [0] * 43})
    assert bare.flops_per_token_per_position == 0
    pooling = 2 * 4096 * 2 * (chosen * 2 * (512 + 128) + whole * 512)
    assert found.flops_per_token - bare.flops_per_token == chosen * each * 512 + pooling


def test_blocks_of_positions_are_chosen() -> None:
    config = json.loads(corpus_path("configs/nvidia--MiniMax-M3-NVFP4.json").read_text())
    found, each = costs(config), 2 * 64 * 2 * 128
    assert found.flops_per_token_per_position == 3 * each + 57 * 2 * 4 * 128
    text = config["text_config"]
    settings = text["sparse_attention_config"] | {"sparse_topk_blocks": 17}
    more = costs(config | {"text_config": text | {"sparse_attention_config": settings}})
    assert more.flops_per_token - found.flops_per_token == 57 * each * 128
    named = {"index_topk_blocks": 17, "index_block_size": 128}  # the names of other files
    assert costs(config | {"text_config": text | named}) == more


def test_an_indexer_of_which_nothing_is_said_has_no_cost() -> None:
    config = json.loads(corpus_path("configs/zai-org--GLM-5.1.json").read_text())
    assert from_config(config).costs is not None
    for name in ("index_topk", "index_n_heads"):
        assert from_config(config | {name: None}).costs is None


# ---- Other parts --------------------------------------------------------------------------------


def test_layers_that_share_keys_and_values_may_be_twice_as_wide() -> None:
    config = json.loads(corpus_path("configs/maxtext_gemma4-e2b.json").read_text())
    text = config["text_config"]
    plain = costs(config | {"text_config": text | {"use_double_wide_mlp": False}})
    more = costs(config).flops_per_token - plain.flops_per_token
    assert more == 2 * 20 * 3 * 1536 * 6144


def test_what_reads_the_output_of_an_encoder_has_no_cost() -> None:
    t5 = json.loads(corpus_path("configs/tfdefault__t5.json").read_text())
    assert from_config(t5, encoder_positions=64).costs is None
    alone = costs(t5 | {"is_encoder_decoder": False})
    assert alone.flops_per_token == 2 * 6 * (4 * 512 * 512 + 2 * 512 * 2048)  # no gate


def test_latent_attention_may_have_an_output_gate() -> None:
    config = json.loads(corpus_path("configs/moonshotai--Kimi-K3.json").read_text())
    text = config["text_config"]
    plain = costs(config | {"text_config": text | {"mla_use_output_gate": False}})
    assert costs(config).flops_per_token - plain.flops_per_token == 2 * 24 * 7168 * 96 * 128


# ---- Published sizes ----------------------------------------------------------------------------

# Active parameters without embeddings and output layer, in billions.
ACTIVE = {
    "Qwen--Qwen3-8B": 6.95,
    "meta-llama--Meta-Llama-3.1-8B": 6.98,
    "meta-llama--Meta-Llama-3.1-70B": 68.45,
    "mistralai--Mixtral-8x7B-v0.1": 12.6,
    "deepseek-ai--DeepSeek-V3": 35.7,
    "moonshotai--Kimi-K2-Instruct": 30.5,
    "nvidia--MiniMax-M2.5-NVFP4": 9.8,
    "ai21labs--AI21-Jamba-1.5-Mini": 11.5,
    "ibm-granite--granite-4.0-h-small": 8.6,
    "llmanalysis_facebook_opt-6.7b": 6.44,
    "llmanalysis_gpt2-xl": 1.475,
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": 16.2,
}


@pytest.mark.parametrize(("name", "billions"), ACTIVE.items())
def test_published_sizes(name: str, billions: float) -> None:
    found = costs(corpus_path(f"configs/{name}.json"))
    assert found.flops_per_token / 2e9 == pytest.approx(billions, rel=0.05)


def test_models_named_by_their_active_parameters_cost_about_that_much() -> None:
    seen = 0
    for path in sorted(corpus_path("configs").glob("*-A*B*.json")):
        named = re.search(r"-A(\d+)B", path.stem)
        if named and "eagle" not in path.stem:
            found = costs(path).flops_per_token / 2e9
            assert 0.78 < found / int(named[1]) < 1.12, path.stem
            seen += 1
    assert seen >= 10


# ---- Where they go ------------------------------------------------------------------------------


def test_a_cache_weighs_what_its_model_costs() -> None:
    model = from_config(LLAMA)
    plan = StatePlan.for_model(model, memory="1MiB")
    assert plan.costs == model.costs
    assert StatePlan(plan.declarations, memory="1MiB").costs == CostModel()
    Cache(plan, policy="flop_aware")
    Cache(plan, policy="flop_aware", costs=CostModel())
    for wrong in (7, "much", (1, 2)):
        with pytest.raises(InvalidArgumentError, match="costs: expected a CostModel"):
            StatePlan(plan.declarations, memory="1MiB", costs=wrong)  # type: ignore[arg-type]


def test_flops_of_a_range_are_those_of_its_parts() -> None:
    cost = CostModel(flops_per_token=10, flops_per_token_per_position=2)
    assert cost.flops(0, 0) == 0
    assert cost.flops(0, 4) == 4 * (10 + 2 * 2)
    assert cost.flops(0, 4) + cost.flops(4, 10) == pytest.approx(cost.flops(0, 10))
