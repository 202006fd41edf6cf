"""Typed access to the fields of a model configuration; every error names file and field."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcache.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HEADS", "HIDDEN", "LAYERS", "MAX_DIMENSION", "MAX_LAYERS", "Fields", "Options", "shown"]

MAX_DIMENSION = 2**31 - 1
"""Largest size, count or window that a policy can hold (a signed 32-bit integer)."""

MAX_LAYERS = 65_536
"""Largest layer count that is read: far above any model, low enough not to exhaust memory."""

# What defines a decoder. A configuration file states these at its top level; only nested
# sections, which `transformers` saves as differences from their class, may leave them out.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "layers")
HIDDEN = (
    "hidden_size",
    "n_embd",
    "d_model",
    "hidden_dim",
    "emb_dim",
    "model_dim",
    "embed_dim",
    "dim",
)
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
_ESSENTIAL = frozenset({*LAYERS, *HIDDEN, *HEADS})

_SHOWN = 60
_LARGEST_FACTOR = 1024


@dataclass(frozen=True, slots=True)
class Options:
    """How the model is served, as far as its state depends on it.

    Attributes:
        tp: tensor-parallel ranks.
        encoder_positions: positions of the encoder that cross-attention keeps, if not the most
            that the configuration allows.
        expand_latent: whether latent attention keeps keys and values of every head, as engines
            without kernels for the latent do.
    """

    tp: int = 1
    encoder_positions: int | None = None
    expand_latent: bool = False


class Fields:
    """One JSON object of a configuration, with its path, its class defaults and a list of notes.

    Thread safety: thread-compatible. Lives while one configuration is read.
    """

    __slots__ = (
        "_data",
        "_defaults",
        "_path",
        "channel_parts",
        "nested",
        "notes",
        "options",
        "parent",
        "source",
    )

    def __init__(
        self, data: Mapping[str, Any], source: str, options: Options, path: str = ""
    ) -> None:
        """Wrap ``data``; ``source`` names the file and ``path`` the object inside it."""
        self._data = data
        self._path = path
        self._defaults: Mapping[str, int] = {}
        self.source = source
        self.options = options
        self.nested = bool(path)
        self.parent: Fields | None = None
        self.notes: dict[str, None] = {}  # a set that keeps its order
        self.channel_parts: dict[str, tuple[tuple[int, int], ...]] = {}

    @property
    def tp(self) -> int:
        """Tensor-parallel ranks."""
        return self.options.tp

    # -- errors and notes --------------------------------------------------------------------

    def where(self, name: str) -> str:
        """Path of a field inside the file, such as ``text_config.head_dim``."""
        return f"{self._path}.{name}" if self._path else name

    def error(self, name: str, problem: str) -> InvalidArgumentError:
        """An error about one field, ready to raise."""
        return InvalidArgumentError(f"{self.source}: {self.where(name)}: {problem}")

    def wrong(self, name: str, expected: str) -> InvalidArgumentError:
        """An error about the value that a field has."""
        return self.error(name, f"expected {expected}, got {shown(self.get(name))}")

    def note(self, name: str, text: str) -> None:
        """Record how a field was understood; each note is kept once."""
        self.notes[f"{self.where(name)}: {text}"] = None

    # -- presence ----------------------------------------------------------------------------

    def get(self, name: str) -> Any:
        """The raw value, or None."""
        return self._data.get(name)

    def has(self, *names: str) -> bool:
        """Whether one of the fields is there and not null."""
        return any(self._data.get(name) is not None for name in names)

    def is_null(self, name: str) -> bool:
        """Whether the field is written out as null."""
        return name in self._data and self._data[name] is None

    def _present(self, names: tuple[str, ...]) -> str | None:
        return next((name for name in names if self._data.get(name) is not None), None)

    # -- scalars -----------------------------------------------------------------------------

    def _integer(self, name: str, least: int, most: int, expected: str) -> int:
        value = self._data[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(name, expected)
        if value > most:
            raise self.wrong(name, f"{expected} of at most {most}")
        return value

    def count(self, *names: str, most: int = MAX_DIMENSION) -> int:
        """The first of the named fields that is there, a positive integer.

        A field that is left out takes the default of the model's own configuration class, with a
        note; what defines the model must be written out unless the section is a nested one.

        Raises:
            InvalidArgumentError: the field is absent without a default, null, not a positive
                integer, or above ``most``.
        """
        found = self._present(names)
        if found is not None:
            return self._integer(found, 1, most, "a positive integer")
        null = next((name for name in names if self.is_null(name)), None)
        if null is not None:
            raise self.wrong(null, "a positive integer")
        default = self.class_default(*names)
        if default is not None and default > 0:
            return default
        raise self.error(names[0], "expected a positive integer, but the field is absent")

    def optional_count(self, *names: str) -> int | None:
        """Like `count`, but None when no field is there or the first one found is null."""
        found = self._present(names)
        if found is not None:
            return self._integer(found, 1, MAX_DIMENSION, "a positive integer or null")
        if any(self.is_null(name) for name in names):
            return None
        return self.class_default(*names)

    def number(self, name: str, default: int = 0) -> int:
        """A non-negative integer; absent or null: the default of the class, else ``default``."""
        if self.has(name):
            return self._integer(name, 0, MAX_DIMENSION, "a non-negative integer")
        if self.is_null(name) or self._defaults.get(name, default) == default:
            return default
        return self.class_default(name) or 0

    def scaled(self, name: str, size: int, default: float, *, multiple: int) -> int:
        """``size`` times a positive factor, rounded up to a multiple."""
        factor = self._data.get(name)
        factor = default if factor is None else factor
        if isinstance(factor, bool) or not isinstance(factor, int | float):
            raise self.wrong(name, "a positive number")
        if not 0 < factor <= _LARGEST_FACTOR:
            raise self.wrong(name, f"a positive number of at most {_LARGEST_FACTOR}")
        return int((size * factor + multiple - 1) // multiple) * multiple

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A boolean; ``default`` when absent or null."""
        value = self._data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str) -> str | None:
        """A string, or None when absent or null."""
        value = self._data.get(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def class_default(self, *names: str) -> int | None:
        """What the model's own configuration class fills in for an absent field, with a note."""
        for name in names:
            if name in self._defaults and (self.nested or name not in _ESSENTIAL):
                value = self._defaults[name]
                self.note(name, f"absent, taken as {value}, the default of this model_type")
                return value
        return None

    # -- structures --------------------------------------------------------------------------

    def array(self, name: str) -> list[Any] | None:
        """A JSON array, or None when absent or null."""
        value = self._data.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise self.wrong(name, "an array")
        return list(value)

    def integers(self, name: str, *, least: int = 0) -> list[int] | None:
        """An array of integers of at least ``least``, or None when absent or null."""
        values = self.array(name)
        for i, value in enumerate(values or ()):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise self.error(
                    f"{name}[{i}]", f"expected an integer of at least {least}, got {shown(value)}"
                )
            if value > MAX_DIMENSION:
                raise self.error(
                    f"{name}[{i}]", f"expected at most {MAX_DIMENSION}, got {shown(value)}"
                )
        return values

    def per_layer(self, name: str, layers: int, *, spare: int = 0) -> list[Any] | None:
        """An array with one entry for each layer, and up to ``spare`` more for draft layers."""
        values = self.array(name)
        if values is not None and not layers <= len(values) <= layers + spare:
            raise self.error(name, f"expected {layers} entries, one a layer, got {len(values)}")
        return values

    def section(self, name: str) -> Fields | None:
        """A nested object, or None when absent or null; it shares the notes."""
        value = self._data.get(name)
        if value is None:
            return None
        return self._nested(name, value)

    def entry(self, name: str, index: int) -> Fields:
        """Element ``index`` of an array of objects."""
        values = self.array(name) or []
        return self._nested(f"{name}[{index}]", values[index])

    def objects(self, name: str) -> dict[str, Fields]:
        """An object of objects, such as one a layer; empty when absent or null."""
        outer = self.section(name)
        if outer is None:
            return {}
        return {
            key: outer._nested(key if len(key) < 20 and key.isalnum() else shown(key), value)
            for key, value in outer._data.items()
        }

    # -- copies ------------------------------------------------------------------------------

    def _nested(self, name: str, value: Any) -> Fields:
        if not _is_object(value):
            raise self.error(name, f"expected an object, got {shown(value)}")
        child = Fields(value, self.source, self.options, self.where(name))
        child.parent, child.notes = self, self.notes
        child.channel_parts = self.channel_parts
        return child

    def _copy(self, data: Mapping[str, Any], path: str) -> Fields:
        copy = Fields(data, self.source, self.options, path)
        copy.nested, copy.parent, copy.notes = self.nested, self.parent, self.notes
        copy.channel_parts = self.channel_parts
        copy._defaults = self._defaults
        return copy

    def with_defaults(self, defaults: Mapping[str, int]) -> Fields:
        """The same object with the defaults of its model type."""
        copy = self._copy(self._data, self._path)
        copy._defaults = defaults
        return copy

    def overlaid(self, changes: Fields) -> Fields:
        """This object with some fields replaced, as for one layer that differs from the rest."""
        return self._copy({**self._data, **changes._data}, changes._path)

    def with_value(self, name: str, value: int) -> Fields:
        """This object with one field set to what was worked out for it."""
        return self._copy({**self._data, name: value}, self._path)

    def renamed(self, **names: str) -> Fields:
        """This object with fields that are there under another name too, given as new=old."""
        found = {new: self._data[old] for new, old in names.items() if old in self._data}
        return self._copy({**self._data, **found}, self._path)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def shown(value: Any) -> str:
    """A value as it appears in an error message: JSON, cut short."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = repr(type(value).__name__)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
