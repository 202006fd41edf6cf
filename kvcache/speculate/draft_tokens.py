"""The pending drafts of sequences, between the propose that made them and their verify."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcache import _core
from kvcache._arguments import as_count, as_sequence, as_tokens
from kvcache.errors import InvalidArgumentError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from kvcache.sequence import Sequence

__all__ = ["DraftTokens"]


class DraftTokens:
    """Draft ids of each sequence, and how sure the drafter was of them.

    Drafts are for the position at which they were put. A sequence that has moved since, by a verify
    or otherwise, has none: taking them is an error that says what ended them. Places of sequences
    that are closed or have moved are free again. Thread-safe.

    Args:
        slots: sequences that have drafts at once.
        positions: most drafts of each.

    Raises:
        InvalidArgumentError: none, or more than 2**24 in all.
    """

    __slots__ = ("_core", "positions", "slots")

    def __init__(self, slots: int, positions: int) -> None:
        self.slots = as_count(slots, "slots")
        self.positions = as_count(positions, "positions")
        self._core = _core.DraftTokens(slots=self.slots, positions=self.positions)

    def put(
        self, sequence: Sequence, tokens: ArrayLike, confidences: ArrayLike | None = None
    ) -> None:
        """Keep the drafts of a propose, in place of what the sequence had.

        Args:
            sequence: whose they are; no verify of it is open.
            tokens: ids, 1 to ``positions``.
            confidences: 0..1 for each of them; None for none.

        Raises:
            InvalidArgumentError: something of the above does not hold, or the sequence is closed.
            OutOfCapacityError: every slot has drafts. Nothing was changed, in both cases.
        """
        sure = np.empty(0, np.float32) if confidences is None else _floats(confidences)
        self._core.put(as_sequence(sequence)._core, as_tokens(tokens), sure)

    def take(self, sequence: Sequence) -> NDArray[np.int32]:
        """The drafts for `Sequence.begin_verify`, which are pending no more; none without any.

        Raises:
            InvalidArgumentError: the sequence is closed, or has moved since they were put; they are
                dropped then.
        """
        return self._core.take(as_sequence(sequence)._core)[0]

    def take_with_confidences(
        self, sequence: Sequence
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """`take`, and the confidences; none of these where none were put."""
        return self._core.take(as_sequence(sequence)._core)

    def put_back(self, sequence: Sequence) -> None:
        """Undo the latest `take`, when the forward pass failed and nothing advanced.

        Raises:
            InvalidArgumentError: nothing was taken, other drafts were put since, the verify is open
                still, or the sequence has moved.
        """
        self._core.put_back(as_sequence(sequence)._core)

    def clear(self, sequence: Sequence) -> bool:
        """Forget what is pending and what was taken, when the sequence is preempted.

        Returns:
            Whether drafts were pending.
        """
        return self._core.clear(as_sequence(sequence)._core)

    def pending(self, sequence: Sequence) -> int:
        """Drafts that `take` would give."""
        return self._core.pending(as_sequence(sequence)._core)

    @property
    def bytes(self) -> int:
        """Memory of the ids: what ``StateKind.DRAFT_TOKENS`` says."""
        return self._core.bytes

    def __repr__(self) -> str:
        return f"<DraftTokens {self.slots} slots of {self.positions}>"


def _floats(confidences: ArrayLike) -> NDArray[np.float32]:
    try:
        array = np.asarray(confidences)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"confidences: not an array: {error}") from None
    if array.ndim != 1 or array.dtype.kind not in "fiu":
        raise InvalidArgumentError(
            f"confidences: expected one axis of numbers, got {array.ndim} axes of {array.dtype}"
        )
    return np.ascontiguousarray(array, dtype=np.float32)
