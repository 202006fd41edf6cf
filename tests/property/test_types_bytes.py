"""Bytes of declarations and estimates equal brute force over positions, and never shrink."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.values import instances, values_of

from kvcache import (
    AttentionPolicy,
    CacheInputs,
    DType,
    InputTokenCount,
    KVCacheError,
    KvStorageFormat,
    LayerCachePolicy,
    LayerSchedule,
    Section,
    StateDecl,
    StateInputs,
    StateKind,
    StateMemoryLayout,
    cache_terms,
    declare,
    estimate_runtime_state,
    max_sequences,
    max_tokens,
    retained_bytes,
    retained_units,
    state_terms,
)

FORMATS = st.sampled_from(KvStorageFormat)
ATTENTION = st.builds(AttentionPolicy.from_sliding_window, st.none() | st.integers(1, 40))
SMALL = st.integers(1, 300)
KEY_VALUE = st.builds(
    LayerCachePolicy.key_value,
    ATTENTION,
    SMALL,
    SMALL,
    value_head_dim=st.none() | SMALL,
    indexer_dim=st.none() | SMALL,
)
LATENT = st.builds(LayerCachePolicy.compressed_latent_rotary, ATTENTION, SMALL, SMALL)
KEYS = st.builds(LayerCachePolicy.key_only, ATTENTION, SMALL, SMALL)
LAYERS = st.lists(
    KEY_VALUE | LATENT | KEYS | st.just(LayerCachePolicy.no_state()), min_size=1, max_size=4
)


def rows_per_position(policy: LayerCachePolicy) -> list[tuple[int, int]]:
    """(rows, width) of each component of one position, from the published fields alone."""
    fields = policy.to_dict()
    if fields == "no_state":
        return []
    [(variant, body)] = fields.items()
    extra = [(1, body["indexer_dim"])] if "indexer_dim" in body else []
    if variant == "compressed_latent_rotary":
        return [(1, body["latent_dim"]), (1, body["rotary_dim"]), *extra]
    if variant == "key_only":
        return [(body["num_key_heads"], body["head_dim"]), *extra]
    heads, width = body["num_key_value_heads"], body["head_dim"]
    return [(heads, width), (heads, body.get("value_head_dim", width)), *extra]


@given(layers=LAYERS, storage=FORMATS, tokens=st.integers(0, 90))
def test_retained_bytes_equal_brute_force(
    layers: list[LayerCachePolicy], storage: KvStorageFormat, tokens: int
) -> None:
    expected = 0
    for policy in layers:
        window = policy.attention.window if policy.attention is not None else None
        for position in range(tokens):
            if window is None or position >= tokens - window:
                for rows, width in rows_per_position(policy):
                    expected += rows * (width * 2 if storage is KvStorageFormat.F16 else width + 4)
    assert retained_bytes(declare(LayerSchedule(layers), storage=storage), tokens) == expected


@given(
    layers=LAYERS,
    extra=KEY_VALUE,
    tokens=st.integers(0, 200),
    more=st.integers(0, 50),
    batch=st.integers(1, 5),
)
def test_estimates_grow_with_tokens_batch_and_layers(
    layers: list[LayerCachePolicy], extra: LayerCachePolicy, tokens: int, more: int, batch: int
) -> None:
    def size(policies: list[Any], count: int, sequences: int) -> int:
        layout = StateMemoryLayout.new(policies, hidden_size=8, allocation_granularity=4)
        text = InputTokenCount.text(count)
        return estimate_runtime_state(layout, text, 0, sequences, 2).requested_state_bytes

    base = size(layers, tokens, batch)
    assert size(layers, tokens + more, batch) >= base
    assert size(layers, tokens, batch + 1) >= base
    assert size([*layers, extra], tokens, batch) >= base
    assert size(layers, tokens, batch) == batch * size(layers, tokens, 1)


@given(layers=LAYERS, tokens=st.integers(0, 400), batch=st.integers(1, 4))
def test_estimate_of_f16_equals_the_declared_bytes(
    layers: list[LayerCachePolicy], tokens: int, batch: int
) -> None:
    layout = StateMemoryLayout.new(layers, hidden_size=8)
    estimate = estimate_runtime_state(layout, InputTokenCount.text(tokens), 0, batch, 2)
    declared = retained_bytes(declare(layout.layer_layout), tokens)
    assert estimate.context_state_bytes == batch * declared


@given(layers=LAYERS, memory=st.integers(0, 10**7), count=st.integers(1, 6))
def test_inverse_answers_are_the_last_that_fit(
    layers: list[LayerCachePolicy], memory: int, count: int
) -> None:
    decls = declare(LayerSchedule(layers))
    most = max_tokens(decls, sequences=count, memory_bytes=memory)
    if most is None:
        assert retained_bytes(decls, 1) * count > memory
    else:
        assert retained_bytes(decls, most) * count <= memory
        if most < 2**40:
            assert retained_bytes(decls, most + 1) * count > memory
    fitting = max_sequences(decls, tokens=count, memory_bytes=memory)
    each = retained_bytes(decls, count)
    if each:
        assert (fitting or 0) == memory // each


@given(layout=instances(StateMemoryLayout), data=st.data())
def test_any_layout_gives_an_estimate_or_our_error(
    layout: StateMemoryLayout, data: st.DataObject
) -> None:
    u64 = st.integers(0, 9999) | st.integers(0, 2**64 - 1)
    tokens = data.draw(instances(InputTokenCount))
    try:
        estimate = estimate_runtime_state(
            layout, tokens, data.draw(u64), data.draw(u64), data.draw(st.integers(1, 255))
        )
    except KVCacheError:
        return
    parts = (
        estimate.fixed_state_bytes
        + estimate.context_state_bytes
        + estimate.multimodal_embedding_bytes
        + estimate.media_execution_workspace_bytes
    )
    assert estimate.requested_state_bytes == parts < 2**64


@given(
    schedule=values_of(LayerSchedule),
    storage=FORMATS,
    state_dtype=st.sampled_from(DType),
    tokens=st.integers(0, 2**64 - 1),
)
def test_any_schedule_declares_or_gives_our_error(
    schedule: Any, storage: KvStorageFormat, state_dtype: DType, tokens: int
) -> None:
    try:
        decls = declare(schedule, storage=storage, state_dtype=state_dtype)
        retained_bytes(decls, tokens)
    except KVCacheError:
        return
    assert len({decl.id for decl in decls}) == len(decls)


@given(
    decls=st.lists(instances(StateDecl), max_size=5),
    inputs=instances(StateInputs),
    caches=instances(CacheInputs),
)
def test_terms_are_units_times_unit_bytes_or_our_error(
    decls: list[StateDecl], inputs: StateInputs, caches: CacheInputs
) -> None:
    unit = {}
    for decl in decls:
        rows = 1
        for axis in decl.shape[:-1]:
            rows *= axis
        unit[decl.id] = rows * (decl.shape[-1] * decl.dtype.bytes + decl.row_scale_bytes)
    if len(unit) < len(decls):
        return
    try:
        terms = [*state_terms(decls, inputs), *cache_terms(decls, caches)]
    except KVCacheError:
        return
    for term in terms:
        if getattr(term, "host", False):
            continue
        assert term.bytes == term.units * unit[term.state] < 2**64


@given(tokens=st.integers(0, 500), record=st.integers(1, 9))
def test_records_are_whole(tokens: int, record: int) -> None:
    decl = StateDecl(
        id="p",
        layer=0,
        component="p",
        kind=StateKind.PAGED_KV,
        section=Section.MAIN,
        dtype=DType.F16,
        shape=(1, 8),
        record_tokens=record,
    )
    assert retained_units(decl, tokens) == tokens // record
