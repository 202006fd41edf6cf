"""States on disk: across restarts, processes, damage, and what else lies in the directory."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.llama_states import CONTEXT, Model, is_restored, state
from support.native import ROOT

from kvcache.errors import InvalidArgumentError, KVCacheIOError, KVCacheWarning
from kvcache.integrations.llama_cpp import LlamaDiskCache, folder, state_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "states"


def files(path: Path) -> list[Path]:
    return sorted(path.glob("*.state"))


def stored(path: Path, tokens: Any = range(20), **options: Any) -> Path:
    """Store one state, close, and give its file."""
    before = set(files(path))
    LlamaDiskCache(path, model="m", **options)[tokens] = state(tokens)
    (made,) = set(files(path)) - before
    return made


def test_a_restart_finds_what_was_stored(path: Path) -> None:
    saved = state(range(30), logits_all=True)
    LlamaDiskCache(path, model="m", logits_all=True)[range(30)] = saved
    found = LlamaDiskCache(path, model="m", logits_all=True)[range(30)]
    assert is_restored(found, saved)
    assert np.array_equal(found.scores, saved.scores)
    assert [each.name for each in path.iterdir() if each.suffix != ".state"] == [".lock"]


def test_the_default_directory_is_that_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cache = LlamaDiskCache(model="m")
    monkeypatch.chdir("/")
    cache[[1]] = state([1])
    assert len(files(tmp_path / ".cache" / "llama_cache")) == 1


def test_a_lookup_reads_again_and_again(path: Path) -> None:
    cache = LlamaDiskCache(path, model="m")
    cache[[1, 2]] = state([1, 2])
    for _ in range(3):
        assert is_restored(cache[[1, 2, 3]], state([1, 2]))


def test_other_caches_see_what_comes_and_goes(path: Path) -> None:
    one, other = LlamaDiskCache(path, model="m"), LlamaDiskCache(path, model="m")
    one[[1, 2]] = state([1, 2])
    assert is_restored(other[[1, 2]], state([1, 2]))
    other[[1, 2]] = state([1, 2], seed=9)
    assert one[[1, 2]].seed == 9
    other.clear()
    assert [1] not in one
    one[[3]] = state([3])
    files(path)[0].unlink()
    assert [3] not in other


def test_use_by_one_keeps_from_eviction_by_another(path: Path) -> None:
    one, other = (LlamaDiskCache(path, 4000, model="m") for _ in range(2))
    for first in (1, 2, 3):
        one[[first]] = state([first])
    other[[1]]
    one[[4]] = state([4])
    assert [[first] in other for first in (1, 2, 3, 4)] == [True, False, True, True]


def test_models_share_a_directory_and_its_budget_but_no_states(path: Path) -> None:
    one, other = (LlamaDiskCache(path, 4000, model=name) for name in ("one", "other"))
    one[[1]] = state([1])
    assert [1] not in other
    for first in range(3):
        other[[first]] = state([first])
    assert [1] not in one
    assert one.cache_size == other.cache_size <= 4000
    one[[1]] = state([1])
    one.clear()
    assert len(files(path)) == other.stats().states == 2


def test_a_smaller_budget_is_kept_from_the_start(path: Path) -> None:
    for first in range(5):
        stored(path, [first])
    cache = LlamaDiskCache(path, 2500, model="m")
    assert cache.cache_size <= 2500
    assert cache.stats().evicted == 3
    assert [[first] in cache for first in range(5)] == [False] * 3 + [True] * 2


def damaged(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


VERSION = range(8, 12)


@pytest.mark.filterwarnings("ignore:.*damaged")
@pytest.mark.parametrize("is_open", [False, True])
def test_every_flipped_bit_is_a_miss_and_the_file_goes(path: Path, is_open: bool) -> None:
    file = stored(path)
    whole = file.read_bytes()
    for at in {*range(170), *range(170, len(whole), 29), len(whole) - 1} - {*VERSION}:
        cache = LlamaDiskCache(path, model="m")
        file.write_bytes(damaged(whole, at))
        if not is_open:
            cache = LlamaDiskCache(path, model="m")
        with pytest.raises(KeyError):
            cache[range(20)]
        assert cache.stats().damaged == 1
        assert not files(path)
        file.write_bytes(whole)
    assert is_restored(LlamaDiskCache(path, model="m")[range(20)], state(range(20)))


def test_of_another_version_is_a_miss_and_stays(path: Path) -> None:
    file = stored(path)
    data = bytearray(file.read_bytes())
    data[8] += 1
    file.write_bytes(data)
    cache = LlamaDiskCache(path, model="m")
    assert range(20) not in cache
    assert cache.stats().damaged == 0
    assert file.read_bytes() == data
    cache[range(20)] = state(range(20))  # takes its place
    assert range(20) in cache


@pytest.mark.parametrize("length", [0, 1, 83, 84, 90, 500, -1, 2])
def test_a_file_of_another_length_is_a_miss(path: Path, length: int) -> None:
    file = stored(path)
    data = file.read_bytes()
    file.write_bytes(data + b"xx" if length == 2 else data[:length])
    with pytest.warns(KVCacheWarning, match="damaged"):
        cache = LlamaDiskCache(path, model="m")
    assert range(20) not in cache
    assert cache.stats().damaged == 1
    assert not files(path)


def test_damage_below_an_open_cache_leads_to_the_next_best(path: Path) -> None:
    stored(path, range(4))
    file = stored(path, range(8))
    cache = LlamaDiskCache(path, model="m")
    file.write_bytes(damaged(file.read_bytes(), file.stat().st_size - 1))
    with pytest.warns(KVCacheWarning, match="checksum of the state"):
        assert is_restored(cache[range(9)], state(range(4)))
    stats = cache.stats()
    assert (stats.damaged, stats.hits, stats.misses, stats.states) == (1, 1, 0, 1)
    cache[range(8)] = state(range(8))
    assert is_restored(cache[range(9)], state(range(8)))


def test_a_head_that_lies_of_sizes_takes_no_memory(path: Path) -> None:
    file = stored(path)
    head = bytearray(file.read_bytes())
    head[68:76] = (2**62).to_bytes(8, "little")  # bytes of llama.cpp
    file.write_bytes(head)
    with pytest.warns(KVCacheWarning, match="its head tells of"):
        assert range(20) not in LlamaDiskCache(path, model="m")


def test_a_file_of_holes_is_not_read_into_memory(path: Path) -> None:
    """A head may promise what a sparse file bears out at no cost."""
    kept, file = stored(path, [1]), stored(path)
    head = bytearray(file.read_bytes()[:84])
    head[44:52] = b"\xff" * 8  # n_ctx and n_tokens
    head[56:60] = head[68:76] = b""
    head[56:56] = bytes(4)
    head[68:68] = bytes(8)
    file.write_bytes(head)
    os.truncate(file, 84 + 4 * (2**32 - 1))
    tracemalloc.start()
    try:
        with pytest.warns(KVCacheWarning, match="4294967295 tokens, at most"):
            assert range(20) not in LlamaDiskCache(path, "1TiB", model="m")
        reader = LlamaDiskCache(path, "1MiB", model="m")
        shutil.copyfile(kept, file)
        os.truncate(file, 1 << 34)
        with pytest.warns(KVCacheWarning, match="exceeds capacity_bytes=1048576"):
            assert [1, 2] in reader
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


def test_states_that_the_system_keeps_are_told(path: Path) -> None:
    cache = LlamaDiskCache(path, model="m")
    for last in range(3):
        cache[[7, last]] = state([7, last])
    file = files(path)[1]
    file.unlink()
    file.mkdir()
    with pytest.raises(KVCacheIOError, match=rf"1 of 3 states cannot be removed.*{file.name}"):
        cache.clear()
    assert files(path) == [file]


def test_a_file_under_the_name_of_another_is_refused(path: Path) -> None:
    one, other = stored(path, [1]), stored(path, [2])
    one.write_bytes(other.read_bytes())
    with pytest.warns(KVCacheWarning, match="not that of its model and tokens"):
        cache = LlamaDiskCache(path, model="m")
    assert [1] not in cache
    assert [2] in cache


@pytest.mark.parametrize("kind", ["symlink", "dangling", "directory", "pipe"])
def test_what_is_no_plain_file_is_left_alone(path: Path, tmp_path: Path, kind: str) -> None:
    file = stored(path)
    secret = tmp_path / "secret"
    secret.write_bytes(file.read_bytes())
    file.unlink()
    if kind == "symlink":
        file.symlink_to(secret)
    elif kind == "dangling":
        file.symlink_to(tmp_path / "new")
    elif kind == "directory":
        file.mkdir()
    else:
        os.mkfifo(file)
    with pytest.warns(KVCacheWarning, match="cannot read"):
        cache = LlamaDiskCache(path, model="m")
    assert range(20) not in cache
    assert cache.stats().read_errors == 1
    assert cache.cache_size == 0
    if kind == "directory":
        with pytest.warns(KVCacheWarning, match="cannot write"):
            cache[range(20)] = state(range(20))
        assert cache.stats().write_errors == 1
        assert cache.cache_size == 0
    else:  # a new state takes its place and not that of what it points to
        cache[range(20)] = state(range(20))
        assert is_restored(cache[range(20)], state(range(20)))
        assert not file.is_symlink()
    assert not (tmp_path / "new").exists()


def test_other_files_are_neither_counted_nor_removed(path: Path) -> None:
    path.mkdir(parents=True)
    others = ["cache.db", "a.state", ".0123.part", "..state", "x" * 64 + "-" + "0" * 32 + ".state"]
    for name in others:
        (path / name).write_bytes(b"x" * 10_000)
    cache = LlamaDiskCache(path, 2000, model="m")
    cache[[1]] = state([1])
    cache[[2]] = state([2])
    cache.clear()
    assert cache.cache_size == 0
    assert {each.name for each in path.iterdir()} == {*others, ".lock"}


def test_a_link_in_place_of_the_lock_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.mkdir(parents=True)
    (path / ".lock").symlink_to(tmp_path / "new")
    cache = LlamaDiskCache(path, model="m")
    with pytest.warns(KVCacheWarning, match="cannot write"):
        cache[[1]] = state([1])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("call", ["write", "ftruncate", "fsync", "rename", "open"])
def test_a_refused_write_costs_the_state_and_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    cache = LlamaDiskCache(path, model="m")
    cache[[1]] = state([1])

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.warns(KVCacheWarning, match=r"No space left|cannot"):
            cache[[2]] = state([2])
    assert [2] not in cache
    assert is_restored(cache[[1]], state([1]))
    assert cache.stats().write_errors == 1
    assert len(list(path.iterdir())) == 2
    cache[[2]] = state([2])
    assert [2] in cache


def test_short_writes_and_reads_are_gone_on_with(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "_READ_MAX", 7)
    stored(path)
    assert is_restored(LlamaDiskCache(path, model="m")[range(20)], state(range(20)))


def test_a_read_that_the_system_refuses_is_a_miss(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(path)
    cache = LlamaDiskCache(path, model="m")

    def refuse(*arguments: Any) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "read", refuse)
    with pytest.warns(KVCacheWarning, match="Input/output error"), pytest.raises(KeyError):
        cache[range(20)]
    assert cache.stats().read_errors == 1


def test_a_directory_that_goes_away_is_made_again(path: Path) -> None:
    cache = LlamaDiskCache(path, model="m")
    cache[[1]] = state([1])
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    assert [1] not in cache
    assert cache.cache_size == 0
    cache[[2]] = state([2])
    assert [2] in cache


def test_a_directory_that_becomes_a_file_is_told_and_costs_hits_only(path: Path) -> None:
    cache = LlamaDiskCache(path, model="m")
    cache[[1]] = state([1])
    shutil.rmtree(path)
    path.write_bytes(b"")
    with pytest.raises(KVCacheIOError, match="cache_dir"):
        assert cache.cache_size
    with pytest.warns(KVCacheWarning, match="cannot read"), pytest.raises(KeyError):
        cache[[1]]
    with pytest.warns(KVCacheWarning, match="cannot write"):
        cache[[2]] = state([2])


def test_what_a_killed_writer_left_counts_until_room_is_needed(path: Path) -> None:
    cache = LlamaDiskCache(path, 4000, model="m")
    live, left = path / f".{'0' * 16}.part", path / f".{'1' * 16}.part"
    live.write_bytes(b"x" * 1500)
    left.write_bytes(b"x" * 1500)
    assert cache.cache_size == 3000
    with live.open("rb") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        cache[[1]] = state([1])
        assert live.exists()
        assert not left.exists()
        assert [1] in cache
        live.write_bytes(b"x" * 3500)
        with pytest.warns(KVCacheWarning, match="others are writing"):
            cache[[2]] = state([2])
        assert cache.stats().refused == 1
    cache[[3]] = state([3])
    assert not live.exists()
    assert [3] in cache


def test_a_lock_that_is_never_let_go_ends_in_a_warning(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_LOCK_SECONDS", 0.05)
    stored(path, [1])
    cache = LlamaDiskCache(path, model="m")
    with (path / ".lock").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.warns(KVCacheWarning, match="another process holds it"):
            cache[[2]] = state([2])
    assert [2] not in cache
    cache[[2]] = state([2])
    assert [2] in cache


WORKER = """
import os, sys
sys.path.insert(0, sys.argv[1])
os.fsync = lambda file: None  # there is no power cut here
import numpy as np
from support.llama_states import is_restored, state
from kvcache.integrations.llama_cpp import LlamaDiskCache

cache = LlamaDiskCache(sys.argv[2], 20_000, model="m")
random = np.random.default_rng(int(sys.argv[3]))
print("ready", flush=True)
for _ in range(int(sys.argv[4])):
    tokens = random.integers(0, 3, 4).tolist()
    if random.random() < 0.6:
        cache[tokens] = state(tokens)
    else:
        try:
            found = cache[tokens]
        except KeyError:
            continue
        assert is_restored(found, state(found.input_ids[: found.n_tokens].tolist()))
    assert cache.cache_size <= 20_000
stats = cache.stats()
assert stats.hits and not stats.damaged + stats.read_errors + stats.write_errors, stats
"""


def start(path: Path, seed: int, steps: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-W", "error", "-c", WORKER, str(ROOT / "tests"), str(path)]
    return subprocess.Popen(
        [*command, str(seed), str(steps)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_processes_share_a_directory_within_its_budget(path: Path) -> None:
    workers = [start(path, seed, 60) for seed in range(3)]
    for worker in workers:
        _, problems = worker.communicate(timeout=120)
        assert worker.returncode == 0, problems


def test_killed_writers_leave_whole_states_or_none(path: Path) -> None:
    for seed in range(4):
        worker = start(path, seed, 100_000)
        assert worker.stdout is not None
        worker.stdout.readline()
        while not files(path):
            assert worker.poll() is None
        worker.kill()
        worker.communicate()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cache = LlamaDiskCache(path, 20_000, model="m")
            for file in files(path):
                with file.open("rb") as opened:
                    tokens = state_file.read_head(opened.fileno()).tokens.tolist()
                assert is_restored(cache[tokens], state(tokens))
            cache[[1] * (CONTEXT - seed)] = state([1] * (CONTEXT - seed))
        assert cache.cache_size <= 20_000


@pytest.mark.parametrize("wrong", [5, None, "", "a\0b", b"\0"])
def test_what_is_no_path_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="cache_dir: expected a path"):
        LlamaDiskCache(wrong, model="m")


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(KVCacheIOError, match="cache_dir"):
        LlamaDiskCache(tmp_path / "file", model="m")
    with pytest.raises(TypeError, match="model"):
        LlamaDiskCache(tmp_path / "file")  # type: ignore[call-arg]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model-00001-of-00002.gguf"
    for part in (path, tmp_path / "model-00002-of-00002.gguf"):
        part.write_bytes(np.random.default_rng(0).bytes(2 << 20))
    return path


def test_a_model_finds_its_own_states_and_no_other_model_does(path: Path, weights: Path) -> None:
    def is_found(change: Any = None, **parameters: Any) -> bool:
        model = Model(weights, **parameters)
        if change is not None:
            change(model)
        return [1] in LlamaDiskCache(path, model=model)

    def adapt(model: Model, scale: float = 1.0) -> None:
        model.lora_path = str(weights)
        model.lora_scale = scale

    LlamaDiskCache(path, model=Model(weights))[[1]] = state([1])
    assert is_found()
    assert is_found(n_threads=8)
    assert not is_found(n_ctx=CONTEXT + 1)
    assert not is_found(n_ubatch=32)
    assert not is_found(type_k=8)
    assert not is_found(rope_freq_base=5e5)
    assert not is_found(swa_full=False)
    assert not is_found(logits_all=True)
    assert not is_found(adapt)
    assert not is_found(lambda model: setattr(model, "kv_overrides", {"a": 1}))
    moved = weights.parent / "moved"
    moved.mkdir()
    for part in weights.parent.glob("model-*"):
        part.rename(moved / part.name)
    assert [1] in LlamaDiskCache(path, model=Model(moved / weights.name))


@pytest.mark.parametrize("part", [1, 2])
@pytest.mark.parametrize("at", [0, (1 << 20) - 1, -1])
def test_other_weights_are_another_model(path: Path, weights: Path, part: int, at: int) -> None:
    LlamaDiskCache(path, model=Model(weights))[[1]] = state([1])
    file = weights.with_name(f"model-0000{part}-of-00002.gguf")
    data = file.read_bytes()
    file.write_bytes(damaged(data, at % len(data)))
    assert [1] not in LlamaDiskCache(path, model=Model(weights))
    file.write_bytes(data)
    assert [1] in LlamaDiskCache(path, model=Model(weights))


def test_an_adapters_scale_is_part_of_the_model(path: Path, weights: Path) -> None:
    model = Model(weights)
    model.lora_path = str(weights)
    LlamaDiskCache(path, model=model)[[1]] = state([1])
    assert [1] in LlamaDiskCache(path, model=model)
    model.lora_scale = 0.5
    assert [1] not in LlamaDiskCache(path, model=model)
