"""From a path, a mapping or a configuration object to the fields of the decoder in it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvcache.errors import InvalidArgumentError, KVCacheIOError, NotFoundError
from kvcache.models.fields import Fields, Options

__all__ = ["MAX_BYTES", "open_config"]

MAX_BYTES = 64 * 2**20
"""Largest configuration file that is read."""


def open_config(config: object, options: Options) -> Fields:
    """The fields of a configuration.

    Args:
        config: path of a ``config.json`` or of the folder that has it; a mapping; or an object
            with a ``to_dict`` method, such as a configuration of ``transformers``.
        options: how the model is served.

    Raises:
        NotFoundError: no such file. KVCacheIOError: it cannot be read.
        InvalidArgumentError: it is not a JSON object.
    """
    if isinstance(config, str | os.PathLike):
        return _from_file(Path(config), options)
    to_dict = getattr(config, "to_dict", None)
    if not isinstance(config, Mapping) and callable(to_dict):
        config = to_dict()
    if not isinstance(config, Mapping):
        raise InvalidArgumentError(
            f"config: expected a path or a mapping, got {type(config).__name__}"
        )
    return _object(dict(config), "config", options)


def _from_file(path: Path, options: Options) -> Fields:
    try:
        if path.is_dir():
            path = path / "config.json"
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise KVCacheIOError(f"{path}: {error}") from error
    if len(text) > MAX_BYTES:
        raise InvalidArgumentError(f"{path}: expected at most {MAX_BYTES} bytes of JSON")
    try:
        value = json.loads(text)
    except RecursionError:
        raise InvalidArgumentError(f"{path}: not a configuration: nested too deeply") from None
    except ValueError as error:
        raise InvalidArgumentError(f"{path}: not JSON: {error}") from None
    return _object(value, str(path), options)


def _object(value: Any, source: str, options: Options) -> Fields:
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{source}: expected a JSON object, got {type(value).__name__}")
    if not all(isinstance(key, str) for key in value):
        raise InvalidArgumentError(f"{source}: expected names of fields that are strings")
    return Fields(value, source, options)
