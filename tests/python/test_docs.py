"""The examples of the documentation run as they stand."""

from __future__ import annotations

import doctest

from support.native import ROOT


def test_the_examples_on_operating_a_cache() -> None:
    done = doctest.testfile(str(ROOT / "docs" / "operating.md"), module_relative=False)
    assert done.failed == 0
    assert done.attempted > 20
