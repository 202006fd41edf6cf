"""Blocks of equal size by id, for a program that keeps its own block tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from kvcache import _core
from kvcache._arguments import as_count, as_tokens
from kvcache._handles import described
from kvcache.errors import InvalidArgumentError
from kvcache.memory import MemoryOptions, memory_core
from kvcache.plan import StatePlan
from kvcache.units import parse_bytes

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import ArrayLike, NDArray

__all__ = ["PagePool"]

_DEFAULT_MEMORY = MemoryOptions()


class PagePool:
    """Hands out block ids and counts references to them: the allocator under `Cache`, alone.

    Ids are dense, so they index a tensor of the caller; with ``backing`` the pool has the bytes
    itself. The free block of lowest id goes out first. Thread-safe.

    Args:
        blocks: most that are live at once.
        block_bytes: payload of one block, as bytes or as text ("64KiB").
        backing: False for a ledger that hands out ids and stores nothing.
        memory: how memory is taken from the system, with ``backing``.

    Raises:
        UnsupportedError: the system cannot meet ``memory``; the message names the knob.
        InvalidArgumentError: no blocks, more than 2**31 - 1, or more bytes than addresses.
        OutOfCapacityError: the system refuses the addresses.

    >>> pool = PagePool(1000, "16KiB")
    >>> table = pool.allocate_many(3)
    >>> table
    array([0, 1, 2], dtype=int32)
    >>> pool.retain(table[:2])  # a fork shares its first two blocks
    >>> pool.free(table)
    >>> pool.live_blocks, pool.free_blocks
    (2, 998)
    """

    __slots__ = ("_core",)

    def __init__(
        self,
        blocks: int,
        block_bytes: str | int,
        *,
        backing: bool = True,
        memory: MemoryOptions = _DEFAULT_MEMORY,
    ) -> None:
        self._core = _core.PagePool(
            blocks=as_count(blocks, "blocks"),
            block_bytes=parse_bytes(block_bytes, name="block_bytes"),
            backing=bool(backing),
            memory=memory_core(memory),
        )

    @classmethod
    def for_group(
        cls,
        plan: StatePlan,
        group: int = 0,
        *,
        backing: bool = True,
        memory: MemoryOptions = _DEFAULT_MEMORY,
    ) -> Self:
        """The blocks of one group that the plan's memory holds when nothing else takes of it.

        Args:
            plan: sizes and layout.
            group: index into ``plan.groups``.
            backing: see the class.
            memory: see the class.

        Raises:
            InvalidArgumentError: the plan has no such group.
            OutOfCapacityError: the memory holds not one block.
        """
        if not isinstance(plan, StatePlan):
            raise InvalidArgumentError(f"plan: expected a StatePlan, got {type(plan).__name__}")
        pool = cls.__new__(cls)
        pool._core = _core.PagePool.for_group(
            plan.core,
            as_count(group, "group"),
            backing=bool(backing),
            memory=memory_core(memory),
        )
        return pool

    def allocate(self) -> int:
        """Take one block, with one reference and unspecified contents.

        Raises:
            OutOfCapacityError: every block is live.
        """
        return self._core.allocate()

    def allocate_many(self, count: int) -> NDArray[np.int32]:
        """Take ``count`` blocks at once, ascending ids ``[count]``; all or none.

        Raises:
            OutOfCapacityError: fewer are free.
        """
        return self._core.allocate_many(as_count(count, "count"))

    def retain(self, ids: SupportsIndex | ArrayLike) -> None:
        """Add a reference to each block, as when a sequence is forked.

        Args:
            ids: one id, or one axis of them; an id that is repeated gains as many.

        Raises:
            InvalidArgumentError: an id is not live; nothing was changed.
        """
        if type(ids) is int:
            self._core.retain_one(ids)
        else:
            self._core.retain(_as_ids(ids))

    def free(self, ids: SupportsIndex | ArrayLike) -> None:
        """Take a reference from each block; the last one frees it.

        Args:
            ids: one id, or one axis of them.

        Raises:
            InvalidArgumentError: an id is not live (freed before, foreign, or repeated more often
                than it is referenced); nothing was changed.
        """
        if type(ids) is int:
            self._core.free_one(ids)
        else:
            self._core.free(_as_ids(ids))

    def refs(self, block: int) -> int:
        """References to a block; 0 when it is free.

        Raises:
            InvalidArgumentError: not an id of this pool.
        """
        return self._core.refs(as_count(block, "block"))

    def view(self, block: int) -> NDArray[np.uint8]:
        """The bytes of a live block ``[block_bytes]``, writable and without a copy.

        The array holds a reference: the block is not handed out anew before the array is gone.

        Raises:
            InvalidArgumentError: the block is not live.
            UnsupportedError: the pool has no backing.
        """
        return self._core.view(as_count(block, "block"))

    @property
    def blocks(self) -> int:
        """Blocks in all."""
        return self._core.blocks

    @property
    def live_blocks(self) -> int:
        """Blocks with a reference."""
        return self._core.live_blocks

    @property
    def free_blocks(self) -> int:
        """Blocks without a reference."""
        return self._core.free_blocks

    @property
    def block_bytes(self) -> int:
        """Payload of one block."""
        return self._core.block_bytes

    @property
    def metadata_bytes(self) -> int:
        """What the pool itself takes, beside the blocks; it grows with the most ever live."""
        return self._core.metadata_bytes

    def __repr__(self) -> str:
        return described(
            "PagePool",
            lambda: f"{self.live_blocks} of {self.blocks} blocks of {self.block_bytes} bytes",
        )


def _as_ids(ids: SupportsIndex | ArrayLike) -> NDArray[np.int32]:
    if isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype == np.int32:
        return np.ascontiguousarray(ids)
    if not isinstance(ids, np.ndarray) and hasattr(ids, "__index__"):
        ids = [as_count(ids, "ids")]
    return as_tokens(np.atleast_1d(ids), "ids")
