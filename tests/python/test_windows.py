"""Layers that let positions go: sliding and chunked windows, attention sinks."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.declarations import paged, recurrent

import kvcache
from kvcache import AttentionPolicy, Cache, LayerSchedule, Sequence, StateDecl, StatePlan
from kvcache.errors import (
    InvalidArgumentError,
    LayerScheduleError,
    NotFoundError,
    UnsupportedError,
)
from kvcache.planner import plan_model
from kvcache.replay import Replay
from kvcache.replay.demo import generate_trace
from kvcache.state import declare
from kvcache.terms import retained_units

KEYS = "attention.keys"
BLOCK = 4
TOKENS = np.arange(1, 200, dtype=np.int32)

#: Edges: less than a block, no block multiple, several blocks, longer than everything, nothing.
LAWS: list[dict[str, Any]] = [
    *({"window": window} for window in (1, 2, 4, 5, 8, 1000)),
    *({"window": size, "chunked": True} for size in (1, 2, 4, 6, 8, 13, 1000)),
    {"window": 5, "sinks": 1},
    {"window": 5, "sinks": 3},
    {"window": 2, "sinks": 4},
    {"window": 8, "sinks": 9},
    {"window": 1, "sinks": 2},
    {"window": 6, "sinks": 1000},
]


def make_cache(law: dict[str, Any], *, block_tokens: int = BLOCK, fixed: bool = False) -> Cache:
    decls = [paged(0, KEYS, 1, 4, **law)]
    if fixed:
        decls.append(recurrent(0, "state.recurrent", 2))
    return Cache(StatePlan(decls, memory="4MiB", block_tokens=block_tokens))


def needed(law: dict[str, Any], length: int) -> list[int]:
    """The definition: positions that the query at `length` sees."""
    window, sinks = law["window"], law.get("sinks", 0)
    if law.get("chunked"):
        return [p for p in range(length) if p // window == length // window]
    return [p for p in range(length) if p < sinks or length - p < window]


def rows(tokens: np.ndarray, start: int, stop: int) -> np.ndarray:
    return np.repeat(tokens[start:stop, None, None], 4, axis=2).astype(np.float16)


def run(sequence: Sequence, stop: int) -> None:
    start = sequence.length
    sequence.write(0, start, rows(sequence.tokens, start, stop))
    sequence.advance(stop - start)


def check(law: dict[str, Any], sequence: Sequence) -> None:
    """Every needed position reads as it was written, every other is refused."""
    length, seen = sequence.length, set(needed(law, sequence.length))
    for p in range(length):
        if p in seen:
            got = sequence.read(0, p, p + 1)[0]
            np.testing.assert_array_equal(got, rows(sequence.tokens, p, p + 1), str(p))
        else:
            with pytest.raises(NotFoundError, match=f"window of {law['window']}"):
                sequence.read(0, p, p + 1)


def kept_blocks(law: dict[str, Any], length: int) -> int:
    """Blocks that hold a needed position, a sink, or what is written next."""
    keep = {*needed(law, length), *range(min(law.get("sinks", 0), length))}
    blocks = {p // BLOCK for p in keep}
    return len(blocks | {length // BLOCK} if length % BLOCK else blocks)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("step", [1, 3, 11])
def test_what_is_needed_can_be_read_and_the_rest_is_freed(law: dict[str, Any], step: int) -> None:
    cache = make_cache(law)
    with cache.open(TOKENS[:50]) as sequence:
        while sequence.length < 50 - step:
            before = sequence.length
            run(sequence, before + step)
            check(law, sequence)
            # The rows of a step stay until the next begins, so that it can be published or undone.
            begun = kept_blocks(law, before) + (before + step + 3) // BLOCK - (before + 3) // BLOCK
            assert cache.stats().pages == begun
        sequence.write(0, sequence.length, rows(TOKENS, sequence.length, sequence.length + 1))
        first = sequence.length % BLOCK == 0
        assert cache.stats().pages == kept_blocks(law, sequence.length) + first


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_plan_bounds_what_a_sequence_takes(law: dict[str, Any]) -> None:
    for step in (1, 7):
        cache = make_cache(law)
        with cache.open(TOKENS[:60]) as sequence:
            while sequence.length < 60:
                run(sequence, min(60, sequence.length + step))
        assert cache.stats().peak_bytes <= cache.plan.sequence_bytes(60, step)
        for length in (0, 1, 5, 8, 60):
            assert cache.plan.hit_bytes(length) == 8 * len(needed(law, length))


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_a_hit_needs_what_the_query_there_needs(law: dict[str, Any]) -> None:
    for length in range(1, 34, 3):
        cache = make_cache(law)
        with cache.open(TOKENS[:length]) as first:
            run(first, length)
            first.publish()
        with cache.open(TOKENS[: length + 1]) as sequence:
            assert sequence.cached_tokens == length
            check(law, sequence)
            run(sequence, length + 1)
            check(law, sequence)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_pages_lost_behind_a_window_limit_earlier_hits_only(law: dict[str, Any]) -> None:
    """One step a position: behind each, only what the window of the last one keeps is published."""
    cache = make_cache(law)
    with cache.open(TOKENS[:41]) as first:
        while first.length < 41:
            run(first, first.length + 1)
        first.publish()
    with cache.open(TOKENS[:60]) as sequence:
        assert sequence.cached_tokens == 41
        check(law, sequence)
    for length in range(1, 41):
        tokens = np.concatenate([TOKENS[:length], [777]]).astype(np.int32)
        with cache.open(tokens) as sequence:
            check(law, sequence)  # whatever is restored is right
            run(sequence, length + 1)
            check(law, sequence)
            sequence.publish()
    # What those have filled in must not pass for what they never computed.
    for length in range(1, 41):
        tokens = np.concatenate([TOKENS[:length], [888]]).astype(np.int32)
        with cache.open(tokens) as sequence:
            check(law, sequence)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_truncate_goes_back_to_where_the_step_began(law: dict[str, Any]) -> None:
    cache = make_cache(law)
    for position in range(20, 36):
        with cache.open(TOKENS[:35]) as sequence:
            run(sequence, 20)
            run(sequence, 35)
            sequence.truncate(position)
            check(law, sequence)
            sequence.extend([500, 501, 502])
            run(sequence, position + 3)
            check(law, sequence)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_truncate_further_back_is_refused_or_right(law: dict[str, Any]) -> None:
    cache = make_cache(law)
    for position in range(21):
        with cache.open(TOKENS[:30]) as sequence:
            for stop in range(1, 31):
                run(sequence, stop)
            try:
                sequence.truncate(position)
            except UnsupportedError:
                assert sequence.length == 30
            else:
                check(law, sequence)
                sequence.extend([600] * 9)
                run(sequence, position + 9)
                check(law, sequence)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_forks_let_go_on_their_own(law: dict[str, Any]) -> None:
    cache = make_cache(law)
    with cache.open(TOKENS[:40]) as parent:
        run(parent, 9)
        with parent.fork() as child:
            run(parent, 30)
            check(law, child)
            run(child, 14)
            check(law, child)
            check(law, parent)
    assert cache.stats().pages == 0


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("block_tokens", [2, 4, 8])
def test_saved_windows_come_back(tmp_path: Any, law: dict[str, Any], block_tokens: int) -> None:
    cache = make_cache(law, fixed=True)
    with cache.open(TOKENS[:30]) as sequence:
        for stop in (3, 13, 29):
            run(sequence, stop)
        sequence.snapshot()
        sequence.publish()
    assert cache.save(tmp_path / "prefix", TOKENS[:29]) == 29
    other = make_cache(law, block_tokens=block_tokens, fixed=True)
    try:
        assert other.load(tmp_path / "prefix") == 29
    except UnsupportedError:
        if block_tokens <= BLOCK:
            raise
        return
    with other.open(TOKENS[:40]) as sequence:
        assert sequence.cached_tokens == 29
        check(law, sequence)
        run(sequence, 33)
        check(law, sequence)


def test_a_saved_prefix_of_another_law_is_refused(tmp_path: Any) -> None:
    cache = make_cache({"window": 6})
    with cache.open(TOKENS[:20]) as sequence:
        run(sequence, 20)
        sequence.publish()
    cache.save(tmp_path / "prefix", TOKENS[:20])
    for law in ({"window": 6, "chunked": True}, {"window": 6, "sinks": 1}):
        with pytest.raises(UnsupportedError, match="saved for another model"):
            make_cache(law).load(tmp_path / "prefix")


# ---- Declarations -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunked": True}, r"\.chunked: only a window can be chunked"),
        ({"sinks": 4}, r"\.sinks: 4 sinks need a sliding window"),
        ({"window": 8, "chunked": True, "sinks": 4}, r"\.sinks: 4 sinks need a sliding window"),
        ({"window": 8, "record_tokens": 4}, r"\.window: pooled state keeps all its records"),
        ({"window": 8, "sinks": -1}, r"\.sinks"),
        ({"window": 8, "chunked": 1}, r"\.chunked"),
    ],
)
def test_declarations_that_contradict_themselves_are_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        replace(paged(0, KEYS, 1, 4), **change)


def test_the_core_refuses_them_too() -> None:
    good = paged(0, KEYS, 1, 4, window=8).to_core()
    fields = {
        name: getattr(good, name)
        for name in ("id", "layer", "component", "kind", "section", "dtype", "shape", "verify")
    }
    for change in (
        {"window": 0, "chunked": True},
        {"window": 0, "sinks": 2},
        {"window": 8, "chunked": True, "sinks": 2},
        {"window": 8, "record_tokens": 2},
        {"window": 0, "record_tokens": 0},
    ):
        decl = kvcache._core.StateDecl(**fields, row_scale_bytes=0, **change)
        with pytest.raises(InvalidArgumentError, match=r"l0\.attention\.keys: "):
            kvcache._core.StatePlan([decl], memory_bytes=1 << 20, block_tokens=4, sequences=1)


def test_declarations_keep_their_json() -> None:
    old = paged(0, KEYS, 1, 4, window=8).to_dict()
    del old["chunked"], old["sinks"]
    assert StateDecl.from_dict(old) == paged(0, KEYS, 1, 4, window=8)
    for decl in (
        paged(0, KEYS, 1, 4, window=8, chunked=True),
        paged(0, KEYS, 1, 4, window=8, sinks=2),
    ):
        assert StateDecl.from_json(decl.to_json()) == decl


def test_fingerprints_tell_laws_apart_and_stay_as_they_were() -> None:
    def fingerprint(**law: Any) -> str:
        return StatePlan([paged(0, KEYS, 1, 4, **law)], memory="1MiB", block_tokens=4).fingerprint

    found = [fingerprint(**law) for law in ({}, {"record_tokens": 2}, *LAWS)]
    assert len(set(found)) == len(found)
    text = "l0.attention.keys|0|attention.keys|1|0|f16|0|8,1,4\n"
    assert fingerprint(window=8) == "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def test_a_chunked_policy_says_so_and_the_published_json_does_not_change() -> None:
    chunked = AttentionPolicy.in_chunks(8)
    assert chunked.to_dict() == {"sliding": {"window": 8, "chunked": True}}
    assert AttentionPolicy.sliding(8).to_dict() == {"sliding": {"window": 8}}
    assert AttentionPolicy.from_dict(chunked.to_dict()) == chunked
    assert chunked != AttentionPolicy.sliding(8)
    assert [list(chunked.sees(p)) for p in (7, 8, 10)] == [list(range(8)), [8], [8, 9, 10]]
    assert LayerSchedule([chunked, AttentionPolicy.sliding(8)]).fingerprint_component() == "c8,s8"
    with pytest.raises(LayerScheduleError, match="chunk"):
        AttentionPolicy.in_chunks(0)


LLAMA4 = {
    "model_type": "llama4_text",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "attention_chunk_size": 96,
    "no_rope_layers": [1, 1, 1, 0],
}


def test_chunked_attention_of_a_configuration_is_kept_by_chunks() -> None:
    model = kvcache.models.from_config(LLAMA4)
    decls = declare(model.schedule)
    assert [(d.window, d.chunked) for d in decls[::2]] == [(96, True)] * 3 + [(0, False)]
    plan = StatePlan.for_model(model, memory="64MiB")
    report = Replay(Cache(plan), plan, chunk_tokens=64).run(generate_trace(conversations=4))
    assert report.mismatches == 0
    assert report.reused_tokens > 0
    assert report.verified_bytes == report.restored_bytes


def test_sinks_are_asked_for_when_a_model_is_declared() -> None:
    config = {k: v for k, v in LLAMA4.items() if "chunk" not in k and "rope" not in k} | {
        "model_type": "mistral",
        "sliding_window": 40,
    }
    model = kvcache.models.from_config(config)
    decls = declare(model.schedule, sinks=4)
    assert {(d.window, d.sinks) for d in decls} == {(40, 4)}
    assert {d.sinks for d in declare(kvcache.models.from_config(LLAMA4).schedule, sinks=4)} == {0}
    plan = StatePlan(decls, memory="64MiB")
    report = Replay(Cache(plan), plan, chunk_tokens=64).run(generate_trace(conversations=4))
    assert report.mismatches == 0
    assert report.verified_bytes == report.restored_bytes > 0
    for junk in (-1, 1.5, "4", 2**32):
        with pytest.raises(InvalidArgumentError, match="sinks"):
            declare(model.schedule, sinks=junk)  # type: ignore[arg-type]


def test_the_planner_counts_sinks_and_chunks() -> None:
    sinks = paged(0, KEYS, 1, 4, window=8, sinks=3)
    assert [retained_units(sinks, n) for n in (0, 5, 11, 12, 900)] == [0, 5, 11, 11, 11]
    chunked = paged(0, KEYS, 1, 4, window=8, chunked=True)
    assert [retained_units(chunked, n) for n in (0, 5, 8, 900)] == [0, 5, 8, 8]
    report = plan_model(kvcache.models.from_config(LLAMA4), tokens=1000)
    assert {group.window for group in report.groups} == {0, 96}
