"""Each family of decoders, read from a small configuration to the last scalar."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from support.counting import fixed_scalars, position_scalars
from support.families import FAMILIES, Family

from kvcache.errors import InvalidArgumentError
from kvcache.models import from_config


def kept(layers: Any) -> dict[tuple[Any, int], int]:
    """Layers by window and scalars a position."""
    return Counter(
        (layer.attention.window if layer.attention else "-", position_scalars(layer))
        for layer in layers
    )


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_family_keeps_what_it_is_known_to_keep(family: Family) -> None:
    model = from_config(family.config)
    assert kept(model.schedule) == family.kept
    assert fixed_scalars(model.schedule) == family.fixed
    assert len(model.draft_schedule or ()) == family.drafts
    assert type(model.strategy).__name__ == family.strategy
    indexed = sum(getattr(layer, "indexer_dim", None) is not None for layer in model.schedule)
    assert indexed == family.indexed


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_tensor_parallelism_divides_state_or_replicates_it_or_is_refused(family: Family) -> None:
    whole = from_config(family.config)
    half = None
    with suppress(InvalidArgumentError):
        half = from_config(family.config, tp=2)
    if half is None:
        with pytest.raises(InvalidArgumentError, match="tp=2"):
            from_config(family.config, tp=2)
        return
    for one, two in zip(whole.schedule, half.schedule, strict=True):
        assert type(one) is type(two)
        assert position_scalars(two) <= position_scalars(one) <= 2 * position_scalars(two)
    assert fixed_scalars(half.schedule) <= fixed_scalars(whole.schedule)
    assert fixed_scalars(whole.schedule) <= 2 * fixed_scalars(half.schedule)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_stages_of_a_pipeline_put_together_are_the_model(family: Family) -> None:
    whole = from_config(family.config)
    cut = len(whole.schedule) // 2
    first = from_config(family.config, layers=(0, cut))
    last = from_config(family.config, layers=(cut, len(whole.schedule)))
    assert [*first.schedule, *last.schedule] == list(whole.schedule)
    assert (first.draft_schedule, last.draft_schedule) == (None, whole.draft_schedule)


def test_shared_layers_of_a_strategy_add_up() -> None:
    strategy: Any = from_config(FAMILIES["gemma3n_text"].config).strategy
    assert (strategy.cached_layers, strategy.shared_layers) == (5, 5)
    windows = sum(entry.layers for entry in strategy.sliding_attention)
    assert strategy.full_attention_layers + windows == 10


def test_the_two_value_widths_of_a_layer_are_kept_apart() -> None:
    layer: Any = from_config(FAMILIES["mimo_v2_flash"].config).schedule[0]
    assert (layer.head_dim, layer.value_head_dim) == (16, 8)


def test_latent_attention_can_be_counted_as_every_head() -> None:
    config = FAMILIES["deepseek_v3"].config
    model: Any = from_config(config, expand_latent=True, tp=4)
    layer = model.schedule[0]
    assert (layer.num_key_value_heads, layer.head_dim, layer.value_head_dim) == (2, 24, 12)


def test_encoder_positions_size_the_cross_attention() -> None:
    config = FAMILIES["t5"].config
    assert not from_config(config).schedule[0].fixed_state
    model = from_config(config, encoder_positions=10)
    (tensor,) = model.schedule[0].fixed_state
    assert [axis.resolve(1, 0) for axis in tensor.shape] == [1, 10, 2 * 6 * 8]


def test_cross_attention_may_have_heads_of_its_own() -> None:
    model = from_config(FAMILIES["dia"].config, encoder_positions=10)
    (tensor,) = model.schedule[0].fixed_state
    assert [axis.resolve(1, 0) for axis in tensor.shape] == [1, 10, 2 * 4 * 8]


def test_an_image_is_kept_in_cross_attention_layers_only() -> None:
    model = from_config(FAMILIES["mllama"].config)
    (tensor,) = model.schedule[3].fixed_state
    assert [axis.resolve(1, 0) for axis in tensor.shape] == [1, 4 * 5, 64]
    assert not tensor.presence.is_required_for(5)


def test_a_pooled_layer_declares_what_is_pending_pooled_and_overlapping() -> None:
    layer = from_config(FAMILIES["deepseek_v4"].config).schedule[2]
    names = [tensor.role.stable_name() for tensor in layer.fixed_state]
    parts = ["pending_values", "pending_gates", "pooled", "overlap_values", "overlap_gates"]
    assert names == [f"state.pooling.{stream}.{part}" for stream in (0, 1) for part in parts]
    shapes = [[axis.resolve(1, 11) for axis in tensor.shape] for tensor in layer.fixed_state]
    assert shapes[:3] == [[1, 3, 64], [1, 3, 64], [1, 2, 32]]
    assert shapes[5:8] == [[1, 3, 16], [1, 3, 16], [1, 2, 8]]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("kimi_linear", {"linear_attn_config": {"kda_layers": [0]}}, "from 1 to 4, got 0"),
        ("kimi_linear", {"linear_attn_config": {"kda_layers": [1, 1]}}, "layer 1 is listed twice"),
        ("kimi_linear", {"linear_attn_config": {"kda_layers": [1]}}, "layer 2 of 4 is in neither"),
        ("deepseek_v4", {"compress_ratios": [0, 0, 4, 7]}, "compress_ratios[3]: expected 0, 4 or"),
        ("deepseek_v4", {"compress_ratios": [0] * 6}, "compress_ratios: expected 4 entries"),
        ("glm_moe_dsa", {"indexer_types": ["full"] * 3 + ["own"]}, "indexer_types[3]: expected"),
        ("minimax", {"attn_type_list": [2] * 8}, "attn_type_list[0]: unknown layer type 2"),
        ("bamba", {"attn_layer_indices": [8]}, "attn_layer_indices[0]: expected an index below 8"),
        ("gemma3n_text", {"num_kv_shared_layers": 11}, "num_kv_shared_layers: expected at most 10"),
        ("gemma3n_text", {"num_kv_shared_layers": 8}, "layer 4 shares, but no layer before 2"),
        ("nemotron-nas", {"block_configs": [{}] * 3}, "block_configs[0].attention: expected"),
        ("hunyuan", {"use_mla": True}, "use_mla: latent attention is not understood"),
        ("rwkv7", {"attn": {"layers": [1]}}, "attn: layers with attention"),
        ("mllama", {"text_config": {"model_type": "mllama_text_model", "head_dim": 0}}, "head_dim"),
        ("gpt_neo", {"attention_types": [[["global"], 3]]}, "expected 4 layers, got 3"),
        ("mpt", {"attn_config": {"attn_type": "new"}}, 'unknown kind of attention "new"'),
    ],
)
def test_what_is_not_understood_is_named(name: str, change: dict[str, Any], message: str) -> None:
    config = {**FAMILIES[name].config, **change}
    with pytest.raises(InvalidArgumentError) as caught:
        from_config(config)
    assert message in str(caught.value)


# -- what engines add ------------------------------------------------------------------------


def test_rotary_media_keep_an_offset_beside_the_first_layer_when_asked_to() -> None:
    config = {
        "model_type": "qwen3_vl",
        "text_config": {**FAMILIES["qwen3_moe"].config, "model_type": "qwen3_vl_text"},
        "vision_config": {},
    }
    assert not any(layer.fixed_state for layer in from_config(config).schedule)
    model = from_config(config, media=True)
    (tensor,) = model.schedule[0].fixed_state
    assert tensor.role.stable_name() == "state.position_delta"
    assert [axis.resolve(7, 9) for axis in tensor.shape] == [1]
    assert not any(layer.fixed_state for layer in model.schedule[1:])


def test_gemma_keeps_prepared_embeddings_of_a_prefix_with_media() -> None:
    text = FAMILIES["gemma4_text"].config
    model = from_config(
        {"model_type": "gemma4", "text_config": text, "vision_config": {}}, media=True
    )
    (tensor,) = model.schedule[0].fixed_state
    assert tensor.role.stable_name() == "state.prefix_embedding"
    assert [axis.resolve(2, 5) for axis in tensor.shape] == [2, 5, 64]
    assert not tensor.presence.is_required_for(5)


def test_text_models_ignore_media() -> None:
    config = FAMILIES["llama"].config
    assert from_config(config, media=True) == from_config(config)


@pytest.mark.parametrize(
    ("name", "granularity", "offset", "estimation"),
    [
        ("llama", 1, 0, "complete"),
        ("deepseek_v3", 256, 0, "complete"),
        ("kimi_linear", 256, 0, "complete"),
        ("lfm2", 256, 0, "complete"),
        ("gemma4_text", 256, 0, "complete"),
        ("deepseek_v4", 128, -1, "conservative"),
        ("mllama", 1, 0, "conservative"),
    ],
)
def test_a_memory_layout_ends_with_the_draft_layers(
    name: str, granularity: int, offset: int, estimation: str
) -> None:
    model = from_config(FAMILIES[name].config)
    layout = model.memory_layout()
    drafts = FAMILIES[name].drafts
    assert len(layout.layer_layout) == len(model.schedule) + drafts
    assert layout.layer_prefix_offsets[len(model.schedule) :] == (offset,) * drafts
    assert layout.allocation_granularity == granularity
    assert layout.completeness == estimation
    assert len(model.memory_layout(drafts=False).layer_layout) == len(model.schedule)


@pytest.mark.parametrize(
    ("rope", "native", "effective"),
    [
        (None, 4096, 4096),
        ({"rope_type": "default", "rope_theta": 10_000.0}, 4096, 4096),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
            1024,
            4096,
        ),
        ({"type": "linear", "factor": 2.0}, 4096, 8192),
        ({"type": "linear", "factor": 1.0001}, 4096, "4096 positions times"),
        ({"type": "linear", "factor": "8"}, 4096, "4096 positions times"),
        ("linear", 4096, "rope_scaling: expected an object"),
        ({"full_attention": {"factor": 8}, "sliding_attention": {}}, 4096, 32_768),
    ],
)
def test_rotary_scaling_extends_the_context_once(rope: Any, native: int, effective: Any) -> None:
    config = {**FAMILIES["llama"].config, "max_position_embeddings": 4096, "rope_scaling": rope}
    model = from_config(config)
    capabilities: Any = model.capabilities
    assert model.max_context == 4096
    assert capabilities.native_max_context.value == native
    if isinstance(effective, int):
        assert capabilities.effective_max_context.value == effective
    else:
        assert effective in capabilities.effective_max_context.reason


def test_a_configuration_without_a_length_says_so() -> None:
    capabilities: Any = from_config(FAMILIES["llama"].config).capabilities
    assert "no context length" in capabilities.effective_max_context.reason


def test_modalities_follow_from_the_sections_of_a_configuration() -> None:
    text = FAMILIES["llama"].config
    config = {"model_type": "x", "text_config": text, "vision_config": {}, "video_token_id": 7}
    seen = from_config(config).capabilities.modalities
    assert (seen.text, seen.image, seen.audio, seen.video) == (True, True, False, True)
    assert from_config({**config, "vision_config": None}).strategy == from_config(text).strategy
