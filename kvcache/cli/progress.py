"""A bar on stderr where a person watches; nothing where a program reads."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import TaskID

__all__ = ["Bar", "progress_bar"]


class Bar:
    """How far a command is."""

    def __init__(self, progress: Progress | None = None, task: TaskID | None = None) -> None:
        self._progress = progress
        self._task = task

    def start(self, total: int) -> None:
        """Say how many steps there are."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=total)

    def show(self, done: int, text: str = "") -> None:
        """Say how many are done, and what to show beside it."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, text=text)


@contextmanager
def progress_bar(name: str) -> Iterator[Bar]:
    """A bar for the body of a `with` statement; it is gone afterwards."""
    if not sys.stderr.isatty():
        yield Bar()
        return
    columns = (
        TextColumn(name),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress, progress.add_task(name, total=None, text=""))
