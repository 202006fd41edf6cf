"""Speculative decoding of many sequences: the rows of all of them run at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcache import _core
from kvcache._arguments import as_count, as_counts, as_layer, as_text, as_tokens
from kvcache.errors import InvalidArgumentError
from kvcache.speculate.verify import Session, pending_rows

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from kvcache.batch import Batch
    from kvcache.speculate.verify import PendingRows

__all__ = ["BatchVerifySession"]


class BatchVerifySession(Session[_core.BatchVerifySession]):
    """Rows of every sequence of a `Batch`, as many of each as it has drafts, and one.

    Made by `Batch.begin_verify`. What `VerifySession` says of rows, trees and state holds for each
    sequence; every call is for all of them or for none::

        with batch.begin_verify(drafts, counts) as session:
            ...  # run session.tokens at session.positions, split by session.offsets
            session.commit(accepted)

    Leaving the block without `commit`, by an exception too, rolls back. Once a sequence is closed
    the others can only be rolled back. Thread-safe as the batch is.
    """

    __slots__ = ("_core", "batch")

    def __init__(self, batch: Batch, core: _core.BatchVerifySession) -> None:
        self.batch = batch
        self._core = core

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def rows(self) -> int:
        """Of all sequences: the drafts, and one for each sequence."""
        return self._core.rows

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Token ids to run, ``[rows]``: of each sequence the last known one, then its drafts."""
        return self._core.tokens()

    @property
    def positions(self) -> NDArray[np.int64]:
        """Their positions, ``[rows]``: the sequence's length and how deep each row is."""
        return self._core.positions()

    @property
    def offsets(self) -> NDArray[np.int32]:
        """Rows ``[offsets[i], offsets[i + 1])`` are of sequence ``i`` (kernels: cu_seqlens)."""
        return self._core.offsets()

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where the first row of each sequence is stored, ``[sequences]``; the others follow it."""
        return self._core.starts()

    def block_table(self, group: int, out: NDArray[np.int32] | None = None) -> NDArray[np.int32]:
        """`Batch.block_table`, with the pages of the session's rows."""
        return self.batch.block_table(group, out)

    def write(self, layer: int, keys: Any, values: Any = None, index_keys: Any = None) -> None:
        """Store one layer's rows of all sequences; see `VerifySession.write`.

        Args:
            layer: index of the decoder layer.
            keys: ``[rows, heads, width]``; copied.
            values: the same for values, or the rotary keys of MLA; None for key-only layers.
            index_keys: the same for the keys of a sparse-attention indexer; None without one.

        Raises:
            NonFiniteError: an INT8 row is not finite; the layer must be written again.
            InvalidArgumentError: a wrong shape or layer, a sequence was closed, or the session has
                ended.
        """
        components = [keys, *(rows for rows in (values, index_keys) if rows is not None)]
        self._core.write(as_layer(layer), components)

    def write_records(self, layer: int, name: str, records: Any) -> None:
        """Store the records that the rows complete; see `VerifySession.write_records`.

        Args:
            layer: index of the decoder layer.
            name: the component.
            records: ``[records, heads, width]``, those of all sequences one after the other.

        Raises:
            NotFoundError: the layer has no such stream.
            NonFiniteError: an INT8 record is not finite; the stream must be written again.
            InvalidArgumentError: a wrong shape or number, a sequence was closed, or the session has
                ended.
        """
        self._core.write_records(as_layer(layer), as_text(name, "name"), records)

    def state(self, sequence: int, row: int, layer: int, name: str) -> NDArray[Any]:
        """One fixed-size tensor as it is after a row of one sequence; see `VerifySession.state`.

        Args:
            sequence: its place in the batch.
            row: of that sequence, 0 for its last known token.
            layer: index of the decoder layer.
            name: the component.

        Raises:
            InvalidArgumentError: no such sequence or row, a sequence was closed, or the session has
                ended.
            NotFoundError: the layer keeps no such tensor; the message lists those it keeps.
        """
        return self._core.state(
            as_count(sequence, "sequence"),
            as_count(row, "row"),
            as_layer(layer),
            as_text(name, "name"),
        )

    def live(self, sequence: int, layer: int, name: str) -> NDArray[Any]:
        """One fixed-size tensor of one sequence before its rows; see `VerifySession.live`.

        Args:
            sequence: its place in the batch.
            layer: index of the decoder layer.
            name: the component.

        Raises:
            InvalidArgumentError: no such sequence, one was closed, or the session has ended.
            NotFoundError: the layer keeps no such tensor; the message lists those it keeps.
        """
        at = as_count(sequence, "sequence")
        return _core.batch_verify_live(self._core, at, as_layer(layer), as_text(name, "name"))

    def pending(self, sequence: int, layer: int, name: str) -> PendingRows:
        """Rows of one sequence that wait to be folded; see `VerifySession.pending`.

        Args:
            sequence: its place in the batch.
            layer: index of the decoder layer.
            name: the component.

        Raises:
            InvalidArgumentError: no such sequence, one was closed, or the session has ended.
            NotFoundError: the layer keeps no such tensor; the message lists those it keeps.
        """
        at = as_count(sequence, "sequence")
        core = self._core
        return pending_rows(
            *_core.batch_verify_pending(core, at, as_layer(layer), as_text(name, "name"))
        )

    def stash(
        self,
        layer: int,
        name: str,
        *,
        gate: Any = None,
        left: Any = None,
        right: Any = None,
        rows: Any = None,
    ) -> None:
        """Hand over the inputs of all sequences' rows for one tensor; see `VerifySession.stash`.

        Args:
            layer: index of the decoder layer.
            name: the component.
            gate: ``[rows, ...]``, those of all sequences one after the other.
            left: likewise.
            right: likewise.
            rows: of a convolution, likewise.

        Raises:
            InvalidArgumentError: a wrong shape or dtype, the strategy is ``"steps"``, `state` of
                this tensor was taken of a sequence, one was closed, or the session has ended.
            UnsupportedError: nothing folds this tensor; fill `state`.
            NotFoundError: the layer keeps no such tensor; the message lists those it keeps.
        """
        layer, name = as_layer(layer), as_text(name, "name")
        _core.batch_verify_stash(self._core, layer, name, gate, left, right, rows)

    def commit(self, accepted: Any, *, in_place: bool = False) -> NDArray[np.int64]:
        """Keep accepted rows of each sequence; ends the session.

        Args:
            accepted: how many of the first rows of each sequence; for trees a path of rows each,
                numbered from its root: a list of paths, or ``[sequences, columns]`` padded with -1
                at the end. 0 or an empty path leaves a sequence as it was before.
            in_place: kernels have stored the rows in the pages, found by `block_table`; no `write`
                is needed then.

        Returns:
            The new lengths, ``[sequences]``.

        Raises:
            InvalidArgumentError: as for `VerifySession.commit`, naming the sequence. Nothing was
                changed.
        """
        in_place = bool(in_place)
        if isinstance(accepted, np.ndarray) and accepted.ndim == 2:
            return self._core.commit_paths(*_unpadded(accepted), in_place)
        if isinstance(accepted, (list, tuple)) and any(
            hasattr(each, "__len__") for each in accepted
        ):
            return self._core.commit_paths(*_joined(accepted), in_place)
        counts = as_counts(accepted, "accepted")
        if counts is None:
            raise InvalidArgumentError("accepted: expected a number for each sequence, got None")
        return self._core.commit(counts, in_place)

    def __repr__(self) -> str:
        what = f"{self.rows} rows of {len(self)} sequences" if self.is_open else "ended"
        return f"<BatchVerifySession {what}>"


def _joined(paths: list[Any] | tuple[Any, ...]) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """Paths one after the other, and how long each is."""
    rows = [as_tokens(path, f"paths[{i}]") for i, path in enumerate(paths)]
    return np.concatenate(rows), np.array([len(path) for path in rows], np.uint64)


def _unpadded(paths: ArrayLike) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    table = np.asarray(paths)
    rows = as_tokens(table.reshape(-1), "paths").reshape(table.shape)
    there = rows != -1
    if (there[:, 1:] & ~there[:, :-1]).any():
        raise InvalidArgumentError("paths: -1 is padding, after which no row may follow")
    return rows[there], there.sum(axis=1, dtype=np.uint64)
