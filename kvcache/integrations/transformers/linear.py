"""The cache of models without attention, which do not count positions themselves."""

from __future__ import annotations

from typing import Any

import transformers

__all__ = ["LinearCache"]


class LinearCache(transformers.DynamicCache):  # type: ignore[misc]
    """Tells `generate` how many tokens the model has seen, so that only the others run.

    A plain cache of recurrent layers alone is taken for an empty one and given the whole prompt.

    Attributes:
        seen: positions that its state stands for, as it is handed to `generate`.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.seen = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Positions seen before `generate`."""
        return self.seen

    @property
    def is_linear(self) -> list[bool]:
        """No: layers that say so are given the whole prompt."""
        return [False] * len(self.layers)

    @property
    def is_compileable(self) -> bool:
        """No: masks of attention are made for those that are."""
        return False
