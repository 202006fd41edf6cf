"""Cython users cimport the package's C face and link its library."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from support.c_headers import HEADERS, declarations
from support.native import (
    CMAKE_CONFIG,
    configure,
    find_tool,
    missing_toolchain,
    must,
    package_folder,
)

HERE = Path(__file__).parent


def test_the_pxd_has_all_headers() -> None:
    pxd = package_folder("c.pxd").joinpath("c.pxd").read_text()
    assert re.findall(r"from kvcache\.(\w+) cimport \*", pxd) == list(HEADERS)
    assert len(HEADERS) == 9


@pytest.mark.parametrize("name", HEADERS)
def test_a_pxd_declares_what_its_header_does(name: str) -> None:
    header = declarations(name)
    pxd = package_folder("c.pxd").joinpath(f"{name}.pxd").read_text()
    functions = {
        function: (result, tuple(part for part in " ".join(arguments.split()).split(", ") if part))
        for result, function, arguments in re.findall(
            r"^    ([\w ]+\*?) (kvcache_\w+)\(([^)]*)\)", pxd, re.MULTILINE
        )
    }
    # Cython wants a space in "T* const *".
    assert functions == {
        function: (result, tuple(text.replace("* const*", "* const *") for text in parameters))
        for function, (result, parameters) in header.functions.items()
    }
    assert re.findall(r"\b(KVCACHE_\w+)\b", pxd) == list(header.constants)
    assert tuple(re.findall(r"ctypedef enum (\w+):", pxd)) == header.enums
    bodies = dict(re.findall(r"ctypedef struct (\w+):\n((?:        .*\n)+)", pxd))
    fields = {struct: tuple(map(str.strip, body.splitlines())) for struct, body in bodies.items()}
    assert fields == {**dict.fromkeys(header.handles, ("pass",)), **header.structs}


def test_an_extension_is_built_against_the_installed_package(tmp_path: Path) -> None:
    if importlib.util.find_spec("Cython") is None:
        pytest.skip("Cython is not installed (pip install '.[compare]' brings it)")
    if reason := missing_toolchain():
        pytest.skip(reason)
    configured = configure(
        HERE / "cython",
        tmp_path,
        f"-Dkvcache_ROOT={package_folder(CMAKE_CONFIG)}",
        f"-DPXD_ROOT={package_folder('c.pxd').parent}",
        f"-DPython_EXECUTABLE={sys.executable}",
    )
    assert configured.returncode == 0, configured.stdout
    must(find_tool("cmake"), "--build", tmp_path)
    code = "import extension; print(extension.refused)"
    printed = must(sys.executable, "-P", "-c", code, env={"PYTHONPATH": str(tmp_path)})
    assert printed == "sequences is NULL\n"
