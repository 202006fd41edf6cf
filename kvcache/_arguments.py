"""Arguments from outside, as the compiled core wants them or as a clear error."""

from __future__ import annotations

import operator
import os
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from kvcache.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray

    from kvcache.sequence import Sequence

_T = TypeVar("_T")
_INT32 = np.iinfo(np.int32)
_INT32_DTYPE = np.dtype(np.int32)
_64_BITS = {np.dtype(np.int64), np.dtype(np.uint64)}
_THREADS_MAX = 1024
#: Elements that rows convert to and from: numpy's name and ours.
FLOAT_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def as_integers(value: Any, name: str) -> NDArray[Any]:
    """One axis of integers; int32 where there are none."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError, BufferError) as error:
        raise InvalidArgumentError(f"{name}: not an array: {error}") from None
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int32)  # an empty list is one of floats to numpy
    if array.ndim != 1 or array.dtype.kind not in "iu":
        _check_range(value, name)
        raise InvalidArgumentError(
            f"{name}: expected one axis of integers, got {array.ndim} axes of {array.dtype}"
        )
    return array


def _check_range(value: Any, name: str) -> None:
    """Of integers that no dtype of numpy holds together, which it makes floats or objects."""
    if not isinstance(value, (list, tuple)) or not all(type(each) is int for each in value):
        return
    for each in (min(value), max(value)):
        if not -(2**63) <= each < 2**63:
            raise InvalidArgumentError(f"{name}: must be below 2**63, got {each}")


def is_scalar(value: Any) -> bool:
    """One number, in whatever type, and no list of them."""
    axes: int = getattr(value, "ndim", 1 if hasattr(value, "__len__") else 0)
    return axes == 0


def as_tokens(tokens: ArrayLike, name: str = "tokens") -> NDArray[np.int32]:
    """One contiguous axis of int32, without a copy where it is that already."""
    # What an engine passes for each decoded token is looked at no longer than this.
    if type(tokens) is np.ndarray and tokens.dtype is _INT32_DTYPE and tokens.ndim == 1:
        return tokens if tokens.flags.c_contiguous else tokens.copy()
    array = as_integers(tokens, name)
    if array.dtype != np.int32:
        low, high = int(array.min()), int(array.max())
        if low < _INT32.min or high > _INT32.max:
            raise InvalidArgumentError(f"{name}: ids must fit int32, got values in {low}..{high}")
    return np.ascontiguousarray(array, dtype=np.int32)


def as_count(value: Any, name: str, least: int = 0, most: int = 2**63 - 1) -> int:
    """An integer of ``least..most``, of any type that is one, numpy's included, but no bool."""
    if type(value) is int and least <= value <= most:
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidArgumentError(f"{name}: expected an integer, got {value!r}")
    try:
        count = operator.index(value)
    except TypeError:  # an array of more than one
        raise InvalidArgumentError(f"{name}: expected an integer, got {value!r}") from None
    if not least <= count <= most:
        raise InvalidArgumentError(f"{name}: must be {least}..{most}, got {count}")
    return count


def as_threads(threads: Any) -> int:
    """How many threads may work on a call."""
    return as_count(threads, "threads", least=1, most=_THREADS_MAX)


def as_counts(value: Any, name: str) -> NDArray[np.uint64] | None:
    """One axis of numbers that are not negative; None stays None."""
    if value is None:
        return None
    # As in as_tokens(). What is negative has the highest bit, and is told below.
    if type(value) is np.ndarray and value.ndim == 1 and value.dtype in _64_BITS:
        numbers: NDArray[np.uint64] = value.view(np.uint64)
        if not int(np.bitwise_or.reduce(numbers)) >> 63:
            return numbers if numbers.flags.c_contiguous else numbers.copy()
    array = as_integers(value, name)
    if array.dtype.kind == "i" and array.min(initial=0) < 0:
        raise InvalidArgumentError(f"{name}: must not be negative, got {array.min()}")
    if array.dtype.kind == "u" and array.max(initial=0) > 2**63 - 1:
        raise InvalidArgumentError(f"{name}: must be below 2**63, got {array.max()}")
    return np.ascontiguousarray(array, dtype=np.uint64)


def as_instance(value: Any, kind: type[_T], name: str) -> _T:
    """What is given, a ``kind``."""
    if not isinstance(value, kind):
        raise InvalidArgumentError(
            f"{name}: expected a {kind.__name__}, got {type(value).__name__}"
        )
    return value


def as_instances(given: Iterable[_T], kind: type[_T], name: str) -> tuple[_T, ...]:
    """All that is given, each of it a ``kind``."""
    try:
        instances = tuple(given)
    except TypeError:
        raise InvalidArgumentError(
            f"{name}: expected a list of {kind.__name__}, got {type(given).__name__}"
        ) from None
    for index, each in enumerate(instances):
        as_instance(each, kind, f"{name}[{index}]")
    return instances


def as_sequence(value: Any) -> Sequence:
    """A handle of one sequence."""
    from kvcache.sequence import Sequence

    return as_instance(value, Sequence, "sequence")


def as_number(value: Any, name: str) -> float:
    """A real number, of any type that is one, but no bool."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InvalidArgumentError(f"{name}: expected a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise InvalidArgumentError(f"{name}: {value} is too large") from None


def as_float_dtype(value: Any, name: str = "dtype") -> str:
    """What numpy calls a floating element, given by that, by our short name or by its dtype."""
    text = value.name if isinstance(value, np.dtype) else value
    if isinstance(value, type) and issubclass(value, np.generic):
        text = value.__name__
    for long, short in FLOAT_DTYPES.items():
        if isinstance(text, str) and text in (long, short):
            return long
    known = ", ".join(map(repr, FLOAT_DTYPES))
    raise InvalidArgumentError(f"{name}: expected {known}, got {value!r}")


def as_clock(now_ms: Any) -> int | None:
    return None if now_ms is None else as_count(now_ms, "now_ms")


def as_text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name}: expected text, got {value!r}")
    as_bytes(value, name)  # a lone surrogate is no text that C++ can take
    return value


def as_layer(value: Any) -> int:
    return as_count(value, "layer", most=_INT32.max)


def as_bytes(value: bytes | str | None, name: str) -> bytes:
    if value is None:
        return b""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name}: expected text or bytes, got {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{name}: {error}") from None


def as_path(value: Any) -> bytes:
    try:
        return os.fsencode(value)
    except (TypeError, UnicodeEncodeError):
        raise InvalidArgumentError(f"path: expected a path, got {value!r}") from None


def adapter_key(adapter: str | tuple[str, str] | None) -> bytes:
    """An adapter is a name, or a name and a revision; both count."""
    if adapter is None or (isinstance(adapter, str) and not adapter):
        return b""
    parts = (adapter,) if isinstance(adapter, str) else adapter
    named = isinstance(adapter, str) or (isinstance(adapter, tuple) and len(adapter) == 2)
    if not named or not all(isinstance(part, str) for part in parts):
        raise InvalidArgumentError(
            f"adapter: expected a name or a (name, revision) pair, got {adapter!r}"
        )
    encoded = [as_bytes(part, "adapter") for part in parts]
    return b"".join(b"%d:%s" % (len(part), part) for part in encoded)


#: ``(start, length, digest)`` of one image, clip or file: positions that hold its pad tokens, and
#: what tells its content, as bytes or text.
Media = tuple[int, int, bytes | str]


def as_media(media: Iterable[Media]) -> list[tuple[int, int, bytes]]:
    """Spans of a prompt with the digest of what they stand for."""
    items: list[tuple[int, int, bytes]] = []
    try:
        listed = list(media)
    except TypeError:
        raise InvalidArgumentError(f"media: expected a list, got {media!r}") from None
    for i, item in enumerate(listed):
        if not isinstance(item, (tuple, list)) or len(item) != 3:
            raise InvalidArgumentError(
                f"media[{i}]: expected (start, length, digest), got {item!r}"
            )
        start, length, digest = item
        items.append(
            (
                as_count(start, f"media[{i}].start"),
                as_count(length, f"media[{i}].length", least=1),
                as_bytes(digest, f"media[{i}].digest"),
            )
        )
    return items


def as_space(
    namespace: bytes | str,
    adapter: str | tuple[str, str] | None,
    salt: bytes | str,
    media: Iterable[Media] = (),
) -> tuple[bytes, bytes, bytes, list[tuple[int, int, bytes]]]:
    """What sequences that share a prefix must agree in."""
    return (
        as_bytes(namespace, "namespace"),
        adapter_key(adapter),
        as_bytes(salt, "salt"),
        as_media(media),
    )
