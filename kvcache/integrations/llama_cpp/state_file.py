"""One state in one file: a head with the tokens, the scores if any, llama.cpp's bytes.

docs/llama_cpp.md describes every byte. Nothing that a file says is believed before its checksum and
its length agree with it.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvcache.errors import CorruptionError, UnsupportedError
from kvcache.integrations.llama_cpp.state import MOST_TOKENS, Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["StateHead", "read_head", "read_record", "record_bytes", "write_record"]

_MAGIC, _VERSION = b"KVLLAMA\0", 1
# Magic, version, identity, context, tokens, vocabulary, rows of scores, seed, bytes of llama.cpp,
# and the checksum of what follows the tokens; behind it that of the head and the tokens.
_HEAD = struct.Struct("<8sI32sIIIIqQI")
_CHECKSUM = struct.Struct("<I")
_START = _HEAD.size + _CHECKSUM.size
_READ_MAX = 1 << 30  # one read() gives less than 2^31


@dataclass(frozen=True, slots=True)
class StateHead:
    """What a file says of a state."""

    identity: bytes
    context: int
    vocabulary: int
    score_rows: int
    seed: int
    blob_bytes: int
    payload_checksum: int
    tokens: NDArray[np.int32]

    @property
    def score_bytes(self) -> int:
        """Bytes of the scores, which lie before llama.cpp's."""
        return 4 * self.score_rows * self.vocabulary


def record_bytes(record: Record) -> int:
    """Length of a record's file."""
    scores = 0 if record.scores is None else record.scores.nbytes
    return _START + record.tokens.nbytes + scores + len(record.blob)


def write_record(file: int, identity: bytes, record: Record) -> None:
    """Write a record from an empty file's start on."""
    scores = (
        b"" if record.scores is None else record.scores.astype("<f4", copy=False).data.cast("B")
    )
    head = _HEAD.pack(
        _MAGIC,
        _VERSION,
        identity,
        record.context,
        len(record.tokens),
        record.vocabulary,
        0 if record.scores is None else len(record.scores),
        record.seed,
        len(record.blob),
        zlib.crc32(record.blob, zlib.crc32(scores)),
    )
    tokens = record.tokens.astype("<i4").tobytes()
    checksum = _CHECKSUM.pack(zlib.crc32(tokens, zlib.crc32(head)))
    for part in [head + checksum + tokens, scores, record.blob]:
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(file, rest[:_READ_MAX]) :]


def read_head(file: int) -> StateHead:
    """Read a file up to the end of its tokens.

    Raises:
        CorruptionError: it is no such file, or damaged up to there, or of another length.
        UnsupportedError: of another version.
    """
    size = os.fstat(file).st_size
    data = _read(file, min(size, _START))
    if len(data) < _START or not data.startswith(_MAGIC):
        raise CorruptionError(f"not a stored state: {size} bytes that begin {data[:8]!r}")
    _, version, identity, context, count, vocabulary, rows, seed, blob_bytes, payload = (
        _HEAD.unpack_from(data)
    )
    if version != _VERSION:
        raise UnsupportedError(f"a stored state of version {version}, expected {_VERSION}")
    expected = _START + 4 * count + 4 * rows * vocabulary + blob_bytes
    if size != expected:
        raise CorruptionError(f"{size} bytes, but its head tells of {expected}")
    if count > MOST_TOKENS:
        raise CorruptionError(f"{count} tokens, at most {MOST_TOKENS} are read")
    tokens = _read(file, 4 * count)
    (checksum,) = _CHECKSUM.unpack_from(data, _HEAD.size)
    if zlib.crc32(tokens, zlib.crc32(data[: _HEAD.size])) != checksum:
        raise CorruptionError("the head's checksum is wrong")
    if not 0 < count <= context or rows not in (0, count):
        raise CorruptionError(f"{count} tokens of {context}, {rows} rows of scores")
    held = np.frombuffer(tokens, "<i4").astype(np.int32)
    return StateHead(identity, context, vocabulary, rows, seed, blob_bytes, payload, held)


def read_record(file: int, head: StateHead) -> Record:
    """Read what follows a head that was just read.

    Raises:
        CorruptionError: it is damaged.
    """
    scores = _read(file, head.score_bytes)
    blob = _read(file, head.blob_bytes)
    if zlib.crc32(blob, zlib.crc32(scores)) != head.payload_checksum:
        raise CorruptionError("the checksum of the state is wrong")
    rows = np.frombuffer(scores, "<f4").reshape(head.score_rows, head.vocabulary)
    kept = rows.astype(np.float32, copy=False) if head.score_rows else None
    return Record(head.tokens, head.context, head.vocabulary, kept, head.seed, blob)


def _read(file: int, size: int) -> bytes:
    """The next bytes of a file; fewer at its end."""
    parts = []
    while size > 0 and (part := os.read(file, min(size, _READ_MAX))):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
