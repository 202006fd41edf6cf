"""Runs the C++ tests, one pytest case for each binary."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.native import ROOT, find_tool, must

BINARIES = sorted(path.stem for path in (ROOT / "tests" / "cpp").glob("*_test.cc"))


def ctest(build: Path, *selection: str) -> str:
    options = ["--no-tests=error", "--output-on-failure", "--timeout", "600"]
    return must(find_tool("ctest"), "--test-dir", build, *selection, *options)


@pytest.mark.parametrize("binary", BINARIES)
def test_cpp(binary: str, cpp_tests: Path) -> None:
    ctest(cpp_tests, "--label-regex", f"^{binary}$")


def test_cpp_without_googletest(cpp_tests: Path) -> None:
    # The label of a test is its GoogleTest binary; the others have none: C99, symbols.
    ctest(cpp_tests, "--label-exclude", ".")
