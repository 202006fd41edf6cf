"""Where tables go."""

from __future__ import annotations

import sys

from rich.console import Console

__all__ = ["report_console"]

_PIPE_COLUMNS = 120


def report_console() -> Console:
    """A console for reports: as wide as the terminal, or 120 columns into a pipe or a file."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_COLUMNS)
