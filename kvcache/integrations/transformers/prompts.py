"""Batches of prompts: their rows without padding, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kvcache.errors import InvalidArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Prompts", "as_prompts"]


@dataclass(frozen=True, slots=True)
class Prompts:
    """Token ids ``[batch, columns]``, and how many columns of padding precede each row."""

    ids: NDArray[Any]
    pads: tuple[int, ...]

    @property
    def columns(self) -> int:
        """Columns of the batch."""
        return int(self.ids.shape[1])

    def tokens(self, row: int, stop: int | None = None) -> NDArray[Any]:
        """The ids of one row up to column ``stop``, without padding."""
        tokens: NDArray[Any] = self.ids[row, self.pads[row] : stop]
        return tokens


def as_prompts(input_ids: Any, attention_mask: Any = None) -> Prompts:
    """Check a batch of prompts.

    Args:
        input_ids: integers ``[batch, columns]``, or of one row without the batch axis.
        attention_mask: of the same shape: 0 for padding, which is on the left, else 1; None for
            none.

    Raises:
        InvalidArgumentError: another shape, no columns, a row of padding alone, padding that is
            not on the left.
    """
    ids = _integers(input_ids, "input_ids")
    if ids.ndim == 1:
        ids = ids[None]
    if ids.ndim != 2 or 0 in ids.shape:
        raise InvalidArgumentError(
            f"input_ids: expected [batch, columns] with at least one token, got {ids.shape}"
        )
    if attention_mask is None:
        return Prompts(ids, (0,) * len(ids))
    mask = _integers(attention_mask, "attention_mask")
    if mask.ndim == 1:
        mask = mask[None]
    if mask.shape != ids.shape:
        raise InvalidArgumentError(
            f"attention_mask: expected the shape of input_ids, {ids.shape}, got {mask.shape}"
        )
    kept = mask != 0
    pads = tuple(int(pad) for pad in ids.shape[1] - kept.sum(axis=1))
    for row, pad in enumerate(pads):
        if pad == ids.shape[1]:
            raise InvalidArgumentError(f"attention_mask[{row}]: a row of padding alone")
        if not kept[row, pad:].all():
            raise InvalidArgumentError(
                f"attention_mask[{row}]: padding must be on the left; tokenize with"
                " padding_side='left'"
            )
    return Prompts(ids, pads)


def _integers(values: Any, name: str) -> NDArray[Any]:
    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else None
    try:
        array = np.asarray(values) if array is None else array
    except ValueError as error:
        raise InvalidArgumentError(f"{name}: expected integers of one shape: {error}") from None
    if array.dtype.kind not in "iub":
        raise InvalidArgumentError(f"{name}: expected integers, got {array.dtype}")
    return array
