"""Prompt caches of one number of tensor-parallel ranks, loaded by another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.ranks import CONFIGS, DELTA, DENSE
from support.saved import generation, put_byte

import kvcache
from kvcache import Cache, Sequence, StatePlan
from kvcache.errors import (
    CorruptionError,
    InvalidArgumentError,
    KVCacheError,
    NotFoundError,
    OutOfCapacityError,
    UnsupportedError,
)
from kvcache.models import Model, from_config
from kvcache.shards import load, rank_directory, reshard

TOKENS = np.arange(29, dtype=np.int32) * 3 + 1
COUNT = len(TOKENS)
STEP = 5  # no wider than what the narrowest window still has
WINDOWS: dict[str, Any] = {
    **DENSE,
    "model_type": "gpt_oss",
    "num_key_value_heads": 4,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention"],
}
ONLY_WINDOWS = {**DENSE, "model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 9}
ALL = {**CONFIGS, "windows": WINDOWS, "only windows": ONLY_WINDOWS}


def cache_of(config: dict[str, Any], ranks: int = 1, storage: str = "f16", **options: Any) -> Cache:
    block = options.pop("block_tokens", 4)
    memory = options.pop("memory", "8MiB")
    model = from_config(config, tp=ranks)
    plan = StatePlan.for_model(model, memory=memory, block_tokens=block, format=storage)
    return Cache(plan, **options)


def grow(sequence: Sequence, stop: int) -> None:
    """Rows and state that are functions of the position."""
    start = sequence.length
    for layer in range(2):
        parts = sequence.plan.paged_components(layer)
        if parts:
            rng = np.random.default_rng([1, layer])
            rows = [rng.standard_normal((COUNT, p.heads, p.width)).astype("f") for p in parts]
            sequence.write(layer, start, *(part[start:stop] for part in rows))
    rng = np.random.default_rng([2, stop])
    for part in sequence.plan.fixed:
        sequence.state(part.layer, part.name)[...] = rng.standard_normal(part.shape)
    sequence.advance(stop - start)


def fleet(
    config: dict[str, Any], ranks: int, storage: str = "f16", tokens: Any = TOKENS, **space: Any
) -> list[Cache]:
    """Caches of all ranks with the prefix, by `reshard` of a sequence on one rank."""
    model = from_config(config)
    options = {"weights": space.pop("weights", "")}
    caches = [cache_of(config, ranks, storage, **options) for _ in range(ranks)]
    with ExitStack() as stack:
        whole = stack.enter_context(cache_of(config, 1, storage).open(tokens))
        shares = [stack.enter_context(cache.open(tokens, **space)) for cache in caches]
        count = len(tokens)
        step = STEP if any(group.window for group in whole.plan.groups) else count
        for stop in [*range(step, count - 1, step), count - 1, count]:
            grow(whole, stop)
            reshard(model, [whole], shares)
            for share in shares:
                share.snapshot()
        for share in shares:
            share.publish()
    return caches


def save(caches: list[Cache], root: Path, tokens: Any = TOKENS, **space: Any) -> Path:
    root.mkdir()
    for rank, cache in enumerate(caches):
        path = rank_directory(root, len(caches), rank)
        assert cache.save(path, tokens, **space) == len(tokens)
    return root


def contents(sequence: Sequence) -> Iterator[tuple[str, NDArray[Any]]]:
    for group in sequence.plan.groups:
        start = max(0, sequence.length - group.window + 1) if group.window else 0
        for layer in {part.layer for part in group.components}:
            for i, rows in enumerate(sequence.read(layer, start, sequence.length, "float32")):
                if rows is not None:
                    yield f"{layer}.{i}", rows
    for part in sequence.plan.fixed:
        yield f"{part.layer}.{part.name}", sequence.state(part.layer, part.name)


def assert_same(loaded: list[Cache], expected: list[Cache], prompt: Any, **space: Any) -> None:
    """The hit is the same on every rank, bit for bit."""
    for rank, (cache, other) in enumerate(zip(loaded, expected, strict=True)):
        with cache.open(prompt, **space) as got, other.open(prompt, **space) as want:
            assert got.cached_tokens == want.cached_tokens > 0, rank
            for (name, one), (same, two) in zip(contents(got), contents(want), strict=True):
                assert name == same
                np.testing.assert_array_equal(one, two, f"rank {rank}: {name}")


MOVES = {
    "f16": [(1, 2), (2, 1), (2, 4), (4, 2), (4, 4), (4, 1)],
    "int8": [(1, 2), (2, 4), (4, 2)],
    "bf16": [(2, 4), (4, 1)],
}


@pytest.mark.parametrize("storage", MOVES)
@pytest.mark.parametrize("family", ALL)
def test_it_resumes_as_if_that_many_ranks_had_saved_it(
    tmp_path: Path, family: str, storage: str
) -> None:
    config = ALL[family]
    sizes = {size for move in MOVES[storage] for size in move}
    fleets = {size: fleet(config, size, storage) for size in sorted(sizes)}
    roots = {size: save(caches, tmp_path / f"{size}") for size, caches in fleets.items()}
    for before, after in MOVES[storage]:
        loaded = [cache_of(config, after, storage) for _ in range(after)]
        assert load(from_config(config), roots[before], loaded) == COUNT
        assert_same(loaded, fleets[after], np.append(TOKENS, 5))  # going on
        assert_same(loaded, fleets[after], TOKENS)  # the same prompt again
        assert {cache.stats().open_sequences for cache in loaded} == {0}


@pytest.mark.parametrize("family", ["gqa", "gated delta net", "windows"])
@pytest.mark.parametrize(("before", "after"), [("f16", "int8"), ("int8", "f16"), ("bf16", "f32")])
def test_rows_are_converted_when_asked(
    tmp_path: Path, family: str, before: str, after: str
) -> None:
    config = ALL[family]
    saved = fleet(config, 2, before)
    root = save(saved, tmp_path / "p")
    cache = cache_of(config, 1, after)
    refused(cache, config, root, UnsupportedError, f"saved as {before}, .*convert=True")
    assert load(from_config(config), root, [cache], convert=True) == COUNT
    element = "float32" if after == "f32" else "float16"
    with ExitStack() as stack:
        got = stack.enter_context(cache.open(np.append(TOKENS, 5)))
        shares = [stack.enter_context(each.open(np.append(TOKENS, 5))) for each in saved]
        assert got.cached_tokens == COUNT
        layer = 1
        start = COUNT - 4
        for index in range(2):
            parts = [share.read(layer, start, COUNT, element)[index] for share in shares]
            rows = np.concatenate(parts, axis=1).astype("f")
            want = cache_rows(config, after, layer, rows)
            np.testing.assert_array_equal(got.read(layer, start, COUNT, "float32")[index], want)


def cache_rows(config: dict[str, Any], storage: str, layer: int, rows: Any) -> Any:
    """What a cache makes of rows."""
    with cache_of(config, 1, storage).open(np.arange(len(rows))) as sequence:
        sequence.write(layer, 0, rows, rows)
        return sequence.read(layer, 0, len(rows), "float32")[0]


@pytest.mark.parametrize("family", ["gqa", "gated delta net", "windows", "only windows"])
@pytest.mark.parametrize("blocks", [1, 3, 16])
def test_blocks_of_another_size_and_every_prompt_are_served_truly(
    tmp_path: Path, family: str, blocks: int
) -> None:
    config = ALL[family]
    root = save(fleet(config, 2), tmp_path / "p")
    cache = cache_of(config, block_tokens=blocks)
    load(from_config(config), root, [cache])
    for length in range(1, COUNT + 1):
        prompt = np.append(TOKENS[:length], 5)
        with cache.open(prompt) as got, cache_of(config).open(TOKENS) as want:
            hit = got.cached_tokens
            for stop in [*range(STEP, hit, STEP), hit] if hit else []:
                grow(want, stop)
            for (name, one), (_, two) in zip(contents(got), contents(want), strict=True):
                if hit:
                    np.testing.assert_array_equal(one, two, f"{name} at {hit}")


def test_one_rank_is_filled_by_itself_from_what_it_needs(tmp_path: Path) -> None:
    config = CONFIGS["gqa"]
    root = save(fleet(config, 4), tmp_path / "p")
    expected = fleet(config, 8)
    folders = [rank_directory(root, 4, rank) for rank in range(4)]
    for rank in (5, 0):
        loaded = cache_of(config, 8)
        assert load(from_config(config), folders, [loaded], ranks=[rank], world_size=8) == COUNT
        assert_same([loaded], [expected[rank]], np.append(TOKENS, 5))
    # What other ranks hold is not read: their bytes may be wrong.
    damage(folders[0])
    loaded = cache_of(config, 8)
    assert load(from_config(config), folders, [loaded], ranks=[5], world_size=8) == COUNT
    both = [cache_of(config, 8), cache_of(config, 8)]
    with pytest.raises(CorruptionError, match="rank-00000"):
        load(from_config(config), folders, both, ranks=[5, 1], world_size=8)
    assert {cache.stats().pages for cache in both} == {0}


def damage(folder: Path) -> None:
    shard = generation(folder) / "state.safetensors"
    put_byte(shard, shard.stat().st_size - 1, 77)


def test_live_ranks_are_filled_by_themselves_too() -> None:
    config, model = CONFIGS["gated delta net"], from_config(CONFIGS["gated delta net"])
    with ExitStack() as stack:
        whole = stack.enter_context(cache_of(config).open(TOKENS))
        grow(whole, COUNT)
        one = stack.enter_context(cache_of(config, 4).open(TOKENS))
        reshard(model, [whole], [one], ranks=[2], world_size=4)
        all_ranks = [stack.enter_context(cache_of(config, 4).open(TOKENS)) for _ in range(4)]
        reshard(model, [whole], all_ranks)
        for (_, got), (_, want) in zip(contents(one), contents(all_ranks[2]), strict=True):
            np.testing.assert_array_equal(got, want)
        for match, options in {
            "of the 4 ranks of world_size": {"world_size": 4},
            "world_size: expected how many": {"ranks": [2]},
            "expected 1 different ones": {"ranks": [1, 2], "world_size": 4},
            "ranks: must be 0..3": {"ranks": [4], "world_size": 4},
            "ranks: expected a list": {"ranks": 2, "world_size": 4},
        }.items():
            with pytest.raises(InvalidArgumentError, match=match):
                reshard(model, [whole], [one], **options)  # type: ignore[arg-type]


def test_namespace_adapter_salt_weights_media_and_ttl(tmp_path: Path) -> None:
    config = CONFIGS["gated delta net"]
    space = {"namespace": "n", "adapter": "a", "salt": b"s", "media": [(2, 3, b"image")]}
    root = save(fleet(config, 2, weights="w", **space), tmp_path / "p", **space)
    cache = cache_of(config, weights="w")
    for wrong in ({}, space | {"salt": b"t"}, space | {"media": []}):
        refused(cache, config, root, UnsupportedError, "another namespace", weights="w", **wrong)
    refused(cache, config, root, UnsupportedError, "another namespace", **space)
    load(from_config(config), root, [cache], weights="w", ttl=60, **space)
    prompt = np.append(TOKENS, 5)
    with cache.open(prompt, **space) as hit, cache.open(prompt) as miss:
        assert (hit.cached_tokens, miss.cached_tokens) == (COUNT, 0)


# ---- What is refused --------------------------------------------------------------------------


def refused(
    cache: Cache,
    config: dict[str, Any],
    paths: Any,
    error: type[KVCacheError],
    match: str,
    **options: Any,
) -> None:
    before = cache.stats()
    with pytest.raises(error, match=match):
        load(from_config(config), paths, [cache], **options)
    assert cache.stats() == before


def test_ranks_in_another_order_or_number_are_told(tmp_path: Path) -> None:
    config = CONFIGS["gqa"]
    root = save(fleet(config, 2), tmp_path / "p")
    cache = cache_of(config)
    zero, one = (rank_directory(root, 2, rank) for rank in range(2))
    for paths, match in (
        ([one, zero], r"paths\[0\]: rank-00001-of-00002 is in the place of rank 0 of 2"),
        ([zero], "is in the place of rank 0 of 1"),
        ([zero, one, one], "is in the place of rank 0 of 3"),
        ([], "expected a directory for each rank"),
        (7, "expected a directory for each rank"),
        ([None], "expected a path"),
    ):
        refused(cache, config, paths, InvalidArgumentError, match)
    other = tmp_path / "unnamed"
    zero.rename(other)
    refused(cache, config, [other], InvalidArgumentError, "each is of one of 2 ranks, got 1")
    same = r"paths\[1\]: is the directory of paths\[0\]"
    refused(cache, config, [other, other], InvalidArgumentError, same)
    refused(cache, config, root, InvalidArgumentError, "lacks 1 of 2 ranks: 0")
    rank_directory(root, 3, 0).mkdir()
    refused(cache, config, root, InvalidArgumentError, r"holds ranks of \[2, 3\]")
    refused(cache, config, tmp_path, InvalidArgumentError, "holds no directory of a rank")
    refused(cache, config, tmp_path / "absent", NotFoundError, "absent")
    link = tmp_path / "link"
    link.symlink_to(other)
    refused(cache, config, [other, link], InvalidArgumentError, same)
    assert load(from_config(config), [other, one], [cache]) == COUNT


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (["rank-00000-of-00000"], "no directory of a rank"),
        (["rank-00003-of-00002"], "no directory of a rank"),
        (["rank-\u0660\u0660\u0660\u0660\u0660-of-00001"], "no directory of a rank"),
        (["rank-00001-of-99999"], "lacks 99998 of 99999 ranks: 0, 2, 3, 4, 5, 6, 7, 8, ...$"),
    ],
)
def test_names_that_no_rank_has_are_passed_over(
    tmp_path: Path, names: list[str], match: str
) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    refused(cache_of(CONFIGS["gqa"]), CONFIGS["gqa"], tmp_path, InvalidArgumentError, match)


def test_a_root_in_bytes_is_one_root(tmp_path: Path) -> None:
    root = save(fleet(CONFIGS["gqa"], 2), tmp_path / "p")
    assert load(from_config(CONFIGS["gqa"]), os.fsencode(root), [cache_of(CONFIGS["gqa"])]) == COUNT
    for wrong in (5, None):
        with pytest.raises(InvalidArgumentError, match="media"):
            load(from_config(CONFIGS["gqa"]), root, [cache_of(CONFIGS["gqa"])], media=wrong)


def test_ranks_with_different_prefixes_are_told(tmp_path: Path) -> None:
    config = CONFIGS["gated delta net"]
    first = save(fleet(config, 2), tmp_path / "first")
    changed = TOKENS.copy()
    changed[3] += 1
    second = save(fleet(config, 2, tokens=changed), tmp_path / "second", changed)
    third = save(fleet(config, 2, tokens=TOKENS[:20]), tmp_path / "third", TOKENS[:20])
    fourth = save(fleet(config, 2, namespace="n"), tmp_path / "fourth", namespace="n")
    cache = cache_of(config)
    for other, match in ((second, "prefix"), (third, "prefix"), (fourth, "space")):
        paths = [rank_directory(first, 2, 0), rank_directory(other, 2, 1)]
        error = rf"paths\[1\]: its {match} is another than that of paths\[0\]"
        refused(cache, config, paths, InvalidArgumentError, error)


def test_another_model_or_format_and_wrong_caches_are_told(tmp_path: Path) -> None:
    config = CONFIGS["gqa"]
    root = save(fleet(config, 2), tmp_path / "p")
    model = from_config(config)
    refused(
        cache_of(config, storage="int8"), config, root, UnsupportedError, "saved as f16, .*conv"
    )
    wider = {**config, "head_dim": 16}
    refused(cache_of(wider), wider, root, UnsupportedError, "another model")
    refused(cache_of(DELTA), config, root, InvalidArgumentError, r"caches\[0\]: its plan is of")
    cache = cache_of(config)
    for call, match in (
        (lambda: load(model, root, []), "expected a cache for each rank"),
        (lambda: load(model, root, [cache, cache]), "each once"),
        (lambda: load(model, root, cache), "caches: expected a list"),
        (lambda: load(model, root, [None]), r"caches\[0\]"),
        (lambda: load(from_config(config, tp=2), root, [cache]), "got that of tp=2"),
        (lambda: load(None, root, [cache]), "model: expected what"),
        (
            lambda: load(model, root, [cache_of(config, 2), cache_of(config, 2, block_tokens=8)]),
            "block_tokens differ",
        ),
        (
            lambda: load(model, root, [cache_of(config, 2), cache_of(config, 2, "int8")]),
            "storage formats differ",
        ),
        (lambda: rank_directory("p", 2, 2), "rank: must be 0..1"),
        (lambda: rank_directory("p", 0, 0), "world_size"),
        (lambda: rank_directory(None, 1, 0), "path"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            call()
    assert cache.stats().pages == 0


def test_convolutions_of_unknown_streams_are_refused(tmp_path: Path) -> None:
    zaya = {**DENSE, "model_type": "zaya", "num_key_value_heads": 2, "cca_time0": 2, "cca_time1": 2}
    cache = cache_of(zaya, 2)
    refused(cache, zaya, tmp_path, UnsupportedError, "belong together", ranks=[0], world_size=2)


def test_damage_anywhere_leaves_every_cache_as_it_was(tmp_path: Path) -> None:
    config = CONFIGS["gated delta net"]
    root = save(fleet(config, 2), tmp_path / "p")
    folder = rank_directory(root, 2, 1)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        raw = file.read_bytes()
        for at in (0, len(raw) // 2, len(raw) - 1):
            put_byte(file, at, raw[at] ^ 3)
            caches = [cache_of(config, 4) for _ in range(4)]
            with pytest.raises(CorruptionError):
                load(from_config(config), root, caches)
            assert {cache.stats().pages for cache in caches} == {0}
            put_byte(file, at, raw[at])
        file.unlink()
        with pytest.raises(KVCacheError):
            load(from_config(config), root, [cache_of(config)])
        file.write_bytes(raw)
    assert load(from_config(config), root, [cache_of(config)]) == COUNT


def test_without_room_in_one_cache_no_cache_keeps_any(tmp_path: Path) -> None:
    config = CONFIGS["gqa"]
    tokens = np.arange(2000, dtype=np.int32)
    model: Model = from_config(config)
    caches = [cache_of(config, 2, memory="4MiB") for _ in range(2)]
    with ExitStack() as stack:
        whole = stack.enter_context(cache_of(config, memory="16MiB").open(tokens))
        for layer in range(2):
            rows = np.ones((2000, 8, 8), "f2")
            whole.write(layer, 0, rows, rows)
        whole.advance(2000)
        shares = [stack.enter_context(cache.open(tokens)) for cache in caches]
        reshard(model, [whole], shares)
        for share in shares:
            share.publish()
    root = save(caches, tmp_path / "p", tokens)
    loaded = [cache_of(config, 2, memory="1MiB"), cache_of(config, 2, memory="256KiB")]
    with pytest.raises(OutOfCapacityError, match="raise the plan's memory"):
        load(model, root, loaded)
    loaded[1] = cache_of(config, 2, memory="768KiB")
    with loaded[1].open(np.arange(1500)) as held:
        held_rows = np.ones((1500, 4, 8), "f2")
        for layer in range(2):
            held.write(layer, 0, held_rows, held_rows)
        held.advance(1500)
        with pytest.raises(OutOfCapacityError):
            load(model, root, loaded)
    assert {cache.stats().open_sequences for cache in loaded} == {0}
    assert {cache.stats().pages for cache in loaded} == {0}
    assert load(model, root, loaded) == 2000


@pytest.mark.parametrize("known", [7, COUNT - 1, COUNT])
def test_what_is_known_in_part_is_completed(tmp_path: Path, known: int) -> None:
    for family in ("gqa", "gated delta net", "windows"):
        config = ALL[family]
        root = save(fleet(config, 2), tmp_path / family)
        loaded = fleet(config, 4, tokens=TOKENS[:known])
        loaded[2] = cache_of(config, 4)
        load(from_config(config), root, loaded)
        assert_same(loaded, fleet(config, 4), np.append(TOKENS, 5))


def test_a_snapshot_that_is_not_exact_gives_way(tmp_path: Path) -> None:
    config = CONFIGS["gated delta net"]
    root = save(fleet(config, 2), tmp_path / "p")
    cache = cache_of(config)
    with cache.open(TOKENS) as sequence:
        grow(sequence, COUNT)
        sequence.snapshot("int8")
        sequence.publish()
    assert cache.explain(np.append(TOKENS, 5)).snapshot_format == kvcache.SnapshotFormat.INT8
    load(from_config(config), root, [cache])
    assert_same([cache], fleet(config, 1), np.append(TOKENS, 5))
