"""Where the real inputs lie: folders beside the repository, or as the environment says."""

import os
from pathlib import Path

import pytest

_SHARED = Path(__file__).parents[2].parent / "shared"


def corpus_path(name: str) -> Path:
    """A file below KVCACHE_CORPUS; the calling test is skipped where it is absent."""
    return _path("KVCACHE_CORPUS", "corpus", name)


def traces_path(name: str) -> Path:
    """A file below KVCACHE_TRACES; the calling test is skipped where it is absent."""
    return _path("KVCACHE_TRACES", "traces", name)


def _path(variable: str, folder: str, name: str) -> Path:
    path = Path(os.environ.get(variable, _SHARED / folder)) / name
    if not path.exists():
        pytest.skip(f"{path} is absent; set {variable}")
    return path
