"""A disk tier: a directory in which a cache keeps what it publishes, across restarts.

What is published is written behind the caller's back by one thread. `Cache.open` looks there for a
longer prefix than memory has. A directory has one writer and any number of readers; whatever is
damaged, missing or refused is a miss. ``cpp/FORMAT.md`` describes every byte.

A tier keeps what it has when memory drops it, by `Cache.clear` too; `Cache.erase` takes it out of
the files. After `Cache.bump_epoch` it goes by the new name of the weights; without a new name it is
not used any more.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass, fields
from typing import TypeVar

from kvcache import _core
from kvcache._arguments import as_count, as_path
from kvcache.errors import InvalidArgumentError
from kvcache.tiers.handle import CacheTierHandle, milliseconds
from kvcache.units import parse_bytes

__all__ = [
    "CacheDisk",
    "DiskTier",
    "DiskTierStats",
    "Durability",
    "TierAccess",
]


class Durability(enum.StrEnum):
    """When what was written is safe from a power cut; from the process's end it is at once."""

    NONE = "none"  #: when the system writes it
    GROUP = "group"  #: after ``group_bytes`` or ``group_seconds``, all at once
    RECORD = "record"  #: after each record


class TierAccess(enum.StrEnum):
    """Who may write a tier's directory."""

    WRITE = "write"  #: this cache; refused while another one does
    READ = "read"  #: another one
    WRITE_OR_READ = "write-or-read"  #: this cache, unless another one does


# What a cache warns of once, and the counters that tell it.
_KINDS = {
    "some of it is not written": ("write_errors",),
    "some of it cannot be read": ("read_errors",),
    "some of it is damaged and left out": ("damaged_segments", "damaged_records"),
}

_Choice = TypeVar("_Choice", bound=enum.StrEnum)


def _chosen(kind: type[_Choice], value: _Choice | str, name: str) -> _Choice:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(repr(each.value) for each in kind)
        raise InvalidArgumentError(f"{name}: expected one of {names}, got {value!r}") from None


@dataclass(frozen=True, slots=True)
class DiskTier:
    """Options of a cache's disk tier.

    Raises:
        InvalidArgumentError: a value out of range.
    """

    path: str | os.PathLike[str]  #: directory; made when it is to be written, its parent is not
    #: Of all files, as bytes or text, or as much as the disk has where that is less; the oldest
    #: segments go first.
    max_bytes: str | int
    access: TierAccess | str = TierAccess.WRITE
    durability: Durability | str = Durability.GROUP
    group_bytes: str | int = "64MiB"
    group_seconds: float = 1.0
    #: What may wait to be written; its pages stay in memory meanwhile, more is dropped and counted.
    queue_bytes: str | int = "256MiB"
    wait_seconds: float = 0.0  #: that `Sequence.publish` waits for room in the queue
    read_threads: int = 2  #: of one fetch
    at_open: bool = True  #: `Cache.open` looks for a longer prefix here

    def __post_init__(self) -> None:
        object.__setattr__(self, "access", _chosen(TierAccess, self.access, "access"))
        object.__setattr__(self, "durability", _chosen(Durability, self.durability, "durability"))
        if not isinstance(self.at_open, bool):
            raise InvalidArgumentError(f"at_open: expected True or False, got {self.at_open!r}")
        self.core()

    def core(self) -> _core.DiskTierOptions:
        """The options as the compiled core takes them."""
        path = as_path(self.path)
        if not path:
            raise InvalidArgumentError("path: expected a directory, got an empty one")
        return _core.DiskTierOptions(
            path=path,
            max_bytes=parse_bytes(self.max_bytes, name="max_bytes"),
            access=_core.TierAccess[TierAccess(self.access).name],
            durability=_core.Durability[Durability(self.durability).name],
            group_bytes=parse_bytes(self.group_bytes, name="group_bytes"),
            group_ms=milliseconds(self.group_seconds, "group_seconds"),
            queue_bytes=parse_bytes(self.queue_bytes, name="queue_bytes"),
            wait_ms=milliseconds(self.wait_seconds, "wait_seconds"),
            read_threads=as_count(self.read_threads, "read_threads", least=1, most=64),
            at_open=self.at_open,
        )


def disk_core(disk: DiskTier | None) -> _core.DiskTierOptions | None:
    """The tier of a cache as the compiled core takes it."""
    if disk is not None and not isinstance(disk, DiskTier):
        raise InvalidArgumentError(f"disk: expected a DiskTier, got {disk!r}")
    return None if disk is None else disk.core()


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskTierStats:
    """Counters of a cache's disk tier. Those of what happened count from the cache's creation.

    Attributes:
        is_writer: whether this cache writes the directory.
        segments: files that are read.
        records: runs of blocks and boundaries in them.
        bytes: of all files.
        max_bytes: the cap.
        queued_bytes: that wait to be written.
        written_records: since the cache was made, those written again included.
        written_bytes: of them, with headers and padding.
        syncs: times that files were synchronised.
        dropped_records: the queue was full, or writing rests after a failure.
        skipped_snapshots: not exact, or a page of their window was gone.
        evicted_segments: removed for the cap.
        kept_records: written again before their segment was removed, for they had been asked for.
        erased_records: taken out of the files by `Cache.erase`.
        fetches: lookups that brought something back.
        fetched_tokens: positions that they brought back.
        read_records: that fetches read.
        read_bytes: of them.
        damaged_segments: refused, whole.
        torn_segments: that end in what is no record, as a killed writer leaves them.
        damaged_records: whose checksums or tokens were wrong when they were read.
        read_errors: the system refused to read.
        write_errors: the system refused to write; nothing is written for a while after each.
        no_room: fetches that memory had no room for.
        last_error: the latest of what went wrong, or "".
    """

    is_writer: bool
    segments: int
    records: int
    bytes: int
    max_bytes: int
    queued_bytes: int
    written_records: int
    written_bytes: int
    syncs: int
    dropped_records: int
    skipped_snapshots: int
    evicted_segments: int
    kept_records: int
    erased_records: int
    fetches: int
    fetched_tokens: int
    read_records: int
    read_bytes: int
    damaged_segments: int
    torn_segments: int
    damaged_records: int
    read_errors: int
    write_errors: int
    no_room: int
    last_error: str


class CacheDisk(CacheTierHandle):
    """The disk tier of a cache, as `Cache.disk` gives it. Thread-safe."""

    __slots__ = ()

    def __init__(self, core: _core.Cache, tier: DiskTier) -> None:
        super().__init__(core, f"disk tier {os.fsdecode(tier.path)}", _KINDS, _core.disk_stats)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until what was published is in the tier, and safe as its durability says.

        Args:
            timeout: seconds; None for as long as it takes.

        Raises:
            OutOfCapacityError: not within ``timeout``; writing goes on.
            KVCacheIOError: the system refused some of it.
        """
        _core.flush_disk(self._core, None if timeout is None else milliseconds(timeout, "timeout"))

    def stats(self) -> DiskTierStats:
        """Counters at this moment."""
        core = _core.disk_stats(self._core)
        counted = {each.name: getattr(core, each.name) for each in fields(DiskTierStats)}
        counted["last_error"] = os.fsdecode(core.last_error)
        return DiskTierStats(**counted)
