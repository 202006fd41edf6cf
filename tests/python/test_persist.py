"""Cache.save and Cache.load: round trips, refusals, publication."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.filled import MODELS, attention, check, fill, make_cache, prompt, run
from support.native import ROOT

import kvcache
from kvcache.errors import (
    CorruptionError,
    InvalidArgumentError,
    KVCacheError,
    KVCacheIOError,
    NotFoundError,
    OutOfCapacityError,
    UnsupportedError,
)


def saved(path: Path, model: str = "hybrid", length: int = 22, **options: Any) -> Path:
    cache = make_cache(model, **options)
    fill(cache, prompt(length))
    assert cache.save(path, prompt(length)) == length
    return path


def generation(path: Path) -> Path:
    return path / ".generations" / (path / "CURRENT").read_text().strip()


def manifest(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((generation(path) / "manifest.json").read_text())
    return found


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """A manifest changed by somebody who also renames its generation to match."""
    old = generation(path)
    content = json.loads((old / "manifest.json").read_text())
    change(content)
    rewrite_text(path, json.dumps(content).encode())


def rewrite_text(path: Path, text: bytes) -> None:
    old = generation(path)
    (old / "manifest.json").write_bytes(text)
    name = f"generation-1-{hashlib.sha256(text).hexdigest()}"
    old.rename(old.parent / name)
    (path / "CURRENT").write_text(name + "\n")


@pytest.fixture(scope="module")
def witness() -> Iterator[tuple[Any, Any]]:
    """A hybrid cache that holds another prompt, which no refused load may touch."""
    cache = make_cache("hybrid")
    fill(cache, prompt(30, seed=9))
    yield cache, cache.stats()
    assert check(cache, np.append(prompt(30, seed=9), 5)) == 30


def refused(witness: tuple[Any, Any], path: Path, error: type[Exception] | None = None) -> str:
    cache, before = witness
    with pytest.raises(error or CorruptionError) as caught:
        cache.load(path)
    assert cache.stats() == before
    return str(caught.value)


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
    with pytest.raises(NotFoundError, match="none|no prefix"):
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


def test_another_model_and_another_storage_are_unsupported(tmp_path: Path) -> None:
    saved(tmp_path / "p", "attention")
    for model in ("int8", "sliding", "mla", "hybrid"):
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
    names = sorted(file.name for file in folder.glob("*.safetensors"))
    assert names == [
        "layer-00000.safetensors",
        "layer-00001.safetensors",
        "layer-00002.safetensors",
        "tokens.safetensors",
    ]
    read = {name: numpy_tools.load_file(folder / name) for name in names}
    assert np.array_equal(read["tokens.safetensors"]["tokens"], tokens)
    layer = read["layer-00001.safetensors"]
    assert layer["layers.1.attention.keys"].shape == (22, 2, 8)
    assert layer["layers.1.attention.keys"].dtype == np.int8
    assert layer["layers.1.attention.keys.scales"].shape == (22, 2)
    fresh = make_cache("hybrid with windows")
    fresh.load(tmp_path / "p")
    with fresh.open(np.append(tokens, 5)) as sequence:
        keys, values = sequence.read(2, 0, 22)
        assert np.array_equal(read["layer-00002.safetensors"]["layers.2.attention.keys"], keys)
        assert np.array_equal(read["layer-00002.safetensors"]["layers.2.attention.values"], values)
        state = read["layer-00000.safetensors"]["layers.0.state.recurrent"]
        assert state.shape == (2, 2, 3, 4)  # at 21 and at 22
        assert np.array_equal(state[1], sequence.state(0, "state.recurrent"))


def test_the_manifest_says_what_is_stored(tmp_path: Path) -> None:
    saved(tmp_path / "p", "hybrid with windows")
    found = manifest(tmp_path / "p")
    assert found["format"] == "kvcache-prompt-cache"
    assert found["version"] == 1
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


# ---- Damage ---------------------------------------------------------------------------------


def test_any_flipped_byte_of_any_file_is_corruption_and_changes_nothing(
    tmp_path: Path, witness: tuple[Any, Any]
) -> None:
    saved(tmp_path / "p")
    count = 0
    for file in files_of(tmp_path / "p"):
        whole = file.read_bytes()
        step = 1 if len(whole) < 200 else 7
        for at in [*range(0, len(whole), step), len(whole) - 1]:
            damaged = bytearray(whole)
            damaged[at] ^= 1 << at % 8
            file.write_bytes(damaged)
            message = refused(witness, tmp_path / "p")
            # A name in CURRENT that is no longer that of a generation leads to a missing folder.
            assert str(tmp_path / "p") in message if file.name == "CURRENT" else file.name in message
            count += 1
        file.write_bytes(whole)
    assert count > 500
    assert make_cache("hybrid").load(tmp_path / "p") == 22


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 9, 40, -1])
def test_a_cut_or_longer_file_is_corruption_and_named(
    tmp_path: Path, witness: tuple[Any, Any], cut: int
) -> None:
    saved(tmp_path / "p")
    for file in files_of(tmp_path / "p"):
        whole = file.read_bytes()
        file.write_bytes(whole[:cut])
        assert str(file) in refused(witness, tmp_path / "p")
        for more in (b"\0", b"\n", whole):
            file.write_bytes(whole + more)
            assert str(file) in refused(witness, tmp_path / "p")
        file.write_bytes(whole)


def test_a_missing_or_swapped_file_is_corruption_and_named(
    tmp_path: Path, witness: tuple[Any, Any]
) -> None:
    saved(tmp_path / "p")
    files = files_of(tmp_path / "p")
    for file in files:
        away = tmp_path / "away"
        file.rename(away)
        assert file.name in refused(witness, tmp_path / "p")
        file.mkdir()
        assert file.name in refused(witness, tmp_path / "p")
        file.rmdir()
        away.rename(file)
    # Layers 0 and 2 have equal arrays under other names; layer 0 of another prompt has all equal.
    saved(tmp_path / "q")
    cache = make_cache("hybrid")
    fill(cache, prompt(22, seed=5))
    cache.save(tmp_path / "other", prompt(22, seed=5))
    for name in ("layer-00000.safetensors", "tokens.safetensors", "manifest.json"):
        mine, other = generation(tmp_path / "p") / name, generation(tmp_path / "other") / name
        whole = mine.read_bytes()
        shutil.copy(other, mine)
        assert name in refused(witness, tmp_path / "p")
        mine.write_bytes(whole)
    first, second = (generation(tmp_path / "p") / f"layer-0000{i}.safetensors" for i in (0, 2))
    whole = first.read_bytes()
    first.write_bytes(second.read_bytes())
    assert first.name in refused(witness, tmp_path / "p")
    first.write_bytes(whole)
    shutil.rmtree(generation(tmp_path / "p"))
    assert "missing" in refused(witness, tmp_path / "p")


def test_links_pipes_and_paths_that_lead_away_are_refused(
    tmp_path: Path, witness: tuple[Any, Any]
) -> None:
    saved(tmp_path / "p")
    for file in files_of(tmp_path / "p"):
        outside = tmp_path / "outside"
        file.rename(outside)
        file.symlink_to(outside)
        assert "symbolic link" in refused(witness, tmp_path / "p")
        file.unlink()
        os.mkfifo(file)
        assert "no regular file" in refused(witness, tmp_path / "p")
        file.unlink()
        outside.rename(file)
    for folder in (generation(tmp_path / "p"), tmp_path / "p" / ".generations"):
        outside = tmp_path / "outside"
        folder.rename(outside)
        folder.symlink_to(outside)
        refused(witness, tmp_path / "p")
        folder.unlink()
        outside.rename(folder)
    current = (tmp_path / "p" / "CURRENT").read_text()
    for name in ("..", ".", "", f"../.generations/{current.strip()}", f"/{tmp_path}", "a\\b"):
        (tmp_path / "p" / "CURRENT").write_text(name + "\n")
        assert "CURRENT" in refused(witness, tmp_path / "p")
    (tmp_path / "p" / "CURRENT").write_text(current)
    assert make_cache("hybrid").load(tmp_path / "p") == 22
    # The path that the caller gives may be a link.
    (tmp_path / "link").symlink_to(tmp_path / "p")
    assert make_cache("hybrid").load(tmp_path / "link") == 22


LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "huge tokens": lambda m: m.update(tokens=2**60),
    "tokens beyond 64 bits": lambda m: m.update(tokens=2**64),
    "no tokens": lambda m: m.update(tokens=0),
    "negative tokens": lambda m: m.update(tokens=-1),
    "fewer tokens": lambda m: m.update(tokens=21, snapshots=[21]),
    "fractional tokens": lambda m: m.update(tokens=22.0),
    "tokens as text": lambda m: m.update(tokens="22"),
    "no groups": lambda m: m.update(groups=[]),
    "late start": lambda m: m["groups"][0].update(start=1),
    "huge start": lambda m: m["groups"][0].update(start=2**63),
    "another window": lambda m: m["groups"][0].update(window=7),
    "another storage": lambda m: m["groups"][0].update(storage="int8"),
    "no snapshot": lambda m: m.update(snapshots=[]),
    "snapshot beyond the end": lambda m: m.update(snapshots=[22, 23]),
    "snapshots out of order": lambda m: m.update(snapshots=[22, 21]),
    "the same snapshot twice": lambda m: m.update(snapshots=[22, 22]),
    "more snapshots": lambda m: m.update(snapshots=list(range(1, 23))),
    "a shard less": lambda m: m["shards"].pop(),
    "a shard more": lambda m: m["shards"].append(m["shards"][0]),
    "huge shard": lambda m: m["shards"][0].update(bytes=2**60),
    "escaping shard": lambda m: m["shards"][0].update(file="../../CURRENT"),
    "absolute shard": lambda m: m["shards"][0].update(file="/etc/passwd"),
    "wrong checksum": lambda m: m["shards"][1].update(crc32c=1),
    "checksum beyond 32 bits": lambda m: m["shards"][1].update(crc32c=2**32),
    "other tokens": lambda m: m.update(prefix_sha256="0" * 64),
    "shards as text": lambda m: m.update(shards="x"),
    "shards of text": lambda m: m.update(shards=["x"] * 4),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_manifest_is_refused_even_where_its_digest_is_right(
    tmp_path: Path, witness: tuple[Any, Any], lie: str
) -> None:
    rewrite(saved(tmp_path / "p"), LIES[lie])
    refused(witness, tmp_path / "p")


@pytest.mark.parametrize("key", ["format", "version", "tokens", "groups", "shards", "fingerprint"])
def test_a_manifest_without_a_member_is_refused_and_the_member_named(
    tmp_path: Path, witness: tuple[Any, Any], key: str
) -> None:
    rewrite(saved(tmp_path / "p"), lambda found: found.pop(key))
    assert f"{key}: expected" in refused(witness, tmp_path / "p")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b"\xff",
        b'{"format": "a", "format": "a"}',
        b'{"format": "\xed\xa0\x80"}',
        b'{"a": 1e5, "b": 01}',
        b"[" * 100_000,
        b'{"a": ' * 50 + b"1" + b"}" * 50,
        b'{"a": ' + b"9" * 1000 + b"}",
        b"[" + b"0," * 400_000 + b"0]",
        b'{"format": "kvcache-prompt-cache", "version": 1} x',
        b'{"a": "\\ud800"}',
    ],
)
def test_a_manifest_that_is_no_json_is_refused(
    tmp_path: Path, witness: tuple[Any, Any], text: bytes
) -> None:
    rewrite_text(saved(tmp_path / "p"), text)
    assert "manifest.json" in refused(witness, tmp_path / "p")


def test_a_huge_manifest_and_a_huge_header_are_refused_at_once(
    tmp_path: Path, witness: tuple[Any, Any]
) -> None:
    saved(tmp_path / "p")
    path = generation(tmp_path / "p") / "manifest.json"
    whole = path.read_bytes()
    os.truncate(path, 2**30)
    assert "1073741824 bytes" in refused(witness, tmp_path / "p")
    path.write_bytes(whole)
    shard = generation(tmp_path / "p") / "layer-00001.safetensors"
    whole = shard.read_bytes()
    for length in (0, 2**20 + 1, 2**60, 2**64 - 1, len(whole)):
        shard.write_bytes(length.to_bytes(8, "little") + whole[8:])
        assert f"a header of {length} bytes" in refused(witness, tmp_path / "p")


def test_a_later_format_is_unsupported(tmp_path: Path, witness: tuple[Any, Any]) -> None:
    rewrite(saved(tmp_path / "p"), lambda found: found.update(version=2, tokens="?"))
    assert "version 2" in refused(witness, tmp_path / "p", UnsupportedError)
    rewrite(saved(tmp_path / "q"), lambda found: found.update(format="other"))
    refused(witness, tmp_path / "q", UnsupportedError)


def test_unknown_members_of_a_manifest_are_ignored(tmp_path: Path) -> None:
    rewrite(saved(tmp_path / "p"), lambda found: found.update(extra=[{"a": None}, 1.5, True]))
    assert make_cache("hybrid").load(tmp_path / "p") == 22


def test_a_folder_or_file_that_is_no_prompt_cache(
    tmp_path: Path, witness: tuple[Any, Any]
) -> None:
    assert "CURRENT" in refused(witness, tmp_path)
    (tmp_path / "file").touch()
    assert "file" in refused(witness, tmp_path / "file")
    missing = refused(witness, tmp_path / "missing", KVCacheIOError)
    assert str(tmp_path / "missing") in missing


# ---- A system that refuses ------------------------------------------------------------------


def test_a_parent_that_is_missing_is_an_io_error_with_the_path(tmp_path: Path) -> None:
    cache = make_cache("hybrid")
    fill(cache, prompt(22))
    with pytest.raises(KVCacheIOError, match=re.escape(str(tmp_path / "no"))):
        cache.save(tmp_path / "no" / "p", prompt(22))
    with pytest.raises(KVCacheIOError, match="/proc"):
        cache.save("/proc/p", prompt(22))


FULL = """
import resource, signal, sys
sys.path.insert(0, sys.argv[2])
from support.filled import check, fill, make_cache, prompt
from kvcache.errors import KVCacheIOError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
cache = make_cache("hybrid")
fill(cache, prompt(60))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    cache.save(sys.argv[1], prompt(60), replace=True)
except KVCacheIOError as error:
    assert "cannot write" in str(error), error
else:
    raise SystemExit("not refused")
assert check(cache, prompt(60)) == 59
"""


@pytest.mark.parametrize("limit", [0, 100, 1000, 3000])
@pytest.mark.parametrize("replace", [False, True])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, limit: int, replace: bool) -> None:
    if replace:
        saved(tmp_path / "p")
    before = {file: file.read_bytes() for file in files_of(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", FULL, tmp_path / "p", ROOT / "tests", str(limit)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert {file: file.read_bytes() for file in files_of(tmp_path)} == before
    assert not [path for path in tmp_path.rglob("*tmp*")]


def test_no_descriptor_left_is_an_io_error_and_changes_nothing(
    tmp_path: Path, witness: tuple[Any, Any]
) -> None:
    saved(tmp_path / "p")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        for free in range(6):  # of the seven that a load needs
            assert "Too many open files" in refused(witness, tmp_path / "p", KVCacheIOError), free
            os.close(held.pop())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)
    assert make_cache("hybrid").load(tmp_path / "p") == 22


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

GOLDEN = ROOT / "tests" / "golden" / "v1"


@pytest.mark.parametrize("model", ["hybrid with windows", "mla"])
def test_files_of_version_1_are_read_for_ever(model: str) -> None:
    for block_tokens in (4, 16):
        cache = make_cache(model, block_tokens=block_tokens)
        assert cache.load(GOLDEN / model.replace(" ", "-")) == 37
        assert check(cache, np.append(prompt(37), 5)) == 37
        assert check(cache, prompt(37)) == 36


def test_component_names_that_files_cannot_tell_apart_are_unsupported(tmp_path: Path) -> None:
    import dataclasses

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
