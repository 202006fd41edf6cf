"""Rows where they lie: read-only views of pages, for kernels that go by block tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["PageMemory", "PageView"]


@dataclass(frozen=True, slots=True, eq=False)
class PageView:
    """Consecutive positions of one component in one page, without a copy.

    The view pins its page: the memory is not freed, trimmed or handed out while one of its arrays
    lives, also after `Sequence.close` and after the cache is gone. Complete positions never change;
    later ones may be written again until they are complete.

    Attributes:
        page: number of the page, an entry of `Sequence.block_table`.
        start: position of the first row.
        rows: ``[positions, heads, width]`` as stored: float16, int8 codes, or for bfloat16 a
            `Bfloat16Array`, whose ``bits`` are uint16. Read-only.
        scales: ``[positions, heads]`` of float32 for int8 rows, None for others. Read-only.
    """

    page: int
    start: int
    rows: Any
    scales: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True, eq=False)
class PageMemory:
    """One component of one layer in every page of its group.

    Position ``p`` of a sequence is ``rows[table[p // block_tokens], p % block_tokens]``, with
    ``table = sequence.block_table(group)`` (``rows.bits[...]`` for bfloat16). The arrays pin no
    page: the memory stays valid while they live, also after the cache is gone, but what it holds is
    live. A page that its sequence let go is memory of whoever has it now.

    Attributes:
        group: which block table addresses it, an index into `StatePlan.groups`.
        rows: ``[pages, block_tokens, heads, width]`` as in `PageView`. Pages that hold nothing are
            addresses without memory behind them. Read-only.
        scales: ``[pages, block_tokens, heads]`` of float32 for int8 rows, None for others.
    """

    group: int
    rows: Any
    scales: NDArray[np.float32] | None
