"""Which function reads which ``model_type``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING

from kvcache.models.fields import Fields

if TYPE_CHECKING:
    from kvcache.policy import AttentionPolicy, LayerCachePolicy

__all__ = [
    "Decoder",
    "Family",
    "find",
    "known_types",
    "reads_whole",
    "refuse",
    "register",
    "suggestions",
    "why_refused",
]

Family = Callable[[Fields], "Decoder"]
"""Reads the fields of a decoder, for one of ``fields.tp`` tensor-parallel ranks."""

_LONGEST_NAME = 64  # more is no name, and comparing it takes long
_FAMILIES: dict[str, Family] = {}
_WHOLE: set[str] = set()
_REFUSED: dict[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """What a family function makes of a configuration, for one tensor-parallel rank.

    Attributes:
        layers: one policy a layer, in order.
        hidden_size: width of the hidden state.
        drafts: the layers of draft heads (multi-token prediction), used only when drafting.
        shared: attention of the layers that read the cache of an earlier layer, by index.
        masked_windows: whether windows are a matter of the mask in this family, which summarises
            it as shared full caches even when no layer is shared.
        encoded: whether every layer attends to the output of an encoder as well.
        media_positions: whether images and audio take positions of the decoder.
        granularity: positions by which engines grow a cache of this family.
        draft_offset: how far the prefix of draft layers is from that of the model, 0 or less.
        channel_gates: whether recurrent matrices have a gate for each key channel.
        upper_bound: whether bytes counted from the policies can exceed what is kept.
    """

    layers: list[LayerCachePolicy]
    hidden_size: int
    drafts: list[LayerCachePolicy] = field(default_factory=list)
    shared: Mapping[int, AttentionPolicy] = field(default_factory=dict)
    masked_windows: bool = False
    encoded: bool = False
    media_positions: bool = True
    granularity: int = 1
    draft_offset: int = 0
    channel_gates: bool = False
    upper_bound: bool = False


def register(*model_types: str, whole: bool = False) -> Callable[[Family], Family]:
    """Register a function ``(fields) -> Decoder`` for one or more values of model_type.

    With ``whole`` the function gets the outermost object of a nested configuration, because it
    needs more of it than the section of the decoder.
    """

    def add(family: Family) -> Family:
        for model_type in model_types:
            if model_type in _FAMILIES:
                raise ValueError(f"model_type {model_type!r} is registered twice")
            _FAMILIES[model_type] = family
            if whole:
                _WHOLE.add(model_type)
        return family

    return add


def find(model_type: str) -> Family | None:
    """The function of a model type, or None."""
    return _FAMILIES.get(model_type)


def reads_whole(model_type: str) -> bool:
    """Whether the function of a model type takes the outermost object."""
    return model_type in _WHOLE


def refuse(reason: str, *model_types: str) -> None:
    """Say why model types cannot be read, in place of their being unknown."""
    for model_type in model_types:
        _REFUSED[model_type] = reason


def why_refused(model_type: str) -> str | None:
    """Why a model type is refused, or None."""
    return _REFUSED.get(model_type)


def known_types() -> tuple[str, ...]:
    """Every registered model type, sorted."""
    return tuple(sorted(_FAMILIES))


def suggestions(model_type: str) -> list[str]:
    """Registered model types with a similar name."""
    return get_close_matches(model_type[:_LONGEST_NAME], _FAMILIES, n=3)
