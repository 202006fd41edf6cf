"""A published prompt cache that another program replaces while it is being read."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.published_caches import cache_for, check_hit, write

import kvcache
from kvcache import load_published
from kvcache.errors import CorruptionError
from kvcache.published.files import Generation

TOKENS = np.arange(40, dtype=np.int32) * 7 + 1


def replace_while_read(monkeypatch: pytest.MonkeyPatch, path: Path, times: int) -> list[str]:
    """Whenever a manifest is read, somebody moves its generation away; returns their names."""
    read, names = Generation.manifest, []

    def read_and_replace(files: Generation) -> bytearray:
        text = read(files)
        names.append(files.name)
        if len(names) <= times:
            newer = f"generation-{len(names)}"
            (path / ".generations" / files.name).rename(path / ".generations" / newer)
            (path / "CURRENT").write_text(f"{newer}\n")
            shutil.copytree(path / ".generations" / newer, path / ".generations" / "gone")
            for file in (path / ".generations" / newer).iterdir():
                file.unlink()  # also for those that hold the directory
            shutil.rmtree(path / ".generations" / newer)
            (path / ".generations" / "gone").rename(path / ".generations" / newer)
        return text

    monkeypatch.setattr(Generation, "manifest", read_and_replace)
    return names


def test_a_generation_replaced_while_it_is_read_leads_to_the_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write(tmp_path / "p", "full", TOKENS)
    names = replace_while_read(monkeypatch, written.path, 3)
    cache = cache_for("full")
    assert load_published(cache, written.path, written.tokens) == 40
    assert names[1:] == ["generation-1", "generation-2", "generation-3"]
    assert check_hit(cache, written, np.append(written.tokens, 5)) == 40


def test_a_report_is_of_a_generation_that_was_there_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write(tmp_path / "p", "full", TOKENS)
    replace_while_read(monkeypatch, written.path, 4)
    report = kvcache.check_stored(written.path, deep=True)
    assert not report.problems


def test_who_is_replaced_again_and_again_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write(tmp_path / "p", "full", TOKENS)
    names = replace_while_read(monkeypatch, written.path, 10**6)
    cache = cache_for("full")
    before = cache.stats()
    with pytest.raises(CorruptionError, match="No such file"):
        load_published(cache, written.path, written.tokens)
    assert cache.stats() == before
    assert len(names) == 16
