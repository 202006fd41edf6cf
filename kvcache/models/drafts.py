"""Layers of draft heads (multi-token prediction), which keep state only while drafting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.models.fields import MAX_LAYERS

if TYPE_CHECKING:
    from kvcache.models.fields import Fields

__all__ = ["draft_count"]


def draft_count(f: Fields) -> int:
    """Layers of the draft heads that the configuration describes."""
    if f.flag("use_mtp", default=True) is False:
        return 0
    for name in ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers"):
        if f.has(name):
            count = f.number(name)
            break
    else:
        name = "num_mtp_modules"
        count = f.number(name) * f.number("mtp_transformer_layers", 1)
    if count > MAX_LAYERS:
        raise f.error(name, f"expected at most {MAX_LAYERS} draft layers, got {count}")
    return count
