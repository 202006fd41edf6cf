"""Plans against brute force over positions, and their monotony; engines never allocate less."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache.models import from_config
from kvcache.planner import parse_format, plan_model
from kvcache.planner.engines import ENGINES, Deployment, engine_report

# bytes of a row of `width` elements, written out once more
ROWS = {
    "f32": lambda width: 4 * width,
    "f16": lambda width: 2 * width,
    "bf16": lambda width: 2 * width,
    "fp8": lambda width: width,
    "int8": lambda width: width + 4,
    "q8_0": lambda width: width // 32 * 34,
    "q4_0": lambda width: width // 32 * 18,
    "iq4_nl": lambda width: width // 32 * 18,
}


@st.composite
def windows(draw: st.DrawFn) -> dict[str, Any]:
    """A decoder of full and sliding layers."""
    kinds = draw(st.lists(st.sampled_from(["full", "sliding"]), min_size=1, max_size=8))
    heads = draw(st.integers(1, 4))
    return {
        "model_type": "gemma3_text",
        "num_hidden_layers": len(kinds),
        "hidden_size": 256,
        "num_attention_heads": 4 * heads,
        "num_key_value_heads": heads,
        "head_dim": draw(st.sampled_from([32, 64, 96])),
        "sliding_window": draw(st.integers(1, 40)),
        "layer_types": [f"{kind}_attention" for kind in kinds],
    }


@st.composite
def hybrids(draw: st.DrawFn) -> dict[str, Any]:
    """A decoder of attention and gated delta nets."""
    return {
        "model_type": "qwen3_next",
        "num_hidden_layers": draw(st.integers(1, 6)),
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": draw(st.sampled_from([1, 2, 4])),
        "head_dim": 32,
        "full_attention_interval": draw(st.integers(1, 4)),
        "linear_num_key_heads": 2,
        "linear_num_value_heads": draw(st.sampled_from([2, 4])),
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
    }


CONFIGS = st.one_of(windows(), hybrids())
FORMATS = st.sampled_from(sorted(ROWS))


def position_bytes(config: dict[str, Any], layer: int, name: str) -> int:
    """Bytes of one position in one layer of ``windows``."""
    return 2 * config["num_key_value_heads"] * ROWS[name](config["head_dim"])


@given(windows(), st.integers(0, 90), FORMATS, st.integers(1, 3))
def test_bytes_are_those_of_the_positions_that_stay(config, tokens, name, batch) -> None:
    total = 0
    for layer, kind in enumerate(config["layer_types"]):
        window = config["sliding_window"] if kind == "sliding_attention" else tokens
        for position in range(tokens):
            if position >= tokens - window:  # the last `window` positions stay
                total += position_bytes(config, layer, name)
    plan = plan_model(from_config(config), tokens=tokens, format=name, batch=batch)
    assert plan.sequence_bytes == total
    assert plan.total_bytes == total * batch == plan.terms_bytes


@given(hybrids(), st.integers(0, 90))
def test_fixed_state_is_counted_once_a_sequence(config, tokens) -> None:
    interval, layers = config["full_attention_interval"], config["num_hidden_layers"]
    full = sum((layer + 1) % interval == 0 for layer in range(layers))
    channels = 2 * 2 * 16 + config["linear_num_value_heads"] * 16
    state = 4 * (config["linear_num_value_heads"] * 16 * 16 + 3 * channels)
    plan = plan_model(from_config(config), tokens=tokens)
    assert plan.fixed_bytes == (layers - full) * state
    grown = full * tokens * 2 * config["num_key_value_heads"] * 32 * 2
    assert plan.sequence_bytes == plan.fixed_bytes + grown


@given(CONFIGS, st.integers(0, 200), st.integers(0, 50), st.integers(1, 3), FORMATS)
def test_more_tokens_or_sequences_are_never_fewer_bytes(config, tokens, more, batch, name) -> None:
    model = from_config(config)
    one = plan_model(model, tokens=tokens, batch=batch, format=name)
    longer = plan_model(model, tokens=tokens + more, batch=batch, format=name)
    wider = plan_model(model, tokens=tokens, batch=batch + 1, format=name)
    assert one.total_bytes <= longer.total_bytes
    assert one.total_bytes <= wider.total_bytes


@given(windows(), st.integers(0, 200), st.sampled_from(["full", "sliding"]))
def test_more_layers_are_never_fewer_bytes(config, tokens, kind) -> None:
    kinds = [*config["layer_types"], f"{kind}_attention"]
    larger = config | {"layer_types": kinds, "num_hidden_layers": len(kinds)}
    one, two = (plan_model(from_config(c), tokens=tokens) for c in (config, larger))
    assert one.sequence_bytes <= two.sequence_bytes


@given(CONFIGS, st.integers(0, 300))
def test_intercept_and_slope_are_exact_once_windows_are_full(config, more) -> None:
    model = from_config(config)
    line = plan_model(model, tokens=1).growth
    tokens = line.from_tokens + more
    plan = plan_model(model, tokens=tokens)
    assert plan.sequence_bytes == line.fixed_bytes + line.token_bytes * tokens


@given(CONFIGS, st.integers(1, 100), st.integers(1, 2**22))
def test_what_fits_fits_and_one_more_does_not(config, tokens, memory) -> None:
    model = from_config(config)
    plan = plan_model(model, tokens=tokens, memory_bytes=memory)
    assert plan.fit is not None
    sequences = plan.fit.sequences or 0
    assert sequences * plan.sequence_bytes <= memory < (sequences + 1) * plan.sequence_bytes
    if plan.fit.tokens is not None and plan.fit.tokens < 2**40:
        longest = plan.fit.tokens
        assert plan_model(model, tokens=longest).sequence_bytes <= memory
        assert plan_model(model, tokens=longest + 1).sequence_bytes > memory


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
@given(config=windows(), tokens=st.integers(1, 2000), sequences=st.integers(1, 4))
def test_an_engine_that_pads_allocates_no_less_than_is_kept(
    engine, config, tokens, sequences
) -> None:
    model = from_config(config)
    kept = plan_model(model, tokens=tokens, batch=sequences).total_bytes
    asked = tokens * sequences if engine == "llama.cpp" else tokens
    report = engine_report(engine, model, Deployment(tokens=asked, sequences=sequences))
    assert report.bytes >= kept
    assert report.bytes == sum(part.bytes for part in report.allocations)


@given(CONFIGS, st.integers(1, 2000), st.sampled_from(sorted(ENGINES)), st.integers(0, 3))
def test_more_memory_is_never_a_smaller_capacity(config, tokens, engine, drafts) -> None:
    model = from_config(config)
    found = []
    for memory in (2**24, 2**26):
        deployment = Deployment(
            tokens=tokens, memory_bytes=memory, drafts=drafts, format=parse_format("bf16")
        )
        found.append(engine_report(engine, model, deployment).capacity_tokens)
    if None not in found:
        assert found[0] <= found[1]
