"""The run-time estimate and admission, against worked examples."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kvcache import (
    AdmissionRequest,
    AdmissionResult,
    AttentionPolicy,
    AvailableMemory,
    EstimationCompleteness,
    InputModalities,
    InputTokenCount,
    InvalidArgumentError,
    LayerCachePolicy,
    LayerSchedule,
    ModelCapabilities,
    MutableStateResidency,
    ObservationKind,
    Observed,
    PhysicalMemorySemantics,
    RuntimeStateEstimate,
    StateMemoryLayout,
    StateTensorDimension,
    StateTensorDtype,
    StateTensorPolicy,
    StateTensorRole,
    apply_admission_policy,
    estimate_runtime_state,
)
from kvcache.admission import Admitted, Rejected
from kvcache.strategy import CacheStateStrategy, FullKv, MixedKv, SlidingKv

FULL = AttentionPolicy.full()
DIM = StateTensorDimension


def layout(*policies: LayerCachePolicy, granularity: int = 1, **more: Any) -> StateMemoryLayout:
    more.setdefault("hidden_size", 16)
    return StateMemoryLayout.new(policies, allocation_granularity=granularity, **more)


def estimate(
    model: StateMemoryLayout, tokens: int, output: int = 0, batch: int = 1, width: int = 2
) -> RuntimeStateEstimate:
    return estimate_runtime_state(model, InputTokenCount.text(tokens), output, batch, width)


def tensor(
    role: StateTensorRole, dtype: StateTensorDtype, *shape: StateTensorDimension
) -> StateTensorPolicy:
    return StateTensorPolicy(role, shape, dtype, role.required_residency)


class TestVectors:
    def test_keys_only_round_up_to_the_granularity(self) -> None:
        keys = LayerCachePolicy.key_only(FULL, 1, 8)
        found = estimate(layout(keys, keys, granularity=8), 5, 2, width=4)
        assert found.context_state_bytes == 512
        assert found.assumptions.requested_positions == 7

    def test_linear_attention_is_fixed(self) -> None:
        layer = LayerCachePolicy.fixed_only(
            [
                tensor(
                    StateTensorRole.convolution(0),
                    StateTensorDtype.FLOATING,
                    DIM.batch(),
                    DIM.fixed(24),
                ),
                tensor(
                    StateTensorRole.recurrent(),
                    StateTensorDtype.FLOAT32,
                    DIM.batch(),
                    DIM.fixed(32),
                ),
            ]
        )
        found = estimate(layout(layer, layer), 3)
        assert found.fixed_state_bytes == 352
        assert found.context_state_bytes == 0
        assert found.bytes_per_position_per_batch == 0

    def test_latent_attention_includes_draft_layers(self) -> None:
        layer = LayerCachePolicy.compressed_latent_rotary(FULL, 4, 2)
        assert estimate(layout(*[layer] * 3, granularity=256), 3).context_state_bytes == 9216
        assert estimate(layout(*[layer] * 2, granularity=256), 3).context_state_bytes < 9216

    def test_windows_bound_their_layers(self) -> None:
        windows = [FULL, *(AttentionPolicy.sliding(w) for w in (4, 4, 8))]
        model = layout(*(LayerCachePolicy.key_value(a, 1, 8) for a in windows))
        found = estimate(model, 10, batch=2, width=4)
        assert found.context_state_bytes == 3328
        assert found.assumptions.sliding_window_bounds == (4, 8)
        assert found.bytes_per_position_per_batch == 64

    def test_grouped_heads_scale_with_kv_heads(self) -> None:
        one, four = (estimate(layout(LayerCachePolicy.key_value(FULL, h, 8)), 9) for h in (1, 4))
        assert four.context_state_bytes == 4 * one.context_state_bytes

    def test_values_of_another_width_and_index_keys_are_counted(self) -> None:
        layer = LayerCachePolicy.key_value(FULL, 2, 192, value_head_dim=128, indexer_dim=64)
        assert estimate(layout(layer), 1).context_state_bytes == (2 * (192 + 128) + 64) * 2

    def test_lagging_layers_hold_fewer_positions(self) -> None:
        layer = LayerCachePolicy.key_only(FULL, 1, 8)
        model = layout(layer, layer, layer_prefix_offsets=[0, -1])
        assert estimate(model, 3).context_state_bytes == (3 + 2) * 8 * 2
        assert model.layer_tokens(3) == (3, 2)
        assert model.layer_tokens(0) == (0, 0)

    def test_optional_embeddings_are_charged_with_the_input(self) -> None:
        embedding = tensor(
            StateTensorRole.prefix_embedding(),
            StateTensorDtype.FLOATING,
            DIM.batch(),
            DIM.prefix_tokens(),
            DIM.fixed(16),
        ).optional()
        layer = LayerCachePolicy.key_value_with_fixed_state(FULL, 1, 8, [embedding])
        media = InputTokenCount.prepared(3, 5, 8, 100, ObservationKind.ESTIMATED)
        found = estimate_runtime_state(layout(layer), media, 0, 2, 2)
        assert found.context_state_bytes == 2 * 8 * 8 * 2 * 2
        assert found.multimodal_embedding_bytes == 5 * 16 * 2 * 2
        assert found.media_execution_workspace_bytes == 200
        assert found.bytes_per_position_per_batch == 2 * 8 * 2 + 16 * 2
        assert found.completeness is EstimationCompleteness.CONSERVATIVE
        assert found.requested_state_bytes == 512 + 320 + 200

    def test_a_scalar_does_not_depend_on_the_batch(self) -> None:
        delta = tensor(StateTensorRole.position_delta(), StateTensorDtype.INT32, DIM.scalar())
        layer = LayerCachePolicy.key_value_with_fixed_state(FULL, 1, 1, [delta])
        assert estimate(layout(layer), 0, batch=7).fixed_state_bytes == 4

    def test_round_trips_as_json(self) -> None:
        found = estimate(layout(LayerCachePolicy.key_only(FULL, 1, 8)), 5)
        assert RuntimeStateEstimate.from_json(found.to_json()) == found


class TestErrors:
    def test_zero_batch_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="batch_size"):
            estimate(layout(LayerCachePolicy.no_state()), 1, batch=0)

    def test_overflow_names_its_operation(self) -> None:
        model = layout(LayerCachePolicy.key_only(FULL, 2**31 - 1, 2**31 - 1))
        with pytest.raises(InvalidArgumentError, match=r"overflow in attention\.keys bytes"):
            estimate(model, 2**20)
        with pytest.raises(InvalidArgumentError, match="overflow in requested positions"):
            estimate(model, 2**64 - 1, 1)
        keys = LayerCachePolicy.key_only(FULL, 2**31 - 1, 1)
        with pytest.raises(InvalidArgumentError, match="overflow in context state"):
            estimate(layout(*[keys] * 8), 2**31, width=2)

    @pytest.mark.parametrize(
        ("changes", "path"),
        [
            ({"layer_prefix_offsets": (0, 0)}, "layer_prefix_offsets"),
            ({"layer_prefix_offsets": (1,)}, "layer_prefix_offsets[0]"),
            ({"hidden_size": 0}, "hidden_size"),
            ({"allocation_granularity": 0}, "allocation_granularity"),
        ],
    )
    def test_layout_is_validated_when_made_and_when_read(
        self, changes: dict[str, Any], path: str
    ) -> None:
        good = layout(LayerCachePolicy.no_state())
        with pytest.raises(InvalidArgumentError) as error:
            dataclasses.replace(good, **changes)
        assert f"StateMemoryLayout.{path}: expected" in str(error.value)
        data = {
            **good.to_dict(),
            **{k: list(v) if isinstance(v, tuple) else v for k, v in changes.items()},
        }
        with pytest.raises(InvalidArgumentError) as error:
            StateMemoryLayout.from_dict(data)
        assert str(error.value).startswith(f"$.{path}: expected")

    def test_layout_needs_cache_policies(self) -> None:
        data = layout(LayerCachePolicy.no_state()).to_dict()
        for bad in ([], ["full"], "no_state"):
            with pytest.raises(InvalidArgumentError, match=r"^\$\.layer_layout"):
                StateMemoryLayout.from_dict({**data, "layer_layout": bad})


class TestStrategyOfAttention:
    def test_label_follows_the_windows(self) -> None:
        sliding = AttentionPolicy.sliding
        label = CacheStateStrategy.for_attention
        assert label(LayerSchedule.all_full(2)) == FullKv()
        assert label(LayerSchedule.all_sliding(2, 8)) == SlidingKv(8)
        mixed = label(LayerSchedule([FULL, sliding(8), sliding(4), sliding(8)]))
        assert isinstance(mixed, MixedKv)
        assert mixed.full_layers == 1
        assert [(group.window, group.layers) for group in mixed.sliding] == [(4, 1), (8, 2)]
        assert isinstance(label(LayerSchedule([sliding(8), sliding(4)])), MixedKv)


CAPABILITIES = ModelCapabilities(
    "llama",
    Observed.available(8, "config"),
    Observed.available(8, "config"),
    FullKv(),
    InputModalities.TEXT,
    EstimationCompleteness.COMPLETE,
)


def admit(
    prompt: int = 5,
    output: int = 3,
    *,
    capabilities: ModelCapabilities = CAPABILITIES,
    reserve: int = 10,
    budget: int | None = None,
    memory: Observed | None = None,
    complete: bool = True,
    state: RuntimeStateEstimate | None = None,
) -> AdmissionResult:
    request = AdmissionRequest(
        input=InputTokenCount.text(prompt),
        max_output_tokens=output,
        batch_size=1,
        safety_reserve_bytes=reserve,
        application_memory_budget_bytes=budget,
        require_complete_estimate=complete,
    )
    report = None
    if memory is not None:
        report = AvailableMemory(Observed.unavailable("?"), memory, PhysicalMemorySemantics.UNKNOWN)
    return apply_admission_policy(
        CAPABILITIES if capabilities is None else capabilities, request, state or STATE, report
    )


STATE = estimate(layout(LayerCachePolicy.key_only(FULL, 1, 8)), 5, 1)  # 96 bytes


def kind(result: AdmissionResult) -> str:
    data = result.to_dict()
    return str(data.get("kind", data["status"]))


class TestAdmission:
    def test_exactly_enough_is_admitted(self) -> None:
        result = admit(budget=106, memory=Observed.available(106, "probe"))
        assert isinstance(result, Admitted)
        assert result.requested_positions == 8
        assert result.incremental_required_bytes == 106
        assert result.available_memory_bytes == 106
        assert AdmissionResult.from_json(result.to_json()) == result
        assert isinstance(admit(), Admitted)

    def test_each_rejection_is_a_value_with_its_numbers(self) -> None:
        unknown = dataclasses.replace(
            CAPABILITIES, effective_max_context=Observed.unsupported("scaled")
        )
        assert admit(capabilities=unknown).to_dict() == {
            "status": "rejected",
            "kind": "estimation_unsupported",
            "reason": "scaled",
        }
        assert admit(9).to_dict() == {
            "status": "rejected",
            "kind": "prompt_exceeds_context",
            "prompt_positions": 9,
            "maximum_positions": 8,
        }
        assert admit(5, 4).to_dict() == {
            "status": "rejected",
            "kind": "output_headroom_exceeds_context",
            "prompt_positions": 5,
            "output_tokens": 4,
            "maximum_positions": 8,
        }
        assert admit(budget=105).to_dict() == {
            "status": "rejected",
            "kind": "memory_budget_exceeded",
            "required_bytes": 106,
            "budget_bytes": 105,
        }
        assert admit(memory=Observed.unavailable("no probe")).to_dict() == {
            "status": "rejected",
            "kind": "available_memory_unavailable",
            "reason": "no probe",
        }
        assert admit(memory=Observed.available(105, "probe")).to_dict() == {
            "status": "rejected",
            "kind": "insufficient_available_memory",
            "required_bytes": 106,
            "available_bytes": 105,
        }

    def test_the_first_failure_wins(self) -> None:
        none = Observed.unavailable("no probe")
        assert kind(admit(9, 9, budget=0, memory=none)) == "prompt_exceeds_context"
        assert kind(admit(5, 9, budget=0, memory=none)) == "output_headroom_exceeds_context"
        assert kind(admit(budget=0, memory=none)) == "memory_budget_exceeded"
        partial = dataclasses.replace(
            STATE, completeness=EstimationCompleteness.PERSISTENT_STATE_ONLY
        )
        assert kind(admit(state=partial, budget=0)) == "estimation_unsupported"
        assert kind(admit(state=partial, budget=0, complete=False)) == "memory_budget_exceeded"
        bound = dataclasses.replace(STATE, completeness=EstimationCompleteness.CONSERVATIVE)
        assert kind(admit(state=bound)) == "admitted"

    def test_sums_beyond_64_bits_are_errors(self) -> None:
        with pytest.raises(InvalidArgumentError, match="overflow in required bytes"):
            admit(reserve=2**64 - 1)
        wide = dataclasses.replace(
            CAPABILITIES, effective_max_context=Observed.available(2**64 - 1, "config")
        )
        with pytest.raises(InvalidArgumentError, match="overflow in requested positions"):
            admit(2**64 - 1, 1, capabilities=wide)

    def test_rejections_read_back(self) -> None:
        result = admit(9)
        assert isinstance(result, Rejected)
        assert AdmissionResult.from_json(result.to_json()) == result


def test_residency_of_the_helpers_is_the_mandated_one() -> None:
    recurrent = StateTensorPolicy.new(
        StateTensorRole.recurrent(),
        [DIM.batch()],
        StateTensorDtype.FLOAT32,
        MutableStateResidency.LAYER_SCOPED_OFFLOADABLE,
    )
    assert recurrent == tensor(StateTensorRole.recurrent(), StateTensorDtype.FLOAT32, DIM.batch())
