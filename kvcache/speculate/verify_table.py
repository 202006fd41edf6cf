"""Where kernels find the state that a batched verify reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache import _core
from kvcache._arguments import as_count, as_instance, as_layer, as_text
from kvcache.plan import StatePlan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["VerifyTable"]


class VerifyTable:
    """Tables of addresses that never move, for captured graphs and compiled kernels.

    For each tensor of each layer ``[tables, batch_rows]`` of 64-bit addresses: table 0 holds the
    live state of each sequence of the batch, table ``t + 1`` its state after row ``t``, which the
    kernel writes. Entries past a sequence's rows and past the batch are 0, and so is everything
    while nothing is staged. `Batch.begin_verify` stages a table; the end of the session zeroes it.

    The kernel reads the state before a row from the table of the row it follows, or from table 0
    for the root, and leaves live state alone; `BatchVerifySession.commit` makes the state after the
    last accepted row the live one. Thread-safe; one session at a time.

    Args:
        plan: of the cache whose sequences are verified.
        batch_rows: most sequences of a batch.
        tables: one more than the most rows of a sequence.

    Raises:
        InvalidArgumentError: the plan has no fixed-size state, no rows, less than 2 tables, or
            more than 1 GiB in all.
        OutOfCapacityError: the system has not so much memory.
    """

    __slots__ = ("_core",)

    def __init__(self, plan: StatePlan, batch_rows: int = 128, tables: int = 16) -> None:
        self._core = _core.VerifyTable(
            as_instance(plan, StatePlan, "plan").core,
            as_count(batch_rows, "batch_rows"),
            as_count(tables, "tables"),
        )

    @property
    def batch_rows(self) -> int:
        """Most sequences of a batch."""
        return self._core.batch_rows

    @property
    def tables(self) -> int:
        """One more than the most rows of a sequence."""
        return self._core.tables

    @property
    def nbytes(self) -> int:
        """Of all entries: what the state kind ``verify_table`` says."""
        return self._core.bytes

    @property
    def is_staged(self) -> bool:
        """True while a session that uses it is open."""
        return self._core.is_staged

    def pointers(self, layer: int, name: str) -> NDArray[np.uint64]:
        """The addresses of one tensor, ``[tables, batch_rows]``: read-only, always the same memory.

        Raises:
            NotFoundError: the layer keeps no such tensor; the message lists those it keeps.
        """
        return self._core.pointers(as_layer(layer), as_text(name, "name"))

    def __repr__(self) -> str:
        return f"<VerifyTable of {self.tables} tables for {self.batch_rows} sequences>"
