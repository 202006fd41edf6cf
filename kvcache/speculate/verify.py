"""Speculative decoding: run several rows of a sequence at once, keep those that are accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from numpy.typing import ArrayLike

from kvcache import _core
from kvcache._arguments import as_count, as_layer, as_text, as_tokens, is_scalar
from kvcache.errors import InvalidArgumentError
from kvcache.speculate.token_tree import TokenTree

if TYPE_CHECKING:
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray


__all__ = ["PendingRows", "VerifySession"]


#: A tree of drafts by itself or by its parents; None where each follows the one before it.
Parents = ArrayLike | TokenTree | None


def as_tree(parents: Parents) -> _core.TokenTree | None:
    """The tree as the core has it."""
    if parents is None:
        return None
    return (parents if isinstance(parents, TokenTree) else TokenTree(parents))._core


_STRATEGIES = {name.lower(): value for name, value in _core.VerifyStrategy.__members__.items()}


def as_strategy(strategy: str) -> _core.VerifyStrategy:
    """The strategy as the core has it."""
    if not isinstance(strategy, str) or strategy not in _STRATEGIES:
        raise InvalidArgumentError(
            f'strategy: expected "steps", "replay" or "carry", got {strategy!r}'
        )
    return _STRATEGIES[strategy]


@dataclass(frozen=True, slots=True)
class PendingRows:
    """Accepted rows of one tensor that wait to be folded, oldest first; read-only arrays.

    Views of the stash, in which later verifies store their rows: good until the session ends.

    Attributes:
        count: how many; 0 unless the strategy is ``"carry"``.
        gate: of a recurrence, float32, ``[count, heads]`` and so on; see `kvcache.fold`.
        left: float32 ``[count, heads, i]``; None for a state of one axis.
        right: float32 ``[count, heads, j]``.
        rows: of a convolution, ``[count, ...]`` in its own element; the others are then None.
    """

    count: int
    gate: Any
    left: Any
    right: Any
    rows: Any


def pending_rows(count: int, gate: Any, left: Any, right: Any) -> PendingRows:
    """What the core tells of rows that wait."""
    if gate is None:
        return PendingRows(count, None, None, None, right)
    return PendingRows(count, gate, left, right, None)


_Core = TypeVar("_Core", _core.VerifySession, _core.BatchVerifySession)


class Session(Generic[_Core]):
    """How sessions end, of one sequence and of a batch: rolled back, unless they were committed."""

    __slots__ = ()
    _core: _Core

    @property
    def is_open(self) -> bool:
        """False after `commit` or `rollback`; of one sequence also once that is closed."""
        return self._core.is_open

    @property
    def strategy(self) -> str:
        """``"steps"``, ``"replay"`` or ``"carry"``; see `Sequence.begin_verify`."""
        return self._core.strategy.name.lower()

    def rollback(self) -> None:
        """End the session; its sequences are as they were before it began.

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


class VerifySession(Session[_core.VerifySession]):
    """K rows of one sequence that run before it is known how many of them count.

    Made by `Sequence.begin_verify`. Row 0 is the last known token, which is accepted by
    construction; row ``i`` is draft ``i - 1`` and follows row ``i - 1``, or its parent where the
    drafts are a `TokenTree`. Nothing of the sequence changes before `commit`, so
    whatever ends a session otherwise leaves it at its last committed position::

        with seq.begin_verify(drafts) as session:
            for layer in layers:
                ...  # session.state(row, layer, name) for each row; session.write(layer, ...)
            session.commit(accepted)

    By the strategies ``"replay"`` and ``"carry"`` the inputs of the rows are kept instead of the
    state after each: layers `stash` them, and nothing else of the session changes::

        with seq.begin_verify(drafts, strategy="carry") as session:
            for layer in layers:
                S = session.live(layer, name).copy()
                waiting = session.pending(layer, name)
                if waiting.count:  # a convolution: append_rows(S, waiting.rows)
                    kvcache.fold(S, waiting.gate, waiting.left, waiting.right)
                ...  # run the rows from S, in a tree each from its parent's state
                session.stash(layer, name, gate=gate, left=keys, right=values)
            session.commit(accepted)

    Leaving the block without `commit`, by an exception too, rolls back. Thread-safe as its
    sequence is.
    """

    __slots__ = ("_core", "_sequence")

    def __init__(self, sequence: Verifiable, core: _core.VerifySession) -> None:
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
            InvalidArgumentError: no such row, the inputs of this tensor were handed over by
                `stash`, or the session has ended.
            NotFoundError: the layer keeps no such tensor; the message lists those it keeps.
        """
        return self._core.state(as_count(row, "row"), as_layer(layer), as_text(name, "name"))

    def live(self, layer: int, name: str) -> NDArray[Any]:
        """A read-only view of one fixed-size tensor before row 0, without what is `pending`.

        Raises:
            InvalidArgumentError: the session has ended.
            NotFoundError: the layer keeps no such tensor; the message lists those it keeps.
        """
        return _core.verify_live(self._core, as_layer(layer), as_text(name, "name"))

    def pending(self, layer: int, name: str) -> PendingRows:
        """Rows accepted earlier that a kernel has to add to what `live` shows, by ``"carry"``.

        Raises:
            InvalidArgumentError: the session has ended.
            NotFoundError: the layer keeps no such tensor; the message lists those it keeps.
        """
        found = _core.verify_pending(self._core, as_layer(layer), as_text(name, "name"))
        return pending_rows(*found)

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
        """Hand over the inputs of all rows for one tensor, instead of filling `state`.

        Of a layer all tensors that fold are stashed, or none: then `state` is filled as by
        ``"steps"``. Copied; may be repeated. float32, float16 or bfloat16, kept as float32
        (``rows`` as the tensor's own element).

        Args:
            layer: index of the decoder layer.
            name: the component, such as ``state.recurrent``.
            gate: of a recurrence, ``[rows, heads]``, ``[rows, heads, i]`` or
                ``[rows, heads, i, j]``, as its declaration says: see `kvcache.fold`.
            left: ``[rows, heads, i]``; heads that divide those of the state are shared. None for a
                state of one axis.
            right: ``[rows, heads, j]``; likewise.
            rows: of a convolution, and nothing else then: its inputs, ``[rows, channels]``.

        Raises:
            InvalidArgumentError: a wrong shape or dtype, the strategy is ``"steps"``, `state` of
                this tensor was taken, or the session has ended.
            UnsupportedError: nothing folds this tensor; fill `state`.
            NotFoundError: the layer keeps no such tensor; the message lists those it keeps.
        """
        layer, name = as_layer(layer), as_text(name, "name")
        _core.verify_stash(self._core, layer, name, gate, left, right, rows)

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
        if is_scalar(accepted):
            return self._core.commit(as_count(accepted, "accepted"))
        return self._core.commit_path(as_tokens(accepted, "path"))

    def __repr__(self) -> str:
        first = self._core.start
        where = f"{self.rows} rows at {first}" if self.is_open else "ended"
        return f"<VerifySession {where}>"


class Verifiable:
    """A sequence whose drafts can be verified."""

    __slots__ = ()
    _core: _core.Sequence

    def begin_verify(
        self, drafts: ArrayLike, parents: Parents = None, *, strategy: str = "steps"
    ) -> VerifySession:
        """Start running the last known token and ``drafts`` after it, to keep some of them.

        Exactly one token must be known that has not run: `extend` by the one sampled last, first.
        Until the session is committed or rolled back every other call that changes the sequence,
        and `state`, raises InvalidArgumentError; `read` sees what the session has written. Without
        drafts it is a decode step.

        Args:
            drafts: proposed ids of the positions after that token; may be empty.
            parents: the tree that they form, ``[drafts + 1]`` or a `TokenTree`; None for one path.
            strategy: what is kept of fixed-size state until the verdict: ``"steps"``, a copy after
                each row; ``"replay"``, the inputs of each row, folded into the state by
                `VerifySession.commit`; ``"carry"``, the same, but accepted rows wait to be folded
                until the state is read, or the rows of a later verify no longer fit beside them.
                After ``"carry"`` take views of `state` anew: taking one folds what waits.

        Raises:
            InvalidArgumentError: not exactly one token waits, no such tree or strategy, more rows
                than the plan's ``stash_rows``, or a session is open.
            UnsupportedError: a tree of several paths, and state pooled over several positions; or
                another strategy than ``"steps"``, and a plan without ``stash_rows``.
            OutOfCapacityError: no room for the rows and the carry stash, or by ``"steps"`` a copy
                of the fixed-size state for each.
        """
        core = _core.begin_verify(
            self._core, as_tokens(drafts), as_tree(parents), as_strategy(strategy)
        )
        return VerifySession(self, core)
