"""Attention, schedules, cache policies and state tensors."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kvcache
from kvcache import (
    AttentionPolicy,
    CacheBlockId,
    CachePolicyError,
    CacheRankIdentity,
    CacheRepresentation,
    CacheTier,
    InvalidArgumentError,
    KvCacheDtype,
    KvStorageFormat,
    LayerCachePolicy,
    LayerSchedule,
    LayerScheduleError,
    Lifetime,
    MutableStateResidency,
    StateKind,
    StateResidencyClass,
    StateTensorDimension,
    StateTensorDtype,
    StateTensorPolicy,
    StateTensorRole,
    UnsupportedError,
)
from kvcache.policy import KeyValue, PoolingStateComponent

FULL = AttentionPolicy.full()
DIM = StateTensorDimension
RECURRENT = StateTensorPolicy.new(
    StateTensorRole.recurrent(),
    [DIM.batch(), DIM.fixed(4), DIM.fixed(8)],
    StateTensorDtype.FLOAT32,
    MutableStateResidency.LAYER_SCOPED_OFFLOADABLE,
)


def convolution(slot: int = 0) -> StateTensorPolicy:
    return StateTensorPolicy.new(
        StateTensorRole.convolution(slot),
        [DIM.batch(), DIM.fixed(3), DIM.fixed(16)],
        StateTensorDtype.FLOATING,
        MutableStateResidency.ALWAYS_DEVICE_MUTABLE,
    )


class TestAttention:
    def test_window_counts_the_query_itself(self) -> None:
        assert list(AttentionPolicy.sliding(3).sees(5)) == [3, 4, 5]
        assert list(AttentionPolicy.sliding(3).sees(1)) == [0, 1]
        assert len(FULL.sees(5)) == 6

    @pytest.mark.parametrize("window", [0, -1, 2**32, True, 1.0, "8", None])
    def test_bad_window_is_a_schedule_error(self, window: Any) -> None:
        with pytest.raises(LayerScheduleError):
            AttentionPolicy.sliding(window)

    def test_from_sliding_window_takes_none_for_full(self) -> None:
        assert AttentionPolicy.from_sliding_window(None) == FULL
        assert AttentionPolicy.from_sliding_window(4).window == 4
        for window in (0, -1):
            with pytest.raises(LayerScheduleError):
                AttentionPolicy.from_sliding_window(window)

    def test_window_beyond_i32_exists_but_not_as_i32(self) -> None:
        wide = AttentionPolicy.sliding(2**32 - 1)
        with pytest.raises(LayerScheduleError, match="4294967295"):
            wide.sliding_window_i32()
        assert AttentionPolicy.sliding(2**31 - 1).sliding_window_i32() == 2**31 - 1
        assert FULL.sliding_window_i32() is None
        with pytest.raises(CachePolicyError, match="window"):
            LayerCachePolicy.key_value(wide, 1, 1)

    def test_order_is_full_then_windows_ascending(self) -> None:
        policies = [AttentionPolicy.sliding(9), FULL, AttentionPolicy.sliding(2)]
        assert sorted(policies) == [FULL, AttentionPolicy.sliding(2), AttentionPolicy.sliding(9)]


class TestSchedule:
    def test_new_counts_layers(self) -> None:
        with pytest.raises(LayerScheduleError, match="at least one layer"):
            LayerSchedule.new(0, [])
        with pytest.raises(LayerScheduleError, match="expected 3 layers, got 2"):
            LayerSchedule.new(3, [FULL, FULL])
        with pytest.raises(LayerScheduleError):
            LayerSchedule.new("3", [FULL])  # type: ignore[arg-type]

    def test_pattern_makes_windows(self) -> None:
        schedule = LayerSchedule.from_sliding_pattern(3, [False, True, False], 8)
        assert schedule.fingerprint_component() == "f,s8,f"
        assert (schedule.full_layer_count, schedule.sliding_layer_count) == (2, 1)
        assert schedule.sliding_windows() == {8: 1}
        assert schedule.get(1) == AttentionPolicy.sliding(8)
        assert schedule.get(3) is None
        assert schedule.get(-1) is None

    def test_pattern_needs_its_length_and_its_window(self) -> None:
        with pytest.raises(LayerScheduleError, match="expected 3 layers, got 1"):
            LayerSchedule.from_sliding_pattern(3, [True], 8)
        with pytest.raises(LayerScheduleError, match="window"):
            LayerSchedule.from_sliding_pattern(1, [True], None)
        with pytest.raises(LayerScheduleError):
            LayerSchedule.from_sliding_pattern(1, [True], 0)
        assert LayerSchedule.from_sliding_pattern(1, [False], 0) == LayerSchedule.all_full(1)

    def test_windows_are_counted_in_ascending_order(self) -> None:
        sliding = AttentionPolicy.sliding
        schedule = LayerSchedule([sliding(8), FULL, sliding(4), sliding(8)])
        assert list(schedule.sliding_windows().items()) == [(4, 1), (8, 2)]
        assert LayerSchedule.all_sliding(2, 4).fingerprint_component() == "s4,s4"

    def test_is_an_immutable_sequence(self) -> None:
        schedule = LayerSchedule([FULL, AttentionPolicy.sliding(2)])
        assert len(schedule) == 2
        assert list(schedule) == [schedule[0], schedule[1]]
        assert schedule[-1].window == 2
        with pytest.raises(AttributeError):
            schedule._policies = ()
        with pytest.raises(AttributeError):
            del schedule._policies
        with pytest.raises(TypeError):
            schedule[0] = FULL  # type: ignore[index]

    def test_mixed_or_foreign_items_are_refused(self) -> None:
        with pytest.raises(LayerScheduleError, match=r"\[1\]"):
            LayerSchedule([FULL, LayerCachePolicy.no_state()])
        with pytest.raises(LayerScheduleError, match=r"\[0\]"):
            LayerSchedule(["full"])  # type: ignore[type-var]

    def test_layout_of_policies_knows_its_attention(self) -> None:
        layout = LayerSchedule(
            [
                LayerCachePolicy.fixed_only([RECURRENT]),
                LayerCachePolicy.key_value(AttentionPolicy.sliding(4), 1, 8),
                LayerCachePolicy.no_state(),
            ]
        )
        assert layout.fingerprint_component() == "-,s4,-"
        assert layout.sliding_windows() == {4: 1}
        assert (layout.full_layer_count, layout.sliding_layer_count) == (0, 1)


class TestLayerCachePolicy:
    @pytest.mark.parametrize("bad", [0, -1, 2**31, 2**70, True, 2.0, "2", None])
    def test_every_dimension_must_be_a_positive_i32(self, bad: Any) -> None:
        makers = [
            lambda: LayerCachePolicy.key_value(FULL, bad, 64),
            lambda: LayerCachePolicy.key_value(FULL, 2, bad),
            lambda: LayerCachePolicy.key_only(FULL, bad, 64),
            lambda: LayerCachePolicy.compressed_latent_rotary(FULL, 512, bad),
            lambda: LayerCachePolicy.key_value_with_fixed_state(FULL, 2, bad, [RECURRENT]),
            lambda: DIM.fixed(bad),
        ]
        for make in makers:
            with pytest.raises(CachePolicyError):
                make()

    def test_error_names_class_field_and_value(self) -> None:
        with pytest.raises(
            CachePolicyError,
            match=r"^KeyValue\.num_key_value_heads: expected a positive integer, got 0$",
        ):
            LayerCachePolicy.key_value(FULL, 0, 64)

    def test_tensor_variants_need_a_tensor_and_unique_roles(self) -> None:
        with pytest.raises(CachePolicyError, match="at least one tensor"):
            LayerCachePolicy.fixed_only([])
        with pytest.raises(CachePolicyError, match=r"tensors\[1\].*state\.convolution\.0"):
            LayerCachePolicy.fixed_only([convolution(), convolution()])
        policy = LayerCachePolicy.fixed_only([convolution(0), convolution(1), RECURRENT])
        assert policy.fixed_state == (convolution(0), convolution(1), RECURRENT)
        policy.validate()

    def test_attention_and_residency_follow_the_variant(self) -> None:
        policy = LayerCachePolicy.key_value(FULL, 2, 64)
        assert policy.attention == FULL
        assert policy.attention_residency_class is StateResidencyClass.SEALABLE_PAGED
        assert policy.fixed_state == ()
        for stateless in (LayerCachePolicy.no_state(), LayerCachePolicy.fixed_only([RECURRENT])):
            assert stateless.attention is None
            assert stateless.attention_residency_class is None

    @pytest.mark.parametrize(
        ("policy", "names"),
        [
            (LayerCachePolicy.no_state(), []),
            (LayerCachePolicy.key_value(FULL, 2, 64), ["attention.keys", "attention.values"]),
            (LayerCachePolicy.key_only(FULL, 2, 64), ["attention.keys"]),
            (
                LayerCachePolicy.compressed_latent_rotary(FULL, 512, 64, indexer_dim=128),
                ["attention.compressed_latent", "attention.rotary_keys", "attention.indexer_keys"],
            ),
            (
                LayerCachePolicy.key_value_with_fixed_state(
                    FULL, 2, 64, [RECURRENT, convolution(2)]
                ),
                ["attention.keys", "attention.values", "state.recurrent", "state.convolution.2"],
            ),
        ],
    )
    def test_components_come_in_order_with_stable_names(
        self, policy: LayerCachePolicy, names: list[str]
    ) -> None:
        assert [component.stable_name() for component in policy.components()] == names

    def test_component_shapes_ignore_the_window(self) -> None:
        keys, values = LayerCachePolicy.key_value(
            AttentionPolicy.sliding(4), 2, 192, value_head_dim=128
        ).components()
        assert keys.shape == (DIM.batch(), DIM.fixed(2), DIM.prefix_tokens(), DIM.fixed(192))
        assert values.shape == (DIM.batch(), DIM.fixed(2), DIM.prefix_tokens(), DIM.fixed(128))
        latent, rotary = LayerCachePolicy.compressed_latent_rotary(FULL, 512, 64).components()
        assert latent.shape == (DIM.batch(), DIM.prefix_tokens(), DIM.fixed(512))
        assert rotary.shape == (DIM.batch(), DIM.prefix_tokens(), DIM.fixed(64))
        assert latent.residency is StateResidencyClass.SEALABLE_PAGED

    def test_pooling_components_have_stable_names(self) -> None:
        names = [
            StateTensorRole.pooling(1, component).stable_name()
            for component in PoolingStateComponent
        ]
        assert names[2] == "state.pooling.1.pooled"
        assert names[0] == "state.pooling.1.pending_values"

    def test_order_of_layers_matters_for_equality_and_hash(self) -> None:
        kinds = [
            LayerCachePolicy.no_state(),
            LayerCachePolicy.key_value(FULL, 2, 64),
            LayerCachePolicy.fixed_only([RECURRENT]),
        ]
        layouts = [
            LayerSchedule([a, b, c])
            for a in kinds
            for b in kinds
            for c in kinds
            if len({a, b, c}) == 3
        ]
        assert len(layouts) == 6
        assert len(set(layouts)) == 6
        assert len({hash(layout) for layout in layouts}) == 6

    def test_is_frozen_and_slotted(self) -> None:
        policy = LayerCachePolicy.key_value(FULL, 2, 64)
        with pytest.raises(dataclasses.FrozenInstanceError):
            policy.head_dim = 3  # type: ignore[misc,attr-defined]
        assert not hasattr(policy, "__dict__")
        assert isinstance(policy, KeyValue)


class TestStateTensor:
    def test_shapes_resolve_for_batch_and_prefix(self) -> None:
        tensor = StateTensorPolicy(
            StateTensorRole.pooling(0, PoolingStateComponent.POOLED),
            [DIM.batch(), DIM.prefix_tokens_div(4), DIM.fixed(5)],
            StateTensorDtype.FLOATING,
            StateResidencyClass.SEALABLE_PAGED,
        )
        assert tensor.resolved_shape(2, 11) == (2, 2, 5)
        assert DIM.prefix_tokens_rem(4).resolve(2, 11) == 3
        assert DIM.prefix_tokens().resolve(2, 11) == 11
        assert DIM.scalar().resolve(2, 11) == 1
        with pytest.raises(CachePolicyError, match="pooled"):
            tensor.resolved_shape(2**31, 11)

    def test_scalar_must_be_alone_and_shapes_not_empty(self) -> None:
        def delta(*shape: StateTensorDimension) -> StateTensorPolicy:
            return StateTensorPolicy.new(
                StateTensorRole.position_delta(),
                shape,
                StateTensorDtype.INT32,
                MutableStateResidency.ALWAYS_DEVICE_MUTABLE,
            )

        assert delta(DIM.scalar()).resolved_shape(7, 3) == (1,)
        for shape in ([], [DIM.scalar(), DIM.batch()], [DIM.batch(), DIM.scalar()]):
            with pytest.raises(CachePolicyError, match="shape"):
                delta(*shape)

    def test_residency_is_mandated_by_the_role(self) -> None:
        pooling = PoolingStateComponent
        mandated = {
            StateTensorRole.recurrent(): StateResidencyClass.LAYER_SCOPED_OFFLOADABLE,
            StateTensorRole.pooling(0, pooling.POOLED): StateResidencyClass.SEALABLE_PAGED,
            StateTensorRole.pooling(0, pooling.PENDING_GATES): (
                StateResidencyClass.ALWAYS_DEVICE_MUTABLE
            ),
            StateTensorRole.convolution(0): StateResidencyClass.ALWAYS_DEVICE_MUTABLE,
            StateTensorRole.prefix_embedding(): StateResidencyClass.ALWAYS_DEVICE_MUTABLE,
        }
        for role, right in mandated.items():
            for residency in StateResidencyClass:
                arguments = (role, [DIM.batch()], StateTensorDtype.FLOATING, residency)
                if residency is right:
                    assert StateTensorPolicy(*arguments).residency is right
                else:
                    with pytest.raises(CachePolicyError, match=str(right)):
                        StateTensorPolicy(*arguments)

    def test_presence_follows_the_prefix(self) -> None:
        required = convolution()
        assert required.presence.is_required_for(0)
        assert not required.optional().presence.is_required_for(5)
        remainder = required.when_prefix_remainder_nonzero(4).presence
        assert [remainder.is_required_for(t) for t in (0, 3, 4, 5)] == [False, True, False, True]
        at_least = required.when_prefix_at_least(4).presence
        assert [at_least.is_required_for(t) for t in (0, 3, 4, 5)] == [False, False, True, True]
        with pytest.raises(CachePolicyError):
            required.when_prefix_at_least(0)

    def test_persisted_dtype_names_are_checked(self) -> None:
        accepted = {
            StateTensorDtype.FLOATING: {"Float16", "Bfloat16", "Float32", "Float64"},
            StateTensorDtype.FLOAT32: {"Float32"},
            StateTensorDtype.INT32: {"Int32"},
            StateTensorDtype.UINT32: {"Uint32"},
        }
        names = {"Float16", "Bfloat16", "Float32", "Float64", "Int32", "Uint32", "Int8", "Float8"}
        for dtype, right in accepted.items():
            assert {name for name in names if dtype.accepts_name(name)} == right

    def test_two_value_residency_converts(self) -> None:
        for residency in MutableStateResidency:
            assert residency.residency_class.value == residency.value


class TestEnums:
    def test_state_kinds_have_their_twelve_spellings_in_order(self) -> None:
        assert [kind.value for kind in StateKind] == [
            "recurrent",
            "paged_kv",
            "prefix_snapshot",
            "ring_snapshot",
            "carry_stash",
            "carry_table",
            "verify_table",
            "accept_stash",
            "hidden_capture",
            "prompt_lookup_index",
            "token_tree_mask",
            "draft_tokens",
        ]
        backwards = list(reversed(StateKind))
        assert sorted(backwards) == list(StateKind)
        assert StateKind.RECURRENT < StateKind.PAGED_KV <= StateKind.PAGED_KV

    def test_state_kind_properties(self) -> None:
        assert {k for k in StateKind if not k.is_cache} == {
            StateKind.RECURRENT,
            StateKind.PAGED_KV,
        }
        assert {k for k in StateKind if k.copies_a_state} == {
            StateKind.PREFIX_SNAPSHOT,
            StateKind.RING_SNAPSHOT,
        }
        assert {k for k in StateKind if k.is_host} == {StateKind.PROMPT_LOOKUP_INDEX}
        lifetimes = [kind.lifetime for kind in StateKind]
        assert lifetimes.count(Lifetime.SNAPSHOT) == 2
        assert lifetimes.count(Lifetime.MODEL) == 3
        assert lifetimes.count(Lifetime.SEQUENCE) == 3
        assert lifetimes.count(Lifetime.VERIFY) == 4

    def test_unknown_spelling_is_refused_with_the_known_ones(self) -> None:
        with pytest.raises(InvalidArgumentError, match=r"recurrent, paged_kv.*got 'paged'"):
            StateKind("paged")
        with pytest.raises(InvalidArgumentError, match=r"^\$: .*paged"):
            StateKind.from_json('"paged"')

    def test_enums_of_the_core_are_the_same(self) -> None:
        from kvcache import DType, Section, VerifyRule, _core

        for enum, core in (
            (StateKind, _core.StateKind),
            (DType, _core.DType),
            (Section, _core.Section),
            (VerifyRule, _core.VerifyRule),
        ):
            assert [member.name for member in enum] == [member.name for member in core]

    def test_storage_format_has_two_spellings(self) -> None:
        int8 = KvStorageFormat.INT8_PER_TOKEN_HEAD_F32_SCALE_V1
        assert str(int8) == "int8-per-token-head-f32-scale-v1"
        assert f"{int8}" == "int8-per-token-head-f32-scale-v1"
        assert int8.value == "int8_per_token_head_f32_scale_v1"
        assert str(KvStorageFormat.F16) == "f16"
        with pytest.raises(InvalidArgumentError):
            KvStorageFormat.from_json('"int8-per-token-head-f32-scale-v1"')
        with pytest.raises(InvalidArgumentError):
            KvStorageFormat("int8")

    @pytest.mark.parametrize(
        ("dtype", "spellings"),
        [
            (KvCacheDtype.FP16, ["fp16", "f16", "float16", " FP16\n"]),
            (KvCacheDtype.INT8, ["int8", "i8", "I8"]),
            (KvCacheDtype.BF16, ["bf16", "bfloat16"]),
            (KvCacheDtype.FP8, ["fp8", "f8", "f8e4m3", "e4m3", "E4M3"]),
        ],
    )
    def test_cache_dtype_parses_its_spellings(
        self, dtype: KvCacheDtype, spellings: list[str]
    ) -> None:
        assert all(KvCacheDtype.parse(text) is dtype for text in spellings)

    def test_cache_dtype_converts_or_tells_why_not(self) -> None:
        assert KvCacheDtype.parse("int4") is None
        with pytest.raises(InvalidArgumentError, match="int4"):
            KvCacheDtype.from_str("int4")
        assert KvCacheDtype.FP16.storage_format() is KvStorageFormat.F16
        int8 = KvStorageFormat.INT8_PER_TOKEN_HEAD_F32_SCALE_V1
        assert KvCacheDtype.INT8.storage_format() is int8
        messages = set()
        for dtype in (KvCacheDtype.BF16, KvCacheDtype.FP8):
            with pytest.raises(UnsupportedError, match=f"{dtype.name}.*fp16.*int8") as error:
                dtype.storage_format()
            messages.add(str(error.value))
        assert len(messages) == 2

    def test_representations_name_their_arrays(self) -> None:
        assert CacheRepresentation.KEY_VALUE.array_names == ("keys", "values")
        latent = CacheRepresentation.COMPRESSED_LATENT_ROTARY
        assert latent.array_names == ("latent", "rotary_key")
        assert CacheTier.DEVICE < CacheTier.HOST < CacheTier.DISK


def test_block_ids_sort_by_their_fields_in_order() -> None:
    def block(session: int = 0, layer: int = 0, start: int = 0, rank: Any = None) -> CacheBlockId:
        kind = CacheRepresentation.KEY_VALUE
        return CacheBlockId(session, layer, kind, start, start + 1, rank)

    latent = CacheBlockId(0, 0, CacheRepresentation.COMPRESSED_LATENT_ROTARY, 0, 1)
    ordered = [
        block(),
        block(rank=CacheRankIdentity()),
        block(rank=CacheRankIdentity(shard_rank=0)),
        block(start=5),
        latent,
        block(layer=1),
        block(session=1),
    ]
    backwards = ordered[::-1]
    assert sorted(backwards) == ordered


def test_types_import_without_numpy_and_the_compiled_core() -> None:
    code = (
        "import sys, kvcache\n"
        "import kvcache.policy, kvcache.serde, kvcache.storage, kvcache.state, kvcache.strategy\n"
        "import kvcache.capability, kvcache.estimate, kvcache.admission, kvcache.terms\n"
        "import kvcache.budget, kvcache.block, kvcache.models\n"
        "kvcache.LayerSchedule.from_json('[\"no_state\"]')\n"
        "loaded = {'numpy', 'kvcache._core', 'torch'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


def test_type_checkers_see_the_public_names_and_no_other() -> None:
    tree = ast.parse(Path(kvcache.__file__).read_text())
    static = next(
        node.body
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    names: dict[str, Any] = {}
    exec(compile(ast.Module(static, []), "static", "exec"), names)
    del names["__builtins__"]
    assert sorted(names) == kvcache.__all__
    assert all(getattr(kvcache, name) is value for name, value in names.items())


def test_every_public_name_resolves() -> None:
    for name in kvcache._EXPORTS:
        assert getattr(kvcache, name) is not None
        assert name in dir(kvcache)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        kvcache.nothing  # noqa: B018
