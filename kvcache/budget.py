"""How many blocks, slots and ring snapshots fit a memory budget.

The rules are those of a boot-time solve: everything but the block pools is reserved first, the
draft pool is taken next, and what is left becomes blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from kvcache.serde import U64, PositiveU64, Value, checked

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "KvBudget",
    "KvPools",
    "best_slots",
    "demanded_blocks",
    "fit_ring_depth",
    "largest_fitting",
    "verify_steps_by_slot",
]


@dataclass(frozen=True, slots=True)
class KvPools(Value):
    """Block pools that fit a budget.

    Attributes:
        blocks: of the main section.
        draft_blocks: of the draft section.
        clamped: fewer blocks than fit, because open sequences could never reach more.
    """

    blocks: U64
    draft_blocks: U64
    clamped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBudget(Value):
    """A memory budget and what it has to hold.

    Attributes:
        available_bytes: what is free of the budget.
        reserved_bytes: everything that is no block pool.
        block_bytes: one block index of the main section, see ``terms.block_bytes``.
        sequences: sequences open at once.
        max_tokens: positions of the longest sequence.
        prefix_cache: blocks beyond what open sequences reach are useful; 0.3 % of the pool stays
            free for the driver.
        block_tokens: positions in a block.
        draft_block_bytes: one block index of the draft section; 0 without one.
        draft_sequences: sequences that draft at once.
    """

    available_bytes: U64
    reserved_bytes: U64
    block_bytes: PositiveU64
    sequences: U64
    max_tokens: U64
    prefix_cache: bool
    block_tokens: PositiveU64 = 16
    draft_block_bytes: U64 = 0
    draft_sequences: U64 = 0

    def solve(self) -> KvPools:
        """The pools that fit.

        Raises:
            OutOfCapacityError: not one block does.
            InvalidArgumentError: counts beyond 64 bits.
        """
        from kvcache import _core

        pools = _core.solve_kv_pools(
            **{field.name: getattr(self, field.name) for field in fields(self)}
        )
        return KvPools(pools.blocks, pools.draft_blocks, pools.clamped)


def demanded_blocks(sequences: int, tokens: int, *, block_tokens: int = 16) -> int:
    """Blocks that so many sequences need, the next token's and one dummy included."""
    from kvcache import _core

    checked("sequences", sequences)
    checked("tokens", tokens)
    checked("block_tokens", block_tokens, 1)
    return _core.demanded_blocks(sequences, tokens, block_tokens)


def fit_ring_depth(
    requested: int, *, depth_bytes: int, reserved_bytes: int, headroom_bytes: int
) -> int:
    """Largest ring depth of 8, 4, 2, 1, 0 that is asked for and fits.

    Args:
        requested: ring slots wanted of each sequence slot.
        depth_bytes: bytes of one ring slot of every sequence slot.
        reserved_bytes: everything else that is reserved.
        headroom_bytes: what reserves may take together.
    """
    from kvcache import _core

    checked("requested", requested)
    checked("depth_bytes", depth_bytes)
    checked("reserved_bytes", reserved_bytes)
    checked("headroom_bytes", headroom_bytes)
    return _core.fit_ring_depth(requested, depth_bytes, reserved_bytes, headroom_bytes)


def best_slots(max_tokens: int, blocks: Callable[[int], int], *, block_tokens: int = 16) -> int:
    """Slots, 1 to 128, with which most sequences of ``max_tokens`` run at once; fewest on a tie.

    Args:
        max_tokens: positions of each sequence.
        blocks: tells how many blocks are left when that many slots are reserved.
        block_tokens: positions in a block.
    """
    from kvcache import _core

    checked("max_tokens", max_tokens)
    checked("block_tokens", block_tokens, 1)
    return _core.best_slots(
        max_tokens, block_tokens, lambda slots: checked("blocks", blocks(slots))
    )


def largest_fitting(first: int, last: int, fits: Callable[[int], bool]) -> int | None:
    """Largest value of ``first..last`` that fits, by bisection; None when ``first`` does not.

    ``fits`` must be monotone: once false, false for every larger value.

    Raises:
        InvalidArgumentError: the range is empty.
    """
    from kvcache import _core

    return _core.largest_fitting(
        checked("first", first), checked("last", last), lambda value: bool(fits(value))
    )


def verify_steps_by_slot(sequences: int, *, drafts: int, uniform: bool = False) -> tuple[int, ...]:
    """Intermediates that each verify slot keeps, the dummy's last.

    A slot is only used in batches wider than its index, and wide batches draft less: up to eight
    sequences 3 tokens, beyond that 1.

    Args:
        sequences: verify slots without the dummy.
        drafts: most draft tokens of one step.
        uniform: every slot keeps the most, as token trees and block drafts need.
    """
    from kvcache import _core

    checked("sequences", sequences)
    checked("drafts", drafts, 1)
    return tuple(_core.verify_steps_by_slot(sequences, drafts=drafts, uniform=bool(uniform)))
