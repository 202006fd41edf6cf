"""From a configuration to policies: the families, the fields, the errors."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.counting import fixed_scalars, position_scalars, scalars_at

import kvcache
from kvcache import models
from kvcache.errors import InvalidArgumentError, KVCacheError, NotFoundError, UnsupportedError
from kvcache.models import from_config
from kvcache.policy import AttentionPolicy, LayerCachePolicy

FULL = AttentionPolicy.full()
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
GATED_DELTA_NET: dict[str, Any] = {
    "num_hidden_layers": 8,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}


def attention(model: Any) -> list[int | None]:
    """Window of each attention layer: None for all positions, 0 where there is no attention."""
    return [layer.attention.window if layer.attention else 0 for layer in model.schedule]


def test_llama_keeps_keys_and_values_of_every_position() -> None:
    model = from_config(LLAMA)
    assert list(model.schedule) == [LayerCachePolicy.key_value(FULL, 2, 32)] * 2
    assert (model.model_type, model.dtype, model.hidden_size) == ("llama", "bfloat16", 256)
    assert (model.max_context, model.draft_schedule, model.notes) == (4096, None, ())
    assert scalars_at(model.schedule, 10) == 2 * 10 * 2 * 2 * 32


@pytest.mark.parametrize(("window", "kept"), [(None, [None, None]), (16, [16, 16])])
def test_mistral_slides_in_every_layer_if_it_has_a_window(window: Any, kept: list[Any]) -> None:
    config = {**LLAMA, "model_type": "mistral", "sliding_window": window}
    assert attention(from_config(config)) == kept


def test_gemma3_has_one_full_layer_in_six_unless_the_config_says_otherwise() -> None:
    config = {
        **LLAMA,
        "model_type": "gemma3_text",
        "num_hidden_layers": 8,
        "sliding_window": 1024,
    }
    assert attention(from_config(config)) == [1024] * 5 + [None] + [1024] * 2
    assert attention(from_config({**config, "sliding_window_pattern": 2})) == [1024, None] * 4
    kinds = ["full_attention"] * 3 + ["sliding_attention"] * 5
    assert attention(from_config({**config, "layer_types": kinds})) == [None] * 3 + [1024] * 5


def test_gpt_oss_alternates_and_starts_with_a_window() -> None:
    config = {**LLAMA, "model_type": "gpt_oss", "num_hidden_layers": 4}
    model = from_config(config)
    assert attention(model) == [128, None, 128, None]
    assert any("sliding_window" in note and "128" in note for note in model.notes)


def test_deepseek_keeps_one_latent_for_all_heads_and_replicates_it() -> None:
    config = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 3,
        "hidden_size": 64,
        "num_attention_heads": 128,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "num_nextn_predict_layers": 1,
    }
    for tp in (1, 8):
        model = from_config(config, tp=tp)
        layer = LayerCachePolicy.compressed_latent_rotary(FULL, 512, 64)
        assert list(model.schedule) == [layer] * 3
        assert model.draft_schedule is not None
        assert list(model.draft_schedule) == [layer]


@pytest.mark.parametrize("model_type", ["qwen3_next", "qwen3_5_text"])
def test_gated_delta_net_hybrids(model_type: str) -> None:
    config = {**GATED_DELTA_NET, "model_type": model_type, "mtp_num_hidden_layers": 1}
    model = from_config(config)
    assert attention(model) == [0, 0, 0, None] * 2
    channels = 2 * 2 * 8 + 4 * 16
    assert fixed_scalars(model.schedule) == 6 * (3 * channels + 4 * 8 * 16)
    assert model.draft_schedule is not None
    assert [position_scalars(layer) for layer in model.draft_schedule] == [2 * 8]
    half = from_config({**config, "num_key_value_heads": 2}, tp=2)
    assert fixed_scalars(half.schedule) * 2 == fixed_scalars(model.schedule)


def test_nemotron_h_reads_one_letter_a_block() -> None:
    config = {
        **LLAMA,
        "model_type": "nemotron_h",
        "num_hidden_layers": 4,
        "hybrid_override_pattern": "M*-E",
        "mamba_num_heads": 8,
        "mamba_head_dim": 4,
        "n_groups": 2,
        "ssm_state_size": 16,
        "conv_kernel": 4,
    }
    model = from_config(config)
    assert [type(layer).__name__ for layer in model.schedule] == [
        "FixedState",
        "KeyValue",
        "NoState",
        "NoState",
    ]
    assert fixed_scalars(model.schedule) == 3 * (8 * 4 + 2 * 2 * 16) + 8 * 4 * 16
    words = ["mamba", "attention", "mlp", "moe"]
    del config["hybrid_override_pattern"]
    assert from_config({**config, "layers_block_type": words}).schedule == model.schedule


def test_mamba2_keeps_a_convolution_and_a_matrix() -> None:
    config = {
        "model_type": "mamba2",
        "num_hidden_layers": 2,
        "hidden_size": 16,
        "num_heads": 8,
        "head_dim": 4,
        "n_groups": 1,
        "state_size": 16,
        "conv_kernel": 4,
    }
    model = from_config(config)
    assert fixed_scalars(model.schedule) == 2 * (3 * (8 * 4 + 2 * 16) + 8 * 4 * 16)
    halved = from_config(config, tp=2)
    assert fixed_scalars(halved.schedule) == 2 * (3 * (4 * 4 + 2 * 16) + 4 * 4 * 16)


# -- fields ----------------------------------------------------------------------------------


def test_an_explicit_head_dim_wins_and_a_derived_one_is_noted() -> None:
    config = {**LLAMA, "head_dim": 80}
    assert position_scalars(from_config(config).schedule[0]) == 2 * 2 * 80
    del config["head_dim"]
    model = from_config(config)
    assert position_scalars(model.schedule[0]) == 2 * 2 * 32
    assert any(note.startswith("head_dim:") for note in model.notes)


def test_a_class_default_fills_in_for_an_absent_head_dim() -> None:
    config = {**LLAMA, "model_type": "gemma2", "hidden_size": 2304}
    del config["head_dim"]
    model = from_config({**config, "sliding_window": 4096})
    assert position_scalars(model.schedule[0]) == 2 * 2 * 256
    assert any("256" in note for note in model.notes)


def test_the_language_model_of_a_nested_config_is_read() -> None:
    config = {"model_type": "llava", "dtype": "float16", "text_config": LLAMA, "vision_config": {}}
    inner = {key: value for key, value in LLAMA.items() if key != "torch_dtype"}
    model = from_config({**config, "text_config": inner})
    assert (model.model_type, model.dtype) == ("llama", "float16")
    strategy: Any = model.strategy
    assert strategy.decoder == from_config(LLAMA).strategy


def test_what_a_nested_section_leaves_out_is_the_default_of_its_class() -> None:
    model = from_config({"model_type": "llava", "text_config": {"model_type": "llama"}})
    assert len(model.schedule) == 32
    assert model.schedule[0] == LayerCachePolicy.key_value(FULL, 32, 128)
    assert any(note.startswith("text_config.num_hidden_layers:") for note in model.notes)


def test_tensor_parallelism_divides_or_replicates_key_value_heads() -> None:
    config = {**LLAMA, "num_attention_heads": 16, "num_key_value_heads": 4}
    half: Any = from_config(config, tp=2)
    assert half.schedule[0].num_key_value_heads == 2
    model: Any = from_config(config, tp=8)
    assert model.schedule[0].num_key_value_heads == 1
    assert any("2 ranks" in note for note in model.notes)
    with pytest.raises(InvalidArgumentError, match=r"num_key_value_heads.*tp=3"):
        from_config(config, tp=3)


def test_a_pipeline_stage_has_its_own_layers_and_the_last_one_the_drafts() -> None:
    config = {**GATED_DELTA_NET, "model_type": "qwen3_next", "mtp_num_hidden_layers": 1}
    whole = from_config(config)
    first, last = from_config(config, layers=(0, 5)), from_config(config, layers=(5, 8))
    assert [*first.schedule, *last.schedule] == list(whole.schedule)
    assert (last.layer_start, last.layer_count) == (5, 8)
    assert first.draft_schedule is None
    assert last.draft_schedule == whole.draft_schedule
    for wrong in ((3, 3), (-1, 2), (0, 9), (0,), "ab", (True, 3)):
        with pytest.raises(InvalidArgumentError, match="layers"):
            from_config(config, layers=wrong)  # type: ignore[arg-type]


def test_a_config_object_is_read_through_to_dict() -> None:
    class Config:
        def to_dict(self) -> dict[str, Any]:
            return LLAMA

    assert from_config(Config()) == from_config(LLAMA)


# -- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers: expected a positive integer, got null"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: expected a positive integer, got 0"),
        ({"num_hidden_layers": "2"}, 'num_hidden_layers: expected a positive integer, got "2"'),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: expected a positive integer of at most"),
        ({"hidden_size": -5}, "hidden_size: expected a positive integer, got -5"),
        ({"head_dim": 0}, "head_dim: expected a positive integer, got 0"),
        ({"head_dim": 2**40}, "head_dim: expected a positive integer of at most 2147483647"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: expected a divisor of 8"),
        ({"num_key_value_heads": True}, "num_key_value_heads: expected a positive integer"),
        ({"torch_dtype": 3}, "torch_dtype: expected a string, got 3"),
        ({"layer_types": ["full_attention"]}, "layer_types: expected 2 entries"),
        ({"layer_types": ["full_attention", "odd"]}, 'layer_types[1]: unknown layer type "odd"'),
        ({"layer_types": ["sliding_attention"] * 2}, "sliding_window: layer_types has sliding"),
        ({"layer_types": 7}, "layer_types: expected an array, got 7"),
        ({"model_type": 7}, "model_type: expected a string, got 7"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_expected(
    tmp_path: Any, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, **change}))
    with pytest.raises(InvalidArgumentError) as caught:
        from_config(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_an_absent_layer_count_is_an_error_at_the_top_level() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "num_hidden_layers"}
    with pytest.raises(InvalidArgumentError, match=r"config: num_hidden_layers: .* absent"):
        from_config(config)


def test_a_hidden_size_that_heads_do_not_divide_asks_for_head_dim() -> None:
    config = {**LLAMA, "hidden_size": 255, "head_dim": None}
    with pytest.raises(InvalidArgumentError, match=r"head_dim: .*255.*8 attention heads"):
        from_config(config)


def test_an_unknown_model_type_is_refused_and_can_be_named() -> None:
    config = {**LLAMA, "model_type": "lama"}
    with pytest.raises(UnsupportedError, match=r'model_type: unknown model_type "lama".*llama'):
        from_config(config)
    assert from_config(config, model_type="llama").schedule == from_config(LLAMA).schedule


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "x" * 1_000_000},
        {"model_type": None, "architectures": ["ForA" * 250_000 + "!"]},
        {"per_layer_config": {"a\nb" * 1000: 3}},
        {"layer_types": [["x" * 10_000], {}]},
    ],
)
def test_an_error_about_a_huge_value_is_quick_short_and_one_line(change: dict[str, Any]) -> None:
    with pytest.raises(KVCacheError) as caught:
        from_config({**LLAMA, **change})
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_an_absent_model_type_is_taken_from_the_architecture() -> None:
    config = {**LLAMA, "architectures": ["LlamaForCausalLM"]}
    del config["model_type"]
    model = from_config(config)
    assert model.model_type == "llama"
    assert any(note.startswith("model_type:") for note in model.notes)
    with pytest.raises(InvalidArgumentError, match=r"model_type: .* absent"):
        from_config({**config, "architectures": None})


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (None, NotFoundError, "no such file"),
        ("", InvalidArgumentError, "not JSON"),
        ("{", InvalidArgumentError, "not JSON"),
        ("[1]", InvalidArgumentError, "expected a JSON object, got list"),
        ("[" * 100_000, InvalidArgumentError, "nested too deeply"),
        ("\udcff", InvalidArgumentError, "not JSON"),
    ],
)
def test_a_bad_file_is_one_clear_line(
    tmp_path: Any, text: str | None, error: type[KVCacheError], message: str
) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(error) as caught:
        from_config(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("config", [None, 7, ["llama"], {1: 2}, b"config.json"])
def test_what_is_no_configuration_is_refused(config: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        from_config(config)


@pytest.mark.parametrize("tp", [0, -1, True, 1.0, "2"])
def test_a_wrong_tp_is_refused(tp: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="tp: expected a positive integer"):
        from_config(LLAMA, tp=tp)


def test_models_load_neither_numpy_nor_the_core() -> None:
    code = (
        "import sys, kvcache.models as m; m.from_config("
        f"{LLAMA!r}); print([n for n in ('numpy', 'kvcache._core') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_exports_models_lazily() -> None:
    assert kvcache.models.from_config is from_config


def test_the_examples_of_the_documentation_are_true() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "models.md"
    for failed, tried in (
        doctest.testfile(str(page), module_relative=False),
        doctest.testmod(models),
    ):
        assert (failed, tried > 0) == (0, True)
