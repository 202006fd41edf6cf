"""What `kvcache plan` reports: bytes by group of layers, what fits, terms of every state kind.

Counts and sums are made here; every byte of a unit comes from the compiled core.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvcache.budget import verify_steps_by_slot
from kvcache.caches import declare_caches
from kvcache.enums import DType, Section, StateKind, VerifyRule
from kvcache.errors import InvalidArgumentError
from kvcache.planner.formats import CacheFormat, declare_model, parse_format
from kvcache.serde import U64_MAX, Value, checked
from kvcache.terms import (
    LIMIT,
    CacheInputs,
    StateInputs,
    VerifyInputs,
    cache_terms,
    max_sequences,
    max_tokens,
    retained_bytes,
    retained_units,
    state_terms,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcache.models import Model
    from kvcache.state import StateDecl

__all__ = ["Fit", "GroupPlan", "Growth", "KindTerm", "ModelPlan", "growth", "plan_model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan(Value):
    """Layers that keep the same state.

    Attributes:
        name: what a layer keeps, for people.
        layers: how many.
        draft: whether they belong to a draft head.
        window: positions that stay, 0 for all of them.
        positions: positions retained by one sequence.
        token_bytes: bytes that one more position adds while it is inside the window, all layers.
        fixed_bytes: bytes of fixed-size state of one sequence, all layers.
        sequence_bytes: bytes of one sequence, all layers.
    """

    name: str
    layers: int
    draft: bool
    window: int
    positions: int
    token_bytes: float
    fixed_bytes: int
    sequence_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth(Value):
    """Bytes of one sequence as a line: ``fixed_bytes + token_bytes * tokens``.

    Exact from ``from_tokens`` positions on, where every window is full; at positions that are a
    multiple of the longest record of pooled state.
    """

    fixed_bytes: int
    token_bytes: float
    from_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit(Value):
    """What a memory size holds; None means that not even one fits.

    Attributes:
        memory_bytes: the size.
        tokens: positions of a lone sequence; 2**40 where nothing grows.
        sequences: sequences of the planned length.
    """

    memory_bytes: int
    tokens: int | None
    sequences: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTerm(Value):
    """Bytes of one state kind, all declarations together."""

    kind: StateKind
    holding: str
    units: int
    bytes: int
    host: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan(Value):
    """The decoder state of one model at one length.

    Attributes:
        name: of the model.
        model_type: see `kvcache.models.Model`.
        tp: tensor-parallel ranks; every number is that of one rank.
        format: how attention state is stored.
        tokens: positions of each sequence.
        batch: sequences.
        groups: by kind of layer, in order of the first layer.
        token_bytes: see `GroupPlan`, all groups.
        fixed_bytes: see `GroupPlan`, all groups.
        sequence_bytes: bytes of one sequence.
        total_bytes: bytes of all sequences.
        growth: bytes of one sequence as intercept and slope.
        fit: what fits the memory, where one was given.
        terms: every state kind, also the caches around the state.
        terms_bytes: their sum.
        notes: how the configuration was understood where it left room.
    """

    name: str
    model_type: str
    tp: int
    format: str
    tokens: int
    batch: int
    groups: tuple[GroupPlan, ...]
    token_bytes: float
    fixed_bytes: int
    sequence_bytes: int
    total_bytes: int
    growth: Growth
    fit: Fit | None
    terms: tuple[KindTerm, ...]
    terms_bytes: int
    notes: tuple[str, ...]


def plan_model(
    model: Model,
    *,
    name: str = "",
    tokens: int = 4096,
    batch: int = 1,
    format: str | CacheFormat = "f16",  # noqa: A002 - the field's word
    state_dtype: DType | str = DType.F32,
    memory_bytes: int | None = None,
    drafts: int = 0,
    prefix_snapshots: int = 0,
    block_tokens: int = 1,
) -> ModelPlan:
    """Plan the decoder state of a model.

    Args:
        model: from `kvcache.models.from_config`.
        name: shown in reports; the model's type by default.
        tokens: positions of each sequence.
        batch: sequences.
        format: of everything that grows by the position, see `parse_format`.
        state_dtype: element of fixed-size tensors that are declared floating.
        memory_bytes: answer what fits.
        drafts: most draft tokens of one verify; counts the layers of draft heads too.
        prefix_snapshots: snapshots of fixed-size state that a prefix cache holds.
        block_tokens: full attention grows in steps of so many positions.

    Raises:
        InvalidArgumentError: a value out of range, or bytes beyond 64 bits.
        UnsupportedError: rows that the format cannot store.
    """
    checked("tokens", tokens)
    checked("batch", batch, 1)
    checked("drafts", drafts)
    checked("prefix_snapshots", prefix_snapshots)
    checked("block_tokens", block_tokens, 1)
    stored = format if isinstance(format, CacheFormat) else parse_format(format, name="format")
    decls = declare_model(model, stored, state_dtype=state_dtype, drafts=drafts > 0)
    groups = _groups(decls, tokens, block_tokens)
    sequence = retained_bytes(decls, tokens, block_tokens=block_tokens)
    terms = (
        *_paged_terms(decls, tokens, batch, block_tokens),
        *_recurrent_terms(decls, batch, drafts),
        *_cache_terms(model, decls, batch, drafts, prefix_snapshots),
    )
    fixed = sum(group.fixed_bytes for group in groups)
    return ModelPlan(
        name=name or model.model_type,
        model_type=model.model_type,
        tp=model.tp,
        format=stored.name,
        tokens=tokens,
        batch=batch,
        groups=groups,
        token_bytes=_number(sum(group.token_bytes for group in groups)),
        fixed_bytes=fixed,
        sequence_bytes=sequence,
        total_bytes=_u64(sequence * batch, "batch"),
        growth=growth(decls),
        fit=None if memory_bytes is None else _fit(decls, tokens, memory_bytes, block_tokens),
        terms=terms,
        terms_bytes=_u64(sum(term.bytes for term in terms), "terms"),
        notes=tuple(model.notes),
    )


def growth(decls: Sequence[StateDecl]) -> Growth:
    """Bytes of one sequence of ``decls`` as intercept and slope."""
    windows = max((decl.window + decl.sinks for decl in decls), default=0)
    step = math.lcm(*(decl.record_tokens for decl in decls))
    start = -(-windows // step) * step
    low = retained_bytes(decls, start)
    slope = retained_bytes(decls, start + step) - low
    return Growth(
        fixed_bytes=low - slope * (start // step),
        token_bytes=_number(slope / step),
        from_tokens=windows,
    )


# -- groups ------------------------------------------------------------------------------------


def _groups(decls: Sequence[StateDecl], tokens: int, block_tokens: int) -> tuple[GroupPlan, ...]:
    layers: dict[int, list[StateDecl]] = {}
    for decl in decls:
        layers.setdefault(decl.layer, []).append(decl)
    alike: dict[tuple[Any, ...], list[list[StateDecl]]] = {}
    for parts in layers.values():
        alike.setdefault(tuple(_kept(part) for part in parts), []).append(parts)
    return tuple(_group(members, tokens, block_tokens) for members in alike.values())


def _kept(decl: StateDecl) -> tuple[Any, ...]:
    return (
        decl.component,
        decl.kind,
        decl.section,
        decl.dtype,
        decl.shape,
        decl.row_scale_bytes,
        decl.window,
        decl.record_tokens,
        decl.chunked,
        decl.sinks,
    )


def _group(members: list[list[StateDecl]], tokens: int, block_tokens: int) -> GroupPlan:
    first, count = members[0], len(members)
    paged = [decl for decl in first if decl.kind is StateKind.PAGED_KV]
    fixed = [decl for decl in first if decl.kind is not StateKind.PAGED_KV]
    token = sum(retained_bytes([d], d.record_tokens) / d.record_tokens for d in _open(paged))
    # Positions are those of attention; state pooled over positions may reach further back.
    leading = min(paged, key=lambda d: d.record_tokens, default=None)
    units = 0 if leading is None else retained_units(leading, tokens, block_tokens=block_tokens)
    return GroupPlan(
        name=_describe(first),
        layers=count,
        draft=first[0].section is Section.DRAFT,
        window=0 if leading is None else leading.window,
        positions=0 if leading is None else units * leading.record_tokens,
        token_bytes=_number(token * count),
        fixed_bytes=retained_bytes(fixed, 0) * count,
        sequence_bytes=retained_bytes(first, tokens, block_tokens=block_tokens) * count,
    )


def _open(paged: Iterable[StateDecl]) -> list[StateDecl]:
    """The same state before any window is full."""
    return [replace(decl, window=0, chunked=False, sinks=0) for decl in paged]


def _describe(parts: Sequence[StateDecl]) -> str:
    shapes = {decl.component: decl.shape for decl in parts}
    words = []
    if "attention.compressed_latent" in shapes:
        words.append("latent")
    elif "attention.values" in shapes:
        words.append("keys, values")
    elif "attention.keys" in shapes:
        words.append("keys")
    if "attention.indexer_keys" in shapes:
        words.append("index keys")
    if any(name.startswith("state.pooling") for name in shapes):
        words.append("pooled history")
    if any(decl.verify is VerifyRule.H_STEPS for decl in parts):
        words.append("recurrence")
    if any(decl.verify is VerifyRule.CONV_STEPS for decl in parts):
        words.append("convolution")
    return " + ".join(words) or "other state"


# -- terms -------------------------------------------------------------------------------------


def _paged_terms(
    decls: Sequence[StateDecl], tokens: int, batch: int, block_tokens: int
) -> list[KindTerm]:
    found = []
    for section in Section:
        paged = [d for d in decls if d.kind is StateKind.PAGED_KV and d.section is section]
        if paged:
            units = sum(retained_units(d, tokens, block_tokens=block_tokens) for d in paged)
            size = retained_bytes(paged, tokens, block_tokens=block_tokens)
            holding = "blocks" if section is Section.MAIN else "draft blocks"
            found.append(
                KindTerm(
                    kind=StateKind.PAGED_KV,
                    holding=holding,
                    units=units * batch,
                    bytes=_u64(size * batch, "batch"),
                    host=False,
                )
            )
    return found


def _recurrent_terms(decls: Sequence[StateDecl], batch: int, drafts: int) -> list[KindTerm]:
    recurrent = [decl for decl in decls if decl.kind is StateKind.RECURRENT]
    ruled = [decl for decl in recurrent if decl.verify is not VerifyRule.NONE]
    others = [decl for decl in recurrent if decl.verify is VerifyRule.NONE]
    verify = None
    if drafts:
        verify = VerifyInputs(verify_steps_by_slot(batch, drafts=drafts), drafts)
    terms = [
        *state_terms(ruled, StateInputs(slots=batch, verify=verify)),
        *state_terms(others, StateInputs(slots=batch)),
    ]
    sums: dict[str, tuple[int, int]] = {}
    for term in terms:
        units, size = sums.get(term.holding, (0, 0))
        sums[term.holding] = (units + term.units, size + term.bytes)
    return [
        KindTerm(
            kind=StateKind.RECURRENT,
            holding=str(holding),
            units=units,
            bytes=_u64(size, "terms"),
            host=False,
        )
        for holding, (units, size) in sums.items()
    ]


def _cache_terms(
    model: Model, decls: Sequence[StateDecl], batch: int, drafts: int, prefix_snapshots: int
) -> list[KindTerm]:
    """Caches around the state: snapshots of a prefix cache, and what a verify needs."""
    slots = batch + 1 if drafts else 0  # one dummy slot serves padding rows
    carried = slots if any(decl.verify is not VerifyRule.NONE for decl in decls) else 0
    inputs = CacheInputs(
        prefix_snapshot_slots=prefix_snapshots,
        carry=(carried, carried),
        verify_table_rows=carried,
        drafts=(slots, drafts) if drafts else None,
    )
    caches = declare_caches(decls, hidden_size=model.hidden_size)
    sums: dict[StateKind, tuple[int, int, bool]] = {}
    for term in cache_terms(caches, inputs):
        units, size, _ = sums.get(term.kind, (0, 0, False))
        sums[term.kind] = (units + term.units, size + term.bytes, term.host)
    return [
        KindTerm(kind=kind, holding="copies", units=units, bytes=_u64(size, "terms"), host=host)
        for kind, (units, size, host) in sorted(sums.items())
    ]


# -- what fits ---------------------------------------------------------------------------------


def _fit(decls: Sequence[StateDecl], tokens: int, memory_bytes: int, block_tokens: int) -> Fit:
    return Fit(
        memory_bytes=memory_bytes,
        tokens=max_tokens(decls, sequences=1, memory_bytes=memory_bytes, block_tokens=block_tokens),
        sequences=_sequences(decls, tokens, memory_bytes, block_tokens),
    )


def _sequences(
    decls: Sequence[StateDecl], tokens: int, memory_bytes: int, block_tokens: int
) -> int | None:
    if retained_bytes(decls, tokens, block_tokens=block_tokens) == 0:
        return LIMIT
    return max_sequences(decls, tokens=tokens, memory_bytes=memory_bytes, block_tokens=block_tokens)


def _u64(value: int, name: str) -> int:
    if value > U64_MAX:
        raise InvalidArgumentError(f"{name}: {value} bytes do not fit 64 bits")
    return value


def _number(value: float) -> float:
    """An integer where it is one, so that reports do not say 65536.0."""
    return int(value) if value == int(value) else value
