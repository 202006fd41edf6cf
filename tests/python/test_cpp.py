"""Runs the C++ tests, one pytest case for each binary."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.native import ROOT, find_tool, must

BINARIES = sorted(path.stem for path in (ROOT / "tests" / "cpp").glob("*_test.cc"))


@pytest.mark.parametrize("binary", BINARIES)
def test_cpp(binary: str, cpp_tests: Path) -> None:
    ctest = ["--test-dir", cpp_tests, "--label-regex", f"^{binary}$", "--no-tests=error"]
    must(find_tool("ctest"), *ctest, "--output-on-failure", "--timeout", 600)
