"""Every causal model type of the installed ``transformers``, from the defaults of its class."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from support.counting import fixed_scalars
from support.transformers_defaults import TABLE, default_config, default_geometry

from kvcache.errors import KVCacheError
from kvcache.models import from_config
from kvcache.models.defaults import FIELDS

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

# Types whose default configuration is refused, and what the error must name.
REFUSED = {
    "blt": "count patches of bytes",
    "glm4_moe": "head_dim: absent",  # 4096 over 96 heads; checkpoints state 128
    "lfm2_moe": "layer_types: expected a list",
    "reformer": "hidden states of earlier segments",
    "xlnet": "hidden states of earlier segments",
}
# Layers that the class counts in another way: two sublayers a layer, runs of a loop.
COUNTED_OTHERWISE = {"dory", "inkling2_loop_text", "longcat_flash"}


def causal_types() -> list[str]:
    """Model types with a causal language model, read from the source of the package."""
    folder = Path(transformers.__file__).parent / "models" / "auto"
    tree = ast.parse((folder / "modeling_auto.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        if node.targets[0].id == "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES":
            assert isinstance(node.value, ast.Call)
            return sorted({name for name, _ in ast.literal_eval(node.value.args[0])})
    raise AssertionError("no list of causal models in modeling_auto.py")


TYPES = causal_types()


def test_the_list_of_types_is_that_of_the_package() -> None:
    assert len(TYPES) > 150
    assert {"llama", "deepseek_v3", "qwen3_next", "nemotron_h", "mamba2"} <= set(TYPES)


@pytest.mark.parametrize("model_type", TYPES)
def test_a_default_configuration_is_read_or_refused_with_a_reason(model_type: str) -> None:
    config = default_config(model_type)
    if config is None:
        pytest.skip("the class cannot be made without arguments")
    if model_type in REFUSED:
        with pytest.raises(KVCacheError) as caught:
            from_config(config)
        assert REFUSED[model_type] in str(caught.value)
        return
    model = from_config(config)
    decoder = config.get("text_config") or config.get("decoder") or config
    kinds = decoder.get("layer_types") or decoder.get("layers_block_type")
    if kinds is None or model_type in COUNTED_OTHERWISE:
        return
    shared = decoder.get("num_kv_shared_layers") or 0
    kinds = kinds[: len(kinds) - shared] + ["shared"] * shared
    assert len(model.schedule) == len(kinds)
    for layer, kind in zip(model.schedule, kinds, strict=True):
        check_kind(layer, kind, decoder)


def check_kind(layer: Any, kind: str, config: dict[str, Any]) -> None:
    """The kinds of layer that the caches of the package tell apart."""
    window = config.get("sliding_window") or config.get("sliding_window_size")
    attention = layer.attention
    if kind in ("mlp", "moe", "shared"):
        assert attention is None
        assert not layer.fixed_state
    elif kind in ("linear_attention", "conv"):
        assert attention is None
        assert fixed_scalars([layer]) > 0
    elif kind in ("full_attention", "indexed_attention"):
        assert attention.window is None
    elif kind == "chunked_attention":
        assert attention.window == config["attention_chunk_size"]
    elif kind == "hybrid":
        assert attention.window is None
        assert fixed_scalars([layer]) > 0
    else:
        assert attention.window == window


PATTERNED = """
afmoe beam cohere2 exaone4 flint gemma2 gemma3_text gemma3n_text gemma4_text
gpt_oss granite_swa inkling_text kimi_linear kolibri1 lara_mini lfm3 llama4_text mimo_v2_flash
minimax modernbert-decoder olmo3 olmo_hybrid qwen2 qwen3_5_text qwen3_next vaultgemma hy_v4
"""


@pytest.mark.parametrize("model_type", PATTERNED.split())
def test_our_pattern_is_that_of_the_class_when_the_list_is_left_out(model_type: str) -> None:
    config = default_config(model_type)
    if config is None:
        pytest.skip(f"{model_type} is not in this version")
    listed = from_config(config)
    for name in ("layer_types", "per_layer_config", "indexer_types"):
        config.pop(name, None)
    assert from_config(config).schedule == listed.schedule


def test_the_table_of_defaults_is_what_the_classes_say() -> None:
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    if table.pop("version") != transformers.__version__:
        pytest.skip("the table was made from another version")
    for model_type, row in table.items():
        assert row == default_geometry(model_type, FIELDS), model_type
