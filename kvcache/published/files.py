"""The files of a published prompt cache, entered without following links.

Sizes and paths come from a manifest that anybody may have written: no byte is read for a claim
that the file's own size does not bear out, and no name leads out of its directory.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import math
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Self, TypeVar

import msgspec
import numpy as np

from kvcache._arguments import as_path
from kvcache.errors import CorruptionError, InvalidArgumentError, KVCacheIOError, NotFoundError
from kvcache.serde import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from kvcache.published.manifest import Block, StateTensor

__all__ = ["Generation", "Shard", "read_newest", "shard_of_block", "shard_of_tensor"]

MANIFEST_BYTES = 256 << 20  # about 400,000 blocks
_HEADER_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20
_MAX_NAME = 256
_MOST_REPLACEMENTS = 16  # of a generation, while it is being read
# Of a link, a name that no file has, and what is no file.
_NOT_THERE = {errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO}
# Name in a manifest: (name in a safetensors header, what numpy reads it as).
_DTYPES: dict[str, tuple[str, str]] = {
    "Bool": ("BOOL", "|b1"),
    "Uint8": ("U8", "|u1"),
    "Uint16": ("U16", "<u2"),
    "Uint32": ("U32", "<u4"),
    "Uint64": ("U64", "<u8"),
    "Int8": ("I8", "|i1"),
    "Int16": ("I16", "<i2"),
    "Int32": ("I32", "<i4"),
    "Int64": ("I64", "<i8"),
    "Float16": ("F16", "<f2"),
    "Bfloat16": ("BF16", "<u2"),  # its bits
    "Float32": ("F32", "<f4"),
    "Float64": ("F64", "<f8"),
}

_Read = TypeVar("_Read")
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Header(msgspec.Struct):
    dtype: str
    shape: tuple[_Count, ...]
    data_offsets: tuple[_Count, _Count]


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors file as the manifest promises it.

    Attributes:
        path: relative to the generation.
        arrays: ``(name, dtype, shape)`` of each, and there are no others.
        payload_bytes: of all arrays.
        payload_sha256: of all bytes behind the header.
    """

    path: str
    arrays: tuple[tuple[str, str, tuple[int, ...]], ...]
    payload_bytes: int
    payload_sha256: str


def shard_of_block(block: Block) -> Shard:
    """The two arrays of a block."""
    first = (block.first_array, block.first_dtype, block.first_shape)
    second = (block.second_array, block.second_dtype, block.second_shape)
    return Shard(block.shard, (first, second), block.logical_bytes, block.payload_sha256)


def shard_of_tensor(tensor: StateTensor) -> Shard:
    """The one array of a state tensor."""
    array = (tensor.array, tensor.dtype, tensor.shape)
    return Shard(tensor.shard, (array,), tensor.logical_bytes, tensor.payload_sha256)


class Generation:
    """A generation of a prompt cache, its directory held open; `read_newest` finds the current one.

    Raises:
        NotFoundError: there is no such prompt cache.
        CorruptionError: ``name`` is no directory of ``.generations``.
        KVCacheIOError: the system refused.
    """

    def __init__(self, path: str | os.PathLike[str], name: str) -> None:
        where = os.fsdecode(as_path(path))
        self.name = name
        with contextlib.ExitStack() as stack:
            root = _open_root(where)
            stack.callback(os.close, root)
            generations = _enter(root, ".generations", where)
            stack.callback(os.close, generations)
            self._folder = _enter(generations, self.name, f"{where}/.generations")
        self.where = f"{where}/.generations/{self.name}"

    def close(self) -> None:
        """Let go of the directory."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def manifest(self) -> bytearray:
        """The bytes of ``manifest.json``.

        Raises:
            CorruptionError: it is missing, no file, or beyond any size that makes sense.
        """
        with self._open("manifest.json") as (file, size):
            if size > MANIFEST_BYTES:
                raise CorruptionError(
                    f"{self.where}/manifest.json: {size} bytes, at most {MANIFEST_BYTES} are read"
                )
            return _exactly(file, size, f"{self.where}/manifest.json")

    def file_bytes(self, shard: Shard) -> int:
        """Size of a shard, once its header says what the manifest does.

        Raises:
            CorruptionError: it is missing or another one; the message names it.
        """
        with self._open(shard.path) as (file, size):
            self._offsets(file, size, shard)
            return size

    def check(self, shard: Shard) -> None:
        """Read every byte of a shard.

        Raises:
            CorruptionError: it is missing, damaged, or another one; the message names it.
        """
        digest = hashlib.sha256()
        with self._open(shard.path) as (file, size):
            self._offsets(file, size, shard)
            left = shard.payload_bytes
            while left:
                chunk = _exactly(file, min(left, _CHUNK_BYTES), f"{self.where}/{shard.path}")
                digest.update(chunk)
                left -= len(chunk)
        self._compare(digest.hexdigest(), shard)

    def read(self, shard: Shard) -> list[NDArray[Any]]:
        """The arrays of a shard, of the very bytes that the checksum was compared with.

        Raises:
            CorruptionError: it is missing, damaged, or another one; the message names it.
        """
        with self._open(shard.path) as (file, size):
            offsets = self._offsets(file, size, shard)
            raw = _exactly(file, shard.payload_bytes, f"{self.where}/{shard.path}")
        self._compare(hashlib.sha256(raw).hexdigest(), shard)
        payload = np.frombuffer(raw, np.uint8)
        return [
            payload[start:stop].view(_DTYPES[dtype][1]).reshape(shape)
            for (_, dtype, shape), (start, stop) in zip(shard.arrays, offsets, strict=True)
        ]

    def _compare(self, found: str, shard: Shard) -> None:
        if found != shard.payload_sha256:
            raise CorruptionError(f"{self.where}/{shard.path}: its SHA-256 is not the manifest's")

    @contextlib.contextmanager
    def _open(self, path: str) -> Iterator[tuple[BinaryIO, int]]:
        """A regular file, reached without a link, and its size."""
        *folders, name = path.split("/")
        with contextlib.ExitStack() as stack:
            folder = self._folder
            for step in folders:
                folder = _enter(folder, step, self.where)
                stack.close()  # one is open at a time, however deep they lie
                stack.callback(os.close, folder)
            file = stack.enter_context(_open_file(folder, name, f"{self.where}/{path}"))
            yield file, os.fstat(file.fileno()).st_size

    def _offsets(self, file: BinaryIO, size: int, shard: Shard) -> list[tuple[int, int]]:
        """Where each array lies in the payload, at which the file then stands."""
        where = f"{self.where}/{shard.path}"
        length = int.from_bytes(_exactly(file, 8, where), "little")
        if not 0 < length <= min(_HEADER_BYTES, size - 8):
            raise CorruptionError(f"{where}: a header of {length} bytes in a file of {size}")
        try:
            found = parse_json(bytes(_exactly(file, length, where)), InvalidArgumentError)
            if isinstance(found, dict):
                found.pop("__metadata__", None)
            headers = msgspec.convert(found, dict[str, _Header])
        except ValueError as error:
            raise CorruptionError(f"{where}: its header: {error}") from None
        wanted = {name: (dtype, shape) for name, dtype, shape in shard.arrays}
        if headers.keys() != wanted.keys():
            raise CorruptionError(f"{where}: expected arrays {list(wanted)}, got {list(headers)}")
        end = 0
        for name, header in sorted(headers.items(), key=lambda item: item[1].data_offsets):
            dtype, shape = wanted[name]
            tag, item = _DTYPES.get(dtype, ("", "|u1"))
            count = np.dtype(item).itemsize * math.prod(shape)
            if header.dtype != tag or header.shape != shape:
                raise CorruptionError(
                    f"{where}: {name} is {header.dtype} {list(header.shape)}, not {dtype} "
                    f"{list(shape)} as in the manifest"
                )
            if header.data_offsets != (end, end + count):
                raise CorruptionError(f"{where}: {name} does not lie at {end}..{end + count}")
            end += count
        if not end == shard.payload_bytes == size - 8 - length:
            raise CorruptionError(
                f"{where}: {size - 8 - length} bytes of arrays, {end} by their shapes, "
                f"{shard.payload_bytes} by the manifest"
            )
        return [headers[name].data_offsets for name, _, _ in shard.arrays]


def read_newest(
    path: str | os.PathLike[str],
    read: Callable[[Generation], _Read],
    is_whole: Callable[[_Read], bool] = lambda _: True,
) -> _Read:
    """What ``read`` makes of the current generation.

    Whoever replaces a generation removes the old one, files that are being read included. Where
    what was read is damaged or not whole and there is a newer one by now, that is read instead.

    Raises:
        NotFoundError: there is no ``CURRENT``.
        CorruptionError: ``CURRENT`` does not hold one name.
        KVCacheError: as `Generation` and ``read``, of the last one that was tried.
    """
    name = _current_name(path)
    for attempt in itertools.count(1):
        try:
            with Generation(path, name) as files:
                found = read(files)
        except CorruptionError:
            newer = _current_name(path)
            if newer == name or attempt == _MOST_REPLACEMENTS:
                raise
        else:
            if is_whole(found):
                return found
            newer = _current_name(path)
            if newer == name or attempt == _MOST_REPLACEMENTS:
                return found
        name = newer
    raise AssertionError("unreachable")


def _current_name(path: str | os.PathLike[str]) -> str:
    where = os.fsdecode(as_path(path))
    root = _open_root(where)
    try:
        return _current(root, where)
    finally:
        os.close(root)


def _open_root(where: str) -> int:
    try:
        return os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"{where}: no such directory") from None
    except (OSError, ValueError) as error:
        raise KVCacheIOError(f"cannot open {where}: {error}") from None


def _current(root: int, where: str) -> str:
    if not os.access("CURRENT", os.F_OK, dir_fd=root, follow_symlinks=False):
        raise NotFoundError(f"{where}: no prompt cache")
    with _open_file(root, "CURRENT", f"{where}/CURRENT") as file:
        size = min(os.fstat(file.fileno()).st_size, _MAX_NAME + 1)
        text = bytes(_exactly(file, size, f"{where}/CURRENT"))
    name, newline, rest = text.partition(b"\n")
    plain = name not in (b"", b".", b"..") and not set(b"\0/\\") & set(name) and name.isascii()
    if not (plain and newline and not rest and len(text) <= _MAX_NAME):
        raise CorruptionError(f"{where}/CURRENT: expected the name of one generation, got {text!r}")
    return name.decode("ascii")


def _enter(folder: int, name: str, where: str) -> int:
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        raise _refused(f"{where}/{name}", error) from None


def _open_file(folder: int, name: str, where: str) -> BinaryIO:
    """A regular file; a pipe that nobody writes to does not block."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        raise _refused(where, error) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CorruptionError(f"{where}: is no regular file")
    return os.fdopen(descriptor, "rb", buffering=0)


def _refused(where: str, error: OSError) -> CorruptionError | KVCacheIOError:
    """What is missing, a link or of another kind is damage; the rest is the system's."""
    if isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno in _NOT_THERE:
        return CorruptionError(f"{where}: {error.strerror}")
    return KVCacheIOError(f"cannot open {where}: {error.strerror}")


def _exactly(file: BinaryIO, count: int, where: str) -> bytearray:
    found = bytearray(count)
    left = memoryview(found)
    while left:
        try:
            got = file.readinto(left)  # type: ignore[attr-defined]
        except OSError as error:
            raise KVCacheIOError(f"cannot read {where}: {error.strerror}") from None
        if not got:
            raise CorruptionError(f"{where}: ends {len(left)} bytes too early")
        left = left[got:]
    return found
