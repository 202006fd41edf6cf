"""From a published prompt cache to a prefix that is resident in a cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from kvcache._arguments import Media, as_instance, as_media, as_tokens
from kvcache._prefix_fill import Prefix, check_budget, complete, needed_rows, windowed_layers
from kvcache.cache import Cache
from kvcache.codec import Bfloat16Array
from kvcache.errors import UnsupportedError
from kvcache.policy.tensors import Batch, PrefixTokens, PrefixTokensDiv
from kvcache.published.elements import as_rows, as_state, check_element
from kvcache.published.expect import (
    Expected,
    check_expected,
    check_tokens,
    match_layers,
    row_of,
    stored_layers,
)
from kvcache.published.files import read_newest, shard_of_block, shard_of_tensor
from kvcache.published.manifest import Manifest, decode_manifest

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from numpy.typing import ArrayLike, NDArray

    from kvcache.enums import DType
    from kvcache.plan import StatePlan
    from kvcache.policy.components import StateComponentPolicy
    from kvcache.published.files import Generation
    from kvcache.published.manifest import Block, StateTensor
    from kvcache.sequence import Sequence

__all__ = ["load_published"]


def load_published(
    cache: Cache,
    path: str | os.PathLike[str],
    tokens: ArrayLike,
    *,
    segment: str | None = None,
    row: int | None = None,
    convert: bool = False,
    namespace: str | bytes = "",
    adapter: str | tuple[str, str] | None = None,
    salt: bytes | str = b"",
    media: Iterable[Media] = (),
    ttl: float | None = None,
    **expected: Unpack[Expected],
) -> int:
    """Make the prefix of a published prompt cache (schema 8) usable by `Cache.open`.

    The whole manifest and every byte of every shard are checked before anything changes. What the
    plan knows is compared with it; what the caller knows besides is compared where it is given.
    `kvcache.published` says what is assumed of the format.

    Args:
        cache: where to; the prefix is charged to no tenant.
        path: the directory with ``CURRENT``; of a divided model that of the one rank.
        tokens: all tokens of the prefix, of which the manifest has a hash.
        segment: id of the state segment to load, such as the model's without its draft layers;
            None for all layers.
        row: which row of a batch; needed where there is more than one. All have the same tokens.
        convert: allow rounding to what the plan stores; else it must hold every value as it is.
        namespace: as in `Cache.open`; so the next four.
        adapter: what computed the state.
        salt: further secret that must agree.
        media: positions of images and their digests.
        ttl: seconds that the prefix is found.
        expected: what the caller knows of it, such as ``checkpoint_fingerprint`` and, of a divided
            model, ``shard``: see `kvcache.published.Expected`.

    Returns:
        Positions made usable: all tokens, less what a lagging draft layer has not seen.

    Raises:
        CorruptionError: a file is damaged, missing or not what the manifest says, or the manifest
            breaks a rule; the message names it.
        UnsupportedError: another schema, model, rank or element than expected; or ``block_tokens``
            so large that a window does not fill its first page.
        InvalidArgumentError: ``tokens`` are not those of the prompt cache.
        NonFiniteError: a value does not fit the plan's elements. OutOfCapacityError: no room, even
            after evicting. In both cases none of it was kept.
        NotFoundError: there is no prompt cache. KVCacheIOError: the system refused.
    """
    ids = as_tokens(tokens)
    plan = as_instance(cache, Cache, "cache").plan
    space: dict[str, Any] = {
        "namespace": namespace,
        "adapter": adapter,
        "salt": salt,
        "media": as_media(media),
    }

    def read(files: Generation) -> int:
        manifest = decode_manifest(files.manifest())
        check_expected(manifest, expected)
        prefix = _Stored(files, manifest, plan, segment, row, convert=convert)
        check_tokens(manifest, ids)
        prefix.publish(cache, ids, space, ttl)
        return prefix.count

    return read_newest(path, read)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of positions ``start..stop`` of one layer, by component of the plan."""

    start: int
    stop: int
    parts: list[Any]

    def cut(self, start: int, stop: int) -> _Piece:
        start, stop = max(start, self.start), min(stop, self.stop)
        within = slice(start - self.start, stop - self.start)
        return _Piece(start, stop, [part[within] for part in self.parts])


class _Stored:
    """What one plan takes from a prompt cache.

    Attributes:
        count: positions that every layer of the plan has.
    """

    def __init__(
        self,
        files: Generation,
        manifest: Manifest,
        plan: StatePlan,
        segment: str | None,
        row: int | None,
        *,
        convert: bool,
    ) -> None:
        self._files, self._manifest, self._plan = files, manifest, plan
        self._row = row_of(manifest.fields.batch_size, row)
        stored = stored_layers(manifest, segment)
        self._layers = match_layers(manifest, stored, plan)  # of the plan: number of the stored
        self._tensors = dict(zip(manifest.tensors, manifest.fields.state_tensors, strict=True))
        self._windows: dict[int, list[_Piece]] = {}
        self.count = self._common_tokens()
        self._check_elements(convert=convert)
        self._check_windows()

    def publish(
        self, cache: Cache, ids: NDArray[Any], space: dict[str, Any], ttl: float | None
    ) -> None:
        """Make it resident, once every byte of it is checked."""
        check_budget(cache, self.count)
        self.check()
        with Prefix(cache, ids[: self.count], space, ttl) as new:
            if not new.is_resident:
                self.fill(new.sequence)
            new.publish()

    def check(self) -> None:
        """Read every shard.

        Raises:
            CorruptionError: one is not what the manifest says.
        """
        for block in self._manifest.fields.blocks:
            self._files.check(shard_of_block(block))
        for tensor in self._manifest.fields.state_tensors:
            self._files.check(shard_of_tensor(tensor))

    def fill(self, sequence: Sequence) -> None:
        """Complete the positions of a sequence, and take the snapshots."""
        plan, stops = self._plan, self._stops()
        windows = windowed_layers(plan, stops)
        for layer in self._layers:
            start = sequence.length
            if layer in windows:
                needed = min(first for first, _ in (*windows[layer], (self.count, self.count)))
                pieces = self._pieces(layer, max(start, needed))
                self._windows[layer] = [_copied(each.cut(needed, self.count)) for each in pieces]
            elif plan.paged_components(layer):
                for piece in self._pieces(layer, start):
                    cut = piece.cut(start, self.count)
                    if cut.start < cut.stop:
                        sequence.write_layers(cut.start, {layer: cut.parts})
            self._write_records(sequence, layer)
        complete(sequence, stops, self._write_window, self._write_states)

    def _stops(self) -> tuple[int, ...]:
        """Where the prefix can be resumed: at its end, and before it if all state is in windows.

        The same prompt again runs its last token, and a window may have to begin a page earlier.
        """
        before = self.count - 1
        if self._plan.fixed or before == 0 or self._missing(self._plan.block_tokens, before):
            return (self.count,)
        return before, self.count

    # ---- What fits --------------------------------------------------------------------------

    def _common_tokens(self) -> int:
        kept = {d.layer for d in self._plan.declarations}
        counts = {layer: self._manifest.tokens_of(self._layers[layer]) for layer in kept}
        count = min(counts.values())
        pooled = {d.layer for d in self._plan.declarations if d.component.startswith("state.")}
        for layer in sorted(pooled):
            if counts[layer] != count:
                raise UnsupportedError(
                    f"layer {layer} has state at {counts[layer]} tokens, another layer ends at "
                    f"{count}; choose one of the segments {self._manifest.segments}"
                )
        if count == 0:
            raise UnsupportedError("a layer of the prompt cache has no position")
        return count

    def _check_elements(self, *, convert: bool) -> None:
        for decl in self._plan.declarations:
            tensor = self._tensor(decl.layer, decl.component)
            dtypes = set() if tensor is None else {tensor.dtype}
            if decl.component.startswith("attention."):
                dtypes = {block.first_dtype for block in self._blocks(decl.layer)}
            for dtype in sorted(dtypes):
                check_element(dtype, decl.dtype, decl.id, convert=convert)

    def _check_windows(self) -> None:
        """Whether every page that stays is filled with rows that are there."""
        missing = self._missing(self._plan.block_tokens)
        if missing is None:
            return
        records = math.lcm(*(decl.record_tokens for decl in self._plan.declarations))
        most = min(self._plan.block_tokens, self.count)  # a longer one begins at 0 as well
        smaller = range(most - most % records, 0, -records)
        usable = next((block for block in smaller if self._missing(block) is None), None)
        layer, start, needed = missing
        advice = "" if usable is None else f"; lower block_tokens to {usable}"
        raise UnsupportedError(
            f"layer {layer}: rows are stored from position {start} on, and do not fill the block "
            f"from {needed} on that its window needs{advice}"
        )

    def _missing(self, block_tokens: int, stop: int = 0) -> tuple[int, int, int] | None:
        for layer in self._layers:
            blocks = self._blocks(layer)
            if not blocks or not self._plan.paged_components(layer):
                continue
            needed = needed_rows(self._plan, layer, stop or self.count, block_tokens)
            if needed and needed[0][0] < blocks[0].start:
                return layer, blocks[0].start, needed[0][0]
        return None

    # ---- Reading ----------------------------------------------------------------------------

    def _blocks(self, layer: int) -> list[Block]:
        return self._manifest.blocks_of(self._layers[layer])

    def _components(self, layer: int) -> dict[str, StateComponentPolicy]:
        policy = self._manifest.layout[self._layers[layer]]
        return {part.stable_name(): part for part in policy.components()}

    def _tensor(self, layer: int, component: str) -> StateTensor | None:
        """The tensor that is stored of a component of the plan, if one is."""
        number = self._layers[layer]
        for policy in self._manifest.layout[number].fixed_state:
            if policy.role.stable_name() == component:
                return self._tensors.get((self._manifest.layers[number], policy.role))
        return None

    def _pieces(self, layer: int, start: int) -> Iterator[_Piece]:
        """Rows of a layer that reach beyond ``start``, shard by shard."""
        components = self._components(layer)
        parts = self._plan.paged_components(layer)
        grown = {
            part.component: self._rows_of_tensor(layer, part.component, part.dtype)
            for part in parts
            if part.component.startswith("state.")
        }
        if not self._blocks(layer):
            yield _Piece(0, self.count, [grown[part.component] for part in parts])
            return
        attention = [name for name in components if name.startswith("attention.")]
        for block in self._blocks(layer):
            if block.end <= start:
                continue
            arrays = dict(zip(attention, self._files.read(shard_of_block(block)), strict=False))
            rows = {
                part.component: as_rows(
                    positions_first(arrays[part.component], components[part.component], self._row),
                    block.first_dtype,
                    part.dtype,
                    f"layer {layer}, {part.component}",
                )
                if part.component in arrays
                else grown[part.component][block.start : block.end]
                for part in parts
            }
            yield _Piece(block.start, block.end, [rows[part.component] for part in parts])

    def _rows_of_tensor(self, layer: int, component: str, dtype: DType) -> Any:
        tensor = self._tensor(layer, component)
        policy = self._components(layer)[component]
        if tensor is None:
            return None
        [array] = self._files.read(shard_of_tensor(tensor))
        rows = positions_first(array, policy, self._row)
        return as_rows(rows, tensor.dtype, dtype, f"layer {layer}, {component}")

    # ---- Writing ----------------------------------------------------------------------------

    def _write_window(self, sequence: Sequence, layer: int, start: int, stop: int) -> None:
        for piece in self._windows[layer]:
            if piece.start < stop and start < piece.stop:
                cut = piece.cut(start, stop)
                sequence.write_layers(cut.start, {layer: cut.parts})

    def _write_records(self, sequence: Sequence, layer: int) -> None:
        for stream in self._plan.streams(layer):
            records = self._rows_of_tensor(layer, stream.component, stream.dtype)
            first = sequence.length // stream.record_tokens
            if records is not None and first < len(records):
                sequence.write_records(layer, stream.component, first, records[first:])

    def _write_states(self, sequence: Sequence, stop: int) -> None:
        if stop == self.count:
            for part in self._plan.fixed:
                view = sequence.state(part.layer, part.name)
                self._write_state(view, part.layer, part.name, part.dtype)

    def _write_state(self, view: NDArray[Any], layer: int, component: str, dtype: DType) -> None:
        """What is not there, or has fewer rows than it may have, is zero."""
        tensor = self._tensor(layer, component)
        view[...] = 0
        if tensor is None:
            return
        [array] = self._files.read(shard_of_tensor(tensor))
        if Batch() in self._components(layer)[component].shape:
            axis = self._components(layer)[component].shape.index(Batch())
            array = array.take(self._row, axis)
        where = tuple(slice(0, size) for size in array.shape)
        view[where] = as_state(array, tensor.dtype, dtype, f"layer {layer}, {component}")


def positions_first(array: NDArray[Any], component: StateComponentPolicy, row: int) -> NDArray[Any]:
    """``[positions or records, heads, width]`` of one row of a batch."""
    axes = list(component.shape)
    if Batch() in axes:
        array = array.take(row, axes.index(Batch()))
        axes.remove(Batch())
    [grows] = [i for i, axis in enumerate(axes) if isinstance(axis, PrefixTokens | PrefixTokensDiv)]
    array = np.moveaxis(array, grows, 0)
    return array if array.ndim == 3 else array[:, None, :]


def _copied(piece: _Piece) -> _Piece:
    """Without the shard that it was cut from."""
    parts = [
        Bfloat16Array(part.bits.copy()) if isinstance(part, Bfloat16Array) else part.copy()
        for part in piece.parts
    ]
    return _Piece(piece.start, piece.stop, parts)
