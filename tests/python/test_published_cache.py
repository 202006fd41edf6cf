"""Published prompt caches, schema 8: what comes back, into which caches, and what is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.native import ROOT
from support.published_caches import (
    FULL,
    LAYOUTS,
    POLICY,
    RECURRENT,
    WINDOW,
    Written,
    cache_for,
    check_hit,
    write,
)

import kvcache
from kvcache import DType, load_published
from kvcache.cli import main
from kvcache.errors import (
    InvalidArgumentError,
    KVCacheError,
    NonFiniteError,
    NotFoundError,
    OutOfCapacityError,
    UnsupportedError,
)
from kvcache.models.compressed import pooling_stream
from kvcache.published import architecture_fingerprint, prefix_sha256
from kvcache.published.elements import as_state

TOKENS = np.arange(40, dtype=np.int32) * 7 + 1


def hits(cache: kvcache.Cache, written: Written, **options: Any) -> list[int]:
    """The hit of every shorter prompt, each with what it restored compared."""
    tokens = written.tokens
    prompts = [np.append(tokens[:end], 5) for end in range(1, len(tokens) + 1)]
    return [check_hit(cache, written, prompt, **options) for prompt in prompts]


def refused(
    cache: kvcache.Cache,
    written: Written,
    error: type[KVCacheError],
    match: str,
    tokens: Any = None,
    **options: Any,
) -> None:
    """A load that must fail and change nothing."""
    before = cache.stats()
    with pytest.raises(error, match=match):
        load_published(cache, written.path, written.tokens if tokens is None else tokens, **options)
    assert cache.stats() == before


# ---- Round trips ----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("length", [1, 5, 21, 40])
@pytest.mark.parametrize("blocks", [(16, 4), (3, 16), (40, 1)])
def test_a_loaded_prefix_is_what_was_written(
    tmp_path: Path, layout: str, length: int, blocks: tuple[int, int]
) -> None:
    written = write(tmp_path / "p", layout, TOKENS[:length], block=blocks[0])
    cache = cache_for(layout, block_tokens=blocks[1])
    assert load_published(cache, written.path, written.tokens) == length
    assert check_hit(cache, written, np.append(written.tokens, 5)) == length
    stats = cache.stats()
    assert stats.open_sequences == 0
    hits(cache, written)


@pytest.mark.parametrize("layout", ["full", "sliding", "mla"])
def test_a_sequence_goes_on_from_it(tmp_path: Path, layout: str) -> None:
    longer = write(tmp_path / "longer", layout, TOKENS)
    written = write(tmp_path / "p", layout, TOKENS[:21])
    cache = cache_for(layout)
    load_published(cache, written.path, TOKENS[:21])
    for key, rows in written.rows.items():  # state of the same tokens is the same
        longer.rows[key][:, :21] = rows
    with cache.open(TOKENS) as sequence:
        assert sequence.cached_tokens == 21
        for layer in range(2):
            parts = cache.plan.paged_components(layer)
            rows = [longer.rows[layer, part.component][0, 21:] for part in parts]
            sequence.write(layer, 21, *(part.astype(np.float16) for part in rows))
        sequence.advance(19)
        sequence.publish()
    assert check_hit(cache, longer, np.append(TOKENS, 5)) == 40


@pytest.mark.parametrize("layout", LAYOUTS)
def test_loading_twice_takes_nothing_more(tmp_path: Path, layout: str) -> None:
    written = write(tmp_path / "p", layout, TOKENS)
    cache = cache_for(layout)
    load_published(cache, written.path, TOKENS)
    before = cache.stats()
    assert load_published(cache, written.path, TOKENS) == 40
    assert cache.stats().pages == before.pages
    assert cache.stats().snapshots == before.snapshots


@pytest.mark.parametrize("known", [3, 8, 17, 39])
@pytest.mark.parametrize("layout", ["full", "sliding", "hybrid", "mla"])
def test_what_is_known_in_part_is_completed(tmp_path: Path, layout: str, known: int) -> None:
    written = write(tmp_path / "p", layout, TOKENS)
    head = write(tmp_path / "head", layout, TOKENS[:known])
    for key, rows in written.rows.items():  # state of the same tokens is the same
        head.rows[key] = rows[:, :known]
    cache = cache_for(layout)
    with cache.open(TOKENS[:known]) as sequence:
        for layer in {key[0] for key in head.rows}:
            parts = cache.plan.paged_components(layer)
            rows = [head.rows[layer, part.component][0].astype(np.float16) for part in parts]
            sequence.write(layer, 0, *rows)
        sequence.advance(known)
        sequence.snapshot()
        sequence.publish()
    assert load_published(cache, written.path, TOKENS) == 40
    assert check_hit(cache, written, np.append(TOKENS, 5)) == 40


def test_namespace_adapter_salt_media_and_ttl_are_those_of_open(tmp_path: Path) -> None:
    written = write(tmp_path / "p", "hybrid", TOKENS)
    space = {"namespace": "n", "adapter": "a", "salt": b"s", "media": [(3, 4, b"image")]}
    cache = cache_for("hybrid")
    load_published(cache, written.path, TOKENS, ttl=60, **space)
    prompt = np.append(TOKENS, 5)
    assert check_hit(cache, written, prompt, **space) == 40
    assert check_hit(cache, written, prompt) == 0
    assert check_hit(cache, written, prompt, **space | {"salt": b"t"}) == 0
    for wrong in (5, None, [(39, 4, b"image")]):
        with pytest.raises(InvalidArgumentError, match="media"):
            load_published(cache, written.path, TOKENS, media=wrong)


# ---- Windows that start inside the prefix ----------------------------------------------------


@pytest.mark.parametrize("block_tokens", [1, 4, 5, 16])
@pytest.mark.parametrize("layout", ["sliding", "only sliding", "window of one", "hybrid"])
@pytest.mark.parametrize("length", [9, 24, 33, 40])
def test_no_row_is_served_that_was_not_stored(
    tmp_path: Path, layout: str, length: int, block_tokens: int
) -> None:
    for start in {0, 3, 16, length - 11, length - 9, length - 6, length - 3, length - 1}:
        starts = {
            layer: start
            for layer, policy in enumerate(LAYOUTS[layout])
            if policy.attention and (window := policy.attention.window)
            if 0 <= start <= max(0, length - (window - 1)) and start < length
        }
        written = write(tmp_path / f"p{start}", layout, TOKENS[:length], starts=starts)
        cache = cache_for(layout, block_tokens=block_tokens)
        try:
            load_published(cache, written.path, written.tokens)
        except UnsupportedError as error:
            usable = int(str(error).rpartition("block_tokens to ")[2])
            assert usable < block_tokens
            assert cache.stats().pages == 0
            cache = cache_for(layout, block_tokens=usable)
            load_published(cache, written.path, written.tokens)
        assert check_hit(cache, written, np.append(written.tokens, 5)) == length
        hits(cache, written)


def test_a_window_that_does_not_fill_its_first_block_is_refused(tmp_path: Path) -> None:
    written = write(tmp_path / "p", "sliding", TOKENS, starts={1: 34})
    refused(
        cache_for("sliding", block_tokens=16),
        written,
        UnsupportedError,
        "layer 1: rows are stored from position 34 on, and do not fill the block from 32 on .*"
        "lower block_tokens to 2",
    )


def test_what_a_window_passes_takes_no_memory(tmp_path: Path) -> None:
    tokens = np.arange(6000, dtype=np.int32)
    layout = [POLICY.key_value(WINDOW(33), 4, 64)]  # 6 MB of rows in all
    written = write(tmp_path / "p", layout, tokens, block=6000)
    cache = cache_for(layout, block_tokens=16, memory="2MiB")
    assert load_published(cache, written.path, tokens) == 6000
    assert check_hit(cache, written, np.append(tokens, 5)) == 6000
    assert cache.stats().pages == 3


def test_sinks_of_a_plan_must_be_stored(tmp_path: Path) -> None:
    plan = kvcache.StatePlan(
        kvcache.declare(kvcache.LayerSchedule(LAYOUTS["sliding"]), sinks=3),
        memory="4MiB",
        block_tokens=4,
    )
    whole = write(tmp_path / "whole", "sliding", TOKENS)
    cache = kvcache.Cache(plan)
    assert load_published(cache, whole.path, TOKENS) == 40
    with cache.open(np.append(TOKENS, 5)) as sequence:
        keys, _ = sequence.read(1, 0, 3, "float32")
        np.testing.assert_array_equal(keys, whole.rows[1, "attention.keys"][0, :3])
    inside = write(tmp_path / "inside", "sliding", TOKENS, starts={1: 32})
    refused(kvcache.Cache(plan), inside, UnsupportedError, "layer 1: rows are stored from .* 32")


# ---- Elements ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "storage"),
    [
        ("Float16", "f16"),
        ("Float16", "f32"),
        ("Bfloat16", "bf16"),
        ("Bfloat16", "f32"),
        ("Float32", "f32"),
    ],
)
def test_elements_that_hold_every_value_need_no_leave(
    tmp_path: Path, dtype: str, storage: str
) -> None:
    written = write(tmp_path / "p", "sliding", TOKENS, dtype=dtype)
    cache = cache_for("sliding", storage=storage)
    assert load_published(cache, written.path, TOKENS) == 40
    hits(cache, written)


@pytest.mark.parametrize(
    ("dtype", "storage"),
    [
        ("Float32", "f16"),
        ("Float64", "f32"),
        ("Bfloat16", "f16"),
        ("Float16", "bf16"),
        ("Float16", "int8"),
        ("Bfloat16", "int8"),
    ],
)
def test_rounding_needs_leave(tmp_path: Path, dtype: str, storage: str) -> None:
    written = write(tmp_path / "p", "full", TOKENS, dtype=dtype)
    cache = cache_for("full", storage=storage)
    refused(cache, written, UnsupportedError, f"holds {dtype}, the plan stores")
    assert load_published(cache, written.path, TOKENS, convert=True) == 40
    hits(cache, written)  # these values are exact in every element


@pytest.mark.parametrize("dtype", ["Float16", "Bfloat16", "Float32", "Float64"])
@pytest.mark.parametrize("state_dtype", ["f16", "bf16", "f32"])
def test_state_tensors_of_every_element(tmp_path: Path, dtype: str, state_dtype: str) -> None:
    layout = [POLICY.fixed_only([LAYOUTS["hybrid"][0].fixed_state[0]])]
    written = write(tmp_path / "p", layout, TOKENS, state_dtype=dtype)
    cache = cache_for(layout, state_dtype=state_dtype)
    load_published(cache, written.path, TOKENS, convert=True)
    with cache.open(np.append(TOKENS, 5)) as sequence:
        got = sequence.state(0, "state.convolution.0")
        if state_dtype == "bf16":
            got = (got.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(got, written.tensors[0, "state.convolution.0"][0])


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, np.nan, np.inf, -0.0])
    bits = as_state(values, "Float64", DType.BF16, "x")
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(wide, [1, 1, 1 + 2**-6, 1 + 2**-7, np.nan, np.inf, -0.0])


def test_what_float16_cannot_hold_is_refused_whole(tmp_path: Path) -> None:
    written = write(tmp_path / "p", "full", TOKENS, dtype="Float32")
    cache = cache_for("full")
    [shard] = {block["shard"] for block in written.manifest["blocks"][-1:]}
    damage_value(written, shard, np.float32(1e6))
    with pytest.raises(NonFiniteError, match="layer 1"):
        load_published(cache, written.path, TOKENS, convert=True)
    assert cache.stats().pages == 0
    assert check_hit(cache, written, np.append(TOKENS, 5)) == 0


def damage_value(written: Written, shard: str, value: np.float32) -> None:
    """Put a value in place of the last one, checksum included."""
    path = written.generation / shard
    raw = path.read_bytes()[:-4] + value.tobytes()
    path.write_bytes(raw)
    payload = raw[8 + int.from_bytes(raw[:8], "little") :]

    def change(fields: dict[str, Any]) -> None:
        for block in fields["blocks"]:
            if block["shard"] == shard:
                block["payload_sha256"] = hashlib.sha256(payload).hexdigest()

    written.edit(change)


# ---- Batches, pooled state, segments ----------------------------------------------------------


def test_a_row_of_a_batch_is_named(tmp_path: Path) -> None:
    written = write(tmp_path / "p", "hybrid", TOKENS, batch=3)
    refused(cache_for("hybrid"), written, UnsupportedError, r"batch of 3; name one with row=0\.\.2")
    refused(cache_for("hybrid"), written, InvalidArgumentError, "row: must be 0..2", row=3)
    for row in range(3):
        cache = cache_for("hybrid")
        load_published(cache, written.path, TOKENS, row=row)
        assert check_hit(cache, written, np.append(TOKENS, 5), row=row) == 40


@pytest.mark.parametrize("length", [2, 4, 17, 39])
def test_pooled_state_comes_with_what_is_pending(tmp_path: Path, length: int) -> None:
    streams = [
        *pooling_stream(0, 4, 8, overlapping=True),
        *pooling_stream(1, 4, 3, overlapping=False),
    ]
    layout = [
        POLICY.key_only_with_fixed_state(WINDOW(5), 1, 8, streams),
        POLICY.key_only(WINDOW(5), 1, 8),
    ]
    written = write(tmp_path / "p", layout, TOKENS[:length])
    cache = cache_for(layout, block_tokens=8)
    assert load_published(cache, written.path, TOKENS[:length], convert=True) == length
    with cache.open(np.append(TOKENS[:length], 5)) as sequence:
        assert sequence.cached_tokens == length
        for stream in cache.plan.streams(0):
            records = sequence.read_records(0, stream.component, 0, length // 4, "float32")
            if length >= 4:
                want = written.tensors[0, stream.component][0]
                np.testing.assert_array_equal(records[:, 0], want)
        for part in cache.plan.fixed:
            got = sequence.state(0, part.name)
            values = written.tensors.get((0, part.name))
            count = 0 if values is None else values.shape[1]
            assert not got[count:].any()
            if values is not None:
                np.testing.assert_array_equal(got[:count], values[0])


DRAFTED = [
    POLICY.key_value(FULL, 2, 8),
    POLICY.fixed_only([RECURRENT]),
    POLICY.key_value(FULL, 2, 8),
]
SEGMENTS = [
    {"id": "model", "layers": {"start": 0, "end": 2}},
    {"id": "draft", "layers": {"start": 2, "end": 3}},
]


def test_a_segment_is_loaded_by_itself(tmp_path: Path) -> None:
    written = write(
        tmp_path / "p", DRAFTED, TOKENS, state_segments=SEGMENTS, layer_prefix_offsets=[0, 0, -1]
    )
    cache = cache_for(DRAFTED[:2])
    refused(cache, written, UnsupportedError, "layer 2, attention.keys is in the prompt cache, not")
    refused(cache, written, InvalidArgumentError, "one of .*'model', 'draft'", segment="main")
    assert load_published(cache, written.path, TOKENS, segment="model") == 40
    assert check_hit(cache, written, np.append(TOKENS, 5)) == 40
    whole = cache_for(DRAFTED)
    refused(whole, written, UnsupportedError, r"layer 1 has state at 40 .* ends at 39; .*'draft'")
    draft = cache_for(DRAFTED[2:])
    assert load_published(draft, written.path, TOKENS, segment="draft") == 39


def test_a_lagging_layer_shortens_the_prefix(tmp_path: Path) -> None:
    layout = [POLICY.key_value(FULL, 2, 8), POLICY.key_value(FULL, 1, 4)]
    written = write(tmp_path / "p", layout, TOKENS, layer_prefix_offsets=[0, -3])
    cache = cache_for(layout)
    assert load_published(cache, written.path, TOKENS) == 37
    assert check_hit(cache, written, np.append(TOKENS, 5)) == 37


@pytest.mark.parametrize("first", [0, 6])
def test_layers_of_a_stage_are_those_of_the_model_or_counted_from_its_first(
    tmp_path: Path, first: int
) -> None:
    stage = {
        "stage": [4, 2],
        "shard": None,
        "addressable": None,
        "addressable_state_replicated": True,
    }
    written = write(
        tmp_path / "p",
        "full",
        TOKENS,
        layer_count=20,
        global_layer_start=6,
        global_layer_end=8,
        topology=stage | {"addressable_state_replicated": True},
    )
    declared = kvcache.declare(kvcache.LayerSchedule(LAYOUTS["full"]))
    moved = [
        kvcache.StateDecl(**{f: getattr(d, f) for f in d.__slots__} | {"layer": d.layer + first})
        for d in declared
    ]
    cache = kvcache.Cache(kvcache.StatePlan(moved, memory="4MiB"))
    refused(cache, written, UnsupportedError, "stage: .* of rank 2 of 4, expected one rank")
    refused(cache, written, UnsupportedError, "stage: .* expected 1 of 4", stage=(4, 1))
    assert load_published(cache, written.path, TOKENS, stage=(4, 2)) == 40
    with cache.open(np.append(TOKENS, 5)) as sequence:
        keys, _ = sequence.read(first, 0, 40, "float32")
        np.testing.assert_array_equal(keys, written.rows[6, "attention.keys"][0])


# ---- What the caller and the plan expect ------------------------------------------------------


def test_tokens_must_be_those_of_the_hash(tmp_path: Path) -> None:
    written = write(tmp_path / "p", "full", TOKENS)
    cache = cache_for("full")
    other = TOKENS.copy()
    other[[3, 4]] = other[[4, 3]]
    refused(cache, written, InvalidArgumentError, "SHA-256", other)
    refused(cache, written, InvalidArgumentError, "is of 40, got 39", TOKENS[:39])
    refused(cache, written, InvalidArgumentError, "int32", [2**31])
    refused(cache, written, InvalidArgumentError, "is of 40, got 0", [])


@pytest.mark.parametrize(
    "name",
    [
        "model_family",
        "effective_model_type",
        "checkpoint_fingerprint",
        "prefix_content_fingerprint",
        "architecture_fingerprint",
    ],
)
def test_what_the_caller_knows_is_compared(tmp_path: Path, name: str) -> None:
    written = write(tmp_path / "p", "full", TOKENS)
    cache = cache_for("full")
    found = written.manifest[name]
    refused(cache, written, UnsupportedError, f"{name}: expected 'x', .* '{found}'", **{name: "x"})
    refused(cache, written, InvalidArgumentError, f"{name}: expected text", **{name: 7})
    assert load_published(cache, written.path, TOKENS, **{name: found}) == 40


def test_sinks_and_ranks_are_compared(tmp_path: Path) -> None:
    topology = {
        "stage": None,
        "shard": [2, 1],
        "addressable": [4, 3],
        "addressable_state_replicated": True,
    }
    topology = topology | {"addressable_state_replicated": True}
    written = write(tmp_path / "p", "full", TOKENS, sink_tokens=4, topology=topology)
    cache = cache_for("full")
    for match, options in {
        "sink_tokens: expected 0, the prompt cache has 4": {"sink_tokens": 0, "shard": (2, 1)},
        "shard: the prompt cache is of rank 1 of 2, expected one rank; name it": {},
        "expected 0 of 2": {"shard": (2, 0)},
        "addressable: .* 3 of 4, expected 0 of 4": {"shard": (2, 1), "addressable": (4, 0)},
        "stage: .* 0 of 1, expected 0 of 2": {"shard": (2, 1), "stage": (2, 0)},
    }.items():
        refused(cache, written, UnsupportedError, match, **options)
    for wrong in (3, (2,), (2, 2), (0, 0), "ab", (2, None)):
        refused(cache, written, InvalidArgumentError, "shard", shard=wrong)
    refused(cache, written, InvalidArgumentError, "unknown arguments shards", shards=(2, 1))
    refused(cache, written, InvalidArgumentError, "sink_tokens", sink_tokens="4")
    assert load_published(cache, written.path, TOKENS, shard=(2, 1), sink_tokens=4) == 40
    written.edit(lambda f: f["topology"].update(addressable_state_replicated=False))
    refused(cache, written, UnsupportedError, "addressable: .* name it", shard=(2, 1))


@pytest.mark.parametrize(
    ("layout", "match"),
    [
        ([LAYOUTS["full"][0]], "layer 1, attention.keys is in the prompt cache, not in the plan"),
        ([*LAYOUTS["full"], LAYOUTS["full"][0]], "layer 2, .* is in the plan, not in the prompt"),
        (LAYOUTS["full"][::-1], r"layer 0, attention.keys: shape \[2, 8\] in the .* \[1, 4\]"),
        ([POLICY.key_value(WINDOW(8), 2, 8), LAYOUTS["full"][1]], "layer 0, .*: window 0 in"),
        (LAYOUTS["mla"], "layer 0, attention.compressed_latent is in the plan"),
        ([POLICY.key_only(FULL, 2, 8), LAYOUTS["full"][1]], "layer 0, attention.values is in the"),
    ],
)
def test_another_model_is_refused(tmp_path: Path, layout: Any, match: str) -> None:
    written = write(tmp_path / "p", "full", TOKENS)
    refused(cache_for(layout), written, UnsupportedError, f"another model: {match}")


def test_integers_do_not_become_rows(tmp_path: Path) -> None:
    written = write(tmp_path / "p", "full", TOKENS, dtype="Int32")
    cache = cache_for("full")
    refused(cache, written, UnsupportedError, "Int32 cannot be stored as f16", convert=True)


# ---- Room -------------------------------------------------------------------------------------


def test_a_prefix_beyond_the_memory_is_refused_before_eviction(tmp_path: Path) -> None:
    tokens = np.arange(20000)
    written = write(tmp_path / "p", "full", tokens, block=5000)
    cache = cache_for("full", memory="512KiB")
    other = write(tmp_path / "other", "full", TOKENS)
    load_published(cache, other.path, TOKENS)
    refused(cache, written, OutOfCapacityError, "raise the plan's memory")
    assert check_hit(cache, other, np.append(TOKENS, 5)) == 40


def test_without_room_nothing_of_it_is_kept(tmp_path: Path) -> None:
    tokens = np.arange(4000)
    written = write(tmp_path / "p", "full", tokens, block=500)
    cache = cache_for("full", memory="512KiB")
    with cache.open(np.arange(3000) + 9) as held:
        for layer in range(2):
            parts = cache.plan.paged_components(layer)
            held.write(layer, 0, *(np.zeros((3000, p.heads, p.width), "f2") for p in parts))
        held.advance(3000)
        pages = cache.stats().pages
        with pytest.raises(OutOfCapacityError):
            load_published(cache, written.path, tokens)
        assert cache.stats().pages == pages
        assert cache.stats().open_sequences == 1
    assert load_published(cache, written.path, tokens) == 4000
    assert check_hit(cache, written, np.append(tokens, 5)) == 4000


def test_a_ledger_holds_no_bytes(tmp_path: Path) -> None:
    for layout in ("full", "recurrent", "hybrid"):
        written = write(tmp_path / layout, layout, TOKENS)
        ledger = cache_for(layout, backing=False)
        with pytest.raises(UnsupportedError, match="ledger"):
            load_published(ledger, written.path, TOKENS)
        assert ledger.stats().pages == 0


def test_what_is_no_cache_or_no_path_is_said(tmp_path: Path) -> None:
    written = write(tmp_path / "p", "full", TOKENS)
    with pytest.raises(InvalidArgumentError, match="cache: expected a Cache"):
        load_published(None, written.path, TOKENS)  # type: ignore[arg-type]
    cache = cache_for("full")
    for path in (tmp_path / "absent", tmp_path, written.path / "CURRENT", ""):
        with pytest.raises(NotFoundError):
            load_published(cache, path, TOKENS)
    for path in (None, 7, "a\0b"):
        with pytest.raises(KVCacheError):
            load_published(cache, path, TOKENS)  # type: ignore[arg-type]


# ---- Fingerprints, golden files, commands -----------------------------------------------------


def test_fingerprints_are_the_published_ones() -> None:
    assert prefix_sha256([7, 8]) == (
        "1cfabff28e4788390030eddd710ec196f96ce7f238232080522f0d1e6a70024e"
    )
    assert prefix_sha256([1, 2, 3]) == (
        "4636993d3e1da4e9d6b8f87b79e8f7c6d018580d52661950eabc3845c5897a4d"
    )
    assert architecture_fingerprint("llama", {"layers": 32, "hidden_size": "4096"}) == (
        "sha256:9ee0b30ea8687d04eb4b65db3a58ccfff0a72bdd502805e9fdd6edb223ca5949"
    )
    swapped = architecture_fingerprint("llama", {"hidden_size": 4096, "layers": 32})
    assert swapped == architecture_fingerprint("llama", {"layers": 32, "hidden_size": 4096})
    for wrong in (None, 7):
        with pytest.raises(InvalidArgumentError):
            prefix_sha256(wrong)  # type: ignore[arg-type]


GOLDEN = ROOT / "tests" / "golden" / "published-v8"


def test_the_golden_prompt_cache_is_read_for_ever(tmp_path: Path) -> None:
    tokens = TOKENS[:10]
    cache = cache_for("hybrid")
    assert load_published(cache, GOLDEN, tokens) == 10
    written = write(tmp_path / "again", "hybrid", tokens, block=4, starts={3: 4})
    assert check_hit(cache, written, np.append(tokens, 5)) == 10


def test_inspect_and_verify_know_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = write(tmp_path / "p", "hybrid", TOKENS)
    assert main(["inspect", "--json", str(written.path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["version"]) == ("published prompt cache", 8)
    assert found["tokens"] == 40
    assert found["files"][0]["holds"] == "layer 2, positions 0..16"
    assert found["bytes"] == sum(path.stat().st_size for path in written.shards())
    assert main(["verify", str(written.path)]) == 0
    shard = written.shards()[0]
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    assert main(["inspect", str(written.path)]) == 0
    assert main(["verify", str(written.path)]) == 1
    assert f"{shard.name}: its SHA-256" in capsys.readouterr().out.replace("\n", "")
    shard.unlink()
    assert main(["inspect", "--json", str(written.path)]) == 0
    capsys.readouterr()
    assert main(["gc", str(written.path)]) == 2
    assert "only read here" in capsys.readouterr().err
    written.edit(lambda fields: fields.update(schema_version=7))
    assert main(["verify", str(written.path)]) == 2
    assert "schema version 7" in capsys.readouterr().err
