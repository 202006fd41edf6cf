"""Request traces: JSON lines in, requests with exact token ids out."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from kvcache.errors import InvalidArgumentError, KVCacheIOError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["HASH_BLOCK_TOKENS", "Request", "block_tokens", "decoded_tokens", "read_trace"]

HASH_BLOCK_TOKENS = 512  # positions that one entry of hash_ids stands for
_DENSE_IDS = 22  # block ids below 2^22 get token ids that no other such block has
_TOKEN_MASK = np.uint64(0x7FFF_FFFF)

# A line may not ask for more than any machine could hold; a lone huge number is a broken line.
_MAX_POSITIONS = 1 << 24
_Length = Annotated[int, msgspec.Meta(ge=0, le=_MAX_POSITIONS)]
_PromptLength = Annotated[int, msgspec.Meta(ge=1, le=_MAX_POSITIONS)]
_BlockId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_MAX_TIME_MS = 1 << 53  # what a float counts without a gap
_MAX_LINE_BYTES = 1 << 28


class _Line(msgspec.Struct):
    """One line as it stands in the file; other keys are ignored."""

    timestamp: Annotated[float, msgspec.Meta(ge=0, le=_MAX_TIME_MS)] = 0.0
    input_length: _PromptLength | UnsetType = UNSET
    output_length: _Length | UnsetType = UNSET
    hash_ids: list[_BlockId] | UnsetType = UNSET
    token_ids: list[_TokenId] | UnsetType = UNSET
    output_token_ids: list[_TokenId] | UnsetType = UNSET
    stops: list[_PromptLength] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request of a trace. Token ids are made on demand: a long trace stays small.

    Attributes:
        number: 0-based place in the trace.
        timestamp_ms: arrival, as the trace gives it.
        input_length: positions of the prompt, at least 1.
        output_length: positions decoded after it.
        source: ids of 512-token blocks (`uint64`), or the prompt's token ids (`int32`).
        answer: token ids of the output where the trace gives them.
        stops: positions in the prompt at which a later request is likely to leave it (end of a
            system prompt, of a turn), as a server knows them from the chat template.
    """

    number: int
    timestamp_ms: float
    input_length: int
    output_length: int
    source: NDArray[np.uint64] | NDArray[np.int32]
    answer: NDArray[np.int32] | None = None
    stops: tuple[int, ...] = ()

    def prompt(self) -> NDArray[np.int32]:
        """Token ids `[input_length]`."""
        if self.source.dtype == np.int32:
            return self.source.astype(np.int32, copy=False)
        return block_tokens(self.source.astype(np.uint64, copy=False))[: self.input_length]

    def output(self) -> NDArray[np.int32]:
        """Token ids `[output_length]`: the trace's own, else a function of `number` alone."""
        if self.answer is not None:
            return self.answer
        return decoded_tokens(self.number, self.output_length)


def block_tokens(ids: NDArray[np.uint64]) -> NDArray[np.int32]:
    """Token ids of 512-token blocks, concatenated: a fixed function of (block id, offset).

    Distinct ids below 2^22 give disjoint token ids; larger ones are scattered by a hash, so that
    two blocks are never equal in practice. The result is never negative.
    """
    if ids.size and ids.max() < 1 << _DENSE_IDS:  # the usual case, four times as fast
        first = (ids.astype(np.int32) << np.int32(9))[:, None]
        return (first | np.arange(HASH_BLOCK_TOKENS, dtype=np.int32)).reshape(-1)
    high = ids >> np.uint64(_DENSE_IDS)
    # The finaliser of MurmurHash3 maps 0 to 0, which keeps small ids dense.
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)):
        high = (high ^ (high >> np.uint64(shift))) * np.uint64(factor)
    high ^= high >> np.uint64(33)
    offsets = np.arange(HASH_BLOCK_TOKENS, dtype=np.uint64)
    low = (ids << np.uint64(9))[:, None] + offsets
    return ((low ^ high[:, None]) & _TOKEN_MASK).astype(np.int32).reshape(-1)


def decoded_tokens(number: int, count: int) -> NDArray[np.int32]:
    """Token ids of an output nobody recorded. All are negative, so no prompt contains them."""
    blocks = -(-count // HASH_BLOCK_TOKENS)
    first = np.uint64(number) << np.uint64(8)  # 131,072 tokens before numbers meet
    return ~block_tokens(first + np.arange(blocks, dtype=np.uint64))[:count]


def read_trace(path: str | Path, *, limit: int | None = None) -> list[Request]:
    """Read the first `limit` requests of a JSON-lines trace, all of them by default.

    A line is either `{"timestamp", "input_length", "output_length", "hash_ids"}`, the form of the
    Mooncake traces (FAST'25), where each id names one 512-token block in its context and the last
    block is partial; or `{"timestamp", "token_ids", "output_length" | "output_token_ids",
    "stops"}` with the prompt spelled out. Blank lines are skipped. `timestamp` and `stops` may be
    left out.

    Raises:
        NotFoundError: no such file. KVCacheIOError: it cannot be read.
        InvalidArgumentError: a line is not such an object; the message names file, line and field.
    """
    requests: list[Request] = []
    try:
        for number, raw in _lines(Path(path)):
            if limit is not None and len(requests) >= limit:
                break
            requests.append(_request(raw, len(requests), f"{path}:{number}"))
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such trace file") from None
    except OSError as error:
        raise KVCacheIOError(f"{path}: cannot read the trace: {error.strerror}") from None
    if not requests:
        raise InvalidArgumentError(f"{path}: the trace holds no request")
    return requests


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number in itertools.count(1):
            raw = file.readline(_MAX_LINE_BYTES + 1)
            if len(raw) > _MAX_LINE_BYTES:
                raise InvalidArgumentError(f"{path}:{number}: longer than {_MAX_LINE_BYTES} bytes")
            if not raw:
                return
            if raw.strip():
                yield number, raw


def _request(raw: bytes, number: int, where: str) -> Request:
    try:
        line = msgspec.json.decode(raw, type=_Line)
    except msgspec.ValidationError as error:
        raise InvalidArgumentError(f"{where}: {_explain(error, raw)}") from None
    except msgspec.DecodeError as error:
        cut = "" if raw.endswith(b"\n") else "; the last line is cut off"
        raise InvalidArgumentError(f"{where}: not a JSON object: {error}{cut}") from None
    except RecursionError:
        raise InvalidArgumentError(f"{where}: not a JSON object: nested too deeply") from None
    if line.hash_ids is not UNSET and line.token_ids is UNSET:
        return _from_hash_ids(line, line.hash_ids, number, where)
    if line.token_ids is not UNSET and line.hash_ids is UNSET:
        return _from_token_ids(line, line.token_ids, number, where)
    raise InvalidArgumentError(f"{where}: needs either hash_ids or token_ids")


def _explain(error: msgspec.ValidationError, raw: bytes) -> str:
    """Field, expectation and, for a number, what stood there: `hash_ids[3]: ..., got -1`."""
    message, _, path = str(error).partition(" - at `$.")
    if not path:
        return str(error)
    path = path.rstrip("`")
    try:
        value = msgspec.json.decode(raw)
        for step in re.findall(r"\w+", path):
            value = value[int(step) if isinstance(value, list) else step]
    except (msgspec.DecodeError, RecursionError):  # broken further on, too
        value = None
    shown = f", got {value}" if isinstance(value, int | float) and "got" not in message else ""
    return f"{path}: {message}{shown}"


def _from_hash_ids(line: _Line, ids: list[int], number: int, where: str) -> Request:
    if line.input_length is UNSET:
        raise InvalidArgumentError(f"{where}: input_length: missing")
    if line.output_length is UNSET:
        raise InvalidArgumentError(f"{where}: output_length: missing")
    if line.output_token_ids is not UNSET:
        raise InvalidArgumentError(f"{where}: output_token_ids: only goes with token_ids")
    blocks = -(-line.input_length // HASH_BLOCK_TOKENS)
    if len(ids) != blocks:
        raise InvalidArgumentError(
            f"{where}: hash_ids: {line.input_length} positions are {blocks} blocks of "
            f"{HASH_BLOCK_TOKENS}, got {len(ids)} ids"
        )
    # The last, partial block is hashed anew once it grows: a follow-up leaves the prompt before it.
    full = line.input_length // HASH_BLOCK_TOKENS * HASH_BLOCK_TOKENS
    return Request(
        number=number,
        timestamp_ms=line.timestamp,
        input_length=line.input_length,
        output_length=line.output_length,
        source=np.array(ids, dtype=np.uint64),
        stops=_stops(line, line.input_length, where) or ((full,) if full else ()),
    )


def _from_token_ids(line: _Line, ids: list[int], number: int, where: str) -> Request:
    if not 1 <= len(ids) <= _MAX_POSITIONS:
        raise InvalidArgumentError(
            f"{where}: token_ids: needs 1..{_MAX_POSITIONS} ids, got {len(ids)}"
        )
    if line.input_length not in (UNSET, len(ids)):
        raise InvalidArgumentError(
            f"{where}: input_length: is {line.input_length}, but token_ids holds {len(ids)}"
        )
    answer = None
    if line.output_token_ids is not UNSET:
        answer = np.array(line.output_token_ids, dtype=np.int32)
        if line.output_length not in (UNSET, answer.size):
            raise InvalidArgumentError(
                f"{where}: output_length: is {line.output_length}, but output_token_ids holds "
                f"{answer.size}"
            )
        line.output_length = answer.size
    if line.output_length is UNSET:
        raise InvalidArgumentError(f"{where}: output_length: missing, and no output_token_ids")
    return Request(
        number=number,
        timestamp_ms=line.timestamp,
        input_length=len(ids),
        output_length=line.output_length,
        source=np.array(ids, dtype=np.int32),
        answer=answer,
        stops=_stops(line, len(ids), where),
    )


def _stops(line: _Line, length: int, where: str) -> tuple[int, ...]:
    if line.stops is UNSET:
        return ()
    stops = tuple(sorted(set(line.stops)))
    if stops and stops[-1] > length:
        raise InvalidArgumentError(
            f"{where}: stops: {stops[-1]} is behind the prompt of {length} positions"
        )
    return stops
