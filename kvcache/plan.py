"""From a model to bytes: what a page, a slot and a whole sequence take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

from kvcache import _core
from kvcache._arguments import as_count, as_instances
from kvcache.errors import InvalidArgumentError
from kvcache.hints import CostModel, as_costs
from kvcache.snapshot import SnapshotFormat, core_format
from kvcache.state import DType, StateDecl, declare
from kvcache.storage import KvStorageFormat
from kvcache.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcache.models import Model
    from kvcache.storage import Storage

__all__ = ["FixedComponent", "Group", "PagedComponent", "StatePlan"]

_MAX_U32 = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedComponent:
    """Rows ``[rows, heads, width]`` of one component of one layer inside a page."""

    layer: int
    component: str  #: stable name, e.g. ``attention.keys``
    heads: int
    width: int
    dtype: DType  #: stored element
    record_tokens: int = 1  #: positions that one row stands for


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Layers that need the same positions in the same storage, and so share one block table."""

    window: int  #: positions a query sees, itself included; 0 for all
    chunked: bool  #: the window starts anew at each multiple of its length
    sinks: int  #: first positions that a sliding window sees as well
    record_tokens: int  #: positions that one row stands for
    components: tuple[PagedComponent, ...]
    token_bytes: int  #: stored bytes of one row (a position or a record), all layers of the group
    page_bytes: int  #: bytes of one block


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedComponent:
    """One fixed-size tensor of one layer; a slot and a snapshot hold all of them."""

    layer: int
    name: str  #: stable name, e.g. ``state.recurrent``
    shape: tuple[int, ...]
    dtype: DType
    bytes: int


class StatePlan:
    """Sizes and layout of a model's decoder state. Immutable.

    The same declarations size the plan, the arena, the prefix index and the files; every number
    here is computed by the compiled core.

    Args:
        declarations: what the model keeps, one entry for each component.
        memory: budget for pages, slots and snapshots together, as bytes or as text ("2GiB").
        block_tokens: positions in a block; a multiple of every ``record_tokens``.
        sequences: sequences that may be open at once.
        ring_depth: copies of its fixed-size state that each sequence may keep by
            `Sequence.record`, up to 4096; 0 for no decode ring. Each copy takes ``slot_bytes`` of
            ``memory`` for every open sequence.
        stash_rows: rows of inputs that each sequence may stash instead of copies of its fixed-size
            state, for `Sequence.begin_verify` by ``"replay"`` or ``"carry"``; 8 are usual, 0 for
            none. They take ``stash_bytes`` of ``memory`` for every sequence that does.
        rotated_keys: whether keys are stored after their rotary embedding, as most engines do;
            False, for keys stored before it, allows `Sequence.shift`.
        costs: what computing a position costs, for a cache that is told nothing else; None for
            the same everywhere.

    Raises:
        InvalidArgumentError: a value out of range, declarations that contradict each other, or
            blocks without a whole number of records.
        UnsupportedError: a component that has no run-time home.
    """

    def __init__(
        self,
        declarations: Iterable[StateDecl],
        *,
        memory: str | int,
        block_tokens: int = 16,
        sequences: int = 64,
        ring_depth: int = 0,
        rotated_keys: bool = True,
        stash_rows: int = 0,
        costs: CostModel | None = None,
    ) -> None:
        self.declarations = as_instances(declarations, StateDecl, "declarations")
        self.memory_bytes = parse_bytes(memory)
        self.block_tokens = as_count(block_tokens, "block_tokens", 1, _MAX_U32)
        self.sequences = as_count(sequences, "sequences", 1, _MAX_U32)
        self.ring_depth = as_count(ring_depth, "ring_depth", 0, _MAX_U32)
        self.rotated_keys = bool(rotated_keys)
        self.stash_rows = as_count(stash_rows, "stash_rows", 0, _MAX_U32)
        self.costs = as_costs(costs, CostModel())
        self.core = _core.StatePlan(
            [decl.to_core() for decl in self.declarations],
            memory_bytes=self.memory_bytes,
            block_tokens=self.block_tokens,
            sequences=self.sequences,
            ring_depth=self.ring_depth,
            rotated_keys=self.rotated_keys,
            stash_rows=self.stash_rows,
        )

    @classmethod
    def for_model(
        cls,
        model: Model,
        *,
        memory: str | int,
        block_tokens: int | None = None,
        format: Storage | str = KvStorageFormat.F16,  # noqa: A002 - the field's word
        sequences: int = 64,
        state_dtype: str = "f32",
        ring_depth: int = 0,
        rotated_keys: bool = True,
        stash_rows: int = 0,
    ) -> Self:
        """Plan a model read by `kvcache.models.from_config`.

        Args:
            model: the model; its draft layers are not part of the plan. Its ``costs`` become those
                of the plan.
            memory: see the class.
            block_tokens: see the class; None for 16, or the least multiple of it that suits a
                model with pooled state.
            format: storage of attention rows: ``"f16"``, ``"bf16"``, ``"f32"``, ``"int8"`` or a
                storage format's name; see `declare`.
            sequences: see the class.
            state_dtype: element of floating fixed-size tensors, ``"f32"``, ``"f16"`` or ``"bf16"``.
            ring_depth: see the class.
            rotated_keys: see the class.
            stash_rows: see the class.

        Raises:
            InvalidArgumentError: an unknown format, or a value out of range.
            UnsupportedError: fp8 rows, or a component that has no run-time home.
        """
        if not hasattr(model, "schedule"):
            raise InvalidArgumentError(
                f"model: expected what kvcache.models.from_config() returns, got {model!r}"
            )
        declarations = declare(
            model.schedule,
            storage=format,
            state_dtype=state_dtype,
            channel_gates=model.channel_gates,
        )
        if block_tokens is None:
            block_tokens = math.lcm(16, *(decl.record_tokens for decl in declarations))
        return cls(
            declarations,
            memory=memory,
            block_tokens=block_tokens,
            sequences=sequences,
            ring_depth=ring_depth,
            rotated_keys=rotated_keys,
            stash_rows=stash_rows,
            costs=model.costs,
        )

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Page groups, in the order of their block tables."""
        return tuple(
            Group(
                window=group.window,
                chunked=group.chunked,
                sinks=group.sinks,
                record_tokens=group.record_tokens,
                components=tuple(
                    PagedComponent(
                        layer=part.layer,
                        component=self.declarations[part.decl].component,
                        heads=part.heads,
                        width=part.width,
                        dtype=self.declarations[part.decl].dtype,
                        record_tokens=group.record_tokens,
                    )
                    for part in group.components
                ),
                token_bytes=group.token_bytes,
                page_bytes=group.page_bytes,
            )
            for group in self.core.groups
        )

    @cached_property
    def fixed(self) -> tuple[FixedComponent, ...]:
        """Fixed-size tensors, in declared order."""
        return tuple(
            FixedComponent(
                layer=part.layer,
                name=part.name,
                shape=tuple(part.shape),
                dtype=self.declarations[part.decl].dtype,
                bytes=part.bytes,
            )
            for part in self.core.fixed
        )

    @cached_property
    def _by_layer(self) -> dict[int, tuple[PagedComponent, ...]]:
        known = {part.layer for group in self.groups for part in group.components}
        order = {(d.layer, d.component): i for i, d in enumerate(self.declarations)}
        return {
            layer: tuple(
                sorted(
                    (p for group in self.groups for p in group.components if p.layer == layer),
                    key=lambda part: order[part.layer, part.component],
                )
            )
            for layer in known
        }

    def paged_components(self, layer: int) -> tuple[PagedComponent, ...]:
        """Components of one layer with a row a position, in declared order; empty for none."""
        parts = self._by_layer.get(as_count(layer, "layer"), ())
        return tuple(part for part in parts if part.record_tokens == 1)

    def streams(self, layer: int) -> tuple[PagedComponent, ...]:
        """Components of one layer that pool several positions into a record; empty for none."""
        parts = self._by_layer.get(as_count(layer, "layer"), ())
        return tuple(part for part in parts if part.record_tokens > 1)

    @property
    def slot_bytes(self) -> int:
        """Bytes of all fixed-size state of one sequence; an exact snapshot is as large."""
        return self.core.slot_bytes

    def snapshot_bytes(
        self,
        format: SnapshotFormat | str = SnapshotFormat.EXACT,  # noqa: A002 - the field's word
    ) -> int:
        """Bytes of one snapshot of a format: ``"exact"``, ``"f16"`` or ``"int8"``."""
        return self.core.snapshot_bytes(core_format(format))

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all groups."""
        return self.core.block_bytes

    @property
    def ring_bytes(self) -> int:
        """Most bytes that the decode rings of all sequences hold."""
        return self.core.ring_bytes

    @property
    def stash_bytes(self) -> int:
        """Bytes of the carry stash of one sequence; see `kvcache.declare_stash`."""
        return self.core.stash_bytes

    @property
    def fingerprint(self) -> str:
        """SHA-256 of what the stored bytes mean; files carry it."""
        return self.core.fingerprint

    def sequence_bytes(self, tokens: int, chunk_tokens: int = 1) -> int:
        """Most memory a lone sequence of ``tokens`` positions takes from the budget.

        Args:
            tokens: positions, prompt and decoded ones.
            chunk_tokens: positions written between two calls of `Sequence.advance`.
        """
        return self.core.sequence_bytes(
            as_count(tokens, "tokens"), as_count(chunk_tokens, "chunk_tokens")
        )

    def hit_bytes(self, tokens: int) -> int:
        """Stored bytes of every component that a hit of ``tokens`` positions covers."""
        return self.core.hit_bytes(as_count(tokens, "tokens"))

    def __repr__(self) -> str:
        return (
            f"<StatePlan {len(self.groups)} groups, {self.block_bytes} bytes a block of "
            f"{self.block_tokens}, {self.slot_bytes} bytes a slot, {self.memory_bytes} in all>"
        )
