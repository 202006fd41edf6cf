"""`kvcache replay`: serve a request trace against a model's decoder state on this machine."""

from __future__ import annotations

import argparse
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from kvcache.cache import policy_names
from kvcache.cli.console import report_console
from kvcache.cli.model import load_model
from kvcache.errors import InvalidArgumentError, KVCacheError
from kvcache.models import from_config
from kvcache.replay.compare import Job, compare, run_job
from kvcache.replay.demo import DEMO_MODEL
from kvcache.storage import parse_storage
from kvcache.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kvcache.replay import Report
    from kvcache.replay.compare import Outcome

__all__ = ["add_parser", "comparison_table", "run"]

_DEFAULT_MEMORY = 2 << 30
_DEMO_MEMORY = 64 << 20  # small enough that the generated trace does not fit

_DESCRIPTION = """\
Serve a request trace against a model's decoder state and check every byte that a hit restores.
A stand-in computes the state, so that no weights are needed: keys, values and recurrent state are
a fixed function of the tokens so far. Without arguments: a small hybrid model and a generated chat
trace."""


def add_parser(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "replay",
        help="serve a request trace and check every restored byte",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--model", metavar="CONFIG.json", type=Path, help="a Hugging Face config.json"
    )
    parser.add_argument(
        "--trace",
        metavar="TRACE.jsonl",
        type=Path,
        help="JSON lines of timestamp, input_length, output_length, hash_ids (512-token blocks), "
        "or of token_ids and output_length or output_token_ids",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="budget for all state, e.g. 2GiB (default: 2GiB; 64MiB without --model and --trace)",
    )
    parser.add_argument(
        "--format",
        type=_storage,
        default="f16",
        help="how attention state is stored: f16, bf16, f32 or int8 (default: f16)",
    )
    parser.add_argument(
        "--block-tokens",
        metavar="N",
        type=_positive,
        help="positions per block (default: 16, or a multiple of it that holds whole records of "
        "pooled state)",
    )
    parser.add_argument(
        "--requests", metavar="N", type=_positive, help="serve only the first N requests"
    )
    parser.add_argument(
        "--policy",
        metavar="NAME[,NAME...]|all",
        default="lru",
        help="eviction policy (default: lru); several are compared, each in its own process",
    )
    parser.add_argument(
        "--bytes",
        choices=("real", "none"),
        default="real",
        help="none: prompts only, no state is moved or held; for hit rates (default: real)",
    )
    parser.add_argument(
        "--capacity-blocks",
        metavar="N[,N...]",
        type=_positives,
        default=[0],
        help="keep at most N blocks per group of layers; with --bytes none this replaces --memory, "
        "and a comparison shows what a clairvoyant would find",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, not a table")


def run(args: argparse.Namespace) -> int:
    """Replay; 0 when every restored byte was right, 1 when not."""
    policies = _policies(args.policy)
    job = Job(
        model=from_config(DEMO_MODEL) if args.model is None else load_model(args.model),
        trace=args.trace,
        limit=args.requests,
        memory=_memory(args),
        format=args.format,
        block_tokens=args.block_tokens,
        policy=policies[0],
        capacity_blocks=args.capacity_blocks[0],
        real_bytes=args.bytes == "real",
    )
    if len(policies) > 1 or len(args.capacity_blocks) > 1:
        return _compare(args, job, policies)
    with _progress() as (on_start, on_request):
        report = run_job(job, on_start=on_start, on_request=on_request)
    if args.json:
        print(msgspec.json.encode(report.to_dict()).decode())
    else:
        console = report_console()
        figures, timings = report.tables()
        console.print(figures, "", timings)
    return 0 if report.passed else 1


def _storage(text: str) -> str:
    try:
        parse_storage(text)
    except KVCacheError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _compare(args: argparse.Namespace, job: Job, policies: list[str]) -> int:
    outcomes = compare(job, policies, args.capacity_blocks)
    if args.json:
        print(msgspec.json.encode([outcome.to_dict() for outcome in outcomes]).decode())
    else:
        report_console().print(comparison_table(outcomes))
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def comparison_table(outcomes: Iterable[Outcome]) -> Table:
    """Hit rates and gaps closed, one row an outcome."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in (
        "capacity",
        "policy",
        "blocks found",
        "of blocks",
        "of tokens",
        "gap closed",
        "by half",
    ):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for outcome in outcomes:
        gaps = outcome.gap_closed
        tokens = outcome.token_hit_rate
        table.add_row(
            f"{outcome.capacity_blocks:,}" if outcome.capacity_blocks else "memory",
            outcome.policy,
            f"{sum(outcome.hits):,}",
            f"{outcome.block_hit_rate:.4f}",
            "" if tokens is None else f"{tokens:.4f}",
            "" if gaps is None else f"{gaps[0]:.1%}",
            "" if gaps is None else f"{gaps[1]:.1%} {gaps[2]:.1%}",
        )
    return table


def _policies(text: str) -> list[str]:
    """The named policies; an unknown one is refused before anything is read."""
    known = policy_names()
    names = list(known) if text == "all" else text.split(",")
    for name in names:
        if name not in known:
            raise InvalidArgumentError(
                f"--policy: {name!r} is not known; known policies: all, {', '.join(known)}"
            )
    return list(dict.fromkeys(names))


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 0 < value < 1 << 31:
        raise argparse.ArgumentTypeError(f"needs a whole number of 1 to 2^31 - 1, got {text!r}")
    return value


def _positives(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


def _memory(args: argparse.Namespace) -> int:
    if args.memory is not None:
        return parse_bytes(args.memory, name="--memory")
    demo = args.model is None and args.trace is None
    return _DEMO_MEMORY if demo else _DEFAULT_MEMORY


@contextmanager
def _progress() -> Iterator[tuple[Callable[[int], None] | None, Callable[[Report], None] | None]]:
    """A bar on stderr where a person watches; nothing where a program reads."""
    if not sys.stderr.isatty():
        yield None, None
        return
    columns = (
        TextColumn("replay"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("hit rate {task.fields[hit_rate]:.1%}, mismatches {task.fields[mismatches]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("replay", total=None, hit_rate=0.0, mismatches=0)

        def start(total: int) -> None:
            progress.update(task, total=total)

        def show(report: Report) -> None:
            progress.update(
                task,
                completed=report.requests,
                hit_rate=report.token_hit_rate,
                mismatches=report.mismatches,
            )

        yield start, show
