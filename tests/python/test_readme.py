"""README's Python example runs as it stands."""

from __future__ import annotations

import re

import pytest
from support.native import ROOT

EXAMPLES = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_example_runs_and_explains(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(example, "README.md", "exec"), {})
    assert "tokens reusable" in capsys.readouterr().out


def test_readme_has_an_example() -> None:
    assert len(EXAMPLES) == 1
