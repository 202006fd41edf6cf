"""What every test shares: the package under test, hypothesis profiles, the C++ build."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import hypothesis
import pytest
from support import native
from support.certificates import Authority, missing_openssl

ROOT = Path(__file__).resolve().parents[1]


def prefer_the_installed_package(path: list[str]) -> list[str]:
    """`python -m pytest` puts the repository first on sys.path, where kvcache has no _core."""
    if any((ROOT / "kvcache").glob("_core*.so")):
        return path
    return [entry for entry in path if Path(entry or ".").resolve() != ROOT]


sys.path[:] = prefer_the_installed_package(sys.path)

# "ci" gives the same examples on every run; "nightly" searches.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile(
    "nightly", max_examples=1000, deadline=None, print_blob=True, stateful_step_count=100
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def skip_unless_ci(reason: str) -> None:
    """Skip on a machine that lacks something; CI installs everything, so there it is a failure."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must have this: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Whom clients of TLS trust."""
    if reason := missing_openssl():
        skip_unless_ci(reason)
    return Authority(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture(scope="session")
def core_build() -> Path:
    """Build folder with the core library compiled."""
    if reason := native.missing_toolchain():
        skip_unless_ci(reason)
    with native.core_build_lock():
        configured = native.configure(native.ROOT, native.CORE_BUILD, "-DKVCACHE_TESTS=OFF")
        assert configured.returncode == 0, configured.stdout
        native.must(native.find_tool("cmake"), "--build", native.CORE_BUILD)
    return native.CORE_BUILD


@pytest.fixture(scope="session")
def cpp_tests(core_build: Path) -> Path:
    """Build folder with the core and its GoogleTest binaries compiled."""
    with native.core_build_lock():
        configured = native.configure(native.ROOT, core_build, "-DKVCACHE_TESTS=ON")
        if "GTest" in configured.stdout and configured.returncode != 0:
            skip_unless_ci("GoogleTest is not installed (Debian: libgtest-dev)")
        assert configured.returncode == 0, configured.stdout
        native.must(native.find_tool("cmake"), "--build", core_build)
    return core_build
