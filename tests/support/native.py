"""Building C++ from tests: finds CMake, reuses one build folder, shows the output of a failure."""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Shared by every test of a run, so that the core is compiled once.
CORE_BUILD = ROOT / "build" / "pytest"
# What find_package reads, in the installed Python package.
CMAKE_CONFIG = "lib/cmake/kvcache/kvcacheConfig.cmake"


def find_tool(name: str) -> str | None:
    """Path of a program, looked for beside the running interpreter before PATH."""
    beside = Path(sys.executable).parent
    return shutil.which(name, path=os.pathsep.join([str(beside), os.environ.get("PATH", "")]))


def run(*command: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; output is captured and the exit code is the caller's to judge."""
    return subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def must(*command: object, env: dict[str, str] | None = None) -> str:
    """Run a command that has to succeed and return what it printed."""
    done = run(*command, env=env)
    assert done.returncode == 0, f"{shlex.join(map(str, command))}\n{done.stdout}"
    return done.stdout


def configure(source: Path, build: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Configure with CMake; CMAKE_ARGS is honoured, as it is by `pip install .`."""
    cmake = find_tool("cmake")
    assert cmake is not None, "call missing_toolchain() first"
    generator: list[str] = []
    if ninja := find_tool("ninja"):
        generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    extra = shlex.split(os.environ.get("CMAKE_ARGS", ""))
    return run(cmake, "-S", source, "-B", build, *generator, *extra, *options)


def missing_toolchain() -> str | None:
    """Why C++ cannot be built here, or None."""
    if find_tool("cmake") is None:
        return "cmake is not installed (pip install '.[test]' brings it)"
    compilers = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    if not any(shutil.which(name) for name in compilers if name):
        return "no C++ compiler found (Debian: g++)"
    return None


def package_folder(holds: str) -> Path:
    """The folder of the installed Python package that holds a file.

    An editable install has two folders: the sources, and what CMake installed.
    """
    [entry] = importlib.metadata.entry_points(group="cmake.root", name="kvcache")
    folders = {Path(path) for path in entry.load().__path__ if (Path(path) / holds).is_file()}
    assert len(folders) == 1, f"the package carries {holds} in {len(folders)} folders"
    return folders.pop()


@contextmanager
def core_build_lock() -> Iterator[None]:
    """One process at a time in CORE_BUILD: a test run may be split over workers."""
    CORE_BUILD.mkdir(parents=True, exist_ok=True)
    with (CORE_BUILD / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
