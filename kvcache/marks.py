"""Where a sequence should keep state that later ones can resume."""

from __future__ import annotations

from typing import Literal

from kvcache import _core
from kvcache._arguments import as_count
from kvcache.errors import InvalidArgumentError

__all__ = ["MarkKind", "Marks"]

MarkKind = Literal["system", "tools", "turn", "other"]
_MARKS: dict[str, _core.MarkKind] = {
    "system": _core.MarkKind.SYSTEM,
    "tools": _core.MarkKind.TOOLS,
    "turn": _core.MarkKind.TURN,
    "other": _core.MarkKind.OTHER,
}


class Marks:
    """The part of a `Sequence` that says where prefill should stop."""

    __slots__ = ("_core",)

    _core: _core.Sequence

    def mark(self, position: int, kind: MarkKind = "turn") -> None:
        """Say what ends at ``position``, before or during prefill.

        Later prompts agree up to such a point and differ after it, so state kept there serves the
        first repeat; without a mark only the second visitor of a branch learns where it is.

        Args:
            position: tokens before the point; one that has run already is no error.
            kind: ``"system"``, ``"tools"`` or ``"turn"``, by falling worth, or ``"other"``.

        Raises:
            InvalidArgumentError: beyond the known tokens, an unknown kind, or closed.
        """
        if not isinstance(kind, str) or kind not in _MARKS:
            names = ", ".join(map(repr, _MARKS))
            raise InvalidArgumentError(f"kind: expected {names}, got {kind!r}")
        self._core.mark(as_count(position, "position"), _MARKS[kind])

    def prefill_stops(self) -> list[int]:
        """Positions after ``length``, ascending, at which a prefill chunk should end.

        Take a `snapshot` at each: what was marked, where this prompt leaves what others stored,
        before its last token (which must run again), and for models with fixed-size state each
        ``snapshot_interval`` tokens, within ``snapshots_per_path``. The end of the prompt is not
        among them.
        """
        return self._core.prefill_stops()
