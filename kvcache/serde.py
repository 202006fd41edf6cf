"""JSON in and out for every public value type, and the checks their constructors share.

msgspec checks and converts; this module adds what the published JSON needs on top of it: enums
tagged by a one-key object (``{"sliding": {"window": 8}}``), errors that name path and value, and
the order of declaration as sort order. There is no code per class: the field annotations are the
schema.
"""

from __future__ import annotations

import enum
import functools
import json
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Self, cast

import msgspec

from kvcache.errors import InvalidArgumentError

__all__ = [
    "U32",
    "U64",
    "Dim",
    "JsonEnum",
    "OrderedStrEnum",
    "PositiveU32",
    "PositiveU64",
    "Value",
    "Variant",
]

U64_MAX = 2**64 - 1
# msgspec bounds fit i64, so the upper end of u64 is checked by Value.
U64 = Annotated[int, msgspec.Meta(ge=0, extra_json_schema={"maximum": U64_MAX})]
PositiveU64 = Annotated[int, msgspec.Meta(ge=1, extra_json_schema={"maximum": U64_MAX})]
U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
PositiveU32 = Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)]
Dim = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]  # tensor axes are i32 on every side

# Spellings of an older published line, accepted on reading.
_OLD_KEYS = {
    "model_type": "effective_model_type",
    "state_dtype_bytes": "floating_state_dtype_bytes",
    "pipeline_rank": "stage_rank",
    "tensor_parallel_rank": "shard_rank",
    "expert_parallel_rank": "addressable_rank",
}


class Json:
    """The four ways between a value and its published JSON."""

    __slots__ = ()
    ERROR: ClassVar[type[InvalidArgumentError]] = InvalidArgumentError

    @classmethod
    def from_dict(cls, data: Any, *, forbid_unknown_keys: bool = False) -> Self:
        """The value that plain data (parsed JSON) describes.

        Args:
            data: dicts, lists, strings, numbers and None as in the published JSON.
            forbid_unknown_keys: refuse keys the type does not have, instead of ignoring them.

        Raises:
            InvalidArgumentError: or the subclass of this type; the message starts with the path
                of the offending item, e.g. ``$[3].key_value.head_dim``.
        """
        return cast("Self", _load(cls, data, forbid_unknown_keys))

    @classmethod
    def from_json(cls, text: str | bytes, *, forbid_unknown_keys: bool = False) -> Self:
        """As ``from_dict``, from JSON text. Repeated keys are refused."""
        return cast("Self", _load(cls, parse_json(text, cls.ERROR), forbid_unknown_keys))

    def to_dict(self) -> Any:
        """Plain data that ``from_dict`` reads back; not always a dict."""
        return to_plain(self)

    def to_json(self) -> str:
        """Compact JSON text that ``from_json`` reads back."""
        return msgspec.json.encode(to_plain(self)).decode()


class JsonEnum(Json, enum.Enum):
    """An enum whose value is its JSON string."""

    @classmethod
    def _missing_(cls, value: object) -> typing.NoReturn:
        known = ", ".join(member.value for member in cls)
        raise InvalidArgumentError(f"expected one of {known}, got {describe(value)}")


class OrderedStrEnum(Json, enum.StrEnum):
    """A string enum that sorts by declaration, not by spelling."""

    @classmethod
    def _missing_(cls, value: object) -> typing.NoReturn:
        known = ", ".join(member.value for member in cls)
        raise InvalidArgumentError(f"expected one of {known}, got {describe(value)}")

    @property
    def rank(self) -> int:
        """Position in the declaration."""
        return list(type(self)).index(self)

    def __lt__(self, other: object) -> bool:
        return self.rank < other.rank if isinstance(other, type(self)) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self.rank <= other.rank if isinstance(other, type(self)) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self.rank > other.rank if isinstance(other, type(self)) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self.rank >= other.rank if isinstance(other, type(self)) else NotImplemented


class _FieldError(ValueError):
    """What is wrong with the value at ``path``, a suffix such as ``.shape[1]``."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


class Value(Json):
    """Base of the frozen dataclasses: validated on construction, JSON both ways, ordered."""

    __slots__ = ()
    # Fields that the published JSON does not have: left out of it while they are None or False.
    EXTENSIONS: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        for name, hint in _hints(cast("Any", type(self))).items():
            raw = getattr(self, name)
            try:
                value = msgspec.convert(raw, hint, dec_hook=_decode)
                _check_representable(value)
            except ValueError as error:
                path, message = _explain(error, raw, hint)
                self._fail(f".{name}{path}", message)
            object.__setattr__(self, name, value)
        self._validate()

    def _validate(self) -> None:
        """Rules that span fields; raise through ``_fail``."""

    def _fail(self, path: str, message: str) -> typing.NoReturn:
        error = self.ERROR(f"{type(self).__name__}{path}: {message}")
        raise error from _FieldError(path, message)

    def __lt__(self, other: object) -> bool:
        return self._key() < other._key() if self._comparable(other) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self._key() <= other._key() if self._comparable(other) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self._key() > other._key() if self._comparable(other) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self._key() >= other._key() if self._comparable(other) else NotImplemented

    def _comparable(self, other: object) -> typing.TypeGuard[Value]:
        return isinstance(other, _family(type(self)))

    def _key(self) -> tuple[Any, ...]:
        return tuple(_sort_key(getattr(self, field.name)) for field in _fields(type(self)))


class Variant(Value):
    """Base of a closed set of dataclasses (an enum with data).

    The direct subclass is the set; its subclasses are the variants, in declaration order, each
    with a ``TAG``. ``TAG_FIELD`` names the key that carries the tag inside the object; without
    it the tag is the only key of an outer object, or a bare string when there is no data.
    """

    __slots__ = ()
    TAG: ClassVar[str] = ""
    TAG_FIELD: ClassVar[str | None] = None
    NEWTYPE: ClassVar[bool] = False  # the one field stands for the whole payload
    VARIANTS: ClassVar[dict[str, type[Variant]]] = {}

    def __init_subclass__(cls) -> None:
        if Variant in cls.__bases__:
            cls.VARIANTS = {}
        elif cls.TAG:  # slots=True builds the class twice; the second one replaces the first
            cls.VARIANTS[cls.TAG] = cls

    def _key(self) -> tuple[Any, ...]:
        return (list(self.VARIANTS).index(self.TAG), *Value._key(self))


def parse_json(text: str | bytes, error: type[InvalidArgumentError]) -> Any:
    """Plain data of a JSON text; what is not JSON, or repeats a key, raises ``error``."""
    try:
        # The standard parser: msgspec keeps the last of two equal keys without a word.
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_not_json)
    except RecursionError:
        raise error("$: nested too deeply") from None
    except (ValueError, TypeError) as cause:
        raise error(f"$: not JSON: {cause}") from cause


def to_plain(value: Any) -> Any:
    """The published JSON of a value as dicts, lists, strings and numbers."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    if not isinstance(value, Value):
        return value
    if hasattr(value, "_plain"):
        return value._plain()
    body = {
        field.name: to_plain(getattr(value, field.name))
        for field in _fields(type(value))
        if not (field.name in value.EXTENSIONS and getattr(value, field.name) in (None, False))
    }
    return _tagged(value, body) if isinstance(value, Variant) else body


def _tagged(value: Variant, body: dict[str, Any]) -> Any:
    payload = next(iter(body.values())) if value.NEWTYPE else body
    if value.TAG_FIELD is not None:
        return {value.TAG_FIELD: value.TAG, **payload}
    return {value.TAG: payload} if body else value.TAG


def _load(cls: type[Json], data: Any, forbid_unknown_keys: bool) -> Any:
    try:
        data = _renamed(data)
        value = msgspec.convert(data, _family(cls), dec_hook=_decode)
        if not isinstance(value, cls):
            raise _FieldError("", f"expected {cls.__name__}, got {type(value).__name__}")
        if forbid_unknown_keys:
            _refuse_unknown(data, to_plain(value), "")
    except RecursionError:
        raise cls.ERROR("$: nested too deeply") from None
    except ValueError as error:
        path, message = _explain(error, data, cls)
        raise cls.ERROR(f"${path}: {message}") from error
    return value


def _decode(target: type[Any], data: Any) -> Any:
    """Msgspec hook for what it cannot describe: variants, and classes with their own JSON."""
    target = typing.get_origin(target) or target  # LayerSchedule[...] has one JSON form
    if isinstance(data, target):
        return data
    if hasattr(target, "_from_plain"):
        return target._from_plain(data)
    if not issubclass(target, Variant):
        raise TypeError(f"expected {target.__name__}, got {describe(data)}")
    tag, payload, path = _untagged(target, data)
    variant = target.VARIANTS.get(tag)
    if variant is None:
        known = ", ".join(target.VARIANTS)
        message = f"unknown {describe(tag)}, expected {known}"
        raise _FieldError(path if target.TAG_FIELD else "", message)
    names = [field.name for field in _fields(variant)]
    if target.TAG_FIELD is None and isinstance(data, str) == bool(names):
        raise _FieldError("", f"{describe(tag)} takes {'fields' if names else 'no fields'}")
    if variant.NEWTYPE:
        payload = {names[0]: payload}
    try:
        return msgspec.convert(payload if names else {}, variant, dec_hook=_decode)
    except ValueError as error:
        inner, message = _explain(error, payload, variant)
        if variant.NEWTYPE:
            inner = inner.removeprefix(f".{names[0]}")
        raise _FieldError(("" if target.TAG_FIELD else path) + inner, message) from None


def decode_items(data: Any, item: type[Any]) -> tuple[Any, ...]:
    """A tuple of ``item`` from plain data, for classes with their own JSON."""
    return cast(
        "tuple[Any, ...]", msgspec.convert(data, cast("Any", tuple)[item, ...], dec_hook=_decode)
    )


def _untagged(target: type[Variant], data: Any) -> tuple[str, Any, str]:
    """Tag, payload and path of the payload (of the tag, if it is a field)."""
    if target.TAG_FIELD is not None:
        if not isinstance(data, Mapping):
            raise _FieldError("", f"expected an object, got {describe(data)}")
        if target.TAG_FIELD not in data:
            raise _FieldError("", f"missing required field `{target.TAG_FIELD}`")
        tag = data[target.TAG_FIELD]
        if not isinstance(tag, str):
            raise _FieldError(f".{target.TAG_FIELD}", f"expected a string, got {describe(tag)}")
        return tag, data, f".{target.TAG_FIELD}"
    if isinstance(data, str):
        return data, {}, ""
    if isinstance(data, Mapping) and len(data) == 1:
        tag, payload = next(iter(data.items()))
        if isinstance(tag, str):
            return tag, payload, f".{tag}"
    known = ", ".join(target.VARIANTS)
    raise _FieldError("", f"expected one of {known}, got {describe(data)}")


def _explain(error: ValueError, data: Any, hint: Any) -> tuple[str, str]:
    """Path and message of a failed conversion of ``data`` to ``hint``."""
    text, path = _split(error)
    cause: BaseException | None = error.__cause__
    while cause is not None:
        if isinstance(cause, _FieldError):
            return path + cause.path, str(cause)
        if isinstance(cause, msgspec.ValidationError):
            text, inner = _split(cause)
            path += inner
        cause = cause.__cause__
    if isinstance(error, _FieldError):
        return error.path, str(error)
    value = _lookup(data, path)
    if text.startswith("Invalid enum value"):
        text = f"expected one of {_spellings(hint, path)}, got {describe(value)}"
    return path, _reworded(text, value)


def _split(error: BaseException) -> tuple[str, str]:
    text, found, path = str(error).rpartition(" - at `$")
    if not found or not isinstance(error, msgspec.ValidationError):
        return str(error), ""
    return text, path.removesuffix("`")


_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_BOUND = re.compile(r"Expected `int` (>=|<=) (-?\d+)$")
_TYPE = re.compile(r"Expected `([^`]+)`(?:, got `\w+`)?$")
_NOUNS = {"int": "an integer", "str": "a string", "bool": "true or false", "array": "a list"}


def _reworded(text: str, value: Any) -> str:
    if bound := _BOUND.match(text):
        word = "least" if bound[1] == ">=" else "most"
        noun = "a positive integer" if bound.groups() == (">=", "1") else f"at {word} {bound[2]}"
        return f"expected {noun}, got {describe(value)}"
    if kind := _TYPE.match(text):
        nouns = " or ".join(_NOUNS.get(k.strip(), f"an {k.strip()}") for k in kind[1].split("|"))
        return f"expected {nouns}, got {describe(value)}"
    if text.startswith("Expected"):
        return f"{text[0].lower()}{text[1:].replace('`', '')}, got {describe(value)}"
    return text.replace("Object missing", "missing")


def _spellings(hint: Any, path: str) -> str:
    """What the enum at ``path`` below ``hint`` accepts."""
    for key, _ in _STEP.findall(path):
        hint = _hints(hint)[key] if key else typing.get_args(hint)[0]
    return ", ".join(member.value for member in hint)


def checked(name: str, value: Any, least: int = 0) -> int:
    """``value`` if it is an integer of 64 bits, unsigned, and at least ``least``.

    Raises:
        InvalidArgumentError: it is not; the message names the argument.
    """
    if type(value) is not int or not least <= value <= U64_MAX:
        noun = "a positive integer" if least == 1 else f"an integer from {least}"
        raise InvalidArgumentError(
            f"{name}: expected {noun} of at most 64 bits, got {describe(value)}"
        )
    return value


def describe(value: Any) -> str:
    """A short, one-line rendering of any input for an error message."""
    try:
        text = repr(value)
    except Exception:  # foreign code, or an integer of too many digits
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _lookup(data: Any, path: str) -> Any:
    for key, index in _STEP.findall(path):
        try:
            data = data[key] if key else data[int(index)]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _check_representable(value: Any) -> None:
    """What JSON, or the u64 of other languages, could not carry."""
    if isinstance(value, int) and value > U64_MAX:
        raise _FieldError("", f"expected at most {U64_MAX}, got {describe(value)}")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _FieldError("", f"expected Unicode text, got {describe(value)}") from None
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            try:
                _check_representable(item)
            except _FieldError as error:
                raise _FieldError(f"[{index}]{error.path}", str(error)) from None


def _renamed(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {
            (new if (new := _OLD_KEYS.get(key)) and new not in data else key): _renamed(value)
            for key, value in data.items()
        }
    return [_renamed(item) for item in data] if isinstance(data, list | tuple) else data


def _refuse_unknown(data: Any, known: Any, path: str) -> None:
    if isinstance(data, Mapping) and isinstance(known, Mapping):
        for key, value in data.items():
            if key not in known and value is not None:
                raise _FieldError(path, f"unknown key {describe(key)}")
            _refuse_unknown(value, known.get(key), f"{path}.{key}")
    elif isinstance(data, list) and isinstance(known, list):
        for index, (item, match) in enumerate(zip(data, known, strict=True)):
            _refuse_unknown(item, match, f"{path}[{index}]")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {describe(repeated)} occurs twice")
    return data


def _not_json(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


@functools.cache
def _hints(cls: type[Value]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in _fields(cls)}


def _fields(cls: type[Value]) -> Iterator[Any]:
    return iter(fields(cast("Any", cls)))


def _family(cls: type[Json]) -> type[Json]:
    """The class whose instances sort together: the set of a variant, or the class itself."""
    for base in cls.__mro__:
        if Variant in base.__bases__:
            return base
    return cls


def _sort_key(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    if isinstance(value, Value):
        return (1, value._key())
    if isinstance(value, enum.Enum):
        return (1, list(type(value)).index(value))
    if isinstance(value, tuple):
        return (1, tuple(_sort_key(item) for item in value))
    return (1, value)
