"""The live decoder state of one sequence: rows, fixed-size state, snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from kvcache import _core
from kvcache._arguments import (
    Media,
    as_clock,
    as_count,
    as_layer,
    as_media,
    as_text,
    as_tokens,
)
from kvcache._rows import (
    Rows,
    as_layers,
    as_parts,
    as_row_dtype,
    empty_parts,
    empty_rows,
    given_parts,
)
from kvcache.errors import InvalidArgumentError
from kvcache.layouts import move_rows
from kvcache.marks import Marks
from kvcache.pages import PageView
from kvcache.snapshot import SnapshotError, SnapshotFormat, core_format, from_core
from kvcache.speculate.verify import Verifiable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from kvcache.layouts import Layouts
    from kvcache.plan import StatePlan

__all__ = ["Sequence"]


class Sequence(Verifiable, Marks):
    """The live state of one sequence. Made by `Cache.open`; close it, or use it with ``with``.

    Thread-safe: calls on one sequence run one at a time, on different ones side by side. Once it is
    closed they raise InvalidArgumentError, but for `close`, `is_open`, and what never changes.
    """

    __slots__ = ("_plan", "_snapshot_errors")

    def __init__(self, core: _core.Sequence, plan: StatePlan) -> None:
        self._core = core
        self._plan = plan
        self._snapshot_errors: tuple[SnapshotError, ...] = ()

    @property
    def plan(self) -> StatePlan:
        """Sizes and layout of the cache it belongs to."""
        return self._plan

    @property
    def cached_tokens(self) -> int:
        """Positions restored by `Cache.open`; the engine starts here. Stays once it is closed."""
        return self._core.cached_tokens

    @property
    def matched_tokens(self) -> int:
        """Positions whose tokens were known, resident or not. Stays once it is closed."""
        return self._core.matched_tokens

    @property
    def length(self) -> int:
        """Positions complete in every layer."""
        return self._core.length

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Known token ids, a copy: those of `open` and of `extend`."""
        return self._core.tokens()

    def extend(self, tokens: ArrayLike, *, media: Iterable[Media] = ()) -> None:
        """Declare the ids of further positions, before they are written.

        Args:
            tokens: the ids.
            media: ``(start, length, digest)`` of each image, clip or file among them, as in
                `Cache.open`, at positions of the sequence.

        Raises:
            InvalidArgumentError: the sequence is closed, an id does not fit int32, or media do not
                lie in the new positions.
        """
        self._core.extend(as_tokens(tokens), as_media(media))

    def write(
        self,
        layer: int,
        start: int,
        keys: Rows,
        values: Rows | None = None,
        index_keys: Rows | None = None,
    ) -> None:
        """Store one layer's rows of positions ``[start, start + tokens)``, encoding included.

        Args:
            layer: index of the decoder layer.
            start: first position, within ``length`` and what is written of the layer.
            keys: ``[tokens, heads, width]`` of float16, float32 or bfloat16, after RoPE; kept bit
                for bit where that is how the plan stores them, else rounded; any object
                with the buffer protocol, DLPack on the host or ``__array_interface__``, at any
                strides as long as the last axis is contiguous; copied, never kept. For MLA the
                latent, ``[tokens, 1, latent_dim]``.
            values: the same for values, or the rotary keys of MLA; None for key-only layers.
            index_keys: the same for the keys of a sparse-attention indexer; None without one.

        Raises:
            OutOfCapacityError: no page is free and nothing can be evicted.
            NonFiniteError: an INT8 row is not finite. InvalidArgumentError: shape, position, or
            closed. After an error no new position is readable.
        """
        parts = given_parts(keys, values, index_keys)
        self._core.write(as_layer(layer), as_count(start, "start"), parts)

    def read(self, layer: int, start: int, stop: int, dtype: str | None = None) -> tuple[Any, ...]:
        """Decode one layer's rows of positions ``[start, stop)``.

        Args:
            layer: index of the decoder layer.
            start: first position.
            stop: one past the last position.
            dtype: ``"float16"``, ``"float32"`` or ``"bfloat16"``; None for the stored element, and
                float16 for INT8 rows. A narrower one rounds, and in float16 what is beyond 65504
                becomes infinite. Rows of integers are read as what they are.

        Returns:
            What `write` took, in that order: keys and values ``[stop - start, heads, width]``, or
            latent and rotary keys, and the index keys where there are any; keys and None for
            key-only layers. numpy arrays, or for bfloat16, which numpy lacks, `Bfloat16Array`.

        Raises:
            NotFoundError: positions have left the layer's window.
            InvalidArgumentError: positions not written, unknown layer or dtype, or closed.
        """
        layer, start = as_layer(layer), as_count(start, "start")
        stop = as_count(stop, "stop")
        dtype = as_row_dtype(dtype)
        self._check_written(layer, start, stop)
        rows = empty_parts(self._plan, layer, stop - start, dtype)
        self._core.read(layer, start, rows)
        return as_parts(rows)

    def write_layers(self, start: int, layers: Mapping[int, Iterable[Rows]]) -> None:
        """Store the same positions of several layers by one call, for all layers or for none.

        Args:
            start: first position, as in `write`.
            layers: for each layer what `write` takes: keys, values, index keys.

        Raises:
            OutOfCapacityError: not all pages are to be had.
            NonFiniteError: an INT8 row is not finite; rows of these layers from ``start`` on that
                were there before must be written again.
            InvalidArgumentError: shape, position, layers of unequal rows, or closed.
        """
        _core.write_layers(self._core, as_count(start, "start"), as_layers(layers))

    def read_layers(
        self, layers: Iterable[int], start: int, stop: int, dtype: str | None = None
    ) -> dict[int, tuple[Any, ...]]:
        """Decode the same positions of several layers by one call.

        Args:
            layers: indices of decoder layers.
            start: first position.
            stop: one past the last position.
            dtype: as in `read`.

        Returns:
            For each layer what `read` returns.

        Raises:
            NotFoundError: positions have left a layer's window.
            InvalidArgumentError: positions not written, unknown layer or dtype, or closed.
        """
        start, stop = as_count(start, "start"), as_count(stop, "stop")
        dtype = as_row_dtype(dtype)
        rows: dict[int, list[Any]] = {}
        for layer in map(as_layer, layers):
            self._check_written(layer, start, stop)
            rows[layer] = empty_parts(self._plan, layer, stop - start, dtype)
        _core.read_layers(self._core, start, list(rows.items()))
        return {layer: as_parts(parts) for layer, parts in rows.items()}

    def prepare(self, positions: int) -> None:
        """Take the pages of the next positions, in every group.

        They are then the sequence's own: kernels may store rows in them (`Cache.pages` tells where;
        from C, C++ or Cython), no later `write` of these positions runs out of pages, and their
        entries in the block tables stay as they are until `truncate` or `close`.

        Raises:
            OutOfCapacityError: not all pages are to be had; none was taken.
            InvalidArgumentError: more positions than known tokens, or closed.
        """
        _core.prepare(self._core, as_count(positions, "positions"))

    def write_records(self, layer: int, name: str, first: int, records: Rows) -> None:
        """Store records of pooled state, each of which stands for several positions.

        Record j of a stream that pools r positions stands for ``[j * r, (j + 1) * r)`` and is
        written once all of them are known; `advance` asks for every record that is complete then.

        Args:
            layer: index of the decoder layer.
            name: the component, e.g. ``"state.pooling.0.pooled"``; see `StatePlan.streams`.
            first: first record, within the complete and the written ones.
            records: ``[records, heads, width]``; see `write`.

        Raises:
            NotFoundError: the layer has no such stream; the message lists those it has.
            OutOfCapacityError, NonFiniteError, InvalidArgumentError: as for `write`.
        """
        self._core.write_records(
            as_layer(layer), as_text(name, "name"), as_count(first, "first"), records
        )

    def read_records(
        self, layer: int, name: str, first: int, stop: int, dtype: str | None = None
    ) -> Any:
        """Decode records ``[first, stop)`` of pooled state.

        Args:
            layer: index of the decoder layer.
            name: the component; see `write_records`.
            first: first record.
            stop: one past the last record.
            dtype: as for `read`.

        Returns:
            ``[stop - first, heads, width]``.

        Raises:
            NotFoundError: the layer has no such stream.
            InvalidArgumentError: records not written, an unknown dtype, or closed.
        """
        layer, name = as_layer(layer), as_text(name, "name")
        first, stop = as_count(first, "first"), as_count(stop, "stop")
        dtype = as_row_dtype(dtype)
        written = self._core.written_records(layer, name)
        if not first <= stop <= written:
            raise InvalidArgumentError(
                f"records [{first}, {stop}) of {name} in layer {layer} are not within the "
                f"{written} written ones"
            )
        [part] = [part for part in self._plan.streams(layer) if part.component == name]
        records = empty_rows(part, stop - first, dtype)
        self._core.read_records(layer, name, first, records)
        return records

    def written_records(self, layer: int, name: str) -> int:
        """Records written of one stream, complete or not.

        Raises:
            NotFoundError: the layer has no such stream.
        """
        return self._core.written_records(as_layer(layer), as_text(name, "name"))

    def block_table(self, group: int) -> NDArray[np.int32]:
        """The page of each block in one group, for kernels that go by `Cache.pages`.

        A snapshot: the array never changes and stays valid. What it says holds until the sequence
        is truncated or closed, but for pages that a later window leaves behind, and for the last
        page while it is shared (after `Cache.open` or `fork`), which the next write copies first.

        Args:
            group: index into `StatePlan.groups`.

        Returns:
            Read-only int32, one entry a block; -1 where a window has passed.

        Raises:
            InvalidArgumentError: no such group, or closed.
        """
        return _core.block_table(self._core, as_count(group, "group"))

    def views(self, layer: int, start: int, stop: int) -> tuple[list[PageView] | None, ...]:
        """Rows of positions ``[start, stop)`` where they lie, as stored, without a copy.

        Each view pins its page until it dies, whatever becomes of the sequence and the cache;
        pinned pages count against the memory. Rows of complete positions never change.

        Returns:
            What `read` returns, each as a list with one `PageView` a page: keys and values, latent
            and rotary keys, or keys and None for key-only layers.

        Raises:
            NotFoundError: positions have left the layer's window.
            InvalidArgumentError: positions not written, unknown layer, or closed.
            UnsupportedError: the cache is a ledger without bytes.
        """
        start, stop = as_count(start, "start"), as_count(stop, "stop")
        return as_parts(
            [
                [PageView(*view) for view in pages]
                for pages in _core.page_views(self._core, as_layer(layer), start, stop)
            ]
        )

    def import_rows(
        self,
        layers: int | Iterable[int],
        start: int,
        stop: int,
        tensors: Any,
        layout: Layouts,
        *,
        block_table: ArrayLike | None = None,
        slot_mapping: ArrayLike | None = None,
    ) -> None:
        """Store rows of positions ``[start, stop)`` as `write` does, from an engine's tensors.

        One pass, encoding included; any strides, though rows with gaps in `dim` take longer.

        Args:
            layers: a layer, or several whose tensors have an axis ``layers``.
            start: first position, within ``length`` and what is written of each layer.
            stop: one past the last position.
            tensors: one tensor for each component of a layer, in declared order; the one whose
                layout has ``kv`` holds all that the others leave. float16, float32 or bfloat16;
                any object that `write` takes; copied, never kept.
            layout: an `EngineLayout` or its axes as text, or one for each tensor.
            block_table: for layouts with ``blocks``: ids of the engine's blocks, by block of the
                sequence from position 0 on.
            slot_mapping: for each position of the call its index in ``tokens``, or in
                ``blocks`` times ``block``; instead of a block table.

        Raises:
            InvalidArgumentError: a tensor that does not fit its layout or the plan, or an id
                outside of it; nothing was changed. OutOfCapacityError: no page is free; likewise.
            NonFiniteError: an INT8 row is not finite; no position of the call is readable.
        """
        move_rows(
            _core.import_rows,
            self._core,
            layers,
            (start, stop),
            tensors,
            layout,
            block_table,
            slot_mapping,
        )

    def export_rows(
        self,
        layers: int | Iterable[int],
        start: int,
        stop: int,
        tensors: Any,
        layout: Layouts,
        *,
        block_table: ArrayLike | None = None,
        slot_mapping: ArrayLike | None = None,
    ) -> None:
        """Decode rows of positions ``[start, stop)`` into an engine's tensors.

        The arguments are those of `import_rows`; what the positions do not name is left as it is.

        Raises:
            InvalidArgumentError: as `import_rows`; or a tensor is read-only, or elements, tensors
                or places meet, so that rows would be overwritten; nothing was changed.
            NotFoundError: positions have left the layer's window.
        """
        move_rows(
            _core.export_rows,
            self._core,
            layers,
            (start, stop),
            tensors,
            layout,
            block_table,
            slot_mapping,
        )

    def state(self, layer: int, name: str) -> NDArray[Any]:
        """A writable view of one fixed-size tensor, such as ``"state.recurrent"``.

        The view is live: update it in place as positions run, then `advance`. It stays valid, and
        keeps its memory, after the sequence is closed. bfloat16 appears as its uint16 bits. Axes:
        ``[kernel - 1, channels]`` of a convolution, ``[heads, ...]`` of a recurrence; each family's
        are in docs/models.md. Rows that wait in the carry stash (`begin_verify`) are folded first.

        Raises:
            NotFoundError: the layer keeps no such tensor; the message lists those it keeps.
            UnsupportedError: it has more axes than a numpy array, or the cache is a ledger.
        """
        return self._core.state(as_layer(layer), as_text(name, "name"))

    def advance(self, positions: int, *, in_place: bool = False) -> None:
        """The next ``positions`` are complete in every layer, and the fixed-size state is there.

        Args:
            positions: how many.
            in_place: their rows were stored in prepared pages by kernels of the caller, not by
                `write`; what the pages hold is taken as it is.

        Raises:
            InvalidArgumentError: rows of a layer, or records of pooled state that are complete
                then, are missing; the tokens are not known; or, in place, the pages were not
                prepared.
        """
        count = as_count(positions, "positions")
        if in_place:
            _core.advance_in_place(self._core, count)
        else:
            self._core.advance(count)

    def snapshot(self, format: SnapshotFormat | str = SnapshotFormat.EXACT) -> int:  # noqa: A002
        """Make ``length`` a position that others can resume, once `publish` has made it visible.

        Copies all fixed-size state and keeps what sliding windows need before ``length``.

        Exact snapshots are the default, and are used where there are several at a position. What
        another format loses is in `snapshot_errors` afterwards; what is restored from it later,
        by `open` or `truncate`, has lost it.

        Args:
            format: ``"exact"``, ``"f16"`` or ``"int8"``; see `SnapshotFormat`.

        Returns:
            The position. Without windows and fixed-size state there is nothing to do.

        Raises:
            OutOfCapacityError: no room, and nothing can be evicted.
            NonFiniteError: an element that the format rounds is not finite in float16. In both
            cases nothing has changed.
        """
        position, errors = self._core.snapshot(core_format(format))
        self._snapshot_errors = tuple(map(from_core, errors))
        return position

    @property
    def snapshot_errors(self) -> tuple[SnapshotError, ...]:
        """What the last `snapshot` of this sequence lost, by tensor; empty for an exact one."""
        return self._snapshot_errors

    def publish(self) -> None:
        """Let later sequences reuse the complete positions, the tail and the snapshots.

        Of a sequence that was shifted only what lies before the shift.
        """
        self._core.publish()

    def fork(self) -> Sequence:
        """Open a second sequence in the same state; pages are shared until written.

        Raises:
            OutOfCapacityError: no slot is free, or the plan's ``sequences`` are all open.
        """
        return Sequence(self._core.fork(), self._plan)

    def truncate(self, position: int) -> None:
        """Forget everything from ``position`` on, tokens included.

        Raises:
            UnsupportedError: the fixed-size state has no snapshot there, a window has passed, or
                ``position`` is inside a media item.
            InvalidArgumentError: ``position`` is negative or beyond ``length``.
        """
        self._core.truncate(as_count(position, "position"))

    def record(self) -> int:
        """Copy all fixed-size state at ``length`` into the sequence's decode ring.

        `rollback` returns to it. The ring holds the plan's ``ring_depth`` copies; the next one
        takes the place of the oldest, also where one of the same position is there already;
        `rollback` then returns to the newest. Unlike `snapshot` it is this sequence's alone:
        `publish` does not show it, `fork` starts with an empty ring, and it is never evicted.

        Returns:
            The position. A model without fixed-size state has nothing to copy.

        Raises:
            UnsupportedError: the plan's ``ring_depth`` is 0.
            OutOfCapacityError: no room for one more copy; the ring is as it was.
        """
        return self._core.record()

    def rollback(self, position: int) -> None:
        """Return to ``position``: its recorded state, and nothing of what follows, tokens included.

        A model without fixed-size state returns to any position its windows still allow.

        Raises:
            UnsupportedError: `record` was not called there, or its copy has given way to newer
                ones, or a window has passed, or the plan's ``ring_depth`` is 0, or it is inside a
                media item. Nothing changed.
            InvalidArgumentError: ``position`` is negative or beyond ``length``.
        """
        self._core.rollback(as_count(position, "position"))

    @property
    def recorded(self) -> list[int]:
        """Positions in the decode ring, oldest record first."""
        return self._core.recorded

    def shift(self, keep: int, drop: int) -> None:
        """Drop positions ``[keep, keep + drop)``, tokens included, and renumber what follows them.

        For streams longer than the context: the first ``keep`` positions (attention sinks) stay,
        and keys are rotated by their new positions as they are read. Later rows were computed with
        the dropped ones in sight, so `publish` stores positions below ``keep`` only, until
        `truncate` has taken the later ones away.

        Raises:
            UnsupportedError: keys are stored after rotation (see ``rotated_keys`` of `StatePlan`),
                the model has fixed-size state, a media item would be cut, or a window would see
                positions that it has dropped.
            OutOfCapacityError: no page for rows that change their place.
            InvalidArgumentError: not within ``length``, or a layer is written beyond it. After an
                error nothing has changed.

        Source: attention sinks, arXiv:2309.17453.
        """
        _core.shift(self._core, as_count(keep, "keep"), as_count(drop, "drop"))

    def close(
        self,
        *,
        output_tokens: int | None = None,
        session_closed: bool = False,
        now_ms: int | None = None,
    ) -> None:
        """Give everything back. What was published stays. Closing twice is fine.

        The eviction policy learns how the request ended.

        Args:
            output_tokens: positions decoded; by default those past the prompt.
            session_closed: nobody will continue this sequence.
            now_ms: as in `Cache.open`.

        Raises:
            InvalidArgumentError: a negative number; nothing was given back.
        """
        self._core.close(
            output_tokens=None
            if output_tokens is None
            else as_count(output_tokens, "output_tokens"),
            session_closed=bool(session_closed),
            now_ms=as_clock(now_ms),
        )

    @property
    def is_open(self) -> bool:
        """False once closed."""
        return self._core.is_open

    def _check_written(self, layer: int, start: int, stop: int) -> None:
        """Before room is made for rows that are not there."""
        written = self._core.written(layer)
        if not start <= stop <= written:
            raise InvalidArgumentError(
                f"positions [{start}, {stop}) of layer {layer} are not within the "
                f"{written} written ones"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        try:
            return f"<Sequence {self.length} of {len(self.tokens)} positions>"
        except InvalidArgumentError:
            return "<Sequence closed>"
