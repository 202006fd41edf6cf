"""The examples of docs/drafting.md run as they stand."""

from __future__ import annotations

import re

import pytest
from support.native import ROOT

PAGE = ROOT / "docs" / "drafting.md"


def test_the_examples_run_and_speculation_saves_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    out = capsys.readouterr().out
    found = re.search(r"120 equal tokens in (\d+) runs of the model instead of 120", out)
    assert found, out
    assert int(found[1]) < 40
    assert "stash row 0 ended when the next verify of its sequence began" in out
