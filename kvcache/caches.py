"""Declarations of the caches that serve a model's state: copies, stashes, tables, indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.enums import DType, Section, StateKind, VerifyRule
from kvcache.serde import checked
from kvcache.state import StateDecl

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["declare_caches", "declare_stash"]

_CARRY_ROWS = 8  # rows of inputs that a carry slot keeps
_VERIFY_POINTERS = 16  # the state and up to 15 intermediates


def declare_caches(decls: Iterable[StateDecl], *, hidden_size: int) -> tuple[StateDecl, ...]:
    """Declare every cache that the model behind ``decls`` may be served with.

    Which of them take memory, and how much, is decided by the counts given to
    `kvcache.cache_terms`: what is not used has no units.

    - each fixed-size state: a copy per prefix snapshot and per ring slot, halves as float32;
    - each layer of linear attention (a state of ``[heads, key, value]``): the carry of a verify,
      its tables, and the verify table;
    - the head: a hidden row per prefix snapshot, accepted row and captured row;
    - the model: prompt-lookup entries, token-tree mask, draft tokens.

    Args:
        decls: the state that layers keep, see `kvcache.declare`; a draft head's is not cached.
        hidden_size: width of a hidden row.
    """
    checked("hidden_size", hidden_size, 1)
    layers: dict[int, list[StateDecl]] = {}
    for decl in decls:
        if decl.verify is not VerifyRule.NONE and decl.section is Section.MAIN:
            layers.setdefault(decl.layer, []).append(decl)
    found = []
    for layer, states in layers.items():
        found += [*_copies(states), *_carry(layer, states)]
    rows = (
        ("prefix_hidden", StateKind.PREFIX_SNAPSHOT),
        ("accept_hidden", StateKind.ACCEPT_STASH),
        ("capture_hidden", StateKind.HIDDEN_CAPTURE),
    )
    found += [_cache(-1, f"head.{name}", kind, DType.BF16, hidden_size) for name, kind in rows]
    return (
        *found,
        _cache(-1, "head.carry_slots", StateKind.CARRY_TABLE, DType.U32, 2),
        _cache(-1, "embed.lookup_index", StateKind.PROMPT_LOOKUP_INDEX, DType.U64, 2),
        _cache(-1, "embed.tree_mask", StateKind.TOKEN_TREE_MASK, DType.U8, 1),
        _cache(-1, "embed.draft_ids", StateKind.DRAFT_TOKENS, DType.I32, 1),
    )


def declare_stash(decls: Iterable[StateDecl], *, rows: int) -> tuple[StateDecl, ...]:
    """Declare the carry stash of a `kvcache.StatePlan` with ``stash_rows=rows``.

    For each layer whose state folds (`kvcache.fold`): the inputs of ``rows`` rows of each tensor,
    float32 for a recurrence and the tensor's own element for a convolution, and the number of rows
    that wait to be folded. `kvcache.cache_terms` of these, with ``carry=(sequences, 0)``, are the
    bytes that the cache allocates.

    Args:
        decls: the declarations of the plan.
        rows: positive.

    Raises:
        InvalidArgumentError: ``rows`` is not positive.
    """
    from kvcache import _core

    checked("rows", rows, 1)
    layers: dict[int, list[StateDecl]] = {}
    for decl in decls:
        elements = _core.stash_row_elements(decl.to_core())
        if elements:
            matrix = decl.verify is VerifyRule.H_STEPS
            dtype = DType.F32 if matrix else decl.dtype
            name = f"carry.{decl.component}"
            stash = _cache(decl.layer, name, StateKind.CARRY_STASH, dtype, rows, elements)
            layers.setdefault(decl.layer, []).append(stash)
    pending = "carry.pending", StateKind.CARRY_STASH, DType.U32, 1
    return tuple(
        decl for layer, stashes in layers.items() for decl in (*stashes, _cache(layer, *pending))
    )


def _copies(states: list[StateDecl]) -> list[StateDecl]:
    kinds = (("prefix", StateKind.PREFIX_SNAPSHOT), ("ring", StateKind.RING_SNAPSHOT))
    return [
        _cache(state.layer, f"{name}.{state.component}", kind, _copied(state.dtype), *state.shape)
        for name, kind in kinds
        for state in states
    ]


def _copied(dtype: DType) -> DType:
    return DType.F32 if dtype in (DType.F16, DType.BF16) else dtype


def _carry(layer: int, states: list[StateDecl]) -> list[StateDecl]:
    from kvcache import _core

    matrices = [state for state in states if state.verify is VerifyRule.H_STEPS]
    if len(matrices) != 1 or len(matrices[0].shape) != 3:
        return []
    inputs = _core.stash_row_elements(matrices[0].to_core())  # keys, values and gates
    if not inputs:
        return []
    channels = sum(s.shape[-1] for s in states if s.component.startswith("state.convolution."))
    stash, table = StateKind.CARRY_STASH, StateKind.CARRY_TABLE
    caches = [
        _cache(layer, "carry.inputs", stash, DType.F32, _CARRY_ROWS, inputs),
        _cache(layer, "carry.pending", stash, DType.U32, 1),
        _cache(layer, "carry.pointers", table, DType.U64, 3),
        _cache(layer, "carry.flags", table, DType.U32, 1),
        _cache(layer, "verify.pointers", StateKind.VERIFY_TABLE, DType.U64, _VERIFY_POINTERS),
    ]
    if channels:
        caches.append(_cache(layer, "carry.convolution", stash, DType.BF16, _CARRY_ROWS, channels))
    return caches


def _cache(layer: int, name: str, kind: StateKind, dtype: DType, *shape: int) -> StateDecl:
    prefix = f"l{layer}." if layer >= 0 else ""
    return StateDecl(
        id=f"{prefix}{name}",
        layer=layer,
        component=name,
        kind=kind,
        section=Section.MAIN,
        dtype=dtype,
        shape=shape,
    )
