"""What all engine modules share: how a model is deployed, and what a report says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvcache.enums import DType, StateKind, VerifyRule
from kvcache.planner.formats import CacheFormat, parse_format
from kvcache.serde import Value, checked
from kvcache.terms import BlockPool, StateInputs, state_terms

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcache.state import StateDecl

__all__ = [
    "Allocation",
    "Deployment",
    "EngineReport",
    "attention",
    "by_window",
    "layer_count",
    "pool_bytes",
    "recurrent",
    "round_up",
    "slot_bytes",
    "with_state",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """How a model is served. Every engine reads what it has; the defaults are theirs.

    Attributes:
        tokens: positions of the longest sequence.
        sequences: sequences served at once.
        format: storage of attention state.
        memory_bytes: memory for all state of one rank, where it is known.
        drafts: draft tokens of one speculative step; draft layers keep state while drafting.
        state_dtype: element of recurrent state; None for float32 as declared.
        block_tokens: page size that was asked for; None for the engine's own.
        batched_tokens: most positions that one step computes.
        ubatch: physical batch of llama.cpp.
        unified: llama.cpp: sequences share one buffer.
        full_windows: windows are masks only, every layer keeps all positions.
        flash_attention: llama.cpp: without it values are stored transposed, all of one width.
        dcp: ranks that split the positions of one sequence among them.
        prefix_cache: whether finished sequences stay to be reused.
    """

    tokens: int = 4096
    sequences: int = 1
    format: CacheFormat = field(default_factory=lambda: parse_format("f16"))
    memory_bytes: int | None = None
    drafts: int = 0
    state_dtype: DType | None = None
    block_tokens: int | None = None
    batched_tokens: int = 8192
    ubatch: int = 512
    unified: bool = True
    full_windows: bool = False
    flash_attention: bool = True
    dcp: int = 1
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        for name in ("tokens", "sequences", "batched_tokens", "ubatch", "dcp"):
            checked(name, getattr(self, name), 1)
        checked("drafts", self.drafts)
        for name in ("memory_bytes", "block_tokens"):
            if getattr(self, name) is not None:
                checked(name, getattr(self, name), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation(Value):
    """One buffer, or the buffers of layers that are alike.

    Attributes:
        name: as the engine calls it, or near.
        layers: layers that it serves.
        units: cells, blocks or slots.
        unit: which of them.
        bytes: all of it.
    """

    name: str
    layers: int
    units: int
    unit: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport(Value):
    """What an engine allocates or prints.

    Attributes:
        engine: its name.
        allocations: its buffers, for ``tokens`` positions of each sequence.
        bytes: their sum.
        block_tokens: positions of one page of full attention, 1 without pages.
        capacity_tokens: what it prints as the size of its cache for ``memory_bytes``; None
            without a memory size.
        concurrency: longest sequences that ``memory_bytes`` serves at once.
        notes: what differs from the state that the model needs.
    """

    engine: str
    allocations: tuple[Allocation, ...]
    bytes: int
    block_tokens: int
    capacity_tokens: int | None
    concurrency: float | None
    notes: tuple[str, ...]


def round_up(value: int, multiple: int) -> int:
    """The least multiple that is no less."""
    return -(-value // multiple) * multiple


def attention(decls: Iterable[StateDecl]) -> list[StateDecl]:
    """The declarations that grow by the position."""
    return [decl for decl in decls if decl.kind is StateKind.PAGED_KV]


def by_window(decls: Iterable[StateDecl]) -> list[tuple[int, list[StateDecl]]]:
    """The declarations that grow, by window, those without one first."""
    found: dict[int, list[StateDecl]] = {}
    for decl in attention(decls):
        found.setdefault(decl.window, []).append(decl)
    return sorted(found.items())


def recurrent(decls: Iterable[StateDecl]) -> list[StateDecl]:
    """The declarations of fixed size."""
    return [decl for decl in decls if decl.kind is StateKind.RECURRENT]


def pool_bytes(decls: Sequence[StateDecl], cells: int, *, pools: int = 1) -> int:
    """Bytes of ``pools`` buffers of ``cells`` positions of every paged declaration."""
    total = 0
    for decl, count in _alike(attention(decls)):
        pool = BlockPool(pools, round_up(cells, decl.record_tokens))
        terms = state_terms([decl], StateInputs(slots=0, kv=pool, draft_kv=pool))
        total += sum(term.bytes for term in terms) * count
    return total


def slot_bytes(decls: Sequence[StateDecl], slots: int) -> int:
    """Bytes of ``slots`` copies of every fixed-size declaration."""
    return sum(
        sum(term.bytes for term in state_terms([decl], StateInputs(slots=slots))) * count
        for decl, count in _alike(recurrent(decls))
    )


def _alike(decls: Iterable[StateDecl]) -> list[tuple[StateDecl, int]]:
    """One declaration of each size, and how many there are; layers repeat a few of them."""
    found: dict[tuple[object, ...], tuple[StateDecl, int]] = {}
    for decl in decls:
        key = (decl.dtype, decl.shape, decl.row_scale_bytes, decl.record_tokens)
        first, count = found.get(key, (decl, 0))
        found[key] = (first, count + 1)
    return list(found.values())


def with_state(
    decls: Iterable[StateDecl],
    *,
    recurrent_dtype: DType | None = None,
    convolution_dtype: DType | None = None,
    more_taps: int = 0,
) -> list[StateDecl]:
    """Fixed-size state as an engine keeps it; declarations have ``kernel - 1`` taps.

    Args:
        decls: declarations; those that grow are left alone.
        recurrent_dtype: element of states of a recurrence, None for the declared one.
        convolution_dtype: element of convolution histories, None for the declared one.
        more_taps: rows more than ``kernel - 1``.
    """
    changed = []
    for decl in decls:
        if decl.verify is VerifyRule.CONV_STEPS:
            dtype = convolution_dtype or decl.dtype
            shape = (decl.shape[0] + more_taps, *decl.shape[1:])
            changed.append(replace(decl, dtype=dtype, shape=shape))
        elif decl.verify is VerifyRule.H_STEPS and recurrent_dtype is not None:
            changed.append(replace(decl, dtype=recurrent_dtype))
        else:
            changed.append(decl)
    return changed


def layer_count(decls: Iterable[StateDecl]) -> int:
    """Layers that the declarations belong to."""
    return len({decl.layer for decl in decls})
