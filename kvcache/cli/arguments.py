"""What several commands take."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["directory"]


def directory(text: str) -> Path:
    """A directory; an empty text, as a variable that is not set gives, is not this one."""
    if not text:
        raise argparse.ArgumentTypeError("expected a directory, got ''")
    return Path(text)
