"""How reports are shown: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["json_text", "printable", "report_console"]

_PIPE_COLUMNS = 120


def printable(text: str) -> str:
    """Text of a file or a server that tells a terminal nothing: what is not printed is escaped."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode()
        for each in text
    )


class _ReportConsole(Console):
    def render_str(self, text: str, *args: Any, **options: Any) -> Text:
        return super().render_str(printable(text), *args, **options)


def report_console() -> Console:
    """A console for reports: as wide as the terminal, or 120 columns into a pipe or a file.

    What it shows comes from files and servers as well, so brackets and colons are themselves.
    """
    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    return _ReportConsole(highlight=False, markup=False, emoji=False, width=width)


def json_text(document: Any) -> str:
    """One line of JSON. Names of files that are no UTF-8 are as Python has them."""
    try:
        return msgspec.json.encode(document).decode()
    except UnicodeEncodeError:
        return json.dumps(document, separators=(",", ":"))
