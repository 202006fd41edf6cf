"""The `kvcache` command: one module per subcommand."""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from kvcache import _core
from kvcache.cli import doctor, plan, replay, schema, stored
from kvcache.cli.console import printable
from kvcache.errors import KVCacheError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_COMMANDS = (plan, replay, schema, stored, doctor)


class _Parser(argparse.ArgumentParser):
    """Answers a wrong command line with one line, like every other wrong input."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kvcache",
        description="All persistent decoder state of an LLM, on the host.",
        epilog="Exit codes: 0 done, 1 a check failed, 2 wrong input.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kvcache {_core.__version__}")
    subparsers: Any = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in _COMMANDS:
        command.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` is the process's arguments by default."""
    _open_standard_streams()
    parser = _parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except KVCacheError as error:
        message = printable(" ".join(str(error).split("\n")))
        print(f"kvcache {args.command}: error: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output left; nothing is wrong
        _discard_output()
        return 141
    except OSError as error:  # of files a command says so itself; this is the output
        print(f"kvcache {args.command}: error: cannot write: {error}", file=sys.stderr)
        _discard_output()
        return 2
    return code


def _open_standard_streams() -> None:
    """Streams the caller closed, which Python has as None, lead nowhere; others take any name."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - ours to the end
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """What is still buffered must not fail once more when the interpreter exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
