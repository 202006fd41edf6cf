"""Cython users cimport the package's C face and link its library."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from support.native import (
    CMAKE_CONFIG,
    ROOT,
    configure,
    find_tool,
    missing_toolchain,
    must,
    package_folder,
)

HERE = Path(__file__).parent


HEADERS = re.findall(r'#include "kvcache/(\w+)\.h"', (ROOT / "cpp/include/kvcache/c.h").read_text())


def test_the_pxd_has_all_headers() -> None:
    pxd = package_folder("c.pxd").joinpath("c.pxd").read_text()
    assert re.findall(r"from kvcache\.(\w+) cimport \*", pxd) == HEADERS
    assert len(HEADERS) == 5


@pytest.mark.parametrize("name", HEADERS)
def test_a_pxd_declares_what_its_header_does(name: str) -> None:
    header = (ROOT / f"cpp/include/kvcache/{name}.h").read_text()
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    pxd = package_folder("c.pxd").joinpath(f"{name}.pxd").read_text()
    functions = re.findall(r"\b(kvcache_\w+)\(([^;]*)\);", header)
    declared = re.findall(r"\b(kvcache_\w+)\(([^)]*)\)", pxd)
    assert [name for name, _ in declared] == [name for name, _ in functions]
    for (_, arguments), (function, others) in zip(functions, declared, strict=True):
        wanted = [] if arguments == "void" else arguments.replace("* const*", "* const *")
        assert " ".join(others.split()) == " ".join(wanted and wanted.split()), function
    constants = re.findall(r"\b(KVCACHE_\w+) = ", header)
    assert re.findall(r"\b(KVCACHE_\w+)\b", pxd) == constants
    assert set(re.findall(r"ctypedef \w+ (\w+)", pxd)) == set(
        re.findall(r"} (\w+);", header)
    ) | set(re.findall(r"typedef struct \w+ (\w+);", header))
    for struct, body in re.findall(r"typedef struct (\w+) \{(.*?)\}", header, re.DOTALL):
        fields = [" ".join(line.split()) for line in body.split(";") if line.strip()]
        [found] = re.findall(rf"ctypedef struct {struct}:\n((?:        .*\n)+)", pxd)
        assert [line.strip() for line in found.splitlines()] == fields


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
