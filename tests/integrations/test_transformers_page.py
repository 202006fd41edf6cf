"""The examples of docs/transformers.md and the programs in examples/ run as they stand."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.native import ROOT

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")


def example(name: str, folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-W", "ignore", str(ROOT / "examples" / name), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_runs_as_it_stands() -> None:
    done = doctest.testfile(str(ROOT / "docs" / "transformers.md"), module_relative=False)
    assert done.failed == 0
    assert done.attempted > 12


def test_a_chat_knows_its_turns_and_its_last_run(tmp_path: Path) -> None:
    row = re.compile(r"^ +(\d) +(\d+) +(\d+) +[\d.]+ ms +[\d.]+ ms$", re.MULTILINE)
    known = []
    for _ in range(2):
        out = example("chat.py", tmp_path, "--disk", str(tmp_path / "state"), "--tokens", "4")
        turns = [(int(prompt), int(known)) for _, prompt, known in row.findall(out)]
        assert len(turns) == 3, out
        known.append([found for _, found in turns])
        assert all(found > prompt - 64 for prompt, found in turns[1:])
    assert known[0][0] == 0
    assert known[1][0] > 2000


def test_drafts_from_the_prompt_save_forward_passes(tmp_path: Path) -> None:
    out = example("prompt_lookup.py", tmp_path, "--tokens", "40")
    found = re.search(r"^40 equal tokens in (\d+) forward passes", out)
    assert found, out
    assert int(found[1]) < 30
    begins = re.search(r"begins at (\d+) of (\d+) tokens", out)
    assert begins, out
    assert int(begins[1]) >= int(begins[2]) - 41


def test_agents_begin_behind_their_preamble(tmp_path: Path) -> None:
    out = example("agents.py", tmp_path, "--agents", "4", "--compare", "2")
    found = [int(line.split()[2]) for line in out.splitlines()[1:]]
    assert found[0] == 0
    assert all(known >= 4096 for known in found[1:])
    assert len(found) == 4
