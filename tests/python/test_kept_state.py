"""What a layer may keep, served: each kind by a small configuration of a family that has it."""

from __future__ import annotations

from typing import Any

import pytest
from support.corpus import corpus_path

import kvcache
from kvcache import Cache, StatePlan
from kvcache.errors import InvalidArgumentError
from kvcache.models import from_config
from kvcache.replay import Replay
from kvcache.replay.demo import generate_trace

SMALL = {
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
LATENT = {
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "q_lora_rank": 32,
}
POOLED = {"sliding_window": 24, "index_head_dim": 8, "num_key_value_heads": 1}

#: Family, then components of each of the six layers.
KINDS: dict[str, tuple[dict[str, Any], list[list[str]]]] = {
    "full": ({"model_type": "llama"}, [["keys", "values"]] * 6),
    "shared": (
        {
            "model_type": "gemma3n_text",
            "num_kv_shared_layers": 2,
            "sliding_window": 40,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
        },
        [["keys", "values"]] * 4 + [[]] * 2,
    ),
    "values of another width": (
        {"model_type": "mimo_v2_flash", "v_head_dim": 8, "sliding_window": 40},
        [["keys", "values"]] * 6,
    ),
    "latent": ({"model_type": "deepseek_v3", **LATENT}, [["compressed_latent", "rotary_keys"]] * 6),
    "latent with an indexer": (
        {"model_type": "glm_moe_dsa", "index_head_dim": 8, **LATENT},
        [["compressed_latent", "rotary_keys", "indexer_keys"]] * 6,
    ),
    "keys and pooled state": (
        {"model_type": "deepseek_v4", "compress_ratios": [0, 4, 128, 4, 0, 128], **POOLED},
        [["keys"], *[["keys", "pooled"]] * 3, ["keys"], ["keys", "pooled"]],
    ),
    "chunks": (
        {"model_type": "llama4_text", "attention_chunk_size": 96},
        [["keys", "values"]] * 6,
    ),
}


def model_of(kind: str) -> kvcache.models.Model:
    return from_config(SMALL | KINDS[kind][0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("storage", ["f16", "bf16", "int8"])
def test_every_byte_of_every_kind_comes_back(kind: str, storage: str) -> None:
    plan = StatePlan.for_model(model_of(kind), memory="64MiB", format=storage)
    replay = Replay(Cache(plan), plan, chunk_tokens=100)
    report = replay.run(generate_trace(conversations=4))
    assert report.mismatches == 0
    assert report.reused_tokens > 0
    assert report.verified_bytes == report.restored_bytes > 0


@pytest.mark.parametrize("kind", KINDS)
def test_layers_keep_what_they_own(kind: str) -> None:
    plan = StatePlan.for_model(model_of(kind), memory="64MiB")
    for layer, expected in enumerate(KINDS[kind][1]):
        parts = [*plan.paged_components(layer), *plan.streams(layer)]
        names = list(dict.fromkeys(part.component.rpartition(".")[2] for part in parts))
        assert names == expected, layer


def test_a_layer_that_reads_anothers_cache_takes_no_rows() -> None:
    plan = StatePlan.for_model(model_of("shared"), memory="64MiB")
    sequence = Cache(plan).open([1, 2, 3])
    with pytest.raises(InvalidArgumentError, match="layer 5 keeps no pages; layers that do: 0"):
        sequence.read(5, 0, 0)


CONFIGS = """
deepseek-ai--DeepSeek-V4-Flash nvidia--DeepSeek-V4-Flash-NVFP4 nvidia--DeepSeek-V4-Pro-NVFP4
sgl-project--DeepSeek-V4-Flash-FP8 sgl-project--DeepSeek-V4-Pro-FP8 maxtext_deepseek4-284b
glm-5.2-fp8 nvidia--GLM-5-NVFP4 nvidia--GLM-5.1-NVFP4 nvidia--GLM-5.2-NVFP4
meta-llama--Llama-4-Scout-17B-16E-Instruct
"""


@pytest.mark.parametrize("name", CONFIGS.split())
def test_published_configurations_have_a_run_time_plan(name: str) -> None:
    model = from_config(corpus_path(f"configs/{name}.json"))
    plan = StatePlan.for_model(model, memory="8GiB")
    assert plan.block_tokens in (16, 128)
    assert plan.hit_bytes(100_000) > 0
    assert {p.layer for g in plan.groups for p in g.components} == set(range(len(model.schedule)))
