"""State of one sequence from live sequences of some ranks to those of others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcache._arguments import as_count, as_instance
from kvcache.errors import InvalidArgumentError, UnsupportedError
from kvcache.models import Model
from kvcache.sequence import Sequence
from kvcache.state import DType, StateDecl, StateKind, declare

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf

    from kvcache.plan import StatePlan

__all__ = ["reshard"]

_CHUNK_BYTES = 1 << 20  # of rows in passing, so that they stay in cache


def reshard(
    model: Model,
    sources: SequenceOf[Sequence],
    targets: SequenceOf[Sequence],
    *,
    ranks: Iterable[int] | None = None,
    world_size: int | None = None,
) -> None:
    """Move the state of one sequence from as many ranks to as many others, one rank being all.

    Args:
        model: the whole model, as `kvcache.models.from_config` reads it without ``tp``.
        sources: the sequence on each rank, in rank order, all at one ``length``.
        targets: the same sequence, opened on each rank of the other side; positions that are
            complete there already are left, those up to the sources' ``length`` are added.
        ranks: numbers of the ranks of ``targets``, where these are not all of them.
        world_size: with ``ranks``, how many ranks there are on that side.

    Raises:
        InvalidArgumentError: ranks that differ in tokens or length, a plan that is not that of
            ``model`` divided over so many ranks, or a size that cannot be divided; nothing was
            changed. UnsupportedError: which channels of a convolution belong together is unknown,
            or the model keeps pooled records or integer rows; nothing was changed.
        NotFoundError: a window of the sources has dropped positions that the targets lack.
        OutOfCapacityError: no page is free on a target; no target has advanced, and the call may be
            made again.
    """
    whole = whole_state(model)
    sources, targets = _sequences(sources, "sources"), _sequences(targets, "targets")
    if len({id(sequence) for sequence in (*sources, *targets)}) < len(sources) + len(targets):
        raise InvalidArgumentError("sources and targets: a sequence is there twice")
    numbers, size = rank_numbers(ranks, world_size, len(targets))
    length = _check_tokens(sources, targets)
    parts = dict(model.channel_parts)
    all_sources = range(len(sources))
    moves = (
        slices_of(whole, parts, [s.plan for s in sources], all_sources, len(sources), "sources"),
        slices_of(whole, parts, [t.plan for t in targets], numbers, size, "targets"),
    )
    starts = [target.length for target in targets]
    for layer, paged in paged_layers(whole).items():
        move_rows(layer, paged, (sources, targets), moves, (starts, length))
    for decl in whole:
        if decl.kind is StateKind.RECURRENT and length:
            move_tensor(decl, sources, targets, moves)
    for target, start in zip(targets, starts, strict=True):
        target.advance(length - start)


def whole_state(model: Model) -> tuple[StateDecl, ...]:
    """What the whole model keeps.

    Raises:
        InvalidArgumentError: it is no model, or one of several ranks. UnsupportedError: it keeps
            what is not moved between ranks.
    """
    if not isinstance(model, Model):
        raise InvalidArgumentError(
            f"model: expected what kvcache.models.from_config() returns, got {model!r}"
        )
    if model.tp != 1:
        raise InvalidArgumentError(f"model: expected the whole model, got that of tp={model.tp}")
    whole = declare(model.schedule)
    for decl in whole:
        floating = decl.dtype in (DType.F16, DType.BF16, DType.F32, DType.I8)
        if decl.kind is StateKind.PAGED_KV and not (floating and decl.record_tokens == 1):
            raise UnsupportedError(
                f"{decl.id}: pooled records and integer rows are not moved between ranks"
            )
    return whole


def paged_layers(whole: Iterable[StateDecl]) -> dict[int, list[StateDecl]]:
    """Paged state by layer, ascending."""
    found: dict[int, list[StateDecl]] = {}
    for decl in whole:
        if decl.kind is StateKind.PAGED_KV:
            found.setdefault(decl.layer, []).append(decl)
    return dict(sorted(found.items()))


def rank_numbers(
    ranks: Iterable[int] | None, world_size: int | None, count: int
) -> tuple[SequenceOf[int], int]:
    """Which ranks of how many; all of them in order for None.

    Raises:
        InvalidArgumentError: not as many as there are targets, twice the same, or none of so many.
    """
    if ranks is None:
        size = count if world_size is None else as_count(world_size, "world_size", least=1)
        if size != count:
            raise InvalidArgumentError(
                f"ranks: say which {count} of the {size} ranks of world_size are given"
            )
        return range(count), count
    if world_size is None:
        raise InvalidArgumentError("world_size: expected how many ranks there are beside `ranks`")
    size = as_count(world_size, "world_size", least=1)
    if not isinstance(ranks, Iterable):
        raise InvalidArgumentError(f"ranks: expected a list of numbers, got {ranks!r}")
    numbers = [as_count(rank, "ranks", most=size - 1) for rank in ranks]
    if len(numbers) != count or len(set(numbers)) != count:
        raise InvalidArgumentError(f"ranks: expected {count} different ones, got {numbers}")
    return numbers, size


def _sequences(side: Iterable[Sequence], name: str) -> list[Sequence]:
    ranks = list(side) if isinstance(side, Iterable) else []
    if not ranks:
        raise InvalidArgumentError(f"{name}: expected one sequence for each rank, got {side!r}")
    for rank, sequence in enumerate(ranks):
        if not as_instance(sequence, Sequence, f"{name}[{rank}]").is_open:
            raise InvalidArgumentError(f"{name}[{rank}]: expected an open sequence: {sequence!r}")
    return ranks


Slices = list[dict[str, list[tuple[slice, slice]]]]  # by rank: (of the whole, of the rank)
ChannelParts = dict[str, tuple[tuple[int, int], ...]]


def _check_tokens(sources: SequenceOf[Sequence], targets: SequenceOf[Sequence]) -> int:
    length = sources[0].length
    for name, side in (("sources", sources), ("targets", targets)):
        for rank, sequence in enumerate(side):
            if name == "sources" and sequence.length != length:
                raise InvalidArgumentError(
                    f"sources[{rank}] is at {sequence.length}, sources[0] at {length}"
                )
            if name == "targets" and sequence.length > length:
                raise InvalidArgumentError(
                    f"targets[{rank}] is at {sequence.length}, beyond the sources' {length}"
                )
            if not np.array_equal(sequence.tokens[:length], sources[0].tokens[:length]):
                raise InvalidArgumentError(
                    f"{name}[{rank}]: its first {length} tokens are not those of sources[0]"
                )
    return length


def slices_of(
    whole: tuple[StateDecl, ...],
    parts: ChannelParts,
    plans: Iterable[StatePlan],
    ranks: Iterable[int],
    size: int,
    name: str,
) -> Slices:
    """Where the piece of each component lies on ``ranks`` of ``size``, on the axis divided.

    Raises:
        InvalidArgumentError: a plan is not that of the model divided over so many ranks.
    """
    found: Slices = []
    for index, (plan, rank) in enumerate(zip(plans, ranks, strict=True)):
        held = {decl.id: decl for decl in plan.declarations}
        if held.keys() != {decl.id for decl in whole}:
            raise InvalidArgumentError(f"{name}[{index}]: its plan is of another model")
        pieces = {}
        for decl in whole:
            where = f"{name}[{index}]: {decl.id}"
            streams = streams_of(decl, parts, size)
            if streams is not None:
                pieces[decl.id] = _streams(streams, held[decl.id].shape, size, rank, where)
            else:
                pieces[decl.id] = _piece(decl, held[decl.id], size, rank, where)
        found.append(pieces)
    return found


def streams_of(
    decl: StateDecl, parts: ChannelParts, size: int
) -> tuple[tuple[int, int], ...] | None:
    """The streams of a convolution that are divided each by itself, or None."""
    if decl.kind is not StateKind.RECURRENT or size == 1:
        return None
    return parts.get(decl.component)


def share_of(decl: StateDecl, parts: ChannelParts, size: int) -> tuple[int, ...]:
    """Shape of a component of the whole model on one of ``size`` ranks.

    Raises:
        InvalidArgumentError: it cannot be divided.
    """
    axis = axis_of(decl)
    full = decl.shape[axis]
    streams = streams_of(decl, parts, size)
    if streams:
        share = sum((heads // size if heads > 1 else 1) * width for heads, width in streams)
    elif full % size == 0:
        share = full // size
    elif size % full == 0:
        share = 1
    else:
        raise InvalidArgumentError(f"{decl.id}: {full} cannot be divided over {size} ranks")
    return (*decl.shape[:axis], share, *decl.shape[axis + 1 :])


def axis_of(decl: StateDecl) -> int:
    """The axis that ranks divide: channels of a convolution, else heads, the first one."""
    convolution = decl.component.startswith("state.convolution.")
    return len(decl.shape) - 1 if convolution else 0


def _piece(
    decl: StateDecl, held: StateDecl, ranks: int, rank: int, where: str
) -> list[tuple[slice, slice]]:
    axis = axis_of(decl)
    full, size = decl.shape[axis], held.shape[axis]
    rest = decl.shape[:axis] + decl.shape[axis + 1 :]
    pieces = full // size if size else 0
    if (
        rest != held.shape[:axis] + held.shape[axis + 1 :]
        or pieces * size != full
        or ranks % pieces
        or (decl.kind is StateKind.PAGED_KV and size > 1 and pieces not in (1, ranks))
    ):
        raise InvalidArgumentError(
            f"{where}: {list(held.shape)} is no share of {list(decl.shape)} over {ranks} ranks"
        )
    first = rank * pieces // ranks * size
    return [(slice(first, first + size), slice(0, size))]


def _streams(
    streams: tuple[tuple[int, int], ...], shape: tuple[int, ...], ranks: int, rank: int, where: str
) -> list[tuple[slice, slice]]:
    """Pieces of each stream of a convolution: those of one head are on every rank."""
    if not streams:
        raise UnsupportedError(f"{where}: which of its channels belong together is not known")
    pieces = []
    of_whole = of_rank = 0
    for heads, width in streams:
        if heads > 1 and heads % ranks:
            raise InvalidArgumentError(f"{where}: {heads} heads cannot be divided over {ranks}")
        share = heads // ranks if heads > 1 else 1
        first = of_whole + (rank * share * width if heads > 1 else 0)
        size = share * width
        pieces.append((slice(first, first + size), slice(of_rank, of_rank + size)))
        of_whole += heads * width
        of_rank += size
    if shape[-1] != of_rank:
        raise InvalidArgumentError(
            f"{where}: expected {of_rank} channels on each of {ranks} ranks, got {shape[-1]}"
        )
    return pieces


def passing_dtype(
    sides: tuple[SequenceOf[Sequence], SequenceOf[Sequence]], layer: int
) -> np.dtype[Any]:
    """A type that rows can pass through unchanged: INT8 rows come from float16 ones."""
    held = {
        part.dtype
        for side in sides
        for sequence in side
        for part in sequence.plan.paged_components(layer)
    }
    return np.dtype(np.float16 if held <= {DType.F16, DType.I8} else np.float32)


def move_rows(
    layer: int,
    paged: list[StateDecl],
    sides: tuple[SequenceOf[Sequence], SequenceOf[Sequence]],
    moves: tuple[Slices, Slices],
    positions: tuple[list[int], int],
) -> None:
    """Rows of one layer, from where each target is up to one position, chunk by chunk."""
    starts, length = positions
    dtype = passing_dtype(sides, layer)
    row_bytes = sum(dtype.itemsize * decl.shape[0] * decl.shape[1] for decl in paged)
    step = max(16, _CHUNK_BYTES // row_bytes)
    for first in range(min(starts), length, step):
        last = min(first + step, length)
        rows = {decl.id: np.empty((last - first, *decl.shape), dtype) for decl in paged}
        for source, pieces in zip(sides[0], moves[0], strict=True):
            held = tuple(rows[d.id][:, pieces[d.id][0][0]] for d in paged)
            source.export_rows(layer, first, last, held, "tokens heads dim")
        for target, pieces, start in zip(sides[1], moves[1], starts, strict=True):
            skip = max(start - first, 0)
            if skip < last - first:
                held = tuple(rows[d.id][skip:, pieces[d.id][0][0]] for d in paged)
                target.import_rows(layer, first + skip, last, held, "tokens heads dim")


def move_tensor(
    decl: StateDecl,
    sources: SequenceOf[Sequence],
    targets: SequenceOf[Sequence],
    moves: tuple[Slices, Slices],
) -> None:
    """One fixed-size tensor."""
    axis = axis_of(decl)
    whole = np.empty(decl.shape, sources[0].state(decl.layer, decl.component).dtype)
    for source, pieces in zip(sources, moves[0], strict=True):
        held = np.moveaxis(source.state(decl.layer, decl.component), axis, 0)
        for of_whole, of_rank in pieces[decl.id]:
            np.moveaxis(whole, axis, 0)[of_whole] = held[of_rank]
    for target, pieces in zip(targets, moves[1], strict=True):
        held = np.moveaxis(target.state(decl.layer, decl.component), axis, 0)
        for of_whole, of_rank in pieces[decl.id]:
            held[of_rank] = np.moveaxis(whole, axis, 0)[of_whole]
