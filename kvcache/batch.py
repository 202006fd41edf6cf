"""Many sequences advanced by one call: what an engine does for each decoded token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcache import _core
from kvcache._arguments import (
    as_count,
    as_counts,
    as_instance,
    as_instances,
    as_layer,
    as_tokens,
)
from kvcache._rows import Rows, as_parts, as_row_dtype, empty_parts, given_parts
from kvcache.errors import InvalidArgumentError
from kvcache.sequence import Sequence
from kvcache.speculate.batch_verify import BatchVerifySession
from kvcache.speculate.carry_table import CarryTable
from kvcache.speculate.token_tree import TokenTree
from kvcache.speculate.verify import as_strategy
from kvcache.speculate.verify_table import VerifyTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray

__all__ = ["Batch"]


class Batch:
    """Sequences of one cache in a fixed order, the rows of the batch.

    Every call is for all sequences or for none: after an error each has the length, the tokens, the
    readable rows and the pages within its windows that it had before. (As by any call that takes
    pages, those behind windows may have been let go and stored prefixes evicted.) Arguments named
    ``counts`` have one number for each sequence, 0 allowed; None is 1 each. Tokens and rows of all
    sequences come one after the other, without padding.

    The sequences stay usable on their own. Once one of them is closed, calls of the batch raise
    InvalidArgumentError. Thread-safe: calls of one batch run one at a time; batches that have
    sequences in common never wait for each other in a circle.

    Args:
        sequences: at least one, all of one cache, none of them twice.

    Raises:
        InvalidArgumentError: none, one twice, one closed, or of different caches.
    """

    __slots__ = ("_core", "sequences")

    def __init__(self, sequences: Iterable[Sequence]) -> None:
        self.sequences = as_instances(sequences, Sequence, "sequences")
        self._core = _core.Batch([sequence._core for sequence in self.sequences])

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Positions complete in each sequence, a copy."""
        return self._core.lengths()

    def extend(self, tokens: ArrayLike, counts: ArrayLike | None = None) -> None:
        """Declare the next tokens of each sequence; see `Sequence.extend`.

        Args:
            tokens: ids of all sequences one after the other, int32.
            counts: how many are of each.

        Raises:
            InvalidArgumentError: the counts do not add up, or an id does not fit int32.
        """
        self._core.extend(as_tokens(tokens), as_counts(counts, "counts"))

    def prepare(self, counts: ArrayLike | None = None) -> None:
        """Take the pages of each sequence's next positions; see `Sequence.prepare`.

        Raises:
            OutOfCapacityError: not all pages are to be had; none was taken.
            InvalidArgumentError: more positions than known tokens.
        """
        self._core.prepare(as_counts(counts, "counts"))

    def advance(self, counts: ArrayLike | None = None, *, in_place: bool = False) -> None:
        """The next positions of each sequence are complete; see `Sequence.advance`.

        Args:
            counts: how many of each.
            in_place: rows were stored in prepared pages by kernels of the caller, not by `write`.

        Raises:
            InvalidArgumentError: rows or tokens are missing, or pages were not prepared.
        """
        self._core.advance(as_counts(counts, "counts"), bool(in_place))

    def write(
        self,
        layer: int,
        keys: Rows,
        values: Rows | None = None,
        index_keys: Rows | None = None,
        *,
        starts: ArrayLike | None = None,
        counts: ArrayLike | None = None,
    ) -> None:
        """Store one layer's rows of all sequences, encoding included.

        Args:
            layer: index of the decoder layer.
            keys: ``[sum of counts, heads, width]``, as in `Sequence.write`.
            values: the same for values, or the rotary keys of MLA.
            index_keys: the same for the keys of a sparse-attention indexer.
            starts: first position of each sequence; None for the lengths.
            counts: rows of each sequence.

        Raises:
            OutOfCapacityError: not all pages are to be had.
            NonFiniteError: an INT8 row is not finite; rows from ``starts`` on that were there
                before must be written again.
            InvalidArgumentError: shape, counts or positions.
        """
        parts = given_parts(keys, values, index_keys)
        self._core.write(as_layer(layer), self._starts(starts), as_counts(counts, "counts"), parts)

    def read(
        self, layer: int, starts: ArrayLike, counts: ArrayLike, dtype: str | None = None
    ) -> tuple[Any, ...]:
        """Decode rows ``[starts[i], starts[i] + counts[i])`` of each sequence, one after the other.

        Returns:
            As `Sequence.read`, with ``[sum of counts, heads, width]``.

        Raises:
            NotFoundError: positions have left the layer's window.
            InvalidArgumentError: positions not written, unknown layer or dtype.
        """
        layer, dtype = as_layer(layer), as_row_dtype(dtype)
        first, each = self._starts(starts), as_counts(counts, "counts")
        self._check(layer, first, each)
        total = len(self) if each is None else int(each.sum())
        rows = empty_parts(self.sequences[0].plan, layer, total, dtype)
        self._core.read(layer, first, each, rows)
        return as_parts(rows)

    def begin_verify(
        self,
        drafts: ArrayLike,
        counts: ArrayLike | None = None,
        parents: ArrayLike | list[TokenTree] | None = None,
        *,
        table: VerifyTable | None = None,
        strategy: str = "steps",
        carry: CarryTable | None = None,
    ) -> BatchVerifySession:
        """Start a verify of each sequence's last known token and its drafts.

        Exactly one token of each sequence must be known that has not run; `extend` by the ones
        sampled last, first. Until the session ends no other call changes the sequences.

        Args:
            drafts: proposed ids of all sequences one after the other.
            counts: how many are of each.
            parents: the trees that they form, a list of `TokenTree` or their parents one after the
                other: ``counts[i] + 1`` of sequence ``i``, with -1 for its root. None where each
                draft follows the one before it.
            table: where kernels are to find the state.
            strategy: ``"steps"``, ``"replay"`` or ``"carry"``; see `Sequence.begin_verify`.
            carry: where kernels are to find the state and to store inputs, by another strategy than
                ``"steps"``.

        Raises:
            InvalidArgumentError: a sequence is not ready, which is named; the counts do not add up;
                no such trees or strategy; more rows of a sequence than the plan's ``stash_rows``;
                or a table is too small, of another plan, or in use.
            UnsupportedError: a tree of several paths, and state pooled over several positions; or
                another strategy than ``"steps"``, and a plan without ``stash_rows``.
            OutOfCapacityError: no room for all rows and states; none was taken.
        """
        core = self._core.begin_verify(
            as_tokens(drafts, "drafts"),
            as_counts(counts, "counts"),
            None if parents is None else _as_parents(parents),
            None if table is None else as_instance(table, VerifyTable, "table")._core,
            as_strategy(strategy),
            None if carry is None else as_instance(carry, CarryTable, "carry")._core,
        )
        return BatchVerifySession(self, core)

    def block_table(self, group: int, out: NDArray[np.int32] | None = None) -> NDArray[np.int32]:
        """The page of each block of each sequence in one group, for kernels that go by `pages`.

        Without ``out``, the batch's own array ``[sequences, columns]``, read-only, where only what
        changed since the last call is written: the cost does not grow with the sequences. It is the
        same array until columns no longer suffice, which doubles them; the next call of the same
        batch and group brings it up to date and nothing else does. The memory stays valid as long
        as the array lives.

        Args:
            group: index into `StatePlan.groups`.
            out: int32 ``[sequences, columns]``, contiguous, to be filled whole instead.

        Returns:
            Pages, -1 where a window has passed and past a sequence's last block; ``out`` if given.

        Raises:
            InvalidArgumentError: no such group, or ``out`` has another shape, another type or too
                few columns.
        """
        group = as_count(group, "group")
        if out is None:
            return self._core.block_table(group)
        fits = isinstance(out, np.ndarray) and out.dtype == np.int32 and out.ndim == 2
        if not fits or not out.flags.carray or out.shape[0] != len(self):
            raise InvalidArgumentError(
                f"out: expected a writable, contiguous int32 array [{len(self)}, columns]"
            )
        self._core.fill_block_table(group, out)
        return out

    def _starts(self, starts: ArrayLike | None) -> NDArray[np.uint64]:
        numbers = as_counts(starts, "starts")
        return self._core.lengths().view(np.uint64) if numbers is None else numbers

    def _check(
        self, layer: int, starts: NDArray[np.uint64], counts: NDArray[np.uint64] | None
    ) -> None:
        """Before room is made for rows that are not there."""
        for name, numbers in (("starts", starts), ("counts", counts)):
            if numbers is not None and len(numbers) != len(self):
                raise InvalidArgumentError(
                    f"{name}: {len(numbers)} numbers for {len(self)} sequences"
                )
        for row, sequence in enumerate(self.sequences):
            written = sequence._core.written(layer)
            start, count = int(starts[row]), 1 if counts is None else int(counts[row])
            if start + count > written:
                raise InvalidArgumentError(
                    f"sequences[{row}]: positions [{start}, {start + count}) of layer {layer} are"
                    f" not within the {written} written ones"
                )

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} sequences>"


def _as_parents(parents: ArrayLike | list[TokenTree]) -> NDArray[np.int32]:
    """Those of all trees one after the other."""
    if isinstance(parents, (list, tuple)) and any(isinstance(p, TokenTree) for p in parents):
        trees = as_instances(parents, TokenTree, "parents")
        return np.concatenate([tree.parents for tree in trees])
    return as_tokens(parents, "parents")  # type: ignore[arg-type]
