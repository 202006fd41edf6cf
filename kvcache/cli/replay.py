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

import kvcache
from kvcache.cli.console import report_console
from kvcache.cli.model import load_model
from kvcache.errors import KVCacheError
from kvcache.replay import Replay, read_trace
from kvcache.replay.demo import DEMO_MODEL, generate_trace
from kvcache.storage import parse_storage
from kvcache.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvcache.models import Model
    from kvcache.plan import StatePlan
    from kvcache.replay import Report, Request

__all__ = ["add_parser", "run"]

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
    parser.add_argument("--policy", default="lru", help="eviction policy (default: lru)")
    parser.add_argument(
        "--bytes",
        choices=("real", "none"),
        default="real",
        help="none: prompts only, no state is moved or held; for hit rates (default: real)",
    )
    parser.add_argument(
        "--capacity-blocks",
        metavar="N",
        type=_positive,
        default=0,
        help="keep at most N blocks per group of layers; with --bytes none this replaces --memory",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, not a table")


def run(args: argparse.Namespace) -> int:
    """Replay; 0 when every restored byte was right, 1 when not."""
    demo = args.model is None
    model = kvcache.models.from_config(DEMO_MODEL) if demo else load_model(args.model)
    plan = _plan(args, model)
    requests = _load_trace(args.trace, args.requests)
    cache = kvcache.Cache(
        plan,
        policy=args.policy,
        backing=args.bytes == "real",
        capacity_blocks=args.capacity_blocks,
    )
    replay = Replay(
        cache,
        plan,
        real_bytes=args.bytes == "real",
        capacity_blocks=args.capacity_blocks,
    )
    with _progress(len(requests)) as on_request:
        report = replay.run(requests, on_request=on_request)
    report.model, report.format, report.policy = model.model_type, args.format, args.policy
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


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 0 < value < 1 << 31:
        raise argparse.ArgumentTypeError(f"needs a whole number of 1 to 2^31 - 1, got {text!r}")
    return value


def _load_trace(path: Path | None, limit: int | None) -> list[Request]:
    return generate_trace()[:limit] if path is None else read_trace(path, limit=limit)


def _plan(args: argparse.Namespace, model: Model) -> StatePlan:
    demo = args.model is None and args.trace is None
    memory = _DEMO_MEMORY if demo else _DEFAULT_MEMORY
    if args.memory is not None:
        memory = parse_bytes(args.memory, name="--memory")
    return kvcache.StatePlan.for_model(
        model, memory=memory, block_tokens=args.block_tokens, format=args.format
    )


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Report], None] | None]:
    """A bar on stderr where a person watches; nothing where a program reads."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn("replay"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("hit rate {task.fields[hit_rate]:.1%}, mismatches {task.fields[mismatches]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("replay", total=total, hit_rate=0.0, mismatches=0)

        def show(report: Report) -> None:
            progress.update(
                task,
                completed=report.requests,
                hit_rate=report.token_hit_rate,
                mismatches=report.mismatches,
            )

        yield show
