"""Where the tests find real inputs that the repository does not carry."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]


def corpus_path(name: str) -> Path:
    """A file or folder of the corpus of configurations and published figures."""
    return _find("KVCACHE_CORPUS", _ROOT.parent / "shared" / "corpus", name)


def traces_path(name: str) -> Path:
    """A file or folder of the request traces."""
    return _find("KVCACHE_TRACES", _ROOT.parent / "shared" / "traces", name)


def _find(variable: str, default: Path, name: str) -> Path:
    folder = Path(os.environ.get(variable, default))
    path = folder / name
    if not path.exists():
        pytest.skip(f"{path} is not there; set {variable} to the folder that has it")
    return path
