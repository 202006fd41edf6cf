"""Configurations of real checkpoints: each is read right, or refused by the field it lacks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.corpus import corpus_path
from support.counting import fixed_scalars, position_scalars

from kvcache.errors import KVCacheError
from kvcache.models import from_config

# Files that lack what defines a model, and the field that the error must name.
REFUSED = {"zai-org--GLM-4.5-Air.json": "num_attention_heads"}


def read(name: str, **options: Any) -> Any:
    """The model of one file of the corpus."""
    return from_config(corpus_path("configs") / name, **options)


def per_position(model: Any, *, indexer: bool = False) -> int:
    """Scalars of one position, all layers."""
    return sum(position_scalars(layer, indexer=indexer) for layer in model.schedule)


def test_every_configuration_is_read_or_refused_by_field() -> None:
    folder = corpus_path("configs")
    index = json.loads(corpus_path("configs_index.json").read_text())
    refused = {}
    for path in sorted(folder.glob("*.json")):
        try:
            model = from_config(path)
        except KVCacheError as error:
            refused[path.name] = str(error)
            continue
        layers = index[path.name]["layers"]
        expected = layers if isinstance(layers, int) else len(model.schedule)
        assert len(model.schedule) == expected, path.name
        assert model.hidden_size > 0
    assert refused.keys() == REFUSED.keys()
    for name, field in REFUSED.items():
        assert f"{name}: {field}: " in refused[name]


@pytest.mark.parametrize(
    ("name", "scalars", "fixed"),
    [
        ("meta-llama--Meta-Llama-3.1-8B.json", 65_536, 0),
        ("meta-llama--Meta-Llama-3.1-70B.json", 163_840, 0),
        ("ome_llama3_1_405b.json", 258_048, 0),
        ("ome_command_r_35b.json", 655_360, 0),
        ("llmanalysis_gpt2.json", 18_432, 0),
        ("Qwen--Qwen3-30B-A3B.json", 49_152, 0),
        ("Qwen--Qwen3-235B-A22B.json", 96_256, 0),
        ("deepseek-ai--DeepSeek-R1.json", 35_136, 0),
        ("deepseek-v2-lite.json", 15_552, 0),
        ("moonshotai--Kimi-K2-Instruct.json", 35_136, 0),
        ("openai--gpt-oss-120b.json", 36_864, 0),
        ("maxtext_gemma3-27b.json", 253_952, 0),
        ("maxtext_gemma3-4b.json", 69_632, 0),
        ("maxtext_gemma2-2b.json", 53_248, 0),
        # 48 delta nets: 4 taps over 10,240 channels less one, 48 matrices of 128 by 128
        ("Qwen--Qwen3.5-27B.json", 32_768, 48 * (3 * 10_240 + 48 * 128 * 128)),
        ("Qwen--Qwen3.5-35B-A3B.json", 10_240, 30 * (3 * 8_192 + 32 * 128 * 128)),
        ("Qwen--Qwen3.5-9B.json", 16_384, 24 * (3 * 8_192 + 32 * 128 * 128)),
        ("tiiuae--Falcon-H1-7B-Instruct.json", 22_528, 140_304_384 // 4),
        ("ibm-granite--granite-4.0-h-small.json", 8_192, 36 * (3 * 8_448 + 8_192 * 128)),
        ("LiquidAI--LFM2.5-VL-1.6B.json", 6_144, 10 * 2 * 2_048),
        ("moonshotai--Kimi-K3.json", 13_824, 69 * (221_184 // 2 + 96 * 128 * 128)),
        ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json", 3_072, 23 * (18_432 + 524_288)),
    ],
)
def test_scalars_of_published_figures(name: str, scalars: int, fixed: int) -> None:
    model = read(name)
    assert per_position(model) == scalars
    assert fixed_scalars(model.schedule) == fixed


def test_kimi_k3_lists_layers_from_one_and_ends_with_two_of_latent_attention() -> None:
    model = read("moonshotai--Kimi-K3.json")
    latent = [i for i, layer in enumerate(model.schedule) if layer.attention is not None]
    assert (len(latent), len(model.schedule), latent[-2:]) == (24, 93, [91, 92])


def test_deepseek_v4_keeps_the_last_ratio_for_its_draft_layer() -> None:
    model = read("deepseek-ai--DeepSeek-V4-Flash.json")
    assert (len(model.schedule), len(model.draft_schedule)) == (43, 1)
    strategy = model.strategy
    assert (strategy.window, strategy.layers, strategy.pooling_layers) == (128, 43, 41)


def test_glm_5_2_keeps_index_keys_in_21_layers_and_in_the_draft_layer() -> None:
    model = read("zai-org--GLM-5.2.json")
    own = [layer for layer in model.schedule if layer.indexer_dim is not None]
    assert (len(own), own[0].indexer_dim) == (21, 128)
    assert [layer.indexer_dim for layer in model.draft_schedule] == [128]


def test_gemma_4_shares_and_widens() -> None:
    model = read("maxtext_gemma4-e2b.json")
    kept = [layer for layer in model.schedule if layer.attention is not None]
    assert (len(kept), len(model.schedule)) == (15, 35)
    full = [layer for layer in kept if layer.attention.window is None]
    assert [(layer.num_key_value_heads, layer.head_dim) for layer in full] == [(1, 512)] * 3
    wide = read("google--gemma-4-26B-A4B.json").schedule[5]
    assert (wide.num_key_value_heads, wide.head_dim, wide.value_head_dim) == (2, 512, None)


def test_a_small_deepseek_without_latent_attention_has_ordinary_heads() -> None:
    layer = read("ome_deepseek_vl2_tiny.json").schedule[0]
    assert (layer.num_key_value_heads, layer.head_dim) == (10, 128)


def test_minimax_m3_adds_an_index_key_after_its_three_dense_layers() -> None:
    model = read("nvidia--MiniMax-M3-NVFP4.json")
    widths = [layer.indexer_dim for layer in model.schedule]
    assert widths == [None] * 3 + [128] * 57


def test_nemotron_nas_takes_heads_from_its_blocks() -> None:
    model = read("nvidia--Llama-3_3-Nemotron-Super-49B-v1.json")
    names = [type(layer).__name__ for layer in model.schedule]
    assert (names.count("KeyValue"), names.count("NoState")) == (49, 31)


def test_a_layer_list_is_followed_before_a_pattern_of_letters() -> None:
    model = read("LGAI--EXAONE-4.0-32B.json")
    windows = [layer.attention.window for layer in model.schedule]
    assert windows == [4096, 4096, 4096, None] * 16


def test_the_blocks_of_nemotron_ultra_are_words() -> None:
    model = read("nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8.json")
    assert len(model.schedule) == 108
    assert len(model.draft_schedule) == 2


def test_a_text_section_without_a_layer_count_is_that_of_its_class() -> None:
    model = read("llava-hf--llava-1.5-7b-hf.json")
    assert (len(model.schedule), per_position(model)) == (32, 32 * 2 * 4096)
    assert any("num_hidden_layers" in note for note in model.notes)


def test_images_are_kept_by_the_cross_attention_layers_of_mllama() -> None:
    model = read("ome_llama3_2_11b_vision.json")
    fixed = [i for i, layer in enumerate(model.schedule) if layer.fixed_state]
    assert fixed == [3, 8, 13, 18, 23, 28, 33, 38]


def test_the_dtype_is_found_inside_and_outside() -> None:
    assert read("HuggingFaceTB--SmolVLM-Instruct.json").dtype == "bfloat16"
    assert read("Qwen--Qwen3.5-27B.json").dtype == "bfloat16"


def test_a_cache_type_asked_for_is_told() -> None:
    features = json.loads(corpus_path("config_features.json").read_text())
    asked = [names for key, names in features.items() if "kv_cache" in key or "kv cache" in key]
    for name in {name for names in asked for name in names}:
        model = read(name)
        assert model.cache_dtype == "float8_e4m3", name
        assert any("kept as float8_e4m3" in note for note in model.notes)
