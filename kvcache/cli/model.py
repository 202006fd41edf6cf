"""The model of a command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.errors import InvalidArgumentError, KVCacheError, UnsupportedError
from kvcache.models import from_config

if TYPE_CHECKING:
    from pathlib import Path

    from kvcache.models import Model

__all__ = ["load_model"]


def load_model(path: Path, *, tp: int = 1) -> Model:
    """The model of a configuration file; every error names the file.

    Raises:
        InvalidArgumentError, UnsupportedError, NotFoundError, KVCacheIOError: as `from_config`.
    """
    try:
        return from_config(path, tp=tp)
    except KVCacheError as error:
        if str(path) in str(error):
            raise
        kind = UnsupportedError if isinstance(error, UnsupportedError) else InvalidArgumentError
        raise kind(f"{path}: {error}") from error
