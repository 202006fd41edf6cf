"""Cache.load refuses whatever is not whole; Cache.save leaves what was there when it fails."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.filled import check, fill, make_cache, prompt
from support.native import ROOT
from support.saved import files_of, generation, put_byte, saved

from kvcache.errors import CorruptionError, KVCacheIOError, UnsupportedError


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
            put_byte(file, at, whole[at] ^ 1 << at % 8)
            message = refused(witness, tmp_path / "p")
            put_byte(file, at, whole[at])
            # A damaged CURRENT may name a generation that is not there.
            assert file.name in message or (file.name == "CURRENT" and "missing" in message)
            count += 1
    assert count > 500
    assert make_cache("hybrid").load(tmp_path / "p") == 22


def test_a_flipped_byte_is_found_by_whichever_thread_reads_it(tmp_path: Path) -> None:
    tokens = prompt(150_000)
    cache = make_cache("attention", memory="64MiB", block_tokens=64)
    fill(cache, tokens, [len(tokens)])
    cache.save(tmp_path / "p", tokens)
    fresh = make_cache("attention", memory="64MiB", block_tokens=64)
    before = fresh.stats()
    file = generation(tmp_path / "p") / "state.safetensors"
    size = file.stat().st_size
    for at in [*range(0, size, size // 23), size - 1]:
        with file.open("rb") as raw:
            raw.seek(at)
            was = raw.read(1)[0]
        put_byte(file, at, was ^ 16)
        with pytest.raises(CorruptionError, match=r"state\.safetensors"):
            fresh.load(tmp_path / "p", read_threads=4)
        put_byte(file, at, was)
        assert fresh.stats().used_bytes == before.used_bytes
    assert fresh.load(tmp_path / "p", read_threads=4) == len(tokens)


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
    # The state of another prompt has arrays of the same names and shapes.
    cache = make_cache("hybrid")
    fill(cache, prompt(22, seed=5))
    cache.save(tmp_path / "other", prompt(22, seed=5))
    for name in ("state.safetensors", "manifest.json"):
        mine, other = generation(tmp_path / "p") / name, generation(tmp_path / "other") / name
        whole = mine.read_bytes()
        shutil.copy(other, mine)
        assert name in refused(witness, tmp_path / "p")
        mine.write_bytes(whole)
    shutil.rmtree(generation(tmp_path / "p"))
    assert "missing" in refused(witness, tmp_path / "p")


def test_damage_is_found_before_anything_is_evicted_for_it(tmp_path: Path) -> None:
    tokens = prompt(600)
    saved(tmp_path / "p", "hybrid", 600, memory="512KiB")
    put_byte(generation(tmp_path / "p") / "state.safetensors", 30_000, 77)
    small = make_cache("hybrid", memory="512KiB")
    for seed in range(1, 30):
        fill(small, prompt(600, seed=seed))
    before = small.stats()
    assert before.evicted_blocks > 0
    with pytest.raises(CorruptionError, match="checksum"):
        small.load(tmp_path / "p")
    after = small.stats()
    assert after.evicted_blocks == before.evicted_blocks
    assert after.used_bytes == before.used_bytes
    assert check(small, tokens) < 599


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
    "wrong checksum": lambda m: m["shards"][0].update(crc32c=1),
    "checksum beyond 32 bits": lambda m: m["shards"][0].update(crc32c=2**32),
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
    shard = generation(tmp_path / "p") / "state.safetensors"
    whole = shard.read_bytes()
    for length in (0, 2**20 + 1, 2**60, 2**64 - 1, len(whole)):
        shard.write_bytes(length.to_bytes(8, "little") + whole[8:])
        assert f"a header of {length} bytes" in refused(witness, tmp_path / "p")


def test_a_later_format_is_unsupported(tmp_path: Path, witness: tuple[Any, Any]) -> None:
    rewrite(saved(tmp_path / "p"), lambda found: found.update(version=3, tokens="?"))
    assert "version 3" in refused(witness, tmp_path / "p", UnsupportedError)
    rewrite(saved(tmp_path / "q"), lambda found: found.update(format="other"))
    refused(witness, tmp_path / "q", UnsupportedError)


def test_unknown_members_of_a_manifest_are_ignored(tmp_path: Path) -> None:
    rewrite(saved(tmp_path / "p"), lambda found: found.update(extra=[{"a": None}, 1.5, True]))
    assert make_cache("hybrid").load(tmp_path / "p") == 22


def test_a_folder_or_file_that_is_no_prompt_cache(tmp_path: Path, witness: tuple[Any, Any]) -> None:
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
    assert not list(tmp_path.rglob("*tmp*"))


def test_no_descriptor_left_is_an_io_error_and_changes_nothing(
    tmp_path: Path, witness: tuple[Any, Any]
) -> None:
    saved(tmp_path / "p")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        for free in range(4):  # a load needs as many
            assert "Too many open files" in refused(witness, tmp_path / "p", KVCacheIOError), free
            os.close(held.pop())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)
    assert make_cache("hybrid").load(tmp_path / "p") == 22
