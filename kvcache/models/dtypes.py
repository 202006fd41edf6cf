"""The element types that a configuration states for weights and for the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.models.fields import shown

if TYPE_CHECKING:
    from kvcache.models.fields import Fields

__all__ = ["cache_dtype", "model_dtype"]

_CACHE_NAMES = {
    "fp8": "float8_e4m3",
    "fp8_e4m3": "float8_e4m3",
    "fp8_e5m2": "float8_e5m2",
    "int8": "int8",
    "nvfp4": "nvfp4",
}


def model_dtype(*sections: Fields) -> str | None:
    """The floating type of the model: the first of the sections, inner before outer, to say it."""
    for section in sections:
        for name in ("torch_dtype", "dtype"):
            stated = section.text(name)
            if stated and stated != "auto":
                return stated.removeprefix("torch.")
    return None


def cache_dtype(*sections: Fields) -> str | None:
    """The type that quantization settings ask keys and values to be kept in, or None."""
    for section in sections:
        settings = section.section("quantization_config")
        if settings is None:
            continue
        found = _from_algorithm(settings) or _from_scheme(settings)
        if found is not None:
            return found
    return None


def _from_algorithm(settings: Fields) -> str | None:
    nested = settings.section("quantization") or settings
    return _named(nested, "kv_cache_quant_algo")


def _named(settings: Fields, name: str) -> str | None:
    stated = settings.text(name)
    if stated is None:
        return None
    known = _CACHE_NAMES.get(stated.lower())
    if known is None:
        settings.note(name, f"unknown value {shown(stated)}, not used")
        return None
    settings.note(name, f"keys and values are meant to be kept as {known}")
    return known


def _from_scheme(settings: Fields) -> str | None:
    if isinstance(settings.get("kv_cache_scheme"), str):
        return _named(settings, "kv_cache_scheme")
    scheme = settings.section("kv_cache_scheme")
    if scheme is None:
        return None
    bits, kind = scheme.number("num_bits"), scheme.text("type")
    known = {(8, "float"): "float8_e4m3", (8, "int"): "int8", (4, "float"): "nvfp4"}.get(
        (bits, kind or "")
    )
    if known is None:
        settings.note(
            "kv_cache_scheme", f"{bits} bits of type {shown(kind)} are not known, not used"
        )
        return None
    settings.note("kv_cache_scheme", f"keys and values are meant to be kept as {known}")
    return known
