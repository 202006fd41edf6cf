"""Runs a function in a child made by fork() and says how it ended."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable

__all__ = ["fork", "in_child"]

_SECONDS = 60  # a child that takes longer hangs, and is ended by SIGALRM


def fork() -> int:
    """`os.fork`, without the warning of newer Pythons about other threads: they are the point."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def in_child(function: Callable[[], object]) -> str:
    """What `function` raised in a child, as text; "" when it returned, "signal N" when killed."""
    reader, writer = os.pipe()
    child = fork()
    if child == 0:
        signal.alarm(_SECONDS)
        text = ""
        try:
            function()
        except BaseException:  # the child must end here, whatever happened
            text = traceback.format_exc()
        os.write(writer, text.encode()[:60_000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else text
