"""`kvcache inspect`, `verify` and `gc` as a person or a script runs them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.filled import check, fill, make_cache, prompt
from support.saved import generation, put_byte, saved

from kvcache import DiskTier
from kvcache.cli import main
from kvcache.errors import InvalidArgumentError, KVCacheIOError
from kvcache.stored import check_stored, collect_stored, kind_of

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*args: object) -> tuple[int, str, str]:
        code = main([str(each) for each in args])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def tier(path: Path, prompts: int = 3) -> Path:
    cache = make_cache("hybrid", disk=DiskTier(path, "64MiB"))
    for seed in range(prompts):
        fill(cache, prompt(40, seed))
    cache.disk.flush()
    return path


def test_a_tier_is_described(tmp_path: Path, run: Run) -> None:
    path = tier(tmp_path / "tier")
    code, out, _ = run("inspect", path)
    assert code == 0
    assert "disk tier, version 1" in out
    assert "segment-0000000000000000.kvseg" in out
    code, out, _ = run("inspect", "--json", path)
    found = json.loads(out)
    assert code == 0
    assert found["kind"] == "disk tier"
    assert found["records"] >= 9
    assert found["has_writer"] is False
    assert found["problems"] == []
    assert [file["end"] for file in found["files"]] == ["sealed"]


def test_a_tier_with_a_writer_says_so(tmp_path: Path, run: Run) -> None:
    cache = make_cache("hybrid", disk=DiskTier(tmp_path / "tier", "64MiB"))
    fill(cache, prompt(40))
    cache.disk.flush()
    code, out, _ = run("verify", "--json", tmp_path / "tier")
    assert code == 0
    assert json.loads(out)["has_writer"] is True
    code, _, err = run("gc", tmp_path / "tier")
    assert code == 2
    assert "another process" in err


def test_verify_names_the_damaged_file(tmp_path: Path, run: Run) -> None:
    path = tier(tmp_path / "tier")
    assert run("verify", path)[0] == 0
    (segment,) = path.glob("segment-*")
    size = segment.stat().st_size
    put_byte(segment, size // 2, segment.read_bytes()[size // 2] ^ 1)
    assert run("inspect", path)[0] == 0
    code, out, _ = run("verify", path)
    assert code == 1
    assert "DAMAGED" in out
    code, out, _ = run("verify", "--json", path)
    assert code == 1
    assert segment.name in json.loads(out)["problems"][0]


def test_gc_of_a_tier_keeps_to_a_cap_and_removes_what_is_no_segment(
    tmp_path: Path, run: Run
) -> None:
    path = tier(tmp_path / "tier")
    (path / "segment-0000000000000063.kvseg").write_bytes(b"x" * 1000)
    code, out, _ = run("gc", "--json", path)
    assert code == 0
    assert json.loads(out)["removed_files"] == 1
    assert json.loads(out)["removed_bytes"] == 1000
    assert check(make_cache("hybrid", disk=DiskTier(path, "64MiB")), prompt(40)) == 39
    code, out, _ = run("gc", "--max-bytes", "1", path)
    assert code == 0
    assert list(path.glob("segment-*")) == []
    assert check(make_cache("hybrid", disk=DiskTier(path, "64MiB")), prompt(40)) == 0


def test_a_prompt_cache_is_described_and_verified(tmp_path: Path, run: Run) -> None:
    path = saved(tmp_path / "p")
    code, out, _ = run("inspect", "--json", path)
    found = json.loads(out)
    assert code == 0
    assert found["kind"] == "prompt cache"
    assert found["tokens"] == 22
    assert found["snapshots"] == [21, 22]
    assert run("verify", path)[0] == 0
    shard = generation(path) / "state.safetensors"
    put_byte(shard, shard.stat().st_size - 1, 77)
    assert run("inspect", path)[0] == 0
    code, out, _ = run("verify", path)
    assert code == 1
    assert "state.safetensors" in out
    shard.unlink()
    assert run("verify", path)[0] == 1


def test_gc_of_a_prompt_cache_removes_what_is_left_over(tmp_path: Path, run: Run) -> None:
    path = saved(tmp_path / "p")
    current = generation(path)
    old = current.parent / f"generation-1-{'0' * 64}"
    old.mkdir()
    (old / "manifest.json").write_bytes(b"x" * 10)
    gone = current.parent / ".kvcache-tmp-4194305-1-0"  # above the largest process id
    gone.mkdir()
    busy = path / f".kvcache-tmp-{os.getpid()}-1-0"
    busy.mkdir()
    code, out, _ = run("gc", "--json", path)
    assert code == 0
    assert json.loads(out)["removed_files"] == 2
    assert not old.exists()
    assert not gone.exists()
    assert busy.exists()
    assert make_cache("hybrid").load(path) == 22
    code, _, err = run("gc", "--max-bytes", "1KiB", path)
    assert code == 2
    assert "--max-bytes" in err


def test_gc_of_a_prompt_cache_removes_nothing_that_no_writer_made(tmp_path: Path, run: Run) -> None:
    path = saved(tmp_path / "p")
    inside = generation(path).parent
    digest = "0" * 64
    (tmp_path / "other").mkdir()
    (inside / f"generation-1-{digest}").symlink_to(tmp_path / "other")
    (inside / f"generation-2-{digest}").touch()
    (inside / "generation-notes").mkdir()
    (path / f"generation-3-{digest}").mkdir()
    (path / ".kvcache-tmp-4194305-1-0").touch()
    before = sorted(path.rglob("*"))
    code, out, _ = run("gc", "--json", path)
    assert code == 0
    assert json.loads(out)["removed_files"] == 0
    assert sorted(path.rglob("*")) == before


ODD = ["[/x]", "[bold]a", ":smile:", "\x1b[31mred", "a\udcff", "a b"]


@pytest.mark.parametrize("name", ODD)
def test_names_are_shown_as_they_are_and_tell_a_terminal_nothing(
    tmp_path: Path, run: Run, name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir(parents=True)
    path = tier(folder / "t", prompts=1)
    code, out, _ = run("inspect", path)
    assert code == 0
    assert name.encode("unicode_escape").decode() in out.replace("\n", "")
    code, out, _ = run("verify", "--json", path)
    assert code == 0
    assert json.loads(out)["path"] == str(path)
    code, _, err = run("verify", folder)
    assert code == 2
    assert name.encode("unicode_escape").decode() in err


def test_what_is_no_path_and_what_the_system_refuses_is_told_apart(tmp_path: Path) -> None:
    for call in (kind_of, collect_stored, lambda path: check_stored(path, deep=False)):
        for wrong in (5, None, object()):
            with pytest.raises(InvalidArgumentError, match="path: expected a path"):
                call(wrong)
        with pytest.raises(KVCacheIOError, match="cannot open"):
            call(tmp_path / ("a" * 300))
    with pytest.raises(InvalidArgumentError, match="max_bytes: must be 0"):
        collect_stored(tier(tmp_path / "t", prompts=1), -1)


@pytest.mark.parametrize("arguments", [["inspect", ""], ["gc", ""], ["replay", "--disk", ""]])
def test_an_empty_name_is_not_this_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, arguments: list[str]
) -> None:
    tier(tmp_path, prompts=1)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        run(*arguments)


@pytest.mark.parametrize("command", ["inspect", "verify", "gc"])
def test_what_is_neither_is_refused_in_one_line(tmp_path: Path, run: Run, command: str) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        code, out, err = run(command, path)
        assert code == 2
        assert out == ""
        assert "no disk tier and no prompt cache" in err
    (tmp_path / "TIER").write_text("kvcache-disk-tier 9 00\n")
    code, _, err = run(command, tmp_path)
    assert code == 2
    assert "version 9" in err
    (tmp_path / "TIER").write_text("x")
    assert run(command, tmp_path)[0] == 2
    (tmp_path / "TIER").unlink()
    (tmp_path / "CURRENT").write_text("../elsewhere\n")
    code, _, err = run(command, tmp_path)
    assert code == 2
    assert "CURRENT" in err
