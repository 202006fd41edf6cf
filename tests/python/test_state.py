"""From policies to declarations, and from declarations to terms and budgets."""

from __future__ import annotations

from typing import Any

import pytest

from kvcache import (
    AttentionPolicy,
    BlockPool,
    CacheInputs,
    DType,
    InvalidArgumentError,
    KvBudget,
    KvStorageFormat,
    LayerCachePolicy,
    LayerSchedule,
    LookupInputs,
    OutOfCapacityError,
    Section,
    StateDecl,
    StateInputs,
    StateKind,
    StatePlan,
    StateTensorDimension,
    StateTensorDtype,
    StateTensorPolicy,
    StateTensorRole,
    UnsupportedError,
    VerifyInputs,
    VerifyRule,
    best_slots,
    cache_terms,
    declare,
    declare_caches,
    fit_ring_depth,
    hash_table_bytes,
    largest_fitting,
    max_sequences,
    max_tokens,
    retained_bytes,
    retained_units,
    state_terms,
    verify_steps_by_slot,
)
from kvcache.policy.tensors import PoolingStateComponent

FULL = AttentionPolicy.full()
DIM = StateTensorDimension
INT8 = KvStorageFormat.INT8_PER_TOKEN_HEAD_F32_SCALE_V1


def tensor(role: StateTensorRole, *shape: Any, dtype: str = "floating") -> StateTensorPolicy:
    return StateTensorPolicy(role, shape, StateTensorDtype(dtype), role.required_residency)


CONVOLUTION = tensor(StateTensorRole.convolution(1), DIM.batch(), DIM.fixed(3), DIM.fixed(16))
RECURRENT = tensor(
    StateTensorRole.recurrent(), DIM.batch(), DIM.fixed(2), DIM.fixed(8), dtype="float32"
)
SCHEDULE = LayerSchedule(
    [
        LayerCachePolicy.fixed_only([CONVOLUTION, RECURRENT]),
        LayerCachePolicy.key_value(AttentionPolicy.sliding(4), 2, 64, value_head_dim=32),
        LayerCachePolicy.no_state(),
        LayerCachePolicy.compressed_latent_rotary(FULL, 512, 64, indexer_dim=128),
        LayerCachePolicy.key_only(FULL, 1, 8),
    ]
)


def only(policy: LayerCachePolicy, **options: Any) -> tuple[StateDecl, ...]:
    return declare(LayerSchedule([policy]), **options)


class TestDeclare:
    def test_ids_layers_and_components_follow_the_schedule(self) -> None:
        decls = declare(SCHEDULE)
        assert [decl.id for decl in decls] == [
            "l0.state.convolution.1",
            "l0.state.recurrent",
            "l1.attention.keys",
            "l1.attention.values",
            "l3.attention.compressed_latent",
            "l3.attention.rotary_keys",
            "l3.attention.indexer_keys",
            "l4.attention.keys",
        ]
        assert [decl.layer for decl in decls] == [0, 0, 1, 1, 3, 3, 3, 4]
        assert all(decl.id == f"l{decl.layer}.{decl.component}" for decl in decls)

    def test_units_are_positions_or_sequences_without_the_batch(self) -> None:
        decls = {decl.id: decl for decl in declare(SCHEDULE)}
        assert decls["l0.state.convolution.1"].shape == (3, 16)
        assert decls["l0.state.convolution.1"].verify is VerifyRule.CONV_STEPS
        assert decls["l0.state.recurrent"].shape == (2, 8)
        assert decls["l0.state.recurrent"].verify is VerifyRule.H_STEPS
        assert decls["l1.attention.keys"].shape == (2, 64)
        assert decls["l1.attention.values"].shape == (2, 32)
        assert decls["l1.attention.values"].window == 4
        assert decls["l3.attention.compressed_latent"].shape == (1, 512)
        assert decls["l3.attention.compressed_latent"].window == 0

    def test_int8_is_rows_and_scales_and_leaves_tensors_alone(self) -> None:
        decls = declare(SCHEDULE, storage=INT8, state_dtype="bf16")
        for decl in decls:
            if decl.kind is StateKind.PAGED_KV:
                assert (decl.dtype, decl.row_scale_bytes) == (DType.I8, 4)
        assert decls[0].dtype is DType.BF16
        assert decls[1].dtype is DType.F32

    def test_last_layers_may_belong_to_a_draft_head(self) -> None:
        sections = {decl.layer: decl.section for decl in declare(SCHEDULE, draft_layers=2)}
        assert sections == {
            0: Section.MAIN,
            1: Section.MAIN,
            3: Section.DRAFT,
            4: Section.DRAFT,
        }
        for bad in (-1, 6, True, "1"):
            with pytest.raises(InvalidArgumentError, match="draft_layers"):
                declare(SCHEDULE, draft_layers=bad)  # type: ignore[arg-type]

    def test_optional_embeddings_are_input_not_state(self) -> None:
        embedding = tensor(
            StateTensorRole.prefix_embedding(), DIM.batch(), DIM.prefix_tokens(), DIM.fixed(16)
        )
        policy = LayerCachePolicy.key_value_with_fixed_state(FULL, 1, 8, [embedding.optional()])
        assert [decl.component for decl in only(policy)] == ["attention.keys", "attention.values"]
        required = LayerCachePolicy.key_value_with_fixed_state(FULL, 1, 8, [embedding])
        assert only(required)[2].shape == (1, 16)

    def test_a_scalar_takes_one_element(self) -> None:
        delta = tensor(StateTensorRole.position_delta(), DIM.scalar(), dtype="int32")
        policy = LayerCachePolicy.key_value_with_fixed_state(FULL, 1, 8, [delta])
        decls = only(policy)
        assert (decls[2].shape, decls[2].dtype) == ((1,), DType.I32)
        assert state_terms(decls, StateInputs(2, VerifyInputs((1, 1), 2)))[1].bytes == 2 * 2 * 4
        assert declare_caches(decls, hidden_size=8)[0].dtype is DType.I32

    def test_pooling_streams_are_declared_by_record(self) -> None:
        def part(component: PoolingStateComponent, *shape: Any) -> StateTensorPolicy:
            return tensor(StateTensorRole.pooling(0, component), DIM.batch(), *shape, DIM.fixed(8))

        policy = LayerCachePolicy.key_only_with_fixed_state(
            AttentionPolicy.sliding(128),
            1,
            8,
            [
                part(PoolingStateComponent.PENDING_VALUES, DIM.prefix_tokens_rem(4)),
                part(PoolingStateComponent.POOLED, DIM.prefix_tokens_div(4)),
                part(PoolingStateComponent.OVERLAP_VALUES, DIM.fixed(4)),
            ],
        )
        decls = only(policy)
        assert [decl.shape for decl in decls[1:]] == [(3, 8), (1, 8), (4, 8)]
        assert decls[2].record_tokens == 4
        assert decls[2].window == 0
        assert retained_units(decls[2], 11) == 2
        plan = StatePlan(decls, memory="1MiB")
        assert [(part.component, part.record_tokens) for part in plan.streams(0)] == [
            ("state.pooling.0.pooled", 4)
        ]

    def test_tensor_without_a_unit_is_unsupported_and_named(self) -> None:
        odd = tensor(
            StateTensorRole.prefix_embedding(),
            DIM.batch(),
            DIM.prefix_tokens(),
            DIM.prefix_tokens_rem(4),
        )
        policy = LayerCachePolicy.key_value_with_fixed_state(FULL, 1, 8, [odd])
        with pytest.raises(UnsupportedError, match=r"state\.prefix_embedding"):
            only(policy)

    def test_schedules_of_attention_are_refused(self) -> None:
        for bad in (LayerSchedule.all_full(2), [LayerCachePolicy.no_state()], None):
            with pytest.raises(InvalidArgumentError, match="LayerCachePolicy"):
                declare(bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="f32"):
            declare(SCHEDULE, state_dtype="fp4")

    def test_core_holds_the_same_declaration(self) -> None:
        for decl in declare(SCHEDULE, storage=INT8, draft_layers=1):
            core = decl.to_core()
            for name in ("id", "layer", "component", "row_scale_bytes", "window", "record_tokens"):
                assert getattr(core, name) == getattr(decl, name)
            assert tuple(core.shape) == decl.shape
            assert core.kind.name == decl.kind.name
            assert core.dtype.name == decl.dtype.name
            assert core.section.name == decl.section.name
            assert core.verify.name == decl.verify.name

    def test_dtype_widths_are_those_of_the_core(self) -> None:
        for dtype in DType:
            decl = StateDecl("s", -1, "s", StateKind.RECURRENT, Section.MAIN, dtype, (1,))
            assert retained_bytes([decl], 0) == dtype.bytes


class TestStateDecl:
    GOOD = StateDecl("k", 0, "k", StateKind.PAGED_KV, Section.MAIN, DType.F16, (1, 8))

    @pytest.mark.parametrize(
        "changes",
        [
            {"shape": ()},
            {"shape": (0,)},
            {"shape": (2**64,)},
            {"layer": -2},
            {"layer": 2**31},
            {"window": -1},
            {"window": 2**32},
            {"record_tokens": 0},
            {"kind": "paged"},
            {"dtype": "fp4"},
            {"kind": "recurrent", "window": 4},
            {"verify": "h_steps"},
        ],
        ids=str,
    )
    def test_bad_declaration_is_refused(self, changes: dict[str, Any]) -> None:
        data = {**self.GOOD.to_dict(), **changes}
        with pytest.raises(InvalidArgumentError):
            StateDecl.from_dict(data)
        with pytest.raises(InvalidArgumentError):
            StateDecl(**data)

    def test_reads_back(self) -> None:
        for decl in declare(SCHEDULE, storage=INT8):
            assert StateDecl.from_json(decl.to_json()) == decl


class TestTerms:
    def test_terms_name_state_holding_and_lifetime(self) -> None:
        decls = declare(SCHEDULE)
        terms = state_terms(decls, StateInputs(3, VerifyInputs((2, 2), 3), BlockPool(5, 16), None))
        lines = [(t.state, t.holding.value, t.lifetime.value, t.units) for t in terms[:6]]
        assert lines == [
            ("l0.state.convolution.1", "live", "sequence", 3),
            ("l0.state.convolution.1", "steps", "verify", 6),
            ("l0.state.convolution.1", "checkpoint", "verify", 2),
            ("l0.state.recurrent", "live", "sequence", 3),
            ("l0.state.recurrent", "steps", "verify", 4),
            ("l0.state.recurrent", "checkpoint", "verify", 2),
        ]
        assert terms[6].lifetime.value == "model"
        assert terms[6].bytes == 5 * 16 * 2 * 64 * 2

    def test_bytes_beyond_64_bits_name_the_state(self) -> None:
        decls = declare(SCHEDULE)
        with pytest.raises(InvalidArgumentError, match=r"l0\.state\.convolution\.1"):
            state_terms(decls, StateInputs(2**63))
        stash = StateDecl("stash", -1, "s", StateKind.CARRY_STASH, Section.MAIN, DType.F32, (9,))
        with pytest.raises(InvalidArgumentError, match="stash"):
            cache_terms([stash], CacheInputs(carry=(2**63, 1)))

    def test_host_terms_are_marked(self) -> None:
        index = StateDecl(
            "i", -1, "i", StateKind.PROMPT_LOOKUP_INDEX, Section.MAIN, DType.U64, (2,)
        )
        [term] = cache_terms([index], CacheInputs(lookup=LookupInputs(2, 1000)))
        assert (term.host, term.units, term.bytes) == (True, 2000, 69664)
        assert hash_table_bytes(1000, 16) == 34832

    def test_inputs_are_checked_and_read_back(self) -> None:
        inputs = CacheInputs(ring=(8, 3), lookup=LookupInputs(1, 2), tree=(4, 16))
        assert CacheInputs.from_json(inputs.to_json()) == inputs
        assert CacheInputs.from_dict({}) == CacheInputs()
        for bad in ({"ring": [8]}, {"ring": [8, -1]}, {"carry": [1, 2**64]}, {"tree": "4x4"}):
            with pytest.raises(InvalidArgumentError):
                CacheInputs.from_dict(bad)
        with pytest.raises(InvalidArgumentError, match=r"StateInputs\.slots"):
            StateInputs(-1)


class TestBudget:
    DECLS = declare(LayerSchedule([LayerCachePolicy.key_value(FULL, 1, 8)]))  # 32 bytes a position

    def test_inverse_questions_agree_with_the_bytes(self) -> None:
        tokens = max_tokens(self.DECLS, sequences=3, memory_bytes=1000)
        assert tokens == 10
        assert retained_bytes(self.DECLS, 10) * 3 <= 1000 < retained_bytes(self.DECLS, 11) * 3
        assert max_sequences(self.DECLS, tokens=10, memory_bytes=1000) == 3
        assert max_tokens(self.DECLS, sequences=1, memory_bytes=31) is None
        assert max_tokens(self.DECLS, sequences=1, memory_bytes=1000, block_tokens=16) == 16

    @pytest.mark.parametrize("bad", [-1, 2**64, 1.0, "1", None, True])
    def test_arguments_are_checked(self, bad: Any) -> None:
        calls = [
            lambda: max_tokens(self.DECLS, sequences=bad, memory_bytes=1),
            lambda: max_tokens(self.DECLS, sequences=1, memory_bytes=bad),
            lambda: max_sequences(self.DECLS, tokens=bad, memory_bytes=1),
            lambda: retained_bytes(self.DECLS, bad),
            lambda: retained_bytes(self.DECLS, 1, block_tokens=bad),
            lambda: hash_table_bytes(bad, 16),
            lambda: verify_steps_by_slot(bad, drafts=1),
            lambda: fit_ring_depth(bad, depth_bytes=1, reserved_bytes=1, headroom_bytes=1),
            lambda: largest_fitting(0, bad, bool),
        ]
        for call in calls:
            with pytest.raises(InvalidArgumentError):
                call()

    def test_pools_fit_or_refuse_with_the_numbers(self) -> None:
        budget = KvBudget(
            available_bytes=10_000,
            reserved_bytes=1_000,
            block_bytes=512,
            sequences=2,
            max_tokens=32,
            prefix_cache=True,
        )
        assert budget.solve().blocks == (9_000 - 27) // 512
        small = KvBudget.from_dict({**budget.to_dict(), "available_bytes": 1_100})
        with pytest.raises(OutOfCapacityError, match="1100 bytes available, 1000 reserved"):
            small.solve()

    def test_ring_slots_and_bisection(self) -> None:
        assert fit_ring_depth(8, depth_bytes=10, reserved_bytes=20, headroom_bytes=61) == 4
        assert largest_fitting(1, 100, lambda value: value * value < 200) == 14
        assert largest_fitting(5, 100, lambda value: value < 2) is None
        with pytest.raises(InvalidArgumentError, match="empty"):
            largest_fitting(2, 1, lambda _: True)
        assert best_slots(40, lambda slots: max(0, 20 - 2 * slots)) == 4
        assert verify_steps_by_slot(2, drafts=3) == (3, 3, 3)

    def test_errors_of_callbacks_pass_through(self) -> None:
        def fail(_: int) -> bool:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            largest_fitting(1, 2, fail)
        with pytest.raises(InvalidArgumentError, match="blocks"):
            best_slots(40, lambda _: -1)


class TestCaches:
    def test_a_linear_layer_is_served_with_copies_carry_and_tables(self) -> None:
        h = tensor(
            StateTensorRole.recurrent(),
            DIM.batch(),
            DIM.fixed(48),
            DIM.fixed(128),
            DIM.fixed(128),
            dtype="float32",
        )
        conv = tensor(StateTensorRole.convolution(0), DIM.batch(), DIM.fixed(3), DIM.fixed(10240))
        caches = declare_caches(only(LayerCachePolicy.fixed_only([conv, h])), hidden_size=5120)
        inputs = CacheInputs(
            prefix_snapshot_slots=1,
            ring=(1, 1),
            carry=(2, 128),
            verify_table_rows=128,
            capture_rows=32768,
            lookup=LookupInputs(2, 1000),
            tree=(4, 16),
            drafts=(4, 16),
        )
        sizes = {term.state: term.bytes for term in cache_terms(caches, inputs)}
        assert sizes == {
            "l0.prefix.state.convolution.0": 3 * 10240 * 4,
            "l0.prefix.state.recurrent": 3 * 2**20,
            "l0.ring.state.convolution.0": 3 * 10240 * 4,
            "l0.ring.state.recurrent": 3 * 2**20,
            "l0.carry.inputs": 789_504,
            "l0.carry.pending": 8,
            "l0.carry.pointers": 3072,
            "l0.carry.flags": 512,
            "l0.verify.pointers": 16_384,
            "l0.carry.convolution": 327_680,
            "head.prefix_hidden": 10_240,
            "head.accept_hidden": 1_310_720,
            "head.capture_hidden": 335_544_320,
            "head.carry_slots": 1024,
            "embed.lookup_index": 69_664,
            "embed.tree_mask": 1024,
            "embed.draft_ids": 256,
        }
        assert {term.kind for term in cache_terms(caches, inputs)} == {
            kind for kind in StateKind if kind.is_cache
        }

    def test_attention_and_draft_layers_are_not_copied(self) -> None:
        policies = [
            LayerCachePolicy.key_value(FULL, 1, 8),
            LayerCachePolicy.fixed_only([RECURRENT]),
        ]
        decls = declare(LayerSchedule(policies), draft_layers=1)
        assert all(cache.layer == -1 for cache in declare_caches(decls, hidden_size=8))
        with pytest.raises(InvalidArgumentError, match="hidden_size"):
            declare_caches(decls, hidden_size=0)
