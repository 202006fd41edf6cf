"""From the prompt caches that each rank of one side saved to the caches of ranks of another."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kvcache._arguments import Media, as_instances, as_media
from kvcache._prefix_fill import Prefix, check_budget, complete, needed_rows, windowed_layers
from kvcache.cache import Cache
from kvcache.errors import InvalidArgumentError
from kvcache.shards.files import Source, folders_of, needed_ranks, plan_of, read_heads
from kvcache.shards.moves import (
    Slices,
    move_rows,
    move_tensor,
    paged_layers,
    passing_dtype,
    rank_numbers,
    slices_of,
    whole_state,
)
from kvcache.state import StateDecl, StateKind

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from collections.abc import Sequence as SequenceOf

    from kvcache.models import Model
    from kvcache.plan import StatePlan
    from kvcache.sequence import Sequence

__all__ = ["load"]


def load(
    model: Model,
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    caches: Iterable[Cache],
    *,
    ranks: Iterable[int] | None = None,
    world_size: int | None = None,
    weights: str = "",
    convert: bool = False,
    namespace: str | bytes = "",
    adapter: str | tuple[str, str] | None = None,
    salt: bytes | str = b"",
    media: Iterable[Media] = (),
    ttl: float | None = None,
) -> int:
    """Make a prefix that each of some ranks saved usable by the caches of another number of ranks.

    Everything that is read is checked before a cache changes; only ranks that hold what is wanted
    are read, each whole and into a cache of its own for the time of the call.

    Args:
        model: the whole model, as `kvcache.models.from_config` reads it without ``tp``.
        paths: the directories of all ranks that saved, in rank order; or the one directory that
            holds them, each called as `rank_directory` says. Order and number are checked where
            names say them: files alone do not tell one rank from another.
        caches: of the ranks that load, in rank order.
        ranks: numbers of these ranks, where they are not all of them: usually one in each process.
        world_size: with ``ranks``, how many ranks load in all.
        weights: as given to the caches, those that saved and those that load.
        convert: take rows that were saved in another storage format, as `Sequence.write` would.
        namespace: the one it was saved under; so the next three.
        adapter: what computed the state.
        salt: further secret that must agree.
        media: positions of images and their digests.
        ttl: seconds that the prefix is found.

    Returns:
        Positions made usable in every cache.

    Raises:
        InvalidArgumentError: ranks of different prefixes, missing, twice, or in another order than
            their names say; caches that do not store ``model`` divided, or not alike.
        NotFoundError: ``paths`` is no directory. CorruptionError: a file is damaged or missing.
        UnsupportedError: another model, namespace, adapter or salt; another storage format without
            ``convert``; or a state that cannot be divided, as in `reshard`.
        OutOfCapacityError: no room in a cache; no cache keeps any of it.
        KVCacheIOError: a directory is not there, or the system refused.
    """
    whole, parts = whole_state(model), dict(model.channel_parts)
    targets, wanted = _targets(model, caches, ranks, world_size)
    folders = folders_of(paths)
    space = {"namespace": namespace, "adapter": adapter, "salt": salt, "media": as_media(media)}
    saved = read_heads(folders)
    size = len(folders)
    plan = plan_of(whole, parts, targets[0].plan, saved, size, convert=bool(convert))
    held = slices_of(whole, parts, [plan] * size, range(size), size, "paths")
    for cache in targets:
        check_budget(cache, saved.count)
    with ExitStack() as stack:
        sources = {
            rank: Source(stack, folders[rank], plan, saved, weights, space)
            for rank in needed_ranks(whole, held, wanted)
        }
        prefixes = [
            stack.enter_context(Prefix(cache, saved.tokens, space, ttl)) for cache in targets
        ]
        _Move(whole, sources, (held, wanted)).run(prefixes, saved.count)
        for prefix in prefixes:
            prefix.publish()
    return saved.count


def _targets(
    model: Model, caches: Iterable[Cache], ranks: Iterable[int] | None, world_size: int | None
) -> tuple[tuple[Cache, ...], Slices]:
    """The caches that load, and where their pieces lie."""
    targets = as_instances(caches, Cache, "caches")
    if not targets or len({id(cache) for cache in targets}) < len(targets):
        raise InvalidArgumentError("caches: expected a cache for each rank that loads, each once")
    numbers, size = rank_numbers(ranks, world_size, len(targets))
    plans = [cache.plan for cache in targets]
    if len({plan.block_tokens for plan in plans}) > 1:
        raise InvalidArgumentError("caches: their block_tokens differ")
    if len({tuple(decl.dtype for decl in plan.declarations) for plan in plans}) > 1:
        raise InvalidArgumentError("caches: their storage formats differ")
    whole, parts = whole_state(model), dict(model.channel_parts)
    return targets, slices_of(whole, parts, plans, numbers, size, "caches")


class _Move:
    """From the ranks that saved to those that load."""

    def __init__(
        self,
        whole: tuple[StateDecl, ...],
        sources: dict[int, Source],
        moves: tuple[Slices, Slices],
    ) -> None:
        self._whole, self._layers = whole, paged_layers(whole)
        self._sources = list(sources.values())
        self._held = [moves[0][rank] for rank in sources]
        self._wanted = moves[1]

    def run(self, prefixes: SequenceOf[Prefix], count: int) -> None:
        """Complete all that are not resident."""
        pairs = zip(prefixes, self._wanted, strict=True)
        live = [(new.sequence, wanted) for new, wanted in pairs if not new.is_resident]
        if not live:
            return
        plan = live[0][0].plan
        stops = self._stops(plan, count)
        windows = windowed_layers(plan, stops)
        sequences, wanted = [each for each, _ in live], [each for _, each in live]
        starts = [sequence.length for sequence in sequences]
        for layer, paged in self._layers.items():
            if layer in windows:
                continue
            if any(decl.window for decl in paged):  # all of it is in the pages of the last window
                for sequence, pieces in live:
                    self._write(pieces, (count,), sequence, layer, sequence.length, count)
            else:
                sides = (self._at(count), sequences)
                move_rows(layer, paged, sides, (self._held, wanted), (starts, count))
        for sequence, pieces in live:
            complete(
                sequence, stops, partial(self._write, pieces, stops), partial(self._settle, pieces)
            )

    def _stops(self, plan: StatePlan, count: int) -> tuple[int, ...]:
        """Where the prefix can be resumed: at its end, and for the same prompt again before it."""
        resumed = plan.fixed or any(decl.window for decl in self._whole)
        if resumed and count > 1 and all(source.at(count - 1) for source in self._sources):
            return count - 1, count
        return (count,)

    def _at(self, stop: int) -> list[Sequence]:
        return [source.opened(stop) for source in self._sources]

    def _write(
        self,
        pieces: dict[str, list[tuple[slice, slice]]],
        stops: tuple[int, ...],
        sequence: Sequence,
        layer: int,
        start: int,
        end: int,
    ) -> None:
        """Rows of one layer, from the pages of the first stop whose window has them."""
        if start == end:
            return
        stop = next(
            stop
            for stop in stops
            for first, last in needed_rows(sequence.plan, layer, stop)
            if first <= start and end <= last
        )
        parts = []
        sources = list(zip(self._sources, self._held, strict=True))
        dtype = passing_dtype((self._at(stop), [sequence]), layer)
        for decl in self._layers[layer]:
            rows = np.empty((end - start, *decl.shape), dtype)
            for source, held in sources:
                [(of_whole, of_rank)] = held[decl.id]
                rows[:, of_whole] = source.rows(decl, start, end, stop)[:, of_rank]
            [(of_whole, _)] = pieces[decl.id]
            parts.append(rows[:, of_whole])
        sequence.write_layers(start, {layer: parts})

    def _settle(
        self, pieces: dict[str, list[tuple[slice, slice]]], sequence: Sequence, stop: int
    ) -> None:
        for decl in self._whole:
            if decl.kind is StateKind.RECURRENT:
                move_tensor(decl, self._at(stop), [sequence], (self._held, [pieces]))
