"""All persistent decoder state of an LLM on the host.

Declarations, policies and model families are pure Python; the compiled core is loaded on first
use of a name that needs it (PEP 562).
"""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> module that defines it. Modules listed here load only when a name is used.
_EXPORTS = {
    **dict.fromkeys(
        [
            "CachePolicyError",
            "CorruptionError",
            "InternalError",
            "InvalidArgumentError",
            "KVCacheError",
            "KVCacheIOError",
            "LayerScheduleError",
            "NonFiniteError",
            "NotFoundError",
            "OutOfCapacityError",
            "UnsupportedError",
        ],
        "errors",
    ),
    **dict.fromkeys(
        [
            "AttentionPolicy",
            "CacheTier",
            "LayerCachePolicy",
            "LayerSchedule",
            "MutableStateResidency",
            "PoolingStateComponent",
            "StateComponentPolicy",
            "StateComponentRole",
            "StateResidencyClass",
            "StateTensorDimension",
            "StateTensorDtype",
            "StateTensorOwner",
            "StateTensorPolicy",
            "StateTensorPresence",
            "StateTensorRole",
        ],
        "policy",
    ),
    **dict.fromkeys(["KvCacheDtype", "KvStorageFormat"], "storage"),
    **dict.fromkeys(
        ["DType", "Lifetime", "Section", "StateDecl", "StateKind", "VerifyRule", "declare"],
        "state",
    ),
}
_EXPORTS |= dict.fromkeys(["Cache", "CacheStats", "Explanation", "Sequence"], "cache")
_EXPORTS |= {"StatePlan": "plan"}
_EXPORTS |= {"VerifySession": "speculate"}
_MODULES = ["codec", "errors", "models"]

__all__ = sorted([*_EXPORTS, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
