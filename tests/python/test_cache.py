"""The facade: what it takes, what it refuses and how it says so."""

from __future__ import annotations

import array
import contextlib
import dataclasses
from typing import Any

import numpy as np
import pytest
from model.driver import AMPLE, SHAPES, make_driver
from support.declarations import paged

from kvcache import Cache, CacheStats, Sequence, StatePlan
from kvcache.codec import Bfloat16Array
from kvcache.errors import (
    InvalidArgumentError,
    KVCacheError,
    NonFiniteError,
    NotFoundError,
    OutOfCapacityError,
    UnsupportedError,
)

TOKENS = [1, 2, 3, 4, 5, 6]


def make_cache(shape: str = "hybrid", **options: Any) -> Cache:
    plan = StatePlan(SHAPES[shape], memory="4MiB", block_tokens=4, sequences=3)
    return Cache(plan, **options)


def rows(tokens: int, heads: int = 2, width: int = 4, dtype: str = "float16") -> np.ndarray:
    return np.arange(tokens * heads * width).reshape(tokens, heads, width).astype(dtype)


@pytest.fixture
def sequence() -> Sequence:
    return make_cache("full").open(TOKENS)


def fill(sequence: Sequence, start: int, stop: int) -> None:
    for layer in (0, 1):
        sequence.write(layer, start, rows(stop - start), rows(stop - start, width=8))
    sequence.advance(stop - start)


# ---- Tokens ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tokens",
    [
        TOKENS,
        tuple(TOKENS),
        np.array(TOKENS, np.int64),
        np.array(TOKENS, np.uint32),
        np.array(TOKENS, ">i4"),
        np.array([TOKENS, TOKENS]).T[:, 0],
        array.array("q", TOKENS),
        memoryview(np.array(TOKENS, np.int32)),
        bytearray(TOKENS),
    ],
    ids=lambda tokens: type(tokens).__name__,
)
def test_tokens_may_be_any_integers(tokens: Any) -> None:
    cache = make_cache()
    if isinstance(tokens, bytearray):
        tokens = memoryview(tokens)
    with cache.open(tokens) as sequence:
        assert sequence.tokens.tolist() == TOKENS
        assert sequence.tokens.dtype == np.int32


@pytest.mark.parametrize(
    ("tokens", "why"),
    [
        ([1.0, 2.0], "expected one axis of integers, got 1 axes of float64"),
        ([True, False], "axes of bool"),
        ([[1, 2], [3, 4]], "got 2 axes"),
        ([[1], [2, 3]], "not an array"),
        (5, "got 0 axes"),
        (None, "axes of object"),
        ("text", "got 0 axes"),
        ([2**31], "ids must fit int32, got values in 2147483648..2147483648"),
        ([-(2**31) - 1, 0], "got values in -2147483649..0"),
        ([2**64], r"below 2\*\*63, got 18446744073709551616"),
        (np.array([2**63], np.uint64), "ids must fit int32"),
        ([], "at least one token"),
    ],
)
def test_other_tokens_are_refused(tokens: Any, why: str) -> None:
    cache = make_cache()
    with pytest.raises(InvalidArgumentError, match=why.replace("..", r"\.\.")):
        cache.open(tokens)
    assert cache.stats().open_sequences == 0


def test_the_ends_of_int32_are_tokens() -> None:
    cache = make_cache("key only")
    edge = [-(2**31), 2**31 - 1, -1]
    with cache.open(edge) as sequence:
        sequence.write(0, 0, rows(3, heads=1, width=8))
        sequence.advance(3)
        sequence.publish()
    assert cache.explain(edge).matched_tokens == 3
    assert cache.explain([2**31 - 1]).matched_tokens == 0


def test_the_tokens_given_back_are_a_copy(sequence: Sequence) -> None:
    sequence.tokens[0] = 99
    assert sequence.tokens[0] == 1


def test_a_changed_input_changes_nothing_stored() -> None:
    tokens = np.array(TOKENS, np.int32)
    keys = rows(6, heads=1, width=8)
    sequence = make_cache("key only").open(tokens)
    sequence.write(0, 0, keys)
    tokens[:], keys[:] = 0, 0
    assert sequence.tokens.tolist() == TOKENS
    assert np.array_equal(sequence.read(0, 0, 6)[0], rows(6, heads=1, width=8))


# ---- Numbers -----------------------------------------------------------------------------------

BAD_COUNTS: list[tuple[Any, str]] = [
    (-1, "must be 0"),
    (2**63, "must be 0"),
    (2**100, "must be 0"),
    (1.0, "expected an integer, got 1.0"),
    (True, "expected an integer, got True"),
    ("1", "expected an integer, got '1'"),
    (None, "expected an integer, got None"),
]


@pytest.mark.parametrize(("value", "why"), BAD_COUNTS)
def test_a_count_that_is_none_is_refused_and_named(
    sequence: Sequence, value: Any, why: str
) -> None:
    calls = {
        "layer": lambda: sequence.write(value, 0, rows(1), rows(1, width=8)),
        "start": lambda: sequence.write(0, value, rows(1), rows(1, width=8)),
        "stop": lambda: sequence.read(0, 0, value),
        "positions": lambda: sequence.advance(value),
        "position": lambda: sequence.truncate(value),
        "capacity_blocks": lambda: make_cache(capacity_blocks=value),
    }
    for name, call in calls.items():
        with pytest.raises(InvalidArgumentError, match=f"{name}: {why}"):
            call()
    assert sequence.length == 0


def test_numpy_integers_are_counts(sequence: Sequence) -> None:
    one = np.int64(1)
    sequence.write(np.int32(0), np.uint8(0), rows(1), rows(1, width=8))
    sequence.write(one, 0, rows(1), rows(1, width=8))
    sequence.advance(one)
    assert sequence.length == 1


@pytest.mark.parametrize("huge", [2**31 - 1, 2**31, 2**62])
def test_huge_positions_and_layers_are_refused(sequence: Sequence, huge: int) -> None:
    for call in [
        lambda: sequence.write(huge, 0, rows(1), rows(1, width=8)),
        lambda: sequence.write(0, huge, rows(1), rows(1, width=8)),
        lambda: sequence.read(0, 0, huge),
        lambda: sequence.read(0, huge, huge),
        lambda: sequence.advance(huge),
        lambda: sequence.truncate(huge),
    ]:
        with pytest.raises(InvalidArgumentError):
            call()


# ---- Rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (rows(2, dtype="float64"), "keys: dtype float64 is not"),
        (rows(2, dtype="int8"), "attention.keys: rows of f16 cannot be i8"),
        (rows(2).astype(">f4"), "keys: dtype >f4 is not"),
        (rows(2)[0], r"keys: expected \[tokens, heads, width\], got the shape \[2, 4\]"),
        (rows(2, heads=3), r"expected \[2, 2, 4\], got \[2, 3, 4\]"),
        (rows(2, width=5), r"expected \[2, 2, 4\], got \[2, 2, 5\]"),
        (rows(3), r"attention.values: expected \[3, 2, 8\], got \[2, 2, 8\]"),
        (np.asfortranarray(rows(2)), "keys: the last axis must be contiguous"),
        (rows(2, width=8)[:, :, ::2], "keys: the last axis must be contiguous"),
        (rows(7), r"attention.values: expected \[7, 2, 8\], got \[2, 2, 8\]"),
        ("text", "keys: str has no buffer"),
        (None, "keys: NoneType has no buffer"),
        ([[1.0], [1.0, 2.0]], "keys: list has no buffer"),
    ],
)
def test_other_rows_are_refused_and_nothing_is_written(
    sequence: Sequence, keys: Any, why: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        sequence.write(0, 0, keys, rows(2, width=8))
    with pytest.raises(InvalidArgumentError, match="within the 0 written"):
        sequence.read(0, 0, 1)


def test_the_number_of_components_is_checked(sequence: Sequence) -> None:
    with pytest.raises(InvalidArgumentError, match="layer 0 keeps 2 components, got 1"):
        sequence.write(0, 0, rows(1))
    with pytest.raises(InvalidArgumentError, match="layer 7 keeps no pages; layers that do: 0, 1"):
        sequence.write(7, 0, rows(1), rows(1, width=8))


def test_rows_with_any_strides_of_the_outer_axes_are_read_right(sequence: Sequence) -> None:
    wide = rows(12, heads=4)
    keys = wide[::-2, ::2]
    sequence.write(0, 0, keys, rows(6, width=8)[::-1])
    got = sequence.read(0, 0, 6)
    assert np.array_equal(got[0], keys)
    assert np.array_equal(got[1], rows(6, width=8)[::-1])


def test_no_rows_are_a_write_of_nothing(sequence: Sequence) -> None:
    sequence.write(0, 0, rows(0), rows(0, width=8))
    assert [part.shape for part in sequence.read(0, 0, 0)] == [(0, 2, 4), (0, 2, 8)]
    assert sequence.length == 0


def test_read_gives_the_dtype_asked_for(sequence: Sequence) -> None:
    fill(sequence, 0, 2)
    for dtype in ["float16", "float32"]:
        keys, values = sequence.read(0, 0, 2, dtype)
        assert keys.dtype == values.dtype == dtype
        assert np.array_equal(keys, rows(2))
    assert sequence.read(0, 0, 2)[0].dtype == "float16"  # as stored
    for wrong in ["float64", "int8", "", 16]:
        with pytest.raises(InvalidArgumentError, match="dtype: expected"):
            sequence.read(0, 0, 2, wrong)


def test_int8_refuses_what_is_not_finite() -> None:
    sequence = make_cache("int8").open(TOKENS)
    bad = rows(2)
    bad[1, 1, 2] = np.inf
    with pytest.raises(NonFiniteError):
        sequence.write(0, 0, bad, rows(2, width=8))
    with pytest.raises(InvalidArgumentError):
        sequence.read(0, 0, 1)


def test_positions_behind_the_window_are_not_found() -> None:
    sequence = make_cache("sliding").open(list(range(12)))
    sequence.write(0, 0, rows(12), rows(12, width=8))
    assert len(sequence.read(0, 0, 12)[0]) == 12
    sequence.advance(12)
    with pytest.raises(NotFoundError, match="window of 6; the sequence is at 12"):
        sequence.read(0, 6, 12)
    assert np.array_equal(sequence.read(0, 7, 12)[0], rows(12)[7:])


# ---- Order of calls ----------------------------------------------------------------------------


def test_calls_out_of_order_are_refused(sequence: Sequence) -> None:
    with pytest.raises(InvalidArgumentError, match="writes may start at 0"):
        sequence.write(0, 1, rows(1), rows(1, width=8))
    with pytest.raises(InvalidArgumentError, match="only 6 tokens are known"):
        sequence.write(0, 0, rows(7), rows(7, width=8))
    sequence.write(0, 0, rows(2), rows(2, width=8))
    with pytest.raises(InvalidArgumentError, match="layer 1 is written up to 0 only"):
        sequence.advance(2)
    with pytest.raises(InvalidArgumentError, match="passes the 6 known tokens"):
        sequence.advance(7)
    fill(sequence, 0, 2)
    with pytest.raises(InvalidArgumentError, match="writes may start at 2"):
        sequence.write(0, 1, rows(1), rows(1, width=8))


def test_a_closed_sequence_refuses_and_closes_again(sequence: Sequence) -> None:
    with sequence as entered:
        assert entered is sequence
        assert repr(sequence) == "<Sequence 0 of 6 positions>"
    assert not sequence.is_open
    assert repr(sequence) == "<Sequence closed>"
    assert (sequence.cached_tokens, sequence.matched_tokens) == (0, 0)
    sequence.close()
    for call in [
        lambda: sequence.length,
        lambda: sequence.tokens,
        lambda: sequence.recorded,
        sequence.prefill_stops,
        sequence.publish,
        sequence.snapshot,
        sequence.fork,
        lambda: sequence.extend([1]),
        lambda: sequence.write(0, 0, rows(1), rows(1, width=8)),
        lambda: sequence.read(0, 0, 0),
        lambda: sequence.state(1, "state.recurrent"),
        lambda: sequence.advance(0),
        lambda: sequence.truncate(0),
    ]:
        with pytest.raises(InvalidArgumentError, match="closed"):
            call()


def test_a_sequence_closes_when_an_error_leaves_its_block() -> None:
    cache = make_cache()
    with pytest.raises(RuntimeError), cache.open(TOKENS):
        raise RuntimeError
    assert cache.stats().open_sequences == 0


# ---- Fixed-size state --------------------------------------------------------------------------


def test_a_view_is_live_writable_and_outlives_its_sequence() -> None:
    cache = make_cache("recurrent")
    sequence = cache.open(TOKENS)
    view = sequence.state(1, "state.recurrent")
    assert (view.shape, view.dtype) == ((6,), np.float32)
    assert not view.any()
    view[...] = 7
    sequence.close()
    others = [cache.open(TOKENS) for _ in range(2)]
    for other in others:
        other.state(1, "state.recurrent")[...] = 9
    assert (view == 7).all()
    with pytest.raises(OutOfCapacityError, match="slots: all 3 items are live"):
        cache.open(TOKENS)
    del view
    assert not cache.open(TOKENS).state(1, "state.recurrent").any()


def test_an_unknown_tensor_is_not_found_and_the_known_are_listed() -> None:
    sequence = make_cache("hybrid").open(TOKENS)
    with pytest.raises(NotFoundError, match=r"it keeps: state.convolution.0, state.recurrent"):
        sequence.state(1, "state.nothing")
    with pytest.raises(NotFoundError, match="no fixed-size state"):
        sequence.state(0, "state.recurrent")
    with pytest.raises(InvalidArgumentError, match="name: expected text"):
        sequence.state(1, 3)


def test_truncate_without_a_snapshot_names_the_nearest() -> None:
    sequence = make_cache("recurrent").open(TOKENS)
    sequence.advance(2)
    assert sequence.snapshot() == 2
    sequence.advance(2)
    with pytest.raises(UnsupportedError, match="at 4 and the nearest snapshot below is at 2"):
        sequence.truncate(3)
    assert sequence.length == 4
    sequence.truncate(2)
    assert sequence.length == 2
    assert sequence.tokens.tolist() == [1, 2]


# ---- Spaces ------------------------------------------------------------------------------------

SAME = [
    {},
    {"namespace": ""},
    {"namespace": b""},
    {"namespace": None},
    {"adapter": None},
    {"adapter": ""},
    {"salt": b""},
    {"salt": None},
]
APART = [
    {},
    {"namespace": "a"},
    {"adapter": "a"},
    {"salt": "a"},
    {"namespace": "1:a"},
    {"adapter": ("a", "")},
    {"adapter": ("a", "1")},
    {"adapter": ("a", "2")},
    {"adapter": "a1"},
    {"adapter": ("", "a")},
    {"namespace": "a", "salt": "a"},
    {"salt": b"a\0"},
]


def publish(cache: Cache, **space: Any) -> None:
    with cache.open(TOKENS, **space) as sequence:
        sequence.advance(6) if not cache.plan.groups else fill(sequence, sequence.length, 6)
        sequence.publish()


@pytest.mark.parametrize("space", SAME)
def test_nothing_said_and_nothing_meant_are_one_space(space: dict[str, Any]) -> None:
    cache = make_cache("full")
    publish(cache, **space)
    for other in SAME:
        assert cache.explain(TOKENS, **other).cached_tokens == 5


@pytest.mark.parametrize("space", APART)
def test_any_difference_keeps_spaces_apart(space: dict[str, Any]) -> None:
    cache = make_cache("full")
    publish(cache, **space)
    hits = [other for other in APART if cache.explain(TOKENS, **other).matched_tokens]
    assert hits == [space]


@pytest.mark.parametrize("namespace", [3, ["a"], "\ud800"])
def test_a_namespace_is_text_or_bytes(namespace: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="namespace"):
        make_cache().open(TOKENS, namespace=namespace)


@pytest.mark.parametrize("adapter", [b"a", 3, (), ("a",), ("a", "b", "c"), ("a", None), ["a", "b"]])
def test_an_adapter_is_a_name_or_a_pair(adapter: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="adapter: expected a name or a"):
        make_cache().open(TOKENS, adapter=adapter)


# ---- The cache ---------------------------------------------------------------------------------


def test_too_many_sequences_are_refused_with_the_knob() -> None:
    cache = make_cache()
    held = [cache.open(TOKENS) for _ in range(3)]
    for call in [lambda: cache.open(TOKENS), held[0].fork]:
        with pytest.raises(OutOfCapacityError, match="3 sequences are open, the plan allows 3"):
            call()
    held[0].close()
    assert cache.open(TOKENS).is_open


def test_an_unknown_policy_is_refused_with_the_known() -> None:
    with pytest.raises(InvalidArgumentError, match=r"policy 'clock' is not known.*lru"):
        make_cache(policy="clock")
    with pytest.raises(InvalidArgumentError, match="policy: expected text"):
        make_cache(policy=None)
    assert make_cache().policy == "price_list"


def test_a_ledger_counts_without_bytes() -> None:
    cache = make_cache("hybrid", backing=False)
    with cache.open(TOKENS) as sequence:
        with pytest.raises(UnsupportedError, match="ledger"):
            sequence.write(0, 0, rows(1), rows(1, width=8))
        with pytest.raises(UnsupportedError, match="ledger"):
            sequence.state(1, "state.recurrent")
        sequence.advance(5)
        sequence.snapshot()
        sequence.publish()
    assert cache.explain(TOKENS).cached_tokens == 5
    assert cache.stats().used_bytes == 2 * cache.plan.block_bytes + cache.plan.slot_bytes


def test_stats_name_every_counter_and_count() -> None:
    cache = make_cache("full")
    publish(cache)
    publish(cache)
    stats = cache.stats()
    assert dataclasses.is_dataclass(CacheStats)
    assert all(isinstance(value, int | tuple) for value in dataclasses.astuple(stats))
    assert (stats.opens, stats.hits, stats.asked_tokens, stats.cached_tokens) == (2, 1, 12, 5)
    assert (stats.indexed_tokens, stats.indexed_blocks, stats.pages) == (6, 2, 2)
    assert stats.used_bytes == 2 * cache.plan.block_bytes
    assert stats.budget_bytes == 4 << 20
    cache.clear()
    assert cache.stats().indexed_tokens == cache.stats().used_bytes == 0


def test_explain_says_why_in_words() -> None:
    cache = make_cache("full")
    publish(cache)
    assert str(cache.explain(TOKENS)) == (
        "5 of 6 tokens reusable, 6 known, 1 lost: only the last token must run"
    )
    said = cache.explain([1, 2, 9])
    assert (said.cached_tokens, said.lost_tokens, said.limited_by) == (2, 0, "tokens")
    assert "no stored prefix continues" in str(said)
    hybrid = make_cache("recurrent")
    publish(hybrid)
    said = hybrid.explain([*TOKENS, 7])
    assert (said.matched_tokens, said.cached_tokens, said.limited_by) == (6, 0, "snapshot")
    assert "mark() where prompts branch" in str(said)


def test_prefill_stops_are_the_branch_and_the_last_token() -> None:
    cache = make_cache("recurrent")
    publish(cache)
    with cache.open([1, 2, 3, 9, 9, 9]) as sequence:
        assert sequence.matched_tokens == 3
        assert sequence.prefill_stops() == [3, 5]


def test_every_error_is_of_the_package() -> None:
    """Arguments of any type: a result or a `KVCacheError`, nothing else and no crash."""
    odd = [None, -1, 2**70, 1.5, True, "x", b"x", [], {}, object(), np.zeros(0), np.nan, [[1], []]]
    driver = make_driver("everything", AMPLE)
    for value in odd:
        sequence = driver.cache.open([1, 2, 3])
        for call in [
            lambda v=value: driver.cache.open(v),
            lambda v=value: driver.cache.open([1], namespace=v),
            lambda v=value: driver.cache.open([1], adapter=v),
            lambda v=value: driver.cache.explain(v, salt=v),
            lambda v=value, s=sequence: s.extend(v),
            lambda v=value, s=sequence: s.write(v, v, v, v),
            lambda v=value, s=sequence: s.write(0, 0, v, v),
            lambda v=value, s=sequence: s.read(v, v, v, v),
            lambda v=value, s=sequence: s.state(v, v),
            lambda v=value, s=sequence: s.advance(v),
            lambda v=value, s=sequence: s.truncate(v),
        ]:
            with contextlib.suppress(KVCacheError):
                call()
        sequence.close()


def test_rows_come_and_go_as_bfloat16() -> None:
    values = np.array([0.0, 1.5, -2.0, 0.15625], np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    assert ((bits.astype(np.uint32) << 16).view(np.float32) == values).all()
    plan = StatePlan([paged(0, "attention.keys", 1, 4)], memory="1MiB", block_tokens=2)
    with Cache(plan).open([1, 2, 3]) as sequence:
        sequence.write(0, 0, Bfloat16Array(np.tile(bits, (3, 1, 1))))
        sequence.advance(3)
        keys, nothing = sequence.read(0, 0, 3, dtype="bfloat16")
        assert nothing is None
        assert (np.asarray(keys.bits) == bits).all()
        assert (np.asarray(keys) == values).all()
        assert (np.asarray(keys[1:, 0], np.float64) == values).all()
        assert float(np.asarray(keys[0, 0, 1])) == 1.5
        assert (len(keys), repr(keys)) == (3, "<Bfloat16Array (3, 1, 4)>")
        with pytest.raises(IndexError):
            keys[3]
        with pytest.raises(ValueError, match="copy"):
            keys.__array__(copy=False)
        for same in ["bf16", "f16", "f32", np.float32, np.dtype("float16"), "float32"]:
            read = np.asarray(sequence.read(0, 0, 3, dtype=same)[0])
            assert (read == values).all()
        assert (sequence.read(0, 0, 3)[0] == values.astype(np.float16)).all()


def test_a_layer_with_an_indexer_takes_and_gives_three_components() -> None:
    names = ["attention.compressed_latent", "attention.rotary_keys", "attention.indexer_keys"]
    widths = [8, 4, 2]
    plan = StatePlan(
        [paged(0, name, 1, width) for name, width in zip(names, widths, strict=True)],
        memory="1MiB",
        block_tokens=2,
    )
    rng = np.random.default_rng(5)
    given = [rng.standard_normal((3, 1, width)).astype(np.float16) for width in widths]
    with Cache(plan).open([1, 2, 3]) as sequence:
        with pytest.raises(InvalidArgumentError, match="keeps 3 components, got 2 arrays"):
            sequence.write(0, 0, *given[:2])
        sequence.write(0, 0, *given)
        taken = sequence.read(0, 0, 3)
        assert len(taken) == 3
        assert all((a == b).all() for a, b in zip(given, taken, strict=True))


def test_a_sequence_that_publishes_all_along_needs_no_more_than_its_window() -> None:
    shape = dataclasses.replace(paged(0, "attention.keys", 2, 4), window=6)
    cache = Cache(StatePlan([shape], memory="1MiB", block_tokens=4), capacity_blocks=9)
    other = cache.open([9] * 12)
    with cache.open([1]) as sequence:
        for position in range(200):
            if position > 0:
                sequence.extend([position])
            sequence.write(0, position, rows(1))
            sequence.advance(1)
            sequence.publish()
        assert (sequence.read(0, 195, 200)[0] == rows(1)).all()
    other.close()
    cache.clear()
    assert cache.stats().pages == 0


@pytest.mark.parametrize(
    "junk", [None, 1, b"x", [], {}, object(), np.zeros(2)], ids=lambda junk: type(junk).__name__
)
def test_a_wrong_type_is_refused_by_name(junk: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"declarations\[0\]: expected a StateDecl"):
        StatePlan([junk], memory="4MiB")
    with pytest.raises(InvalidArgumentError, match="plan: expected a StatePlan"):
        Cache(junk)
    cache = make_cache()
    with pytest.raises(InvalidArgumentError, match="layer: "):
        cache.plan.paged_components([junk])
    with cache.open(TOKENS[:1]) as sequence, sequence.begin_verify([2]) as session:
        with pytest.raises(InvalidArgumentError, match="name: expected text"):
            session.state(0, 1, junk)
        with pytest.raises(InvalidArgumentError, match="surrogates"):
            session.state(0, 1, "\ud800")


def test_declarations_are_a_list() -> None:
    with pytest.raises(InvalidArgumentError, match="declarations: expected a list of StateDecl"):
        StatePlan(5, memory="4MiB")  # type: ignore[arg-type]
