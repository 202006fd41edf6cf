"""Prompt caches on disk to look into and to damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.filled import fill, make_cache, prompt


def saved(path: Path, model: str = "hybrid", length: int = 22, **options: Any) -> Path:
    cache = make_cache(model, **options)
    fill(cache, prompt(length))
    assert cache.save(path, prompt(length)) == length
    return path


def generation(path: Path) -> Path:
    return path / ".generations" / (path / "CURRENT").read_text().strip()


def manifest(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((generation(path) / "manifest.json").read_text())
    return found


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def put_byte(file: Path, at: int, byte: int) -> None:
    """In place: file systems flush a file that is truncated and written anew."""
    with file.open("r+b", buffering=0) as raw:
        raw.seek(at)
        raw.write(bytes([byte]))
