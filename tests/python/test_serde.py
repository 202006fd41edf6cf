"""The published JSON, and what reading refuses."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

import kvcache
from kvcache import (
    AdmissionRequest,
    AttentionPolicy,
    CacheBlockId,
    CachePolicyError,
    CacheRankIdentity,
    CacheRepresentation,
    CacheStateStrategy,
    CacheTier,
    InvalidArgumentError,
    KvCacheDtype,
    KVCacheError,
    KvStorageFormat,
    LayerCachePolicy,
    LayerSchedule,
    LayerScheduleError,
    ModelCapabilities,
    StateComponentRole,
    StateKind,
    StateTensorDimension,
    StateTensorOwner,
    StateTensorPolicy,
    StateTensorPresence,
    StateTensorRole,
)
from kvcache.admission import AdmissionResult, PromptExceedsContext, Rejected
from kvcache.capability import Observed
from kvcache.policy import KeyValue
from kvcache.policy.tensors import PoolingStateComponent
from kvcache.strategy import MixedKv, Multimodal, SlidingKey, SlidingWindowLayerCount

FULL = AttentionPolicy.full()
SLIDING = AttentionPolicy.sliding(8)
DIM = StateTensorDimension
POOLED = StateTensorPolicy(
    StateTensorRole.pooling(0, PoolingStateComponent.POOLED),
    (DIM.batch(), DIM.prefix_tokens_div(4), DIM.fixed(512)),
    "floating",
    "sealable_paged",
).when_prefix_at_least(4)

PUBLISHED = [
    (FULL, '"full"'),
    (SLIDING, '{"sliding":{"window":8}}'),
    (LayerSchedule([FULL, SLIDING]), '["full",{"sliding":{"window":8}}]'),
    (LayerCachePolicy.no_state(), '"no_state"'),
    (
        LayerCachePolicy.key_value(SLIDING, 2, 64),
        '{"key_value":{"attention":{"sliding":{"window":8}},"num_key_value_heads":2,'
        '"head_dim":64}}',
    ),
    (
        LayerCachePolicy.key_only(FULL, 1, 512),
        '{"key_only":{"attention":"full","num_key_heads":1,"head_dim":512}}',
    ),
    (
        LayerCachePolicy.compressed_latent_rotary(FULL, 512, 64),
        '{"compressed_latent_rotary":{"attention":"full","latent_dim":512,"rotary_dim":64}}',
    ),
    (
        LayerCachePolicy.key_only_with_fixed_state(AttentionPolicy.sliding(128), 1, 512, [POOLED]),
        '{"key_only_with_fixed_state":{"attention":{"sliding":{"window":128}},"num_key_heads":1,'
        '"head_dim":512,"tensors":[{"role":{"pooling":{"stream":0,"component":"pooled"}},'
        '"shape":["batch",{"prefix_tokens_div":4},{"fixed":512}],"dtype":"floating",'
        '"residency":"sealable_paged","presence":{"prefix_at_least":4}}]}}',
    ),
    (StateTensorRole.convolution(0), '{"convolution":{"slot":0}}'),
    (StateTensorRole.recurrent(), '"recurrent"'),
    (StateTensorRole.prefix_embedding(), '"prefix_embedding"'),
    (StateTensorRole.position_delta(), '"position_delta"'),
    (DIM.scalar(), '"scalar"'),
    (DIM.prefix_tokens_rem(4), '{"prefix_tokens_rem":4}'),
    (StateTensorPresence.required(), '"required"'),
    (StateTensorPresence.optional(), '"optional"'),
    (
        StateTensorPresence.prefix_remainder_non_zero(4),
        '{"prefix_remainder_non_zero":4}',
    ),
    (StateTensorOwner.layer(3), '{"layer":3}'),
    (StateComponentRole.attention_keys(), '"attention_keys"'),
    (StateComponentRole.fixed(StateTensorRole.recurrent()), '{"fixed":"recurrent"}'),
    (
        StateComponentRole.fixed(StateTensorRole.convolution(2)),
        '{"fixed":{"convolution":{"slot":2}}}',
    ),
    (CacheTier.DEVICE, '"device"'),
    (StateKind.PAGED_KV, '"paged_kv"'),
    (
        CacheBlockId(1, 0, CacheRepresentation.KEY_VALUE, 0, 4),
        '{"session_id":1,"global_layer":0,"representation":"key_value","start":0,"end":4,'
        '"rank":null}',
    ),
    (
        CacheRankIdentity(shard_rank=1),
        '{"stage_rank":null,"shard_rank":1,"addressable_rank":null}',
    ),
    (SlidingKey(8, 4, 2), '{"strategy":"sliding_key","window":8,"layers":4,"pooling_layers":2}'),
    (
        Multimodal(MixedKv(2, (SlidingWindowLayerCount(8, 2),)), True),
        '{"strategy":"multimodal","decoder":{"strategy":"mixed_kv","full_layers":2,'
        '"sliding":[{"window":8,"layers":2}]},"media_consumes_decoder_positions":true}',
    ),
    (
        Rejected(PromptExceedsContext(9, 8)),
        '{"status":"rejected","kind":"prompt_exceeds_context","prompt_positions":9,'
        '"maximum_positions":8}',
    ),
    (
        Observed.available(8, "cfg"),
        '{"status":"available","value":8,"kind":"exact","source":"cfg"}',
    ),
    (Observed.unavailable("no probe"), '{"status":"unavailable","reason":"no probe"}'),
    (KvStorageFormat.F16, '"f16"'),
    (
        KvStorageFormat.INT8_PER_TOKEN_HEAD_F32_SCALE_V1,
        '"int8_per_token_head_f32_scale_v1"',
    ),
    (KvCacheDtype.FP16, '"fp16"'),
]


def family(value: Any) -> Any:
    """The class a reader would ask: the closed set, or the class itself."""
    for base in (
        AttentionPolicy,
        LayerCachePolicy,
        StateTensorRole,
        StateTensorDimension,
        StateTensorPresence,
        StateTensorOwner,
        StateComponentRole,
        CacheStateStrategy,
        AdmissionResult,
        Observed,
    ):
        if isinstance(value, base):
            return base
    return type(value)


@pytest.mark.parametrize(("value", "text"), PUBLISHED, ids=[text[:40] for _, text in PUBLISHED])
def test_published_json_is_written_and_read(value: Any, text: str) -> None:
    assert value.to_json() == text
    assert value.to_dict() == json.loads(text)
    assert family(value).from_json(text) == value
    assert family(value).from_json(text.encode()) == value
    assert type(value).from_json(text) == value
    assert pickle.loads(pickle.dumps(value)) == value
    assert hash(family(value).from_json(text)) == hash(value)


def test_shared_kv_strategy_has_the_published_shape() -> None:
    text = (
        '{"strategy":"shared_full_kv","cached_layers":3,"shared_layers":1,'
        '"full_attention_layers":2,"sliding_attention":[{"window":4,"layers":2}]}'
    )
    assert CacheStateStrategy.from_json(text).to_json() == text
    assert CacheStateStrategy.from_json('{"strategy":"full_kv"}').to_json() == (
        '{"strategy":"full_kv"}'
    )


def key_value(**changes: Any) -> list[Any]:
    body = {"attention": "full", "num_key_value_heads": 2, "head_dim": 64}
    good = {"key_value": body}
    return [good, good, good, {"key_value": {**body, **changes}}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (key_value(head_dim=0), "$[3].key_value.head_dim: expected a positive integer, got 0"),
        (key_value(head_dim="64"), "$[3].key_value.head_dim: expected an integer, got '64'"),
        (key_value(head_dim=64.0), "$[3].key_value.head_dim: expected an integer, got 64.0"),
        (key_value(head_dim=True), "$[3].key_value.head_dim: expected an integer, got True"),
        (key_value(head_dim=None), "$[3].key_value.head_dim: expected an integer, got None"),
        (key_value(head_dim=2**31), "$[3].key_value.head_dim: expected at most 2147483647"),
        (key_value(head_dim=10**40), "$[3].key_value.head_dim: expected at most 2147483647"),
        (
            key_value(attention={"sliding": {"window": 0}}),
            "$[3].key_value.attention.sliding.window: expected a positive integer, got 0",
        ),
        (
            key_value(attention={"sliding": {"window": 2**31}}),
            "$[3].key_value.attention.sliding.window: expected at most 2147483647",
        ),
        (key_value(attention="half"), "$[3].key_value.attention: unknown 'half'"),
        (key_value(attention="sliding"), "$[3].key_value.attention: 'sliding' takes fields"),
        (key_value(attention={"full": {}}), "$[3].key_value.attention: 'full' takes no fields"),
        ([{"key_value": {"attention": "full", "head_dim": 1}}], "$[0].key_value: missing required"),
        ([{}], "$[0]: expected one of no_state, "),
        ([{"key_value": {}, "key_only": {}}], "$[0]: expected one of no_state, "),
        (["no_state", "full"], "$[1]: unknown 'full'"),
        ([7], "$[0]: expected one of no_state, "),
        ([], "$: a schedule needs at least one layer"),
        ({}, "$: expected a list"),
        (None, "$: expected a list, got None"),
    ],
)
def test_bad_schedule_is_refused_with_its_path(data: Any, message: str) -> None:
    with pytest.raises(LayerScheduleError) as error:
        LayerSchedule.from_dict(data)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("window", ["0", "-1", "4294967296", "8.0", '"8"', "null", "true"])
def test_window_that_is_no_positive_u32_fails_to_parse(window: str) -> None:
    with pytest.raises(LayerScheduleError, match=r"^\$\.sliding\.window: expected"):
        AttentionPolicy.from_json(f'{{"sliding":{{"window":{window}}}}}')


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "full",
        '"full" "full"',
        "NaN",
        '{"sliding":{"window":NaN}}',
        '{"sliding":{"window":8,"window":9}}',
        '{"sliding":{"window":8},"sliding":{"window":9}}',
        "[" * 100_000,
        "9" * 5000,
        b"\xff\xfe\xff",
        b'"\xff"',
        None,
        3,
        "\ud800",
    ],
    ids=lambda text: repr(text)[:30],
)
def test_what_is_not_json_is_refused(text: Any) -> None:
    for cls in (AttentionPolicy, LayerSchedule, CacheBlockId, StateKind):
        with pytest.raises(KVCacheError, match=r"^\$"):
            cls.from_json(text)


def test_endless_data_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["decoder"] = loop
    loop["strategy"] = "multimodal"
    with pytest.raises(InvalidArgumentError, match="nested too deeply"):
        CacheStateStrategy.from_dict(loop)


def test_missing_presence_is_refused_and_a_missing_option_is_null() -> None:
    tensor = POOLED.to_dict()
    del tensor["presence"]
    with pytest.raises(CachePolicyError, match=r"^\$: missing required field `presence`"):
        StateTensorPolicy.from_dict(tensor)
    block = {"session_id": 1, "global_layer": 0, "representation": "key_value"}
    assert CacheBlockId.from_dict({**block, "start": 0, "end": 4}).rank is None
    with pytest.raises(InvalidArgumentError, match="missing required field `end`"):
        CacheBlockId.from_dict({**block, "start": 0})


def test_unknown_keys_are_ignored_unless_asked() -> None:
    data = key_value(colour="red")
    assert LayerSchedule.from_dict(data) == LayerSchedule.from_dict(key_value())
    with pytest.raises(LayerScheduleError, match=r"^\$\[3\]\.key_value: unknown key 'colour'"):
        LayerSchedule.from_dict(data, forbid_unknown_keys=True)
    LayerSchedule.from_dict(key_value(value_head_dim=None), forbid_unknown_keys=True)
    with pytest.raises(InvalidArgumentError, match=r"^\$\.decoder: unknown key 'x'"):
        CacheStateStrategy.from_json(
            '{"strategy":"multimodal","decoder":{"strategy":"full_kv","x":1},'
            '"media_consumes_decoder_positions":true}',
            forbid_unknown_keys=True,
        )


def test_extension_fields_are_absent_while_unset() -> None:
    policy = LayerCachePolicy.key_value(FULL, 4, 192, value_head_dim=128, indexer_dim=64)
    assert LayerCachePolicy.from_json(policy.to_json()) == policy
    assert policy.to_dict()["key_value"]["value_head_dim"] == 128
    plain = LayerCachePolicy.key_value(FULL, 4, 192)
    assert "value_head_dim" not in plain.to_json()
    assert "indexer_dim" not in plain.to_json()
    assert policy != plain


def test_older_spellings_are_read() -> None:
    capabilities = {
        "model_type": "llama",
        "native_max_context": {"status": "available", "value": 8, "kind": "exact", "source": "c"},
        "effective_max_context": {"status": "unsupported", "reason": "none"},
        "state_strategy": {"strategy": "full_kv"},
        "modalities": {"text": True, "image": False, "audio": False, "video": False},
        "estimation": "complete",
    }
    read = ModelCapabilities.from_dict(capabilities)
    assert read.effective_model_type == "llama"
    assert "model_type" not in read.to_dict()
    rank = {"pipeline_rank": 1, "tensor_parallel_rank": 2, "expert_parallel_rank": 3}
    assert CacheRankIdentity.from_dict(rank) == CacheRankIdentity(1, 2, 3)


def test_a_variant_is_read_only_as_itself() -> None:
    text = LayerCachePolicy.key_only(FULL, 1, 8).to_json()
    with pytest.raises(CachePolicyError, match=r"^\$: expected KeyValue, got KeyOnly"):
        KeyValue.from_json(text)


def test_admission_request_needs_every_field_but_the_optional_one() -> None:
    data = {
        "input": kvcache.InputTokenCount.text(3).to_dict(),
        "max_output_tokens": 1,
        "batch_size": 1,
        "safety_reserve_bytes": 0,
    }
    with pytest.raises(InvalidArgumentError, match="require_complete_estimate"):
        AdmissionRequest.from_dict(data)
    request = AdmissionRequest.from_dict({**data, "require_complete_estimate": False})
    assert request.application_memory_budget_bytes is None


def test_sets_of_variants_have_no_instances_of_their_own_kind() -> None:
    for data in (FULL.to_dict(), LayerCachePolicy.no_state().to_dict()):
        assert isinstance(data, str)
    assert StateTensorDimension.from_dict(DIM.fixed(3)) == DIM.fixed(3)


def test_enum_fields_list_their_spellings() -> None:
    tensor = {**POOLED.to_dict(), "dtype": "fl\noat"}
    layers = [{"fixed_state": {"tensors": [POOLED.to_dict(), tensor]}}]
    with pytest.raises(LayerScheduleError) as error:
        LayerSchedule.from_dict(layers)
    assert str(error.value) == (
        "$[0].fixed_state.tensors[1].dtype: expected one of floating, float32, int32, uint32,"
        " got 'fl\\noat'"
    )
    with pytest.raises(InvalidArgumentError, match=r"^\$: expected one of device, host, disk"):
        CacheTier.from_dict("tape")
    with pytest.raises(CachePolicyError, match=r"^StateTensorPolicy\.dtype: expected one of flo"):
        StateTensorPolicy(POOLED.role, POOLED.shape, "int4", POOLED.residency)


@pytest.mark.parametrize("name", ["\n" * 500, "a\nb", "\ud800"])
def test_messages_stay_on_one_short_line(name: str) -> None:
    broken = [
        (AttentionPolicy, name),
        (AttentionPolicy, {name: 1}),
        (LayerCachePolicy, {"key_value": name}),
        (CacheStateStrategy, {"strategy": name}),
        (StateKind, name),
        (Observed, {"status": "unavailable", "reason": 3, name: name}),
    ]
    for cls, data in broken:
        with pytest.raises(KVCacheError) as error:
            cls.from_dict(data)
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 300
        str(error.value).encode()


def test_text_that_json_cannot_carry_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^\$\.reason: expected Unicode text"):
        Observed.from_json('{"status":"unavailable","reason":"\\ud800"}')
    assert Observed.from_dict({"status": "unavailable", "reason": "\u00e9"})


def test_describe_survives_foreign_objects() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise OSError

    for odd in (Odd(), [Odd()], {"x": Odd()}, object()):
        with pytest.raises(LayerScheduleError):
            AttentionPolicy.from_dict(odd)
        with pytest.raises(CachePolicyError):
            LayerCachePolicy.key_value(odd, 1, 1)  # type: ignore[arg-type]
