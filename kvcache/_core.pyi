"""Types of the compiled core; private, checked against the module by tests/python/test_stubs.py."""

import enum
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
from numpy.typing import NDArray

__version__: str

class DType(enum.IntEnum):
    F32 = 0
    U32 = 1
    I32 = 2
    F16 = 3
    BF16 = 4
    U64 = 5
    U8 = 6
    FP8 = 7
    I8 = 8

class StateKind(enum.IntEnum):
    RECURRENT = 0
    PAGED_KV = 1
    PREFIX_SNAPSHOT = 2
    RING_SNAPSHOT = 3
    CARRY_STASH = 4
    CARRY_TABLE = 5
    VERIFY_TABLE = 6
    ACCEPT_STASH = 7
    HIDDEN_CAPTURE = 8
    PROMPT_LOOKUP_INDEX = 9
    TOKEN_TREE_MASK = 10
    DRAFT_TOKENS = 11

class Section(enum.IntEnum):
    MAIN = 0
    DRAFT = 1

class VerifyRule(enum.IntEnum):
    NONE = 0
    H_STEPS = 1
    CONV_STEPS = 2

class StateDecl:
    def __init__(
        self,
        *,
        id: str,
        layer: int,
        component: str,
        kind: StateKind,
        section: Section,
        dtype: DType,
        shape: SequenceOf[int],
        row_scale_bytes: int,
        window: int,
        verify: VerifyRule,
        record_tokens: int = 1,
    ) -> None: ...
    @property
    def id(self) -> str: ...
    @property
    def layer(self) -> int: ...
    @property
    def component(self) -> str: ...
    @property
    def kind(self) -> StateKind: ...
    @property
    def section(self) -> Section: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def row_scale_bytes(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def verify(self) -> VerifyRule: ...
    @property
    def record_tokens(self) -> int: ...

def unit_bytes(decl: StateDecl, /) -> int: ...

class PagedComponent:
    @property
    def decl(self) -> int: ...
    @property
    def layer(self) -> int: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def heads(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def rows_offset(self) -> int: ...
    @property
    def scales_offset(self) -> int: ...

class Group:
    @property
    def window(self) -> int: ...
    @property
    def components(self) -> list[PagedComponent]: ...
    @property
    def token_bytes(self) -> int: ...
    @property
    def page_bytes(self) -> int: ...

class FixedComponent:
    @property
    def decl(self) -> int: ...
    @property
    def layer(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def offset(self) -> int: ...
    @property
    def bytes(self) -> int: ...

class StatePlan:
    def __init__(
        self,
        decls: SequenceOf[StateDecl],
        *,
        memory_bytes: int,
        block_tokens: int,
        sequences: int,
    ) -> None: ...
    @property
    def decls(self) -> list[StateDecl]: ...
    @property
    def groups(self) -> list[Group]: ...
    @property
    def fixed(self) -> list[FixedComponent]: ...
    @property
    def slot_bytes(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...
    def sequence_bytes(self, tokens: int, chunk_tokens: int) -> int: ...
    def hit_bytes(self, tokens: int) -> int: ...

class Holding(enum.IntEnum):
    LIVE = 0
    STEPS = 1
    CHECKPOINT = 2
    BLOCKS = 3

class StateTerm:
    @property
    def decl(self) -> int: ...
    @property
    def holding(self) -> Holding: ...
    @property
    def units(self) -> int: ...
    @property
    def bytes(self) -> int: ...

class CacheTerm:
    @property
    def decl(self) -> int: ...
    @property
    def units(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def host(self) -> bool: ...

def state_terms(
    decls: SequenceOf[StateDecl],
    *,
    slots: int,
    verify: tuple[SequenceOf[int], int] | None,
    kv: tuple[int, int] | None,
    draft_kv: tuple[int, int] | None,
) -> list[StateTerm]: ...
def cache_terms(
    decls: SequenceOf[StateDecl],
    *,
    prefix_snapshot_slots: int,
    ring: tuple[int, int],
    carry: tuple[int, int],
    verify_table_rows: int,
    capture_rows: int,
    lookup: tuple[int, int] | None,
    tree: tuple[int, int] | None,
    drafts: tuple[int, int] | None,
) -> list[CacheTerm]: ...
def retained_units(decl: StateDecl, tokens: int, block_tokens: int) -> int: ...
def retained_bytes(decls: SequenceOf[StateDecl], tokens: int, block_tokens: int) -> int: ...
def hash_table_bytes(entries: int, entry_bytes: int) -> int: ...

class KvPools:
    @property
    def blocks(self) -> int: ...
    @property
    def draft_blocks(self) -> int: ...
    @property
    def clamped(self) -> bool: ...

def solve_kv_pools(
    *,
    available_bytes: int,
    reserved_bytes: int,
    block_bytes: int,
    block_tokens: int,
    sequences: int,
    max_tokens: int,
    prefix_cache: bool,
    draft_block_bytes: int,
    draft_sequences: int,
) -> KvPools: ...
def block_index_bytes(decls: SequenceOf[StateDecl], section: Section, block_tokens: int) -> int: ...
def demanded_blocks(sequences: int, tokens: int, block_tokens: int) -> int: ...
def fit_ring_depth(
    requested: int, depth_bytes: int, reserved_bytes: int, headroom_bytes: int
) -> int: ...
def best_slots(max_tokens: int, block_tokens: int, blocks: Callable[[int], int]) -> int: ...
def largest_fitting(first: int, last: int, fits: Callable[[int], bool]) -> int | None: ...
def max_tokens(
    decls: SequenceOf[StateDecl],
    *,
    sequences: int,
    memory_bytes: int,
    block_tokens: int,
    limit: int,
) -> int | None: ...
def max_sequences(
    decls: SequenceOf[StateDecl], *, tokens: int, memory_bytes: int, block_tokens: int, limit: int
) -> int | None: ...
def verify_steps_by_slot(sequences: int, *, drafts: int, uniform: bool) -> list[int]: ...

class AxisKind(enum.IntEnum):
    BATCH = 0
    PREFIX_TOKENS = 1
    PREFIX_TOKENS_DIV = 2
    PREFIX_TOKENS_REM = 3
    FIXED = 4
    SCALAR = 5

class Presence(enum.IntEnum):
    REQUIRED = 0
    OPTIONAL = 1
    PREFIX_REMAINDER_NON_ZERO = 2
    PREFIX_AT_LEAST = 3
    CHARGED_ELSEWHERE = 4

class EstimateComponent:
    def __init__(
        self,
        *,
        name: str,
        shape: SequenceOf[tuple[AxisKind, int]],
        element_bytes: int,
        presence: Presence,
        presence_value: int,
        attention: bool,
    ) -> None: ...

class EstimateLayer:
    def __init__(
        self, *, prefix_lag: int, window: int, components: SequenceOf[EstimateComponent]
    ) -> None: ...

class RuntimeEstimate:
    @property
    def fixed_bytes(self) -> int: ...
    @property
    def context_bytes(self) -> int: ...
    @property
    def growth_bytes(self) -> int: ...
    @property
    def embedding_bytes(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def requested_bytes(self) -> int: ...
    @property
    def window_bounds(self) -> list[int]: ...

def estimate_runtime_state(
    layers: SequenceOf[EstimateLayer],
    *,
    positions: int,
    batch: int,
    floating_bytes: int,
    granularity: int,
    media_positions: int,
    hidden_size: int,
    media_workspace_bytes: int,
) -> RuntimeEstimate: ...

class HitLimit(enum.IntEnum):
    NONE = 0
    TOKENS = 1
    SNAPSHOT = 2
    WINDOW = 3

class Explanation:
    @property
    def tokens(self) -> int: ...
    @property
    def matched_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def nearest_snapshot(self) -> int: ...
    @property
    def limit(self) -> HitLimit: ...

class CacheStats:
    @property
    def budget_bytes(self) -> int: ...
    @property
    def committed_bytes(self) -> int: ...
    @property
    def peak_bytes(self) -> int: ...
    @property
    def used_bytes(self) -> int: ...
    @property
    def open_sequences(self) -> int: ...
    @property
    def pages(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def snapshots(self) -> int: ...
    @property
    def indexed_blocks(self) -> int: ...
    @property
    def indexed_tokens(self) -> int: ...
    @property
    def indexed_snapshots(self) -> int: ...
    @property
    def evicted_blocks(self) -> int: ...
    @property
    def evicted_snapshots(self) -> int: ...
    @property
    def opens(self) -> int: ...
    @property
    def hits(self) -> int: ...
    @property
    def asked_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...

class Sequence:
    @property
    def cached_tokens(self) -> int: ...
    @property
    def matched_tokens(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def is_open(self) -> bool: ...
    def written(self, layer: int, /) -> int: ...
    def tokens(self) -> NDArray[np.int32]: ...
    def extend(self, tokens: NDArray[np.int32], /) -> None: ...
    def write(self, layer: int, start: int, components: SequenceOf[NDArray[Any]]) -> None: ...
    def read(self, layer: int, start: int, components: SequenceOf[NDArray[Any]]) -> None: ...
    def state(self, layer: int, name: str) -> NDArray[Any]: ...
    def advance(self, positions: int, /) -> None: ...
    def snapshot(self) -> int: ...
    def prefill_stops(self) -> list[int]: ...
    def publish(self) -> None: ...
    def fork(self) -> Sequence: ...
    def truncate(self, position: int, /) -> None: ...
    def close(self) -> None: ...

class Cache:
    def __init__(
        self, plan: StatePlan, *, policy: str, backing: bool, capacity_blocks: int
    ) -> None: ...
    @property
    def policy(self) -> str: ...
    def open(
        self,
        tokens: NDArray[np.int32],
        name: bytes | str,
        adapter: bytes | str,
        salt: bytes | str,
        /,
    ) -> Sequence: ...
    def explain(
        self,
        tokens: NDArray[np.int32],
        name: bytes | str,
        adapter: bytes | str,
        salt: bytes | str,
        /,
    ) -> Explanation: ...
    def stats(self) -> CacheStats: ...
    def clear(self) -> None: ...

def active_isa() -> str: ...
def _error_class(code: int, /) -> str: ...
