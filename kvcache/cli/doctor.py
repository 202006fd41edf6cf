"""`kvcache doctor`: whether servers are set up for a remote tier, and what to change."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from kvcache.cli.console import json_text, report_console
from kvcache.tiers.doctor import Finding, Verdict, check_server
from kvcache.tiers.remote import ValkeyTier

if TYPE_CHECKING:
    import argparse

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "doctor",
        help="look at a remote tier's servers and say what to change",
        description="Look at the settings of Valkey or Redis servers, measure them, and say what "
        "to change for a remote tier. Exit code 1: something does not work, or will not for long.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    option = parser.add_argument
    option(
        "--remote",
        metavar="URL",
        required=True,
        help="valkey://user:password@host:port, unix:///path, valkey+cluster://host,host or "
        "valkey+sentinel://host,host/service; for TLS valkeys in place of valkey, and "
        "?ca_file=PATH&certificate=PATH&key=PATH",
    )
    option("--key-prefix", metavar="TEXT", default="kvcache:", help="of keys (default: kvcache:)")
    option("--json", action="store_true", help="print one JSON object, not a table")


def run(args: argparse.Namespace) -> int:
    """Look and say; 0 when nothing is wrong, 1 when something is."""
    findings = check_server(ValkeyTier(args.remote, key_prefix=args.key_prefix))
    healthy = all(each.verdict != Verdict.PROBLEM for each in findings)
    if args.json:
        document = {"healthy": healthy, "findings": [asdict(each) for each in findings]}
        print(json_text(document))
    else:
        report_console().print(_table(findings))
    return 0 if healthy else 1


def _table(findings: list[Finding]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for style in ("", "", "bold", "dim"):
        table.add_column(style=style)
    for each in findings:
        verdict = "" if each.verdict == Verdict.OK else each.verdict.upper()
        table.add_row(each.name, each.value, verdict, each.advice)
    return table
