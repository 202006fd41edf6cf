"""Which wheels a release builds."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.native import ROOT

pytest.importorskip("cibuildwheel", reason="needs the extra `compare`")

PYTHONS = ("cp311", "cp312", "cp313", "cp314", "cp314t")


@pytest.mark.parametrize(
    ("platform", "wheels", "arch"),
    [
        ("linux", "manylinux", "x86_64"),
        ("linux", "manylinux", "aarch64"),
        ("macos", "macosx", "arm64"),
    ],
)
def test_a_release_has_a_wheel_for_every_python(platform: str, wheels: str, arch: str) -> None:
    command = [sys.executable, "-m", "cibuildwheel", "--print-build-identifiers", str(ROOT)]
    listed = subprocess.run(
        [*command, f"--platform={platform}", f"--archs={arch}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout.split() == [f"{python}-{wheels}_{arch}" for python in PYTHONS]
