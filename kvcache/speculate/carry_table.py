"""Where kernels find the state and the carry stash of a batched verify."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcache import _core
from kvcache._arguments import as_count, as_instance, as_layer, as_text
from kvcache.plan import StatePlan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["CarryTable", "StashOffsets"]


@dataclass(frozen=True, slots=True)
class StashOffsets:
    """Where the rows of one tensor lie in a stash, in bytes; each kind is contiguous.

    Attributes:
        gate: float32 ``[stash_rows, ...]``, as `kvcache.fold` has them; 0 for a convolution.
        left: likewise.
        right: likewise; of a convolution its rows, in its own element.
        pending: uint32, how many of them wait to be folded: those of a verify follow.
    """

    gate: int
    left: int
    right: int
    pending: int


class CarryTable:
    """Arrays of addresses and flags that never move, for captured graphs and compiled kernels.

    For each layer that folds, ``[batch_rows]`` each: the addresses of each sequence's live tensors
    and of its carry stash, and a flag. A kernel adds the rows that wait to what it reads of the
    live state, leaves both alone, stores the inputs of the sequence's rows behind those that wait,
    and sets the flag to 1. What is not flagged at `BatchVerifySession.commit` is as without a
    table: handed over by `BatchVerifySession.stash`, or filled by states after each row. Entries
    past the batch are 0, and so is everything while nothing is staged: `Batch.begin_verify` stages
    a table, the end of the session zeroes it. Thread-safe; one session at a time.

    Args:
        plan: of the cache whose sequences are verified; with ``stash_rows``.
        batch_rows: most sequences of a batch.

    Raises:
        InvalidArgumentError: the plan has no stash, or no rows, or more than 1 GiB in all.
        OutOfCapacityError: the system has not so much memory.
    """

    __slots__ = ("_core", "_plan")

    def __init__(self, plan: StatePlan, batch_rows: int = 128) -> None:
        self._plan = as_instance(plan, StatePlan, "plan")
        self._core = _core.CarryTable(self._plan.core, as_count(batch_rows, "batch_rows"))

    @property
    def batch_rows(self) -> int:
        """Most sequences of a batch."""
        return self._core.batch_rows

    @property
    def nbytes(self) -> int:
        """Of all entries: for one matrix and one convolution what ``carry_table`` says."""
        return self._core.bytes

    @property
    def is_staged(self) -> bool:
        """True while a session that uses it is open."""
        return self._core.is_staged

    def live(self, layer: int, name: str) -> NDArray[np.uint64]:
        """The addresses of one live tensor, ``[batch_rows]``: read-only, always the same memory.

        Raises:
            NotFoundError: the layer has no such tensor, or nothing folds it.
        """
        return self._core.live(as_layer(layer), as_text(name, "name"))

    def stashes(self, layer: int) -> NDArray[np.uint64]:
        """The addresses of the stashes, ``[batch_rows]``; what lies where is in `offsets`.

        Raises:
            NotFoundError: nothing of the layer folds.
        """
        return self._core.stashes(as_layer(layer))

    def offsets(self, layer: int, name: str) -> StashOffsets:
        """Where one tensor's rows lie in every stash.

        Raises:
            NotFoundError: the layer has no such tensor, or nothing folds it.
        """
        core = self._plan.core
        return StashOffsets(*_core.stash_offsets(core, as_layer(layer), as_text(name, "name")))

    def engaged(self, layer: int) -> NDArray[np.uint32]:
        """The flags of a layer, ``[batch_rows]``, for the kernel to set: always the same memory.

        Raises:
            NotFoundError: nothing of the layer folds.
        """
        return self._core.engaged(as_layer(layer))

    def __repr__(self) -> str:
        return f"<CarryTable for {self.batch_rows} sequences>"
