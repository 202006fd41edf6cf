"""Exact bytes of every state kind: declarations and counts in, one term per declaration out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcache.enums import DType, Lifetime, Section, StateKind
from kvcache.serde import U64, OrderedStrEnum, Value, checked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcache.state import StateDecl

__all__ = [
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
]

LIMIT = 2**40  # positions or sequences beyond which nobody plans


class Holding(OrderedStrEnum):
    """What the units of a state term are held for."""

    LIVE = "live"  # one per sequence slot
    STEPS = "steps"  # intermediates of a speculative verify
    CHECKPOINT = "checkpoint"  # the state before a verify
    BLOCKS = "blocks"  # positions of a block pool


@dataclass(frozen=True, slots=True)
class BlockPool(Value):
    """A pool of blocks of positions."""

    blocks: U64
    block_size: U64  # positions in a block


@dataclass(frozen=True, slots=True)
class VerifyInputs(Value):
    """Intermediates that a speculative verify keeps.

    Attributes:
        h_steps: of each verify slot, for states of the ``h_steps`` rule; the dummy slot last.
        conv_steps: of every slot, for states of the ``conv_steps`` rule.
    """

    h_steps: tuple[U64, ...]
    conv_steps: U64


@dataclass(frozen=True, slots=True)
class StateInputs(Value):
    """The counts that size what layers keep.

    Attributes:
        slots: sequence slots, the padding dummy included.
        verify: present when sequences draft.
        kv: pool of the main section's paged state.
        draft_kv: pool of the draft section's.
    """

    slots: U64
    verify: VerifyInputs | None = None
    kv: BlockPool | None = None
    draft_kv: BlockPool | None = None


@dataclass(frozen=True, slots=True)
class StateTerm(Value):
    """Bytes of one holding of one recurrent or paged state."""

    state: str  # id of the declaration
    holding: Holding
    lifetime: Lifetime
    dtype: DType
    units: U64
    bytes: U64


@dataclass(frozen=True, slots=True)
class LookupInputs(Value):
    """What a prompt-lookup index holds."""

    sequences: U64
    history_tokens: U64  # indexed tokens of each sequence


@dataclass(frozen=True, slots=True)
class CacheInputs(Value):
    """The counts that size caches; what is absent takes no bytes.

    Attributes:
        prefix_snapshot_slots: snapshots that the prefix cache holds.
        ring: ring slots of each sequence slot, and sequence slots.
        carry: carry slots with the dummy, and table rows.
        verify_table_rows: batch positions of a verify.
        capture_rows: captured hidden rows.
        lookup: what the prompt-lookup index holds.
        tree: verify slots, and nodes of one token tree.
        drafts: verify slots, and draft positions of each.
    """

    prefix_snapshot_slots: U64 = 0
    ring: tuple[U64, U64] = (0, 0)
    carry: tuple[U64, U64] = (0, 0)
    verify_table_rows: U64 = 0
    capture_rows: U64 = 0
    lookup: LookupInputs | None = None
    tree: tuple[U64, U64] | None = None
    drafts: tuple[U64, U64] | None = None


@dataclass(frozen=True, slots=True)
class CacheTerm(Value):
    """Bytes of one cache."""

    state: str  # id of the declaration
    kind: StateKind
    dtype: DType
    units: U64
    bytes: U64
    host: bool


def state_terms(decls: Iterable[StateDecl], inputs: StateInputs) -> tuple[StateTerm, ...]:
    """Terms of every recurrent and paged declaration, in order.

    Recurrent state gives ``live`` units, one per slot, and under verify counts ``steps`` and
    ``checkpoint`` units; paged state gives ``blocks`` units, one per record of its section's pool.
    Bytes are units times the bytes of one unit, without padding.

    Raises:
        InvalidArgumentError: recurrent state without a verify rule under verify counts, a pool
            that holds no whole number of records, or bytes beyond 64 bits.
    """
    from kvcache import _core

    listed = tuple(decls)
    verify = inputs.verify
    terms = _core.state_terms(
        [decl.to_core() for decl in listed],
        slots=inputs.slots,
        verify=None if verify is None else (verify.h_steps, verify.conv_steps),
        kv=_pair(inputs.kv),
        draft_kv=_pair(inputs.draft_kv),
    )
    return tuple(
        StateTerm(
            listed[term.decl].id,
            Holding[term.holding.name],
            _lifetime(listed[term.decl].kind, Holding[term.holding.name]),
            listed[term.decl].dtype,
            term.units,
            term.bytes,
        )
        for term in terms
    )


def cache_terms(decls: Iterable[StateDecl], inputs: CacheInputs) -> tuple[CacheTerm, ...]:
    """One term for each cache declaration, in order, also where its bytes are 0.

    Raises:
        InvalidArgumentError: bytes beyond 64 bits; the message names the state.
    """
    from kvcache import _core

    listed = tuple(decls)
    lookup = inputs.lookup
    terms = _core.cache_terms(
        [decl.to_core() for decl in listed],
        prefix_snapshot_slots=inputs.prefix_snapshot_slots,
        ring=inputs.ring,
        carry=inputs.carry,
        verify_table_rows=inputs.verify_table_rows,
        capture_rows=inputs.capture_rows,
        lookup=None if lookup is None else (lookup.sequences, lookup.history_tokens),
        tree=inputs.tree,
        drafts=inputs.drafts,
    )
    return tuple(
        CacheTerm(
            listed[term.decl].id,
            listed[term.decl].kind,
            listed[term.decl].dtype,
            term.units,
            term.bytes,
            term.host,
        )
        for term in terms
    )


def retained_units(decl: StateDecl, tokens: int, *, block_tokens: int = 1) -> int:
    """Units that a sequence of ``tokens`` positions keeps of one state.

    Args:
        decl: a paged or recurrent declaration.
        tokens: positions of the sequence.
        block_tokens: positions are rounded up to it where the state has no window.
    """
    from kvcache import _core

    checked("tokens", tokens)
    checked("block_tokens", block_tokens, 1)
    return _core.retained_units(decl.to_core(), tokens, block_tokens)


def retained_bytes(decls: Iterable[StateDecl], tokens: int, *, block_tokens: int = 1) -> int:
    """Bytes that one sequence of ``tokens`` positions keeps of all ``decls``."""
    from kvcache import _core

    checked("tokens", tokens)
    checked("block_tokens", block_tokens, 1)
    return _core.retained_bytes([d.to_core() for d in decls], tokens, block_tokens)


def block_bytes(
    decls: Iterable[StateDecl], block_tokens: int, section: Section = Section.MAIN
) -> int:
    """Bytes of one block index: ``block_tokens`` positions of every paged state of a section."""
    from kvcache import _core

    checked("block_tokens", block_tokens, 1)
    listed = [decl.to_core() for decl in decls]
    return _core.block_index_bytes(listed, _core.Section[section.name], block_tokens)


def max_tokens(
    decls: Iterable[StateDecl], *, sequences: int, memory_bytes: int, block_tokens: int = 1
) -> int | None:
    """Most positions that each of ``sequences`` sequences may hold; None when not even one.

    Where every state has a window there may be no bound; the answer is then 2**40.
    """
    from kvcache import _core

    checked("sequences", sequences, 1)
    checked("memory_bytes", memory_bytes)
    checked("block_tokens", block_tokens, 1)
    return _core.max_tokens(
        [decl.to_core() for decl in decls],
        sequences=sequences,
        memory_bytes=memory_bytes,
        block_tokens=block_tokens,
        limit=LIMIT,
    )


def max_sequences(
    decls: Iterable[StateDecl], *, tokens: int, memory_bytes: int, block_tokens: int = 1
) -> int | None:
    """Most sequences of ``tokens`` positions in ``memory_bytes``; None when not even one."""
    from kvcache import _core

    checked("tokens", tokens)
    checked("memory_bytes", memory_bytes)
    checked("block_tokens", block_tokens, 1)
    return _core.max_sequences(
        [decl.to_core() for decl in decls],
        tokens=tokens,
        memory_bytes=memory_bytes,
        block_tokens=block_tokens,
        limit=LIMIT,
    )


def hash_table_bytes(entries: int, entry_bytes: int) -> int:
    """Bytes of a hash table that grew to ``entries``, as a prompt-lookup index allocates it."""
    from kvcache import _core

    checked("entries", entries)
    checked("entry_bytes", entry_bytes)
    return _core.hash_table_bytes(entries, entry_bytes)


def _lifetime(kind: StateKind, holding: Holding) -> Lifetime:
    verify = holding in (Holding.STEPS, Holding.CHECKPOINT)
    return Lifetime.VERIFY if verify else kind.lifetime


def _pair(pool: BlockPool | None) -> tuple[int, int] | None:
    return None if pool is None else (pool.blocks, pool.block_size)
