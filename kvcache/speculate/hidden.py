"""Hidden rows that a drafter reads: of accepted positions, of a prompt, of the rows of a verify."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcache import _core
from kvcache._arguments import (
    FLOAT_DTYPES,
    as_count,
    as_counts,
    as_float_dtype,
    as_instances,
    as_sequence,
)
from kvcache._handles import described
from kvcache.errors import InvalidArgumentError
from kvcache.sequence import Sequence
from kvcache.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike

    from kvcache.cache import Cache

__all__ = ["AcceptStash", "HiddenBands", "HiddenCapture"]

_EMPTY = np.empty(0, np.uint64)


class AcceptStash:
    """The hidden rows of accepted positions, from a verdict to the propose that reads them.

    A propose overwrites the hidden rows of the forward pass, which all sequences share; those that
    it starts from are copied here after the verdict and before any propose. Rows are good until the
    next verify of their sequence begins, it moves, or it is closed: using them later is an error
    that says which. Thread-safe.

    Args:
        rows: sequences of a batch.
        width: elements of a hidden row.
        dtype: of the rows, which are stored as they come: "bfloat16", "float16" or "float32".
        catch_up: further rows of each sequence, up to 4, so that a drafter can append exact state
            for the drafts that were accepted.
        cache: whose budget the memory counts against; None for none.

    Raises:
        InvalidArgumentError: an argument is out of range.
        OutOfCapacityError: no memory, or no room in the budget.
    """

    __slots__ = ("_core",)

    def __init__(
        self,
        rows: int,
        width: int,
        dtype: Any = "bfloat16",
        *,
        catch_up: int = 0,
        cache: Cache | None = None,
    ) -> None:
        self._core = _core.AcceptStash(
            rows=as_count(rows, "rows"),
            width=as_count(width, "width"),
            dtype=_element(dtype),
            catch_up=as_count(catch_up, "catch_up"),
            cache=_cache_core(cache),
        )

    def store(
        self,
        sequences: Iterable[Sequence],
        hidden: Any,
        rows: ArrayLike,
        *,
        catch_up: Iterable[ArrayLike] | None = None,
    ) -> None:
        """Copy one hidden row of each sequence, for all or for none; what was stored before ends.

        Args:
            sequences: up to ``rows``; sequence ``i`` has stash row ``i``.
            hidden: ``[n, width]`` of the stash's dtype, the rows of the forward pass.
            rows: which of them is each sequence's last accepted one, such as
                ``offsets[:-1] + accepted - 1``.
            catch_up: of each sequence, the rows before that one; None for none.

        Raises:
            InvalidArgumentError: a row that is not there, another dtype or width, too many of
                anything, or a sequence that is there twice, is closed, or whose verify is open
                still. Nothing was changed.
        """
        handles = as_instances(sequences, Sequence, "sequences")
        flat, counts = _ragged(catch_up)
        given = as_counts(rows, "rows")
        if given is None:
            raise InvalidArgumentError("rows: expected one number for each sequence, got None")
        self._core.store([each._core for each in handles], hidden, given, flat, counts)

    def rows(self, count: int) -> Any:
        """Stash rows 0 to ``count - 1`` where they lie, read-only: ``[count, width]``.

        A view: it shows what is stored next as well, and keeps the memory, which counts against the
        cache's budget as long as it lives. bfloat16 comes as a `Bfloat16Array`.

        Raises:
            InvalidArgumentError: one of them was not stored or has ended; the text says how.
        """
        return self._core.rows(as_count(count, "count"))

    def row(self, index: int) -> Any:
        """Stash row ``index`` alone, ``[1, width]``; see `rows`."""
        return self._core.row(as_count(index, "index"))

    def catch_up(self, index: int) -> Any:
        """The catch-up rows of sequence ``index``, ``[n, width]``; see `rows`."""
        return self._core.catch_up(as_count(index, "index"))

    @property
    def stored(self) -> int:
        """Rows of the latest `store`."""
        return self._core.stored

    @property
    def bytes(self) -> int:
        """Memory: what ``StateKind.ACCEPT_STASH`` says of ``rows * (1 + catch_up)`` rows."""
        return self._core.bytes

    def __repr__(self) -> str:
        return described("AcceptStash", lambda: f"of {format_bytes(self.bytes)}")


class HiddenCapture:
    """The hidden rows of one prompt, captured during its prefill for that of a drafter.

    `begin` with the sequence, `write` each chunk, read `rows` once their positions are complete,
    and `consume` them. The rows end with the sequence, and when it goes back. Thread-safe.

    Args:
        rows: capacity; rows past it are not kept.
        width: elements of a hidden row.
        dtype: of the rows, which are stored as they come: "bfloat16", "float16" or "float32".
        cache: whose budget the memory counts against; None for none.

    Raises:
        InvalidArgumentError: an argument is out of range.
        OutOfCapacityError: no memory, or no room in the budget.
    """

    __slots__ = ("_core",)

    def __init__(
        self, rows: int, width: int, dtype: Any = "bfloat16", *, cache: Cache | None = None
    ) -> None:
        self._core = _core.HiddenCapture(
            rows=as_count(rows, "rows"),
            width=as_count(width, "width"),
            dtype=_element(dtype),
            cache=_cache_core(cache),
        )

    def begin(self, sequence: Sequence) -> None:
        """Capture the rows of ``sequence`` now, from its ``length`` on.

        Raises:
            InvalidArgumentError: it is closed, or another open sequence's rows were not released.
        """
        self._core.begin(as_sequence(sequence)._core)

    def write(self, position: int, rows: Any) -> int:
        """Keep the rows of positions from ``position`` on, ``[n, width]``, up to the capacity.

        Returns:
            How many of them were kept.

        Raises:
            InvalidArgumentError: they do not follow those before, another dtype or width, nothing
                was begun, or the capture has ended.
        """
        return self._core.write(as_count(position, "position"), rows)

    def rows(self) -> Any:
        """The rows of positions from `position` on, ``[captured, width]``, read-only, in place.

        Raises:
            InvalidArgumentError: nothing was begun, the sequence is closed or went back, or it is
                not complete up to the last row: `Sequence.advance` comes first.
        """
        return self._core.rows()

    def consume(self) -> None:
        """End the rows, which the drafter has read; the positions that follow may be written."""
        self._core.consume()

    def release(self) -> None:
        """End the rows, and let any sequence begin."""
        self._core.release()

    @property
    def captured(self) -> int:
        """Rows that are kept."""
        return self._core.captured

    @property
    def position(self) -> int:
        """Position of the first one."""
        return self._core.position

    @property
    def bytes(self) -> int:
        """Memory of all rows: what ``StateKind.HIDDEN_CAPTURE`` says."""
        return self._core.bytes

    def __repr__(self) -> str:
        return described("HiddenCapture", lambda: f"{self.captured} rows from {self.position}")


class HiddenBands:
    """A band of hidden rows of each sequence of a verify, for drafters that work in blocks.

    `store` while the verifies are open; after their commit `accepted` gives the rows that count. A
    band ends with the next verify of its sequence, and as `accepted` says. Thread-safe.

    Args:
        bands: sequences of a batch.
        rows: most rows of a verify; row ``r`` of band ``i`` lies at ``i * rows + r``.
        width: elements of a hidden row.
        dtype: of the rows, which are stored as they come: "bfloat16", "float16" or "float32".
        cache: whose budget the memory counts against; None for none.

    Raises:
        InvalidArgumentError: an argument is out of range.
        OutOfCapacityError: no memory, or no room in the budget.
    """

    __slots__ = ("_core",)

    def __init__(
        self,
        bands: int,
        rows: int,
        width: int,
        dtype: Any = "bfloat16",
        *,
        cache: Cache | None = None,
    ) -> None:
        self._core = _core.HiddenBands(
            bands=as_count(bands, "bands"),
            rows=as_count(rows, "rows"),
            width=as_count(width, "width"),
            dtype=_element(dtype),
            cache=_cache_core(cache),
        )

    def store(self, sequences: Iterable[Sequence], hidden: Any, offsets: ArrayLike) -> None:
        """Copy the hidden rows of each sequence's verify, for all or for none.

        Args:
            sequences: up to ``bands``, each with a verify that is open.
            hidden: ``[n, width]`` of the bands' dtype, the rows of the forward pass.
            offsets: rows ``offsets[i]`` up to ``offsets[i + 1]`` are those of sequence ``i``: all
                of its verify, such as `BatchVerifySession.offsets` has them.

        Raises:
            InvalidArgumentError: something of the above does not hold, or a sequence is there
                twice. Nothing was changed.
            UnsupportedError: the drafts of a sequence form a tree, whose accepted rows are not the
                first of its band. Nothing was changed.
        """
        handles = as_instances(sequences, Sequence, "sequences")
        given = as_counts(offsets, "offsets")
        if given is None:
            raise InvalidArgumentError("offsets: expected one more than sequences, got None")
        self._core.store([each._core for each in handles], hidden, given)

    def accepted(self, band: int) -> Any:
        """The rows that the verify kept, ``[n, width]``, read-only, in place; of a chain of drafts.

        Raises:
            InvalidArgumentError: the verify is open still, was rolled back, or a later one has
                begun; the sequence has gone on, went back or is closed; nothing was stored.
        """
        return self._core.accepted(as_count(band, "band"))

    @property
    def stored(self) -> int:
        """Bands of the latest `store`."""
        return self._core.stored

    @property
    def bytes(self) -> int:
        """Memory of all rows: what ``StateKind.HIDDEN_CAPTURE`` says of ``bands * rows`` rows."""
        return self._core.bytes

    def __repr__(self) -> str:
        return described("HiddenBands", lambda: f"of {format_bytes(self.bytes)}")


def _element(dtype: Any) -> _core.DType:
    return _core.DType[FLOAT_DTYPES[as_float_dtype(dtype)].upper()]


def _cache_core(cache: Cache | None) -> _core.Cache | None:
    if cache is None:
        return None
    from kvcache.cache import Cache

    if not isinstance(cache, Cache):
        raise InvalidArgumentError(f"cache: expected a Cache, got {cache!r}")
    return cache._core


def _ragged(lists: Iterable[ArrayLike] | None) -> tuple[Any, Any]:
    """Numbers of several lists one after the other, and how many each has."""
    if lists is None:
        return _EMPTY, _EMPTY
    try:
        parts = [as_counts(part, f"catch_up[{i}]") for i, part in enumerate(lists)]
    except TypeError:
        raise InvalidArgumentError(f"catch_up: expected a list of lists, got {lists!r}") from None
    given = [_EMPTY if part is None else part for part in parts]
    counts = np.array([part.size for part in given], np.uint64)
    return np.concatenate([_EMPTY, *given]), counts
