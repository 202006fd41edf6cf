"""Programs of C++ users: each finds the library in one supported way, builds, and runs."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from support.native import (
    CMAKE_CONFIG,
    CORE_BUILD,
    ROOT,
    configure,
    find_tool,
    must,
    package_folder,
)

HERE = Path(__file__).parent
VERSION = re.search(
    r'KVCACHE_VERSION "(.+)"', (ROOT / "cpp/include/kvcache/version.h").read_text()
).group(1)
# The last token of a prompt always runs again.
EXPECTED = f"kvcache {VERSION} restored 32 of 33\n"


@pytest.fixture(scope="module")
def prefix(core_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library installed into a prefix that was moved afterwards."""
    first = tmp_path_factory.mktemp("install") / "first"
    must(find_tool("cmake"), "--install", core_build, "--prefix", first)
    return first.rename(first.with_name("moved here"))


def build_and_run(source: Path, build: Path, *options: str) -> str:
    configured = configure(source, build, *options)
    assert configured.returncode == 0, configured.stdout
    must(find_tool("cmake"), "--build", build, "--target", "consumer")
    return must(build / "consumer")


def test_find_package_from_a_prefix(prefix: Path, tmp_path: Path) -> None:
    options = [f"-Dkvcache_ROOT={prefix}", f"-DWANTED_VERSION={VERSION}"]
    assert build_and_run(HERE / "find_package", tmp_path, *options) == EXPECTED


def test_find_package_refuses_another_minor_version(prefix: Path, tmp_path: Path) -> None:
    options = [f"-Dkvcache_ROOT={prefix}", "-DWANTED_VERSION=0.999"]
    configured = configure(HERE / "find_package", tmp_path, *options)
    assert configured.returncode != 0
    assert f"version: {VERSION}" in configured.stdout


def test_find_package_from_the_installed_python_package(tmp_path: Path) -> None:
    options = [f"-Dkvcache_ROOT={package_folder(CMAKE_CONFIG)}", f"-DWANTED_VERSION={VERSION}"]
    assert build_and_run(HERE / "find_package", tmp_path, *options) == EXPECTED


def test_add_subdirectory_leaves_the_parent_project_alone() -> None:
    # Beside the core's own build and with its flags, so that a compiler's cache has all of it.
    build = CORE_BUILD.with_name("subproject")
    shutil.rmtree(build, ignore_errors=True)
    options = ["-DCMAKE_BUILD_TYPE=Release"]
    assert build_and_run(HERE / "subproject", build, *options) == EXPECTED


def test_pkg_config_from_a_moved_prefix(prefix: Path, tmp_path: Path) -> None:
    pkg_config = find_tool("pkg-config")
    if pkg_config is None:
        pytest.skip("pkg-config is not installed (Debian: pkg-config)")
    [pc] = prefix.rglob("kvcache.pc")
    env = {"PKG_CONFIG_PATH": str(pc.parent)}
    assert must(pkg_config, "--modversion", "kvcache", env=env).strip() == VERSION
    # A shell reads the flags, as in a Makefile: the prefix has a space in its name.
    flags = must(pkg_config, "--cflags", "--libs", "kvcache", env=env).strip()
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    program = tmp_path / "consumer"
    must("sh", "-c", f"{compiler} -std=c++20 '{HERE}/consumer.cc' -o '{program}' {flags}")
    assert must(program) == EXPECTED
