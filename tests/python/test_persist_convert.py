"""Cache.load(convert=True): rows that were saved in another storage format."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.declarations import paged
from support.filled import MODELS, Array, attention, check, fill, linear, prompt

import kvcache
from kvcache import DType, StateDecl
from kvcache.errors import CorruptionError, NonFiniteError, UnsupportedError

FORMATS = {"f16": DType.F16, "bf16": DType.BF16, "f32": DType.F32, "int8": DType.I8}
# Also what is left as it is: integers, in the same blocks as the rows beside them.
SHAPES: dict[str, list[StateDecl]] = {
    **{name: MODELS[name] for name in ("attention", "sliding", "sliding only", "mla", "hybrid")},
    "hybrid with windows": MODELS["hybrid with windows"],
    "sinks": [
        dataclasses.replace(decl, sinks=5) if decl.window else decl
        for decl in attention(0) + attention(1, window=7)
    ],
}


def stored_as(decls: list[StateDecl], name: str) -> list[StateDecl]:
    dtype = FORMATS[name]
    scale = 4 if dtype is DType.I8 else 0
    return [
        dataclasses.replace(decl, dtype=dtype, row_scale_bytes=scale)
        if decl.dtype in FORMATS.values() and decl.component.startswith("attention")
        else decl
        for decl in decls
    ]


def make_cache(decls: list[StateDecl], block_tokens: int = 4) -> Any:
    return kvcache.Cache(
        kvcache.StatePlan(decls, memory="8MiB", block_tokens=block_tokens, sequences=4)
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("saved", FORMATS)
def test_rows_come_back_from_every_format_in_every_other(
    tmp_path: Path, shape: str, saved: str
) -> None:
    tokens = prompt(90)
    cache = make_cache(stored_as(SHAPES[shape], saved))
    fill(cache, tokens)
    cache.save(tmp_path / "p", tokens)
    for wanted in FORMATS:
        for block_tokens in (4, 7):
            fresh = make_cache(stored_as(SHAPES[shape], wanted), block_tokens)
            assert fresh.load(tmp_path / "p", convert=True) == 90
            assert check(fresh, np.append(tokens, 5)) == 90
            assert check(fresh, tokens) == 89


def test_a_plan_may_store_some_rows_so_and_others_so(tmp_path: Path) -> None:
    tokens = prompt(60)
    cache = make_cache(stored_as(attention(0) + attention(1, window=7), "f16"))
    fill(cache, tokens)
    cache.save(tmp_path / "p", tokens)
    keys, values = attention(0)
    mixed = [*stored_as([keys], "int8"), values, *attention(1, window=7, int8=True)]
    fresh = make_cache(mixed)
    assert fresh.load(tmp_path / "p", convert=True) == 60
    assert check(fresh, np.append(tokens, 5)) == 60


def random_rows(count: int) -> list[Array]:
    rng = np.random.default_rng(3)
    return [rng.normal(size=(count, 2, 8)).astype(np.float16) for _ in range(2)]


def written(decls: list[StateDecl], tokens: Array, rows: list[Array]) -> Any:
    cache = make_cache(decls)
    with cache.open(tokens) as sequence:
        sequence.write(0, 0, *rows)
        sequence.advance(len(tokens))
        sequence.publish()
    return cache


def read(cache: Any, tokens: Array) -> list[Array]:
    with cache.open(np.append(tokens, 5)) as sequence:
        assert sequence.cached_tokens == len(tokens)
        return [np.array(part) for part in sequence.read(0, 0, len(tokens))]


@pytest.mark.parametrize(("saved", "wanted"), [("f16", "int8"), ("int8", "f16"), ("f32", "int8")])
def test_what_is_converted_is_what_write_would_have_stored(
    tmp_path: Path, saved: str, wanted: str
) -> None:
    tokens = prompt(50)
    rows = random_rows(50)
    before = written(stored_as(attention(0), saved), tokens, rows)
    before.save(tmp_path / "p", tokens)
    fresh = make_cache(stored_as(attention(0), wanted))
    fresh.load(tmp_path / "p", convert=True)
    direct = written(stored_as(attention(0), wanted), tokens, read(before, tokens))
    for got, want in zip(read(fresh, tokens), read(direct, tokens), strict=True):
        assert np.array_equal(got, want)


def test_integers_stay_as_they_are(tmp_path: Path) -> None:
    tokens = prompt(30)
    index = paged(0, "attention.index_keys", 1, 4, dtype=DType.U32)
    rows = random_rows(30)
    codes = np.arange(30 * 4, dtype=np.uint32).reshape(30, 1, 4)
    before = written([*stored_as(attention(0), "f16"), index], tokens, [*rows, codes])
    before.save(tmp_path / "p", tokens)
    fresh = make_cache([*stored_as(attention(0), "int8"), index])
    fresh.load(tmp_path / "p", convert=True)
    assert np.array_equal(read(fresh, tokens)[2], codes)


def test_another_format_is_refused_until_it_is_asked_for(tmp_path: Path) -> None:
    tokens = prompt(20)
    cache = make_cache(stored_as(attention(0), "f16"))
    fill(cache, tokens)
    cache.save(tmp_path / "p", tokens)
    fresh = make_cache(stored_as(attention(0), "int8"))
    stored = r"rows are stored as f16, this cache's plan stores int8-.*\(convert\)"
    with pytest.raises(UnsupportedError, match=stored):
        fresh.load(tmp_path / "p")
    assert fresh.stats().pages == 0
    other = make_cache(stored_as(linear(0) + attention(1), "int8"))
    with pytest.raises(UnsupportedError, match="another model"):
        other.load(tmp_path / "p", convert=True)
    assert other.stats().pages == 0


def test_rows_that_int8_cannot_hold_are_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    tokens = prompt(20)
    rows = random_rows(20)
    rows[1][13, 1, 2] = np.inf
    written(stored_as(attention(0), "f16"), tokens, rows).save(tmp_path / "p", tokens)
    fresh = make_cache(stored_as(attention(0), "int8"))
    with pytest.raises(NonFiniteError, match=r"state.safetensors.*attention\.values.*row 27:"):
        fresh.load(tmp_path / "p", convert=True)
    assert fresh.stats().pages == 0
    assert fresh.stats().used_bytes == 0


def test_damage_is_found_before_anything_is_converted(tmp_path: Path) -> None:
    tokens = prompt(20)
    cache = make_cache(stored_as(attention(0), "int8"))
    fill(cache, tokens)
    cache.save(tmp_path / "p", tokens)
    shard = next((tmp_path / "p").rglob("state.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-100] ^= 1
    shard.write_bytes(data)
    fresh = make_cache(stored_as(attention(0), "f16"))
    with pytest.raises(CorruptionError, match=r"state\.safetensors"):
        fresh.load(tmp_path / "p", convert=True)
    assert fresh.stats().pages == 0
