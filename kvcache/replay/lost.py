"""What became of the prompt positions that were not reused."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcache.explanation import Explanation

__all__ = ["LostTokens"]


@dataclass(slots=True, kw_only=True)
class LostTokens:
    """Prompt positions that were computed, by what their reuse lacked. Rejected requests apart.

    Attributes:
        new: no earlier request had them.
        attention: an earlier request had them, their tokens and attention rows are not kept.
        window: the rows are kept, those of a sliding window before them are not.
        snapshot: the rows are kept, a snapshot of fixed-size state is not.
        last_token: the last position of a prompt that is known as a whole; its logits are needed.
    """

    new: int = 0
    attention: int = 0
    window: int = 0
    snapshot: int = 0
    last_token: int = 0

    def count(self, length: int, known: int, found: Explanation) -> None:
        """Add one request.

        Args:
            length: positions of its prompt.
            known: those that earlier requests had.
            found: what the cache had for it.
        """
        matched, cached = found.matched_tokens, found.cached_tokens
        known = max(known, matched)
        self.new += length - known
        self.attention += known - matched
        if found.limited_by == "window":
            self.window += matched - cached
        elif found.limited_by == "snapshot":
            self.snapshot += matched - cached
        else:
            self.last_token += matched - cached

    def to_dict(self) -> dict[str, int]:
        """By name."""
        return asdict(self)
