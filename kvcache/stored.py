"""What lies in a directory on disk: disk tiers and prompt caches, without the model."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kvcache import _core
from kvcache._arguments import as_count, as_path
from kvcache.errors import InvalidArgumentError, KVCacheIOError, NotFoundError
from kvcache.published.manifest import SCHEMA
from kvcache.published.report import examine, is_published
from kvcache.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Collected", "StoredReport", "check_stored", "collect_stored", "kind_of"]

Kind = Literal["disk tier", "prompt cache", "published prompt cache"]

_GENERATION = re.compile(r"generation-\d+-[0-9a-f]{64}", re.ASCII)
_LEFT_OVER = re.compile(r"\.kvcache-tmp-(\d+)-\d+-\d+", re.ASCII)


@dataclass(slots=True, kw_only=True)
class StoredReport:
    """What a directory holds.

    Attributes:
        path: the directory.
        kind: what it is.
        version: of its format.
        details: further facts, by name.
        columns: what `files` says of each file, for a table.
        files: one row for each file.
        problems: what is damaged, each with its file; whatever it is, caches take it for a miss or
            refuse it.
    """

    path: str
    kind: Kind
    version: int
    details: dict[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    files: list[tuple[str, ...]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Stable keys for programs."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.files]
        return {
            "path": self.path,
            "kind": self.kind,
            "version": self.version,
            **self.details,
            "files": rows,
            "problems": self.problems,
        }

    def facts(self) -> dict[str, str]:
        """The same for people, without the files."""
        shown = {"path": self.path, "kind": f"{self.kind}, version {self.version}"}
        for name, value in self.details.items():
            label = name.replace("_", " ")
            text = format_bytes(value) if name.endswith("bytes") else str(value)
            shown[label] = text
        return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What `collect_stored` did."""

    removed_files: int
    removed_bytes: int
    kept_bytes: int

    def to_dict(self) -> dict[str, int]:
        """Stable keys for programs."""
        return asdict(self)


def kind_of(path: str | os.PathLike[str]) -> Kind | None:
    """What a directory claims to be, or None.

    Raises:
        InvalidArgumentError: ``path`` is none. KVCacheIOError: the system refused.
    """
    where = Path(os.fsdecode(as_path(path)))
    if _is_there(where / "TIER"):
        return "disk tier"
    if not _is_there(where / "CURRENT"):
        return None
    return "published prompt cache" if is_published(where) else "prompt cache"


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise KVCacheIOError(f"cannot open {path.parent}: {error}") from None
    return True


def check_stored(path: str | os.PathLike[str], *, deep: bool) -> StoredReport:
    """Say what a directory holds; ``deep`` reads and checks every byte of it. Changes nothing.

    Raises:
        NotFoundError: it is no disk tier and no prompt cache.
        CorruptionError: its marker or manifest is damaged, so that nothing else of it counts.
        UnsupportedError: it is of another version.
        KVCacheIOError: the system refused.
    """
    kind = kind_of(path)
    if kind is None:
        raise NotFoundError(f"{os.fsdecode(path)}: no disk tier and no prompt cache")
    if kind == "disk tier":
        return _check_tier(path, deep)
    return (_check_prompt_cache if kind == "prompt cache" else _check_published)(path, deep)


def _check_tier(path: str | os.PathLike[str], deep: bool) -> StoredReport:
    found = _core.check_disk_tier(as_path(path), deep)
    segments = found.segments
    report = StoredReport(path=os.fsdecode(path), kind="disk tier", version=found.version)
    report.details = {
        "id": found.id,
        "has_writer": found.has_writer,
        "records": sum(each.runs + each.boundaries for each in segments),
        "tokens": sum(each.tokens for each in segments),
        "payload_bytes": sum(each.payload_bytes for each in segments),
        "bytes": sum(each.bytes for each in segments),
        "other_entries": [os.fsdecode(name) for name in found.others],
    }
    report.columns = ("file", "bytes", "runs", "boundaries", "erased", "tokens", "end")
    for each in segments:
        end = "sealed" if each.sealed else "unfinished" if each.unfinished else "open"
        numbers = (each.bytes, each.runs, each.boundaries, each.erased, each.tokens)
        report.files.append((each.file, *map(str, numbers), end))
    report.problems = [os.fsdecode(problem) for problem in found.problems]
    return report


def _check_prompt_cache(path: str | os.PathLike[str], deep: bool) -> StoredReport:
    found = _core.check_prompt_cache(as_path(path), deep)
    report = StoredReport(path=os.fsdecode(path), kind="prompt cache", version=found.version)
    report.details = {
        "generation": os.fsdecode(found.generation),
        "fingerprint": found.fingerprint,
        "space": found.space,
        "tokens": found.tokens,
        "snapshots": found.snapshots,
        "bytes": sum(each.bytes for each in found.shards),
    }
    report.columns = ("file", "bytes")
    report.files = [(each.file, str(each.bytes)) for each in found.shards]
    report.problems = [os.fsdecode(problem) for problem in found.problems]
    return report


def _check_published(path: str | os.PathLike[str], deep: bool) -> StoredReport:
    found = examine(path, deep=deep)
    return StoredReport(
        path=os.fsdecode(path), kind="published prompt cache", version=SCHEMA, **asdict(found)
    )


def collect_stored(path: str | os.PathLike[str], max_bytes: int | None = None) -> Collected:
    """Remove what nobody needs. A writer is never disturbed.

    Of a disk tier: segments that no reader accepts, and beyond ``max_bytes`` the oldest ones. Of a
    prompt cache: generations that are not the current one, and what killed writers have left.

    Raises:
        NotFoundError: it is neither.
        InvalidArgumentError: it is being written, or another program's prompt cache.
        CorruptionError: its marker, or ``CURRENT``, is damaged; nothing was removed.
        UnsupportedError: it is of another version; nothing was removed.
        KVCacheIOError: the system refused.
    """
    kind = kind_of(path)
    if kind is None:
        raise NotFoundError(f"{os.fsdecode(path)}: no disk tier and no prompt cache")
    if kind == "published prompt cache":
        raise InvalidArgumentError(f"{os.fsdecode(path)}: another program's; it is only read here")
    if kind == "disk tier":
        most = None if max_bytes is None else as_count(max_bytes, "max_bytes")
        done = _core.collect_disk_tier(as_path(path), most)
        return Collected(
            removed_files=done.removed_segments,
            removed_bytes=done.removed_bytes,
            kept_bytes=done.kept_bytes,
        )
    return _collect_prompt_cache(Path(os.fsdecode(path)))


def _collect_prompt_cache(path: Path) -> Collected:
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise KVCacheIOError(f"cannot open {path}: {error}") from None
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidArgumentError(f"{path} is being replaced; try again later") from None
        # Read under the lock, under which it changes.
        current = os.fsdecode(_core.check_prompt_cache(as_path(path), False).generation)
        generations = path / ".generations"
        old = [
            entry
            for entry in _folders_in(generations)
            if _GENERATION.fullmatch(entry.name) and entry.name != current
        ]
        inside = (*_folders_in(generations), *_folders_in(path))
        removed = [*old, *(entry for entry in inside if _is_left_over(entry.name))]
        count = sum(map(_tree_bytes, removed))
        for entry in removed:
            shutil.rmtree(entry)
        kept = _tree_bytes(generations / current)
    except OSError as error:
        raise KVCacheIOError(f"gc of {path}: {error}") from None
    finally:
        os.close(directory)
    return Collected(removed_files=len(removed), removed_bytes=count, kept_bytes=kept)


def _folders_in(path: Path) -> list[Path]:
    """What a writer of ours may have made there: no file, and no link to a directory elsewhere."""
    with os.scandir(path) as entries:
        return [path / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _is_left_over(name: str) -> bool:
    """Whether a writer that is gone left it; the names of temporary entries tell its process."""
    found = _LEFT_OVER.fullmatch(name)
    if found is None:
        return False
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def _tree_bytes(top: Path) -> int:
    return sum(_sizes(top))


def _sizes(top: Path) -> Iterator[int]:
    for folder, _, names in os.walk(top):
        for name in names:
            with contextlib.suppress(OSError):
                yield os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - hot enough
