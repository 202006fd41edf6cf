"""Public bug reports on tiers of KV state that live in a directory, one test each."""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.filled import MODELS, check, fill, make_cache, prompt
from support.saved import put_byte

from kvcache import DiskTier
from kvcache.errors import InvalidArgumentError, KVCacheWarning


def open_tier(path: Path, model: str = "hybrid", cap: str = "64MiB", **options: Any) -> Any:
    return make_cache(model, disk=DiskTier(path / "tier", cap), **options)


def serve(cache: Any, seeds: range, length: int = 40) -> None:
    for seed in seeds:
        fill(cache, prompt(length, seed))
        cache.disk.flush(60)


def segments(path: Path) -> list[Path]:
    return sorted((path / "tier").glob("segment-*"))


def bytes_of(path: Path) -> int:
    return sum(each.stat().st_size for each in segments(path))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", os.fspath(path)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount a small file system")
    yield path
    subprocess.run(["umount", os.fspath(path)], check=True)


@pytest.mark.parametrize("model", MODELS)
def test_entries_are_known_after_a_restart(tmp_path: Path, model: str) -> None:
    """LMCache pull request 2734 (2026): what was on disk was not known after a restart.

    https://github.com/LMCache/LMCache/pull/2734
    """
    serve(open_tier(tmp_path, model), range(3))
    # What a killed process may leave beside whole segments.
    (tmp_path / "tier" / "TIER.new").write_bytes(b"kvcache")
    (tmp_path / "tier" / "segment-00000000000000ff.kvseg").write_bytes(b"KVCSEG")
    (tmp_path / "tier" / "segment-0000000000000100.kvseg.tmp").write_bytes(b"x" * 100)
    cache = open_tier(tmp_path, model)
    with pytest.warns(KVCacheWarning, match="segment-00000000000000ff"):
        assert check(cache, prompt(40)) >= 35
    for seed in range(1, 3):
        assert check(cache, prompt(40, seed)) >= 35
    assert cache.disk.stats().damaged_segments == 1


def test_a_cap_above_what_the_disk_has_is_what_the_disk_has(small_disk: Path) -> None:
    """Mooncake pull request 2419 (2026): eviction went by the quota, whatever was free.

    https://github.com/kvcache-ai/Mooncake/pull/2419
    """
    cache = open_tier(small_disk, cap="10GiB", memory="1MiB")
    serve(cache, range(60), 200)
    stats = cache.disk.stats()
    assert stats.write_errors == stats.dropped_records == 0
    assert stats.evicted_segments > 0
    assert check(cache, prompt(200, 59)) == 199
    del cache
    fresh = open_tier(small_disk, cap="10GiB")
    assert check(fresh, prompt(200, 59)) == 199
    assert check(fresh, prompt(200, 0)) == 0


def test_the_cap_counts_what_an_earlier_process_left(tmp_path: Path) -> None:
    """LMCache issue 1454 (2025): the directory grew with every restart, far beyond its limit.

    https://github.com/LMCache/LMCache/issues/1454
    """
    for restart in range(6):
        serve(open_tier(tmp_path, cap="512KiB"), range(restart * 5, restart * 5 + 5), 120)
        assert 0 < bytes_of(tmp_path) <= 512 << 10
    assert check(open_tier(tmp_path, cap="512KiB"), prompt(120, 29)) == 119


def test_eviction_of_a_file_that_is_gone_is_no_error(tmp_path: Path) -> None:
    """LMCache issue 1981 (2025): eviction met a missing file and ended the engine.

    https://github.com/LMCache/LMCache/issues/1981
    """
    cache = open_tier(tmp_path, cap="512KiB", memory="1MiB")
    serve(cache, range(4), 120)
    for each in segments(tmp_path):
        each.unlink()
    serve(cache, range(4, 30), 120)
    assert cache.disk.stats().write_errors == 0
    assert cache.disk.stats().evicted_segments > 0
    assert check(cache, prompt(120, 29)) == 119
    assert bytes_of(tmp_path) <= 512 << 10


def test_the_files_of_a_stopped_process_are_used_and_removed(tmp_path: Path) -> None:
    """LMCache issue 2273 (2025): files of a stopped process were neither reused nor removed.

    https://github.com/LMCache/LMCache/issues/2273
    """
    serve(open_tier(tmp_path, cap="512KiB"), range(2), 120)
    old = segments(tmp_path)
    cache = open_tier(tmp_path, cap="512KiB")
    assert check(cache, prompt(120, 1)) == 119
    serve(cache, range(10, 40), 120)
    assert not set(old) & set(segments(tmp_path))


def test_bytes_of_the_right_length_but_wrong_are_not_served(tmp_path: Path) -> None:
    """vLLM issue 54363 (2026): the file tier has no checksum; wrong bytes of the right length load.

    https://github.com/vllm-project/vllm/issues/54363
    """
    tokens = prompt(40)
    serve(open_tier(tmp_path), range(1))
    (file,) = segments(tmp_path)
    whole = file.read_bytes()
    damaged = 0
    for at in range(4096, len(whole), 977):
        put_byte(file, at, whole[at] ^ 0x40)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KVCacheWarning)
            cache = open_tier(tmp_path)
            check(cache, tokens)  # whatever it finds is right
            check(cache, np.append(tokens, 5))
        damaged += cache.disk.stats().damaged_records + cache.disk.stats().damaged_segments
        del cache
        put_byte(file, at, whole[at])
    assert damaged > 0


def test_a_load_that_fails_is_a_miss_from_then_on(tmp_path: Path) -> None:
    """vLLM issue 49176 (2026): a failed load was retried for ever, since the lookup still said hit.

    https://github.com/vllm-project/vllm/issues/49176
    """
    serve(open_tier(tmp_path), range(1))
    (file,) = segments(tmp_path)
    for at in range(4096, file.stat().st_size, 512):
        put_byte(file, at + 300, 0xA5)
    cache = open_tier(tmp_path)
    assert check(cache, prompt(40)) == 0
    with pytest.warns(KVCacheWarning, match="damaged"):
        assert check(cache, prompt(40)) == 0
    failed = cache.disk.stats().damaged_records
    assert check(cache, prompt(40)) == 0
    assert cache.disk.stats().damaged_records == failed
    fill(cache, prompt(40))
    cache.disk.flush()
    cache.clear()
    assert check(cache, prompt(40)) == 39


def test_two_writers_do_not_share_a_directory(tmp_path: Path) -> None:
    """SGLang pull request 31926 (2026): ranks that shared a path cut off each other's files.

    https://github.com/sgl-project/sglang/pull/31926
    """
    first = open_tier(tmp_path)
    serve(first, range(1))
    with pytest.raises(InvalidArgumentError, match="another process"):
        open_tier(tmp_path, "attention")
    serve(first, range(1, 3))
    reader = make_cache("hybrid", disk=DiskTier(tmp_path / "tier", "64MiB", access="read"))
    for seed in range(3):
        assert check(reader, prompt(40, seed)) == 39


def test_a_salt_is_part_of_every_name_on_disk(tmp_path: Path) -> None:
    """LMCache issue 4856 (2026): paths ignored the salt, so that tenants read each other's files.

    https://github.com/LMCache/LMCache/issues/4856
    """
    cache = open_tier(tmp_path)
    fill(cache, prompt(40), salt="a")
    del cache
    fresh = open_tier(tmp_path)
    assert check(fresh, prompt(40)) == 0
    assert check(fresh, prompt(40), salt="b") == 0
    assert check(fresh, prompt(40), salt="a") == 39


@pytest.mark.parametrize("length", [16, 17, 32, 64, 65])
def test_a_prompt_of_exactly_whole_blocks_is_restored_right(tmp_path: Path, length: int) -> None:
    """LMCache issue 5151 (2026): a full hit at an exact multiple of the chunk restored wrong state.

    https://github.com/LMCache/LMCache/issues/5151
    """
    for model in MODELS:
        path = tmp_path / model
        path.mkdir()
        tokens = prompt(length)
        serve(open_tier(path, model, block_tokens=16), range(1), length)
        cache = open_tier(path, model, block_tokens=16)
        assert check(cache, tokens) >= length - 1 - 16
        assert check(cache, np.append(tokens, 5)) >= length // 16 * 16 - 16
