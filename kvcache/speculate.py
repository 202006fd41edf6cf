"""Speculative decoding: run several rows of a sequence at once, keep those that are accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from numpy.typing import ArrayLike

from kvcache._arguments import as_count, as_layer, as_text, as_tokens
from kvcache.token_tree import TokenTree

if TYPE_CHECKING:
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from kvcache import _core
    from kvcache.sequence import Sequence

__all__ = ["VerifySession"]


#: A tree of drafts by itself or by its parents; None where each follows the one before it.
Parents = ArrayLike | TokenTree | None


def as_tree(parents: Parents) -> _core.TokenTree | None:
    """The tree as the core has it."""
    if parents is None:
        return None
    return (parents if isinstance(parents, TokenTree) else TokenTree(parents))._core


class VerifySession:
    """K rows of one sequence that run before it is known how many of them count.

    Made by `Sequence.begin_verify`. Row 0 is the last known token, which is accepted by
    construction; row ``i`` is draft ``i - 1`` and follows row ``i - 1``, or its parent where the
    drafts are a `TokenTree`. Nothing of the sequence changes before `commit`, so
    whatever ends a session otherwise leaves it at its last committed position::

        with seq.begin_verify(drafts) as session:
            for layer in layers:
                ...  # session.state(row, layer, name) for each row; session.write(layer, ...)
            session.commit(accepted)

    Leaving the block without `commit`, by an exception too, rolls back. Thread-safe as its
    sequence is.
    """

    __slots__ = ("_core", "_sequence")

    def __init__(self, sequence: Sequence, core: _core.VerifySession) -> None:
        self._sequence = sequence  # an open sequence must not close under its session
        self._core = core

    @property
    def rows(self) -> int:
        """K: the number of drafts, and one."""
        return self._core.rows

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Token ids to run, ``[rows]``."""
        return self._core.tokens()

    @property
    def positions(self) -> NDArray[np.int64]:
        """Their positions, ``[rows]``: the sequence's ``length`` and how deep each row is."""
        return self._core.positions()

    @property
    def start(self) -> int:
        """Where row 0 is stored, and row ``i`` at ``start + i``: the sequence's ``length``."""
        return self._core.start

    @property
    def is_open(self) -> bool:
        """False after `commit` or `rollback`, and once the sequence is closed."""
        return self._core.is_open

    def write(self, layer: int, keys: Any, values: Any = None, index_keys: Any = None) -> None:
        """Store one layer's rows; `Sequence.read` sees row ``i`` at ``start + i`` at once.

        Args:
            layer: index of the decoder layer.
            keys: ``[rows, heads, width]``, as for `Sequence.write`; copied.
            values: the same for values, or the rotary keys of MLA; None for key-only layers.
            index_keys: the same for the keys of a sparse-attention indexer; None without one.

        Raises:
            NonFiniteError: an INT8 row is not finite.
            InvalidArgumentError: a wrong shape or layer, or the session has ended.
        """
        components = [keys, *(rows for rows in (values, index_keys) if rows is not None)]
        self._core.write(as_layer(layer), components)

    def write_records(self, layer: int, name: str, records: Any) -> None:
        """Store the records of pooled state that the session's rows complete.

        Args:
            layer: index of the decoder layer.
            name: the component; see `Sequence.write_records`.
            records: ``[records, heads, width]``, the records from ``positions[0] // r`` up to
                ``(positions[0] + rows) // r`` of a stream that pools r positions; may be none.
                `commit` keeps those that the accepted rows complete.

        Raises:
            NotFoundError: the layer has no such stream.
            NonFiniteError: an INT8 record is not finite.
            InvalidArgumentError: a wrong shape or number, or the session has ended.
        """
        self._core.write_records(as_layer(layer), as_text(name, "name"), records)

    def state(self, row: int, layer: int, name: str) -> NDArray[Any]:
        """A writable view of one fixed-size tensor as it is after ``row``; to be filled.

        Taken for the first time it holds a copy of the tensor of the row it follows (of the live
        one for row 0, or where that row was not taken), so that rows may be updated in place one
        after the other. Once the session has ended nobody reads what is written to it.

        Raises:
            InvalidArgumentError: no such row, or the session has ended.
            NotFoundError: the layer keeps no such tensor; the message lists those it keeps.
        """
        return self._core.state(as_count(row, "row"), as_layer(layer), as_text(name, "name"))

    def commit(self, accepted: int | ArrayLike) -> int:
        """Keep accepted rows: their positions, their tokens, and the state after the last one.

        Ends the session. The rows of a path become those of consecutive positions, moved as the
        bytes they are. The sequence then knows no token that has not run: extend it by the one
        sampled after the last accepted row.

        Args:
            accepted: how many of the first rows, 1 when every draft is rejected; for a tree the
                rows of the accepted path from 0 on, as `TokenTree.accept` returns them.

        Returns:
            The sequence's new ``length``.

        Raises:
            InvalidArgumentError: out of range or no path, a layer or a stream is not written, a
                tensor of the last accepted row was never taken, or the session has ended. Nothing
                was changed.
        """
        axes = getattr(accepted, "ndim", 1 if hasattr(accepted, "__len__") else 0)
        if axes == 0:
            return self._core.commit(as_count(accepted, "accepted"))
        return self._core.commit_path(as_tokens(accepted, "path"))

    def rollback(self) -> None:
        """End the session; the sequence is as it was before `Sequence.begin_verify`.

        Raises:
            InvalidArgumentError: the session has ended.
        """
        self._core.rollback()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_open:
            self.rollback()

    def __repr__(self) -> str:
        first = self._core.start
        where = f"{self.rows} rows at {first}" if self.is_open else "ended"
        return f"<VerifySession {where}>"
