"""A directory of states under one budget, which several processes share.

A state is written beside its place, made durable, and renamed into it, so that a reader finds all
of it or nothing. Who writes takes a lock for as long as it makes room: a file that is being written
has its full length from then on, so what all processes store together stays within the budget.
Names are fixed patterns in one directory, links are not followed, and what has another name is
neither read nor counted nor removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvcache.errors import InvalidArgumentError, KVCacheIOError, OutOfCapacityError
from kvcache.integrations.llama_cpp.state_file import record_bytes, write_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcache.integrations.llama_cpp.state import Record

__all__ = ["StateFolder"]

_STATE = re.compile(r"[0-9a-f]{64}-[0-9a-f]{32}\.state")
_PART = re.compile(r"\.[0-9a-f]{16}\.part")
_LOCK = ".lock"
_LOCK_SECONDS = 10.0
_RETRY_SECONDS = 0.005
# A directory's time may stand still while files come and go: the clock of a file system is coarse.
_CLOCK_NS = 2_000_000_000
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe in place of a file must not block


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    bytes: int
    used_ns: int


class StateFolder:
    """Files of states, the least recently used of which give way. Thread-safe.

    Raises:
        InvalidArgumentError: what is no path.
        KVCacheIOError: it cannot be made or read.
    """

    def __init__(self, path: str | os.PathLike[str], capacity_bytes: int) -> None:
        try:
            self.path = Path(os.fsdecode(path)).absolute()
            if not os.fspath(path):
                raise ValueError
            self.path.mkdir(parents=True, exist_ok=True)
            with self._open():
                pass
        except (TypeError, ValueError):
            raise InvalidArgumentError(f"cache_dir: expected a path, got {path!r}") from None
        except OSError as error:
            raise KVCacheIOError(f"cache_dir: {error}") from error
        self.capacity_bytes = capacity_bytes

    def used_bytes(self) -> int:
        """Bytes of all states, complete or being written; 0 where the directory is gone.

        Locked, so that what gives way meanwhile is not counted beside what takes its place; a
        directory that is read-only cannot be.

        Raises:
            KVCacheIOError: it cannot be read.
        """
        try:
            with self._open() as folder:
                with contextlib.suppress(OSError), self._locked(folder):
                    return sum(file.bytes for file in self._files(folder))
                return sum(file.bytes for file in self._files(folder))
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise KVCacheIOError(f"cache_dir: {error}") from error

    def names(self, seen_ns: int) -> tuple[int, list[str]] | None:
        """All states, if they may have changed since.

        Args:
            seen_ns: what the last call gave first; 0 for none.

        Returns:
            What to pass the next time, and the names; None if there is no change.
        """
        try:
            with self._open() as folder:
                changed_ns = os.fstat(folder).st_mtime_ns
                if changed_ns == seen_ns:
                    return None
                with os.scandir(folder) as entries:
                    listed = [each.name for each in entries if _STATE.fullmatch(each.name)]
        except FileNotFoundError:
            return 0, []
        is_settled = time.time_ns() - changed_ns > _CLOCK_NS
        return (changed_ns if is_settled else 0), listed

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[int]:
        """A state's file, open.

        Raises:
            OSError: it is not there, is no plain file, cannot be opened, or exceeds the budget.
        """
        with self._open() as folder:
            file = os.open(name, os.O_RDONLY | _SAFE, dir_fd=folder)
        try:
            info = os.fstat(file)
            if not stat.S_ISREG(info.st_mode):
                raise OSError(errno.EINVAL, "not a plain file", name)
            if info.st_size > self.capacity_bytes:
                limit = f"exceeds capacity_bytes={self.capacity_bytes}"
                raise OSError(errno.EFBIG, limit, name)
            yield file
        finally:
            os.close(file)

    def use(self, file: int) -> None:
        """Make an open state the most recently used one; not in a directory that is read-only."""
        with contextlib.suppress(OSError):
            now = time.time_ns()
            os.utime(file, ns=(now, now))

    def remove(self, name: str) -> bool:
        """Remove a state; False where the system refuses."""
        try:
            with self._open() as folder:
                os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def store(self, name: str, identity: bytes, record: Record) -> int:
        """Write a state, having removed others where there is no room.

        Returns:
            How many were removed.

        Raises:
            OutOfCapacityError: what is being written by others leaves no room.
            OSError: the system refused; of this state nothing is left.
        """
        size = record_bytes(record)
        self.path.mkdir(parents=True, exist_ok=True)
        with self._open() as folder:
            with self._locked(folder):
                evicted, used = self._make_room(folder, size)
                if used + size > self.capacity_bytes:
                    raise OutOfCapacityError(
                        f"{size} bytes do not fit, others are writing {used} of"
                        f" capacity_bytes={self.capacity_bytes}"
                    )
                part, file = _begin(folder, size)
            try:
                write_record(file, identity, record)
                self.use(file)
                os.fsync(file)
                os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(part, dir_fd=folder)
                raise
            finally:
                os.close(file)
            os.fsync(folder)
        return evicted

    def trim(self) -> int:
        """Bring a directory with a larger budget down to this one; how many were removed."""
        with self._open() as folder:
            if sum(file.bytes for file in self._files(folder)) <= self.capacity_bytes:
                return 0
            with self._locked(folder):
                return self._make_room(folder, 0)[0]

    def _make_room(self, folder: int, size: int) -> tuple[int, int]:
        """Remove the least recently used until ``size`` bytes more are within the budget.

        Returns:
            How many were removed, and the bytes of what is left.
        """
        files = self._files(folder)
        used = sum(file.bytes for file in files)
        evicted = 0
        for file in sorted(files, key=lambda file: (file.used_ns, file.name)):
            if used + size <= self.capacity_bytes:
                break
            if _PART.fullmatch(file.name):
                if not _is_left_over(folder, file.name):
                    continue
            else:
                evicted += 1
            with contextlib.suppress(FileNotFoundError):  # clear() has been faster
                os.unlink(file.name, dir_fd=folder)
            used -= file.bytes
        return evicted, used

    def _files(self, folder: int) -> list[_File]:
        found = {}  # by inode: one that is renamed meanwhile may be listed by both names
        with os.scandir(folder) as entries:
            for each in entries:
                if _STATE.fullmatch(each.name) or _PART.fullmatch(each.name):
                    with contextlib.suppress(FileNotFoundError):
                        info = each.stat(follow_symlinks=False)
                        if stat.S_ISREG(info.st_mode):
                            found[info.st_ino] = _File(each.name, info.st_size, info.st_mtime_ns)
        return list(found.values())

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield folder
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _locked(self, folder: int) -> Iterator[None]:
        file = os.open(_LOCK, os.O_RDWR | os.O_CREAT | _SAFE, 0o666, dir_fd=folder)
        try:
            deadline = time.monotonic() + _LOCK_SECONDS
            while not _try_lock(file):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        errno.ETIMEDOUT, f"another process holds it for {_LOCK_SECONDS} s", _LOCK
                    )
                time.sleep(_RETRY_SECONDS)
            yield
        finally:
            os.close(file)


def _begin(folder: int, size: int) -> tuple[str, int]:
    """A new file of full length, locked for as long as it is written."""
    name = f".{secrets.token_hex(8)}.part"
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE, 0o666, dir_fd=folder)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.ftruncate(file, size)
    except BaseException:
        os.close(file)
        os.unlink(name, dir_fd=folder)
        raise
    return name, file


def _is_left_over(folder: int, name: str) -> bool:
    """Whether who wrote a file has ended without finishing it."""
    try:
        file = os.open(name, os.O_RDWR | _SAFE, dir_fd=folder)
    except OSError:
        return False
    try:
        return _try_lock(file)
    finally:
        os.close(file)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
