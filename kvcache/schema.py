"""JSON Schema of every public type, made from the annotations that also check the values."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import msgspec

import kvcache
from kvcache.errors import NotFoundError
from kvcache.policy.schedule import LayerSchedule
from kvcache.serde import Json, Variant

__all__ = ["json_schema", "public_types"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TEMPLATE = "#/$defs/{name}"


@functools.cache
def public_types() -> dict[str, type[Json]]:
    """Every public type that has a JSON form of its own, by name; variants belong to their set."""
    found = {}
    for name, module in kvcache._EXPORTS.items():
        value = getattr(importlib.import_module(f"kvcache.{module}"), name)
        if isinstance(value, type) and issubclass(value, Json) and not getattr(value, "TAG", ""):
            found[name] = value
    return dict(sorted(found.items()))


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the public type called ``name``.

    It describes what is written; reading also ignores unknown keys. Rules that span fields are
    not in it.

    Raises:
        NotFoundError: no public type of that name has a JSON form.
    """
    cls = public_types().get(name)
    if cls is None:
        known = ", ".join(public_types())
        raise NotFoundError(f"no schema is called {name!r}; known: {known}")
    definitions: dict[str, Any] = {}
    root = _describe(cls, definitions)
    return {"$schema": _DIALECT, "title": name, **root, "$defs": dict(sorted(definitions.items()))}


def _describe(cls: type[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """A reference to ``cls``, whose definition and all it needs are added to ``definitions``."""
    pending: list[type[Any]] = []

    def reference(custom: type[Any]) -> dict[str, Any]:
        origin = getattr(custom, "__origin__", custom)  # LayerSchedule[...] is one array
        pending.append(origin)
        return {"$ref": _TEMPLATE.format(name=origin.__name__)}

    [root], components = msgspec.json.schema_components(
        [cls], schema_hook=reference, ref_template=_TEMPLATE
    )
    definitions.update(components)
    for custom in pending:
        if custom.__name__ not in definitions:
            definitions[custom.__name__] = {}  # a set that contains itself ends here
            definitions[custom.__name__] = _custom(custom, definitions)
    return dict(root)


def _custom(cls: type[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if issubclass(cls, LayerSchedule):
        items = [_describe(family, definitions) for family in cls.ELEMENTS]
        arrays = [{"type": "array", "minItems": 1, "items": item} for item in items]
        return {"description": _summary(cls), "anyOf": arrays}
    variants = [_variant(cls, variant, definitions) for variant in cls.VARIANTS.values()]
    return {"description": _summary(cls), "oneOf": variants}


def _variant(
    family: type[Variant], variant: type[Variant], definitions: dict[str, Any]
) -> dict[str, Any]:
    tag = variant.TAG
    body = _describe(variant, definitions)
    fields = definitions[variant.__name__]["properties"]
    if variant.NEWTYPE:
        [body] = fields.values()
    if variant.NEWTYPE or not fields:
        definitions.pop(variant.__name__)
    if family.TAG_FIELD is not None:
        tagged = {
            "type": "object",
            "properties": {family.TAG_FIELD: {"const": tag}},
            "required": [family.TAG_FIELD],
        }
        return {"allOf": [tagged, body]} if fields else tagged
    if not fields:
        return {"const": tag}
    return {
        "type": "object",
        "properties": {tag: body},
        "required": [tag],
        "additionalProperties": False,
    }


def _summary(cls: type[Any]) -> str:
    return (cls.__doc__ or "").partition("\n")[0]
