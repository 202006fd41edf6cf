"""What a call answers, or which error of ours it raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvcache.errors import KVCacheError


def outcome(call: Callable[[], Any]) -> tuple[Any, KVCacheError | None]:
    try:
        return call(), None
    except KVCacheError as error:
        return None, error
