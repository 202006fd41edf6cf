"""Cache.save and Cache.load: what comes back, whose it is, which files, at the same time."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.filled import MODELS, attention, check, fill, make_cache, prompt, run
from support.native import ROOT
from support.saved import files_of, generation, manifest, saved

import kvcache
from kvcache.errors import (
    InvalidArgumentError,
    KVCacheError,
    NotFoundError,
    OutOfCapacityError,
    UnsupportedError,
)

# ---- Round trips ----------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("length", [1, 2, 21, 24, 90])
def test_a_loaded_prefix_is_what_was_saved(tmp_path: Path, model: str, length: int) -> None:
    tokens = prompt(length)
    cache = make_cache(model)
    fill(cache, tokens, [length])
    assert cache.save(tmp_path / "p", tokens) == length
    fresh = make_cache(model)
    assert fresh.load(tmp_path / "p") == length
    longer = np.append(tokens, 5)
    assert check(fresh, longer) == length
    assert fresh.stats().open_sequences == 0


@pytest.mark.parametrize("model", ["attention", "int8"])
def test_a_large_prefix_is_read_by_many_threads(tmp_path: Path, model: str) -> None:
    tokens = prompt(150_000)  # at least 4 MiB for each of several threads
    cache = make_cache(model, memory="64MiB", block_tokens=64)
    fill(cache, tokens, [len(tokens)])
    cache.save(tmp_path / "p", tokens)
    for threads in (1, 2, 3, 64):
        fresh = make_cache(model, memory="64MiB", block_tokens=16)
        assert fresh.load(tmp_path / "p", read_threads=threads) == len(tokens)
        assert check(fresh, np.append(tokens, 5)) == len(tokens)


@pytest.mark.parametrize("threads", [0, 65, -1, True, 1.5])
def test_threads_out_of_range_are_refused(tmp_path: Path, threads: Any) -> None:
    saved(tmp_path / "p")
    with pytest.raises(InvalidArgumentError, match="read_threads"):
        make_cache("hybrid").load(tmp_path / "p", read_threads=threads)


@pytest.mark.parametrize("model", MODELS)
def test_the_same_prompt_hits_up_to_its_last_token_after_a_restart(
    tmp_path: Path, model: str
) -> None:
    tokens = prompt(40)
    cache = make_cache(model)
    fill(cache, tokens)
    cache.save(tmp_path / "p", tokens)
    fresh = make_cache(model)
    fresh.load(tmp_path / "p")
    assert check(fresh, tokens) == check(cache, tokens) == 39
    assert check(fresh, np.append(tokens, 5)) == 40


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("blocks", [(4, 1), (4, 16), (16, 4), (5, 7), (7, 5), (4, 64), (3, 250)])
def test_a_prefix_moves_to_blocks_of_another_size(
    tmp_path: Path, model: str, blocks: tuple[int, int]
) -> None:
    tokens = prompt(300)
    cache = make_cache(model, block_tokens=blocks[0])
    fill(cache, tokens)
    cache.save(tmp_path / "p", tokens)
    fresh = make_cache(model, block_tokens=blocks[1])
    assert fresh.load(tmp_path / "p") == 300
    assert check(fresh, np.append(tokens, 5)) == 300
    assert check(fresh, tokens) == 299
    assert fresh.save(tmp_path / "again", tokens) == 300


def test_rows_that_cannot_fill_the_first_page_of_a_window_are_refused(tmp_path: Path) -> None:
    tokens = prompt(700)
    cache = make_cache("sliding")
    fill(cache, tokens)
    cache.save(tmp_path / "p", tokens)
    starts = [group["start"] for group in manifest(tmp_path / "p")["groups"]]
    assert starts == [0, 436]  # 700 - (7 - 1), less 256, at a block of 4
    fresh = make_cache("sliding", block_tokens=400)
    with pytest.raises(UnsupportedError, match="lower block_tokens"):
        fresh.load(tmp_path / "p")
    assert fresh.stats().pages == 0


def test_a_sequence_goes_on_from_a_loaded_prefix(tmp_path: Path) -> None:
    tokens = prompt(60)
    for model in MODELS:
        cache = make_cache(model)
        fill(cache, tokens[:30])
        cache.save(tmp_path / model, tokens[:30])
        fresh = make_cache(model, block_tokens=8)
        fresh.load(tmp_path / model)
        with fresh.open(tokens) as sequence:
            assert sequence.cached_tokens == 30
            run(fresh, sequence, [45, 60])
        assert check(fresh, np.append(tokens, 5)) == 60


def test_the_longest_usable_prefix_is_saved(tmp_path: Path) -> None:
    tokens = prompt(50)
    cache = make_cache("hybrid")
    with cache.open(tokens) as sequence:
        run(cache, sequence, [13, 27])
    assert cache.save(tmp_path / "p", tokens) == 27
    assert cache.save(tmp_path / "q", tokens[:20]) == 13
    fresh = make_cache("hybrid")
    assert fresh.load(tmp_path / "p") == 27
    assert check(fresh, tokens) == 27


def test_nothing_usable_is_not_found(tmp_path: Path) -> None:
    cache = make_cache("hybrid")
    fill(cache, prompt(20))
    with pytest.raises(NotFoundError, match="no prefix of these 20 tokens"):
        cache.save(tmp_path / "p", prompt(20, seed=1))
    assert list(tmp_path.iterdir()) == []


def test_loading_twice_takes_nothing_more(tmp_path: Path) -> None:
    saved(tmp_path / "p")
    fresh = make_cache("hybrid")
    fresh.load(tmp_path / "p")
    before = fresh.stats()
    assert fresh.load(tmp_path / "p") == 22
    assert fresh.stats() == before


def test_loading_what_is_known_in_part_completes_it(tmp_path: Path) -> None:
    tokens = prompt(40)
    for model in MODELS:
        cache = make_cache(model)
        fill(cache, tokens)
        cache.save(tmp_path / model, tokens)
        for known in (3, 8, 17, 40):
            other = make_cache(model)
            fill(other, tokens[:known])
            fill(other, np.concatenate([tokens[:5], prompt(9, seed=3)]))
            assert other.load(tmp_path / model) == 40
            assert check(other, np.append(tokens, 5)) == 40


def test_a_new_process_goes_on(tmp_path: Path) -> None:
    saved(tmp_path / "p", "hybrid with windows", 37)
    code = (
        "import sys; sys.path.insert(0, sys.argv[2]); import numpy as np\n"
        "from support.filled import check, make_cache, prompt\n"
        "cache = make_cache('hybrid with windows', block_tokens=8)\n"
        "assert cache.load(sys.argv[1]) == 37\n"
        "assert check(cache, np.append(prompt(37), 5)) == 37\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, tmp_path / "p", ROOT / "tests"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_loading_evicts_what_it_must(tmp_path: Path) -> None:
    tokens = prompt(600)
    cache = make_cache("hybrid", memory="512KiB")
    fill(cache, tokens)
    cache.save(tmp_path / "p", tokens)
    for seed in range(1, 30):
        fill(cache, prompt(600, seed=seed))
    assert cache.stats().evicted_blocks > 0
    assert check(cache, tokens) < 599
    assert cache.load(tmp_path / "p") == 600
    assert check(cache, tokens) == 599
    assert cache.stats().committed_bytes <= cache.stats().budget_bytes


def test_a_prefix_larger_than_the_memory_is_refused_before_eviction(tmp_path: Path) -> None:
    saved(tmp_path / "p", "attention", 4000)
    small = make_cache("attention", memory="256KiB")
    fill(small, prompt(100, seed=4))
    before = small.stats()
    with pytest.raises(OutOfCapacityError, match="raise the plan's memory"):
        small.load(tmp_path / "p")
    assert small.stats() == before


def test_what_sequences_hold_leaves_no_room_and_nothing_is_kept(tmp_path: Path) -> None:
    saved(tmp_path / "p", "attention", 1200)
    cache = make_cache("attention", memory="256KiB")
    held = cache.open(prompt(1500, seed=4))
    run(cache, held, [1500])
    pages = cache.stats().pages
    with pytest.raises(OutOfCapacityError):
        cache.load(tmp_path / "p")
    assert cache.stats().pages == pages
    held.close()
    assert cache.load(tmp_path / "p") == 1200


# ---- Whose prefix ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "space",
    [{"namespace": "other"}, {"adapter": "lora"}, {"adapter": ("lora", "2")}, {"salt": b"s"}],
)
def test_namespace_adapter_and_salt_must_be_those_it_was_saved_with(
    tmp_path: Path, space: dict[str, Any]
) -> None:
    cache = make_cache("attention")
    fill(cache, prompt(20), **space)
    with pytest.raises(NotFoundError):
        cache.save(tmp_path / "p", prompt(20))
    cache.save(tmp_path / "p", prompt(20), **space)
    fresh = make_cache("attention")
    with pytest.raises(UnsupportedError, match="another namespace, adapter or salt"):
        fresh.load(tmp_path / "p")
    assert fresh.load(tmp_path / "p", **space) == 20
    assert check(fresh, np.append(prompt(20), 5), **space) == 20
    assert check(fresh, np.append(prompt(20), 5)) == 0


def test_another_model_is_unsupported(tmp_path: Path) -> None:
    saved(tmp_path / "p", "attention")
    for model in ("sliding", "mla", "hybrid"):
        cache = make_cache(model)
        with pytest.raises(UnsupportedError, match="another model or storage format"):
            cache.load(tmp_path / "p")
        assert cache.stats().pages == 0


def test_a_ledger_has_no_bytes_to_save_or_load(tmp_path: Path) -> None:
    saved(tmp_path / "p", "attention")
    ledger = make_cache("attention", backing=False)
    with pytest.raises(UnsupportedError, match="ledger"):
        ledger.save(tmp_path / "q", prompt(22))
    with pytest.raises(UnsupportedError, match="ledger"):
        ledger.load(tmp_path / "p")


# ---- The files ------------------------------------------------------------------------------


def test_other_tools_read_the_shards(tmp_path: Path) -> None:
    numpy_tools = pytest.importorskip("safetensors.numpy")
    tokens = prompt(22)
    saved(tmp_path / "p", "hybrid with windows")
    folder = generation(tmp_path / "p")
    assert [file.name for file in folder.glob("*.safetensors")] == ["state.safetensors"]
    read = numpy_tools.load_file(folder / "state.safetensors")
    assert np.array_equal(read["tokens"], tokens)
    assert read["layers.1.attention.keys"].shape == (22, 2, 8)
    assert read["layers.1.attention.keys"].dtype == np.int8
    assert read["layers.1.attention.keys.scales"].shape == (22, 2)
    fresh = make_cache("hybrid with windows")
    fresh.load(tmp_path / "p")
    with fresh.open(np.append(tokens, 5)) as sequence:
        keys, values = sequence.read(2, 0, 22)
        assert np.array_equal(read["layers.2.attention.keys"], keys)
        assert np.array_equal(read["layers.2.attention.values"], values)
        state = read["layers.0.state.recurrent"]
        assert state.shape == (2, 2, 3, 4)  # at 21 and at 22
        assert np.array_equal(state[1], sequence.state(0, "state.recurrent"))


def test_the_manifest_says_what_is_stored(tmp_path: Path) -> None:
    saved(tmp_path / "p", "hybrid with windows")
    found = manifest(tmp_path / "p")
    assert found["format"] == "kvcache-prompt-cache"
    assert found["version"] == 2
    assert found["fingerprint"] == make_cache("hybrid with windows").plan.fingerprint
    assert found["tokens"] == 22
    assert found["prefix_sha256"] == hashlib.sha256(prompt(22).tobytes()).hexdigest()
    assert found["block_tokens"] == 4
    assert found["snapshots"] == [21, 22]
    for shard in found["shards"]:
        assert (generation(tmp_path / "p") / shard["file"]).stat().st_size == shard["bytes"]


def test_an_existing_destination_is_an_error_without_replace(tmp_path: Path) -> None:
    cache = make_cache("hybrid")
    fill(cache, prompt(22))
    for path in (tmp_path / "file", tmp_path / "folder"):
        (path.mkdir if path.name == "folder" else path.touch)()
        for replace in (False, True):
            with pytest.raises(InvalidArgumentError, match=re.escape(str(path))):
                cache.save(path, prompt(22), replace=replace)
    saved(tmp_path / "p")
    before = {file: file.read_bytes() for file in files_of(tmp_path / "p")}
    with pytest.raises(InvalidArgumentError, match="exists"):
        cache.save(tmp_path / "p", prompt(22))
    assert {file: file.read_bytes() for file in files_of(tmp_path / "p")} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "p"]


def test_replace_swaps_and_removes_the_old_generation(tmp_path: Path) -> None:
    saved(tmp_path / "p")
    old = generation(tmp_path / "p")
    cache = make_cache("hybrid")
    fill(cache, prompt(35, seed=2))
    assert cache.save(tmp_path / "p", prompt(35, seed=2), replace=True) == 35
    assert not old.exists()
    assert [path.name for path in (tmp_path / "p" / ".generations").iterdir()] == [
        generation(tmp_path / "p").name
    ]
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == [".generations", "CURRENT"]
    fresh = make_cache("hybrid")
    assert fresh.load(tmp_path / "p") == 35
    assert cache.save(tmp_path / "new", prompt(35, seed=2), replace=True) == 35


@pytest.mark.parametrize("path", ["", ".", "..", "/", "p/..", "a\0b"])
def test_a_path_that_names_nothing_is_refused(tmp_path: Path, path: str) -> None:
    cache = make_cache("hybrid")
    fill(cache, prompt(22))
    with pytest.raises(KVCacheError):
        cache.save(path, prompt(22))
    with pytest.raises(InvalidArgumentError):
        cache.save(7, prompt(22))
    with pytest.raises(InvalidArgumentError):
        cache.load(None)


# ---- At the same time -----------------------------------------------------------------------


def test_saves_and_loads_run_beside_writing_sequences(tmp_path: Path) -> None:
    cache = make_cache("hybrid with windows", memory="256KiB", sequences=8)
    tokens = prompt(120)
    fill(cache, tokens)
    errors: list[BaseException] = []
    stop = threading.Event()

    def work(body: Callable[[int], object]) -> None:
        turn = 0
        try:
            while not stop.is_set():
                body(turn)
                turn += 1
        except BaseException as error:
            errors.append(error)

    def write(turn: int) -> None:
        branch = np.concatenate([tokens[:100], prompt(40, seed=turn)])
        with cache.open(branch) as sequence:
            run(cache, sequence, [stop for stop in (110, 140) if stop > sequence.length])

    threads = [
        threading.Thread(target=work, args=(body,))
        for body in (write, lambda turn: write(turn + 1000), lambda _: check(cache, tokens))
    ]
    for thread in threads:
        thread.start()
    for turn in range(20):
        path = tmp_path / f"p{turn % 3}"
        try:
            length = cache.save(path, tokens, replace=True)
        except NotFoundError:  # evicted by the writers
            continue
        fresh = make_cache("hybrid with windows", block_tokens=8)
        assert fresh.load(path) == length
        assert check(fresh, np.append(tokens, 5)) == length
        cache.load(path)
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors


def test_readers_see_one_generation_or_the_other_while_it_is_replaced(tmp_path: Path) -> None:
    lengths = (22, 30)
    caches = []
    for length in lengths:
        cache = make_cache("hybrid")
        fill(cache, prompt(length, seed=length))
        caches.append(cache)
    caches[0].save(tmp_path / "p", prompt(22, seed=22))
    stop = threading.Event()
    errors: list[BaseException] = []

    def replace(index: int) -> None:
        try:
            while not stop.is_set():
                caches[index].save(
                    tmp_path / "p", prompt(lengths[index], seed=lengths[index]), replace=True
                )
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=replace, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    seen = set()
    for _ in range(150):
        fresh = make_cache("hybrid")
        length = fresh.load(tmp_path / "p")
        assert check(fresh, np.append(prompt(length, seed=length), 5)) == length
        seen.add(length)
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert seen <= set(lengths)
    assert len(list((tmp_path / "p" / ".generations").iterdir())) == 1


# ---- For ever -------------------------------------------------------------------------------

GOLDEN = ROOT / "tests" / "golden"


@pytest.mark.parametrize("model", ["hybrid with windows", "mla"])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_files_of_every_version_are_read_for_ever(model: str, version: str) -> None:
    for block_tokens in (4, 16):
        cache = make_cache(model, block_tokens=block_tokens)
        assert cache.load(GOLDEN / version / model.replace(" ", "-")) == 37
        assert check(cache, np.append(prompt(37), 5)) == 37
        assert check(cache, prompt(37)) == 36


def test_what_is_saved_without_waiting_for_the_disk_is_the_same(tmp_path: Path) -> None:
    cache = make_cache("hybrid")
    fill(cache, prompt(22))
    for replace in (False, True):
        assert cache.save(tmp_path / "p", prompt(22), replace=replace, durable=False) == 22
        fresh = make_cache("hybrid")
        assert fresh.load(tmp_path / "p") == 22
        assert check(fresh, np.append(prompt(22), 5)) == 22


def test_component_names_that_files_cannot_tell_apart_are_unsupported(tmp_path: Path) -> None:
    keys, values = attention(0, int8=True)
    clash = dataclasses.replace(values, component="attention.keys.scales")
    plan = kvcache.StatePlan([keys, clash], memory="1MiB")
    cache = kvcache.Cache(plan)
    with cache.open(prompt(4)) as sequence:
        sequence.write(0, 0, np.ones((4, 2, 8), "f4"), np.ones((4, 2, 8), "f4"))
        sequence.advance(4)
        sequence.publish()
    with pytest.raises(UnsupportedError, match="two arrays"):
        cache.save(tmp_path / "p", prompt(4))
    assert list(tmp_path.iterdir()) == []
