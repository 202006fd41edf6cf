"""All persistent decoder state of an LLM on the host.

Names load on first use (PEP 562): declarations, policies and model families are pure Python, and
the compiled core is loaded only by a name that needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the names below once more, for type checkers and editors
    from kvcache import codec as codec
    from kvcache import errors as errors
    from kvcache import models as models
    from kvcache import planner as planner
    from kvcache import published as published
    from kvcache import shards as shards
    from kvcache.admission import *
    from kvcache.aio import AsyncCache as AsyncCache
    from kvcache.batch import Batch as Batch
    from kvcache.block import *
    from kvcache.budget import *
    from kvcache.cache import Cache as Cache
    from kvcache.caches import *
    from kvcache.capability import *
    from kvcache.codec import Bfloat16Array as Bfloat16Array
    from kvcache.errors import *
    from kvcache.estimate import *
    from kvcache.events import *
    from kvcache.explanation import *
    from kvcache.hints import *
    from kvcache.layouts import EngineLayout as EngineLayout
    from kvcache.lifetime import *
    from kvcache.memory import *
    from kvcache.metrics import prometheus_text as prometheus_text
    from kvcache.page_pool import PagePool as PagePool
    from kvcache.pages import *
    from kvcache.plan import *
    from kvcache.policy import *
    from kvcache.published import load_published as load_published
    from kvcache.reservation import *
    from kvcache.schema import *
    from kvcache.sequence import Sequence as Sequence
    from kvcache.snapshot import *
    from kvcache.speculate.batch_verify import BatchVerifySession as BatchVerifySession
    from kvcache.speculate.carry_table import *
    from kvcache.speculate.draft_tokens import *
    from kvcache.speculate.folding import *
    from kvcache.speculate.hidden import *
    from kvcache.speculate.prompt_lookup import *
    from kvcache.speculate.token_tree import TokenTree as TokenTree
    from kvcache.speculate.verify import PendingRows as PendingRows
    from kvcache.speculate.verify import VerifySession as VerifySession
    from kvcache.speculate.verify_table import VerifyTable as VerifyTable
    from kvcache.state import *
    from kvcache.stats import *
    from kvcache.storage import *
    from kvcache.stored import *
    from kvcache.strategy import *
    from kvcache.tenants import *
    from kvcache.terms import *
    from kvcache.tiers.disk import *
    from kvcache.tiers.remote import *

# Module -> the public names that it defines.
_NAMES = {
    "admission": [
        "AdmissionRejection",
        "AdmissionRequest",
        "AdmissionResult",
        "Admitted",
        "Rejected",
        "apply_admission_policy",
    ],
    "aio": ["AsyncCache"],
    "batch": ["Batch"],
    "speculate.batch_verify": ["BatchVerifySession"],
    "block": ["CacheBlockId", "CacheRankIdentity", "CacheRepresentation"],
    "budget": [
        "KvBudget",
        "KvPools",
        "best_slots",
        "demanded_blocks",
        "fit_ring_depth",
        "largest_fitting",
        "verify_steps_by_slot",
    ],
    "cache": ["Cache"],
    "caches": ["declare_caches", "declare_stash"],
    "speculate.carry_table": ["CarryTable", "StashOffsets"],
    "codec": ["Bfloat16Array"],
    "capability": [
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
    "tiers.disk": ["CacheDisk", "DiskTier", "DiskTierStats", "Durability", "TierAccess"],
    "speculate.draft_tokens": ["DraftTokens"],
    "errors": [
        "CachePolicyError",
        "CorruptionError",
        "InternalError",
        "InvalidArgumentError",
        "KVCacheError",
        "KVCacheIOError",
        "KVCacheWarning",
        "LayerScheduleError",
        "NonFiniteError",
        "NotFoundError",
        "OutOfCapacityError",
        "UnsupportedError",
    ],
    "estimate": ["RuntimeStateEstimate", "StateMemoryAssumptions", "estimate_runtime_state"],
    "events": [
        "AllBlocksCleared",
        "BlockRemoved",
        "BlockStored",
        "KVCacheEvent",
        "KVEventBatch",
        "space_digest",
    ],
    "explanation": ["Explanation"],
    "speculate.folding": ["append_rows", "fold"],
    "memory": ["HugePages", "MemoryOptions"],
    "page_pool": ["PagePool"],
    "layouts": ["EngineLayout"],
    "speculate.hidden": ["AcceptStash", "HiddenBands", "HiddenCapture"],
    "hints": ["CostModel", "RequestHints"],
    "pages": ["PageMemory", "PageView"],
    "lifetime": ["Pin"],
    "tenants": ["TenantUsage"],
    "metrics": ["prometheus_text"],
    "plan": ["FixedComponent", "Group", "PagedComponent", "StatePlan"],
    "policy": [
        "AttentionPolicy",
        "CacheTier",
        "CompressedLatentRotary",
        "FixedState",
        "Full",
        "KeyOnly",
        "KeyOnlyWithFixedState",
        "KeyValue",
        "KeyValueWithFixedState",
        "LayerCachePolicy",
        "LayerSchedule",
        "MutableStateResidency",
        "NoState",
        "PoolingStateComponent",
        "Sliding",
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
    "speculate.prompt_lookup": [
        "Occurrence",
        "PromptLookupCache",
        "PromptLookupIndex",
        "PromptLookupScope",
        "propose_batch",
        "settle_batch",
    ],
    "published": ["load_published"],
    "reservation": ["Reservation"],
    "schema": ["json_schema", "public_types"],
    "sequence": ["Sequence"],
    "speculate.verify": ["PendingRows", "VerifySession"],
    "state": [
        "DType",
        "Gate",
        "Lifetime",
        "Section",
        "StateDecl",
        "StateKind",
        "VerifyRule",
        "declare",
    ],
    "stats": ["CacheStats"],
    "stored": ["Collected", "StoredReport", "check_stored", "collect_stored", "kind_of"],
    "snapshot": ["SnapshotError", "SnapshotFormat"],
    "storage": ["KvCacheDtype", "KvStorageFormat", "Storage", "parse_storage"],
    "strategy": [
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
    "terms": [
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
    "tiers.remote": ["CacheRemote", "RemoteTierStats", "ValkeyTier"],
    "speculate.token_tree": ["TokenTree"],
    "speculate.verify_table": ["VerifyTable"],
}
_EXPORTS = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = ["codec", "errors", "models", "planner", "published", "shards"]

__all__ = sorted([*_EXPORTS, *_MODULES])

if not TYPE_CHECKING:  # a name that is not there is a type error

    def __getattr__(name: str) -> Any:
        if name not in _EXPORTS and name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(f"{__name__}.{_EXPORTS.get(name, name)}")
        except ImportError as error:
            if "_core" in str(error):
                error.add_note(
                    f"{__file__} is of a source tree without the compiled module. Run Python from"
                    " another directory for the installed package, or `pip install -e .` here."
                )
            raise
        return getattr(module, name) if name in _EXPORTS else module


def __dir__() -> list[str]:
    return __all__
