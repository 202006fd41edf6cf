"""How many positions a model was made for, and how many rotary scaling makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.capability import Observed
from kvcache.errors import InvalidArgumentError
from kvcache.models.fields import shown

if TYPE_CHECKING:
    from kvcache.models.fields import Fields

__all__ = ["context_lengths", "stated_context"]

_NAMES = (
    "max_position_embeddings",
    "max_target_positions",
    "n_positions",
    "n_ctx",
    "seq_length",
    "max_seq_len",
    "max_sequence_length",
    "max_seq_length",
    "context_length",
    "model_max_length",
)
_ORIGINAL = "original_max_position_embeddings"


def stated_context(f: Fields) -> int | None:
    """Positions that the configuration states, or None."""
    name = next((name for name in _NAMES if f.has(name)), None)
    return None if name is None else f.optional_count(name)


def context_lengths(f: Fields) -> tuple[Observed, Observed]:
    """The native and the effective context.

    With an original length the stated one already is the extended one; without it a factor of
    the rotary scaling multiplies the stated length.
    """
    stated = stated_context(f)
    if stated is None:
        missing = Observed.unavailable("the configuration states no context length")
        return missing, missing
    exact = Observed.available(stated, "max_position_embeddings")
    try:
        rope = _rope(f)
        original = (rope or f).optional_count(_ORIGINAL) or f.optional_count(_ORIGINAL)
        if original is not None:
            return Observed.available(original, _ORIGINAL), exact
        factor = rope.get("factor") if rope is not None else None
    except InvalidArgumentError as error:
        return exact, Observed.unsupported(str(error))
    if factor is None:
        return exact, exact
    product = stated * factor if isinstance(factor, int | float) else None
    if product is None or not 0 < product < 2**63 or product != int(product):
        reason = f"{stated} positions times a rotary factor of {shown(factor)} is no length"
        return exact, Observed.unsupported(reason)
    return exact, Observed.available(int(product), "rotary scaling factor")


def _rope(f: Fields) -> Fields | None:
    """Settings of the rotary scaling, those of full attention where each kind has its own."""
    rope = f.section("rope_scaling") or f.section("rope_parameters")
    if rope is not None and isinstance(rope.get("full_attention"), dict):
        return rope.section("full_attention")
    return rope
