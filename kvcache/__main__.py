"""`python -m kvcache` is the `kvcache` command."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command; Ctrl-C ends it quietly, while its modules are imported as well."""
    try:
        from kvcache.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
