"""Prompt caches that each rank of one side saved: which there are, and what each holds."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcache import _core, codec
from kvcache._arguments import as_count, as_path
from kvcache.cache import Cache
from kvcache.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from kvcache.plan import StatePlan
from kvcache.shards.moves import (
    Slices,
    axis_of,
    share_of,
)
from kvcache.state import StateKind
from kvcache.storage import parse_storage, stored_as

if TYPE_CHECKING:
    from contextlib import ExitStack

    from numpy.typing import NDArray

    from kvcache.sequence import Sequence
    from kvcache.state import StateDecl

__all__ = ["Head", "Source", "rank_directory"]

_RANK = re.compile(r"rank-(\d{5})-of-(\d{5})", re.ASCII)
_MOST_RANKS = 99_999
_STORAGES = ("f16", "int8", "bf16", "f32")
_SLACK_BYTES = 64 << 20  # of address space: what is not used takes no memory


def rank_directory(root: str | os.PathLike[str], world_size: int, rank: int) -> Path:
    """Where a rank saves its share, so that `load` can tell whose it is.

    >>> rank_directory("prefix", 4, 1).as_posix()
    'prefix/rank-00001-of-00004'

    Args:
        root: the directory of all ranks, which must exist before `Cache.save` is called.
        world_size: how many ranks there are.
        rank: which one it is.
    """
    size = as_count(world_size, "world_size", least=1, most=_MOST_RANKS)
    number = as_count(rank, "rank", most=size - 1)
    return Path(os.fsdecode(as_path(root))) / f"rank-{number:05}-of-{size:05}"


@dataclass(frozen=True, slots=True)
class Head:
    """What all ranks have alike."""

    tokens: NDArray[np.int32]
    fingerprint: str
    snapshots: tuple[int, ...]

    @property
    def count(self) -> int:
        """Positions of the prefix."""
        return len(self.tokens)


def folders_of(paths: Any) -> list[Path]:
    """The directories of all ranks, in order."""
    if isinstance(paths, str | bytes | os.PathLike):
        return _ranks_in(Path(os.fsdecode(as_path(paths))))
    listed = list(paths) if isinstance(paths, Iterable) else []
    if not listed:
        raise InvalidArgumentError(f"paths: expected a directory for each rank, got {paths!r}")
    folders = [Path(os.fsdecode(as_path(path))) for path in listed]
    for rank, folder in enumerate(folders):
        named = _RANK.fullmatch(folder.name)
        if named and (int(named[1]), int(named[2])) != (rank, len(folders)):
            raise InvalidArgumentError(
                f"paths[{rank}]: {folder.name} is in the place of rank {rank} of {len(folders)}"
            )
    _check_apart(folders)
    return folders


def _check_apart(folders: list[Path]) -> None:
    """That no rank stands for another one: files do not tell which one they are of."""
    ranks: dict[tuple[int, int], int] = {}
    for rank, folder in enumerate(folders):
        try:
            info = folder.stat()
        except (OSError, ValueError):
            continue  # said when it is read
        first = ranks.setdefault((info.st_dev, info.st_ino), rank)
        if first != rank:
            raise InvalidArgumentError(f"paths[{rank}]: is the directory of paths[{first}]")


def _ranks_in(root: Path) -> list[Path]:
    try:
        names = [
            found
            for each in root.iterdir()
            if (found := _RANK.fullmatch(each.name)) and int(found[1]) < int(found[2])
        ]
    except (OSError, ValueError) as error:
        raise NotFoundError(f"{root}: {error}") from None
    sizes = sorted({int(name[2]) for name in names})
    if len(sizes) != 1:
        raise InvalidArgumentError(
            f"paths: {root} holds ranks of {sizes}, expected those of one number; list them"
            if sizes
            else f"paths: {root} holds no directory of a rank; see rank_directory()"
        )
    missing = sorted(set(range(sizes[0])) - {int(name[1]) for name in names})
    if missing:
        shown = f"{', '.join(map(str, missing[:8]))}{', ...' if len(missing) > 8 else ''}"
        raise InvalidArgumentError(
            f"paths: {root} lacks {len(missing)} of {sizes[0]} ranks: {shown}"
        )
    return [rank_directory(root, sizes[0], rank) for rank in range(sizes[0])]


def read_heads(folders: list[Path]) -> Head:
    """What the files say, the same on every rank."""
    first, *others = (_core.read_prompt_prefix(as_path(folder)) for folder in folders)
    tokens = first.tokens
    for rank, other in enumerate(others, 1):
        alike = {
            "prefix": np.array_equal(other.tokens, tokens),
            "fingerprint": other.fingerprint == first.fingerprint,
            "space": other.space == first.space,
            "snapshots": other.snapshots == first.snapshots,
        }
        for name, same in alike.items():
            if not same:
                raise InvalidArgumentError(
                    f"paths[{rank}]: its {name} is another than that of paths[0]"
                )
    return Head(tokens, first.fingerprint, tuple(first.snapshots))


def plan_of(
    whole: tuple[StateDecl, ...],
    parts: dict[str, tuple[tuple[int, int], ...]],
    target: StatePlan,
    saved: Head,
    size: int,
    *,
    convert: bool,
) -> StatePlan:
    """The plan of one of the ranks that saved, no larger than the prefix needs.

    Raises:
        InvalidArgumentError: another number of ranks saved. UnsupportedError: another model, or
            another storage format without ``convert``.
    """
    elements = {decl.id: decl for decl in target.declarations}

    def plan(ranks: int, storage: str | None, memory: int = 1 << 50) -> StatePlan:
        shares = [replace(elements[d.id], shape=share_of(d, parts, ranks)) for d in whole]
        return StatePlan(
            shares if storage is None else [_stored(share, storage) for share in shares],
            memory=memory,
            block_tokens=target.block_tokens,
            sequences=3,
            rotated_keys=target.rotated_keys,
        )

    for ranks in (size, *(1 << bit for bit in range(10))):
        for storage in (None, *_STORAGES):
            try:
                found = plan(ranks, storage)
            except InvalidArgumentError:
                break
            if found.fingerprint != saved.fingerprint:
                continue
            if ranks != size:
                raise InvalidArgumentError(
                    f"paths: each is of one of {ranks} ranks, got {size}; give all of them in order"
                )
            if storage is not None and not convert:
                raise UnsupportedError(
                    f"paths: rows were saved as {storage}, the caches store another format; pass "
                    "convert=True"
                )
            needed = found.sequence_bytes(saved.count + 1) + 2 * found.slot_bytes
            return plan(size, storage, 2 * needed + _SLACK_BYTES)
    raise UnsupportedError("paths: another model than that of the caches, or of other elements")


def _stored(decl: StateDecl, storage: str) -> StateDecl:
    """The same state with attention rows of a storage format."""
    if decl.kind is not StateKind.PAGED_KV:
        return decl
    dtype, scale = stored_as(parse_storage(storage))
    return replace(decl, dtype=dtype, row_scale_bytes=scale)


def needed_ranks(whole: tuple[StateDecl, ...], held: Slices, wanted: Slices) -> list[int]:
    """Ranks that hold what the others lack."""
    needed = set()
    for decl in whole:
        lacking = np.zeros(decl.shape[axis_of(decl)], bool)
        for pieces in wanted:
            for of_whole, _ in pieces[decl.id]:
                lacking[of_whole] = True
        for rank, pieces in enumerate(held):
            if any(lacking[of_whole].any() for of_whole, _ in pieces[decl.id]):
                needed.add(rank)
                for of_whole, _ in pieces[decl.id]:
                    lacking[of_whole] = False
    return sorted(needed)


class Source:
    """The prefix of one rank, in a cache of its own."""

    def __init__(
        self,
        stack: ExitStack,
        path: Path,
        plan: StatePlan,
        saved: Head,
        weights: str,
        space: dict[str, Any],
    ) -> None:
        self._stack, self._space, self._tokens = stack, space, saved.tokens
        self._path = path
        self.cache = Cache(plan, weights=weights)
        self.cache.load(path, **space)
        self._opened: dict[int, Sequence | None] = {}
        self.opened(saved.count)

    def at(self, stop: int) -> Sequence | None:
        """A sequence with the state of ``stop`` positions, if it can be resumed there."""
        if stop not in self._opened:
            self._opened[stop] = self._open(stop)
        return self._opened[stop]

    def opened(self, stop: int) -> Sequence:
        """The same where it can be."""
        sequence = self.at(stop)
        if sequence is None:
            raise NotFoundError(f"{self._path}: no state at {stop} positions")
        return sequence

    def _open(self, stop: int) -> Sequence | None:
        media = [item for item in self._space["media"] if item[0] + item[1] <= stop]
        if any(item not in media and item[0] < stop for item in self._space["media"]):
            return None
        tokens = np.append(self._tokens[:stop], np.int32(0))
        sequence = self.cache.open(tokens, **self._space | {"media": media})
        self._stack.callback(sequence.close)
        return sequence if sequence.cached_tokens == stop else None

    def rows(self, decl: StateDecl, start: int, end: int, stop: int) -> NDArray[Any]:
        """Rows as the query at ``stop`` has them in its pages, those before its window too."""
        sequence = self.opened(stop)
        memory = self.cache.pages(decl.layer, decl.component)
        positions = np.arange(start, end)
        block = self.cache.plan.block_tokens
        where = sequence.block_table(memory.group)[positions // block], positions % block
        if bool(np.any(where[0] < 0)):
            raise UnsupportedError(f"{decl.id}: its window and that of its layer differ")
        if memory.scales is not None:
            decoded: NDArray[Any] = codec.decode(
                memory.rows[where], memory.scales[where], dtype="float16"
            )
            return decoded
        if isinstance(memory.rows, codec.Bfloat16Array):
            return (memory.rows.bits[where].astype(np.uint32) << 16).view(np.float32)
        rows: NDArray[Any] = memory.rows[where]
        return rows
