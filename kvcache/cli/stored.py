"""`kvcache inspect`, `verify` and `gc`: disk tiers and prompt caches, without the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from kvcache.cli.arguments import directory
from kvcache.cli.console import json_text, report_console
from kvcache.errors import InvalidArgumentError, NotFoundError
from kvcache.stored import check_stored, collect_stored, kind_of
from kvcache.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    import argparse

    from kvcache.stored import StoredReport

__all__ = ["add_parser"]


def add_parser(subparsers: Any) -> None:
    """Declare the three commands."""
    inspect = _parser(subparsers, "inspect", "say what is in a disk tier or prompt cache")
    inspect.set_defaults(run=_inspect)
    verify = _parser(subparsers, "verify", "read and check every byte of it")
    verify.set_defaults(run=_verify)
    gc = _parser(subparsers, "gc", "remove what nobody needs: damaged, left over, beyond a cap")
    gc.add_argument("--max-bytes", metavar="SIZE", help="of a disk tier: the oldest segments go")
    gc.set_defaults(run=_gc)


def _parser(subparsers: Any, name: str, what: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name, help=what, description=f"{what.capitalize()}.", allow_abbrev=False
    )
    parser.add_argument("path", metavar="PATH", type=directory, help="its directory")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _inspect(args: argparse.Namespace) -> int:
    _show(check_stored(args.path, deep=False), as_json=args.json)
    return 0


def _verify(args: argparse.Namespace) -> int:
    report = check_stored(args.path, deep=True)
    _show(report, as_json=args.json)
    return 1 if report.problems else 0


def _gc(args: argparse.Namespace) -> int:
    cap = None if args.max_bytes is None else parse_bytes(args.max_bytes, name="--max-bytes")
    kind = kind_of(args.path)
    if kind is None:
        raise NotFoundError(f"{args.path}: no disk tier and no prompt cache")
    if cap is not None and kind != "disk tier":
        raise InvalidArgumentError(f"--max-bytes: {args.path} is a {kind}, which is kept whole")
    done = collect_stored(args.path, cap)
    if args.json:
        print(json_text(done.to_dict()))
    else:
        print(
            f"removed {done.removed_files} entries of {format_bytes(done.removed_bytes)}, "
            f"kept {format_bytes(done.kept_bytes)}"
        )
    return 0


def _show(report: StoredReport, *, as_json: bool) -> None:
    if as_json:
        print(json_text(report.to_dict()))
        return
    console = report_console()
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column()
    facts.add_column()
    for name, value in report.facts().items():
        facts.add_row(name, value)
    console.print(facts)
    if report.files:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for index, column in enumerate(report.columns):
            table.add_column(column, justify="right" if index else "left")
        for row in report.files:
            table.add_row(*row)
        console.print("", table)
    for problem in report.problems:
        console.print(f"DAMAGED: {problem}")
