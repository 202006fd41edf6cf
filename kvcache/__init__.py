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
            "CompressedLatentRotary",
            "FixedState",
            "KeyOnly",
            "KeyOnlyWithFixedState",
            "KeyValue",
            "KeyValueWithFixedState",
            "LayerCachePolicy",
            "LayerSchedule",
            "MutableStateResidency",
            "NoState",
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
_EXPORTS |= dict.fromkeys(["json_schema", "public_types"], "schema")
_EXPORTS |= dict.fromkeys(["CacheBlockId", "CacheRankIdentity", "CacheRepresentation"], "block")
_EXPORTS |= {"declare_caches": "caches"}
_EXPORTS |= dict.fromkeys(
    [
        "CacheStateStrategy",
        "CompressedMla",
        "FullKv",
        "HybridRecurrent",
        "MixedKv",
        "Multimodal",
        "SharedFullKv",
        "SlidingKey",
        "SlidingKv",
        "SlidingWindowLayerCount",
    ],
    "strategy",
)
_EXPORTS |= dict.fromkeys(
    [
        "AvailableMemory",
        "EstimationCompleteness",
        "InputModalities",
        "InputTokenCount",
        "ModelCapabilities",
        "ObservationKind",
        "Observed",
        "PhysicalMemorySemantics",
        "StateMemoryLayout",
    ],
    "capability",
)
_EXPORTS |= dict.fromkeys(
    ["RuntimeStateEstimate", "StateMemoryAssumptions", "estimate_runtime_state"], "estimate"
)
_EXPORTS |= dict.fromkeys(
    ["AdmissionRejection", "AdmissionRequest", "AdmissionResult", "apply_admission_policy"],
    "admission",
)
_EXPORTS |= dict.fromkeys(
    [
        "BlockPool",
        "CacheInputs",
        "CacheTerm",
        "Holding",
        "LookupInputs",
        "StateInputs",
        "StateTerm",
        "VerifyInputs",
        "block_bytes",
        "cache_terms",
        "hash_table_bytes",
        "max_sequences",
        "max_tokens",
        "retained_bytes",
        "retained_units",
        "state_terms",
    ],
    "terms",
)
_EXPORTS |= dict.fromkeys(
    [
        "KvBudget",
        "KvPools",
        "best_slots",
        "demanded_blocks",
        "fit_ring_depth",
        "largest_fitting",
        "verify_steps_by_slot",
    ],
    "budget",
)
_EXPORTS |= dict.fromkeys(["Cache", "CacheStats", "Explanation", "Sequence"], "cache")
_EXPORTS |= {"StatePlan": "plan"}
_EXPORTS |= {"VerifySession": "speculate"}
_MODULES = ["codec", "errors", "models", "planner"]

__all__ = sorted([*_EXPORTS, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
