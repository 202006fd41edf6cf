"""`kvcache replay`: serve a request trace against a model's decoder state on this machine."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcache.cache import policy_names
from kvcache.cli.arguments import directory
from kvcache.cli.console import json_text, report_console
from kvcache.cli.model import load_model
from kvcache.cli.progress import progress_bar
from kvcache.errors import InvalidArgumentError, KVCacheError, KVCacheIOError
from kvcache.models import from_config
from kvcache.replay.compare import compare
from kvcache.replay.comparison import comparison_document, comparison_table, lost_table
from kvcache.replay.demo import DEMO_MODEL
from kvcache.replay.job import Job, check_machine, run_job
from kvcache.replay.plot import check_plot, plot_comparison
from kvcache.storage import parse_storage
from kvcache.tiers.remote import ValkeyTier
from kvcache.units import parse_bytes

if TYPE_CHECKING:
    from kvcache.models import Model
    from kvcache.replay import Report
    from kvcache.replay.job import Outcome

__all__ = ["add_parser", "run"]

_DEFAULT_MEMORY = 2 << 30
_DEMO_MEMORY = 64 << 20  # small enough that the generated trace does not fit
_STDIN = Path("/dev/stdin")

_DESCRIPTION = """\
Serve a request trace against a model's decoder state and check every byte that a hit restores.
A stand-in computes the state, so that no weights are needed: keys, values and recurrent state are
a fixed function of the tokens so far. Without arguments: a small hybrid model and a generated chat
trace. Several policies, models, formats or budgets are compared: each pair in a process of its own,
beside what a clairvoyant and an infinite cache would find."""


def add_parser(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "replay",
        help="serve a request trace and check every restored byte; compare eviction policies",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    _add_inputs(parser)
    _add_choices(parser)
    option = parser.add_argument
    option("--json", action="store_true", help="print one JSON object, not a table")
    option("--out", metavar="FILE", type=Path, help="write the JSON object to FILE as well")
    option(
        "--plot",
        metavar="FILE",
        type=Path,
        help="draw hit rates against memory and what limited them; png, svg or pdf",
    )


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option(
        "--model",
        metavar="CONFIG.json",
        type=_path,
        nargs="+",
        action="extend",
        help="a Hugging Face config.json, or - for standard input; several are compared",
    )
    option(
        "--trace",
        metavar="TRACE.jsonl",
        type=_path,
        help="JSON lines of timestamp, input_length, output_length, hash_ids (512-token blocks), "
        "or of token_ids and output_length or output_token_ids; - for standard input (default: a "
        "generated chat trace)",
    )
    option("--requests", metavar="N", type=_positive, help="serve only the first N requests")
    option(
        "--seed",
        metavar="N",
        type=_natural,
        default=0,
        help="of the generated chat trace (default: 0)",
    )


def _add_choices(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option(
        "--memory",
        metavar="SIZE[,SIZE...]",
        help="budget for all state, e.g. 2GiB (default: 2GiB; 64MiB without --model and --trace)",
    )
    option(
        "--format",
        metavar="F[,F...]",
        type=_storages,
        default=["f16"],
        help="how attention state is stored: f16, bf16, f32 or int8 (default: f16)",
    )
    option(
        "--block-tokens",
        metavar="N",
        type=_positive,
        help="positions per block (default: 16, or a multiple of it that holds whole records of "
        "pooled state)",
    )
    option(
        "--policy",
        metavar="NAME[,NAME...]",
        default="price_list",
        help="eviction policy, or all (default: price_list)",
    )
    option(
        "--capacity-blocks",
        metavar="N[,N...]",
        type=_positives,
        default=[0],
        help="keep at most N blocks per group of layers; with --bytes none this replaces --memory",
    )
    option(
        "--snapshot-interval",
        metavar="N",
        type=_natural,
        default=1024,
        help="tokens between the snapshots of fixed-size state in a prompt, beside those at its "
        "end, at marks and at branches; 0 for none (default: 1024)",
    )
    option(
        "--bytes",
        choices=("real", "none"),
        help="none: no state is moved or held, which is enough for hit rates (default: real; in a "
        "comparison none)",
    )
    option(
        "--disk",
        metavar="DIR",
        type=directory,
        help="keep what is published in a disk tier as well, and go on with what is in it; "
        "DIR is made when it is not there",
    )
    option("--disk-bytes", metavar="SIZE", default="16GiB", help="cap of --disk (default: 16GiB)")
    option(
        "--remote",
        metavar="URL",
        help="share what is published by a Valkey or Redis server, valkey://host:port, or for TLS "
        "valkeys://host:port?ca_file=PATH, and go on with what other replays have left there",
    )
    option(
        "--processes",
        metavar="N",
        type=_positive,
        help="replays at once in a comparison (default: one for each processor, as memory allows)",
    )


def run(args: argparse.Namespace) -> int:
    """Replay; 0 when every restored byte was right, 1 when not."""
    policies = _policies(args.policy)
    memories = _memories(args)
    if [*(args.model or []), args.trace].count(_STDIN) > 1:
        raise InvalidArgumentError("standard input can be read once only")
    if args.out is not None:
        _check_writable(args.out, "--out")
    if args.plot is not None:
        _check_writable(args.plot, "--plot")
        check_plot(args.plot, len(args.model or [None]) * len(args.format))
    models = _models(args.model)
    choices = (policies, models, args.format, memories, args.capacity_blocks)
    several = args.plot is not None or any(len(choice) > 1 for choice in choices)
    job = Job(
        model=models[0][1],
        name=models[0][0],
        trace=args.trace,
        limit=args.requests,
        seed=args.seed,
        memory=memories[0],
        format=args.format[0],
        block_tokens=args.block_tokens,
        policy=policies[0],
        capacity_blocks=args.capacity_blocks[0],
        real_bytes=args.bytes == "real" if args.bytes else not several,
        snapshot_interval=args.snapshot_interval,
        disk=args.disk,
        disk_bytes=parse_bytes(args.disk_bytes, name="--disk-bytes"),
        remote=None if args.remote is None else _remote_tier(args.remote),
    )
    for name in ("disk", "remote"):
        if getattr(args, name) is not None and (several or not job.real_bytes):
            raise InvalidArgumentError(f"--{name} needs one replay with --bytes real")
    if several:
        return _compare(args, job, policies, models, memories)
    check_machine([job])
    with progress_bar("replay") as bar:

        def show(report: Report) -> None:
            rate, wrong = report.token_hit_rate, report.mismatches
            bar.show(report.requests, f"hit rate {rate:.1%}, mismatches {wrong}")

        report = run_job(job, on_start=bar.start, on_request=show)
    text = json_text(report.to_dict())
    _write(args.out, text)
    if args.json:
        print(text)
    else:
        console = report_console()
        figures, timings = report.tables()
        console.print(figures, "", timings)
    return 0 if report.passed else 1


def _compare(
    args: argparse.Namespace,
    job: Job,
    policies: list[str],
    models: list[tuple[str, Model]],
    memories: list[int],
) -> int:
    served: dict[int, int] = {}
    with progress_bar("replay") as bar:

        def show(number: int, requests: int) -> None:
            served[number] = requests
            bar.show(sum(served.values()))

        outcomes = compare(
            job,
            policies,
            args.capacity_blocks,
            models=models,
            formats=args.format,
            memories=memories,
            processes=args.processes,
            on_start=bar.start,
            on_progress=show,
        )
    document = comparison_document(
        outcomes,
        trace="generated" if args.trace is None else str(args.trace),
        real_bytes=job.real_bytes,
    )
    text = json_text(document)
    _write(args.out, text)
    try:
        if args.json:
            print(text)
        else:
            _print_comparison(outcomes, job)
    finally:  # what was found is not lost if drawing fails, nor the picture if the reader leaves
        if args.plot is not None:
            plot_comparison(outcomes, args.plot)
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def _print_comparison(outcomes: list[Outcome], job: Job) -> None:
    console = report_console()
    console.print(comparison_table(outcomes, width=console.width))
    if (lost := lost_table(outcomes, width=console.width)) is not None:
        console.print("\nprompt positions reused, and the others by what they lacked:")
        console.print(lost)
    if any(outcome.rejected for outcome in outcomes):
        most = max(outcome.rejected for outcome in outcomes)
        console.print(
            f"rejected: requests too large for the budget, up to {most:,} of "
            f"{outcomes[0].requests:,}; they count as asked for and missed"
        )
    wrong = [outcome for outcome in outcomes if not outcome.passed]
    if wrong:
        console.print(f"FAILED: restored bytes were wrong in {len(wrong)} replays")
    elif not job.real_bytes:
        console.print("no bytes were moved; --bytes real checks every restored byte as well")


# -- arguments ---------------------------------------------------------------------------------


def _remote_tier(url: str) -> ValkeyTier:
    """As `Job.tier`: every record waits for the queue, and the server for a busy machine."""
    return ValkeyTier(url, wait_seconds=3600.0, deadline_seconds=10.0)


def _path(text: str) -> Path:
    return _STDIN if text == "-" else Path(text)


def _models(paths: list[Path] | None) -> list[tuple[str, Model]]:
    """Each with the name that tables call it by."""
    if paths is None:
        return [("", from_config(DEMO_MODEL))]
    models: dict[str, Model] = {}
    for path in paths:
        own = path.parent if path.name == "config.json" else path
        name = "stdin" if path == _STDIN else _name_of(own)
        taken = sum(known == name or known.startswith(f"{name} (") for known in models)
        models[f"{name} ({taken + 1})" if taken else name] = load_model(path)
    return list(models.items())


def _name_of(path: Path) -> str:
    """The last name, of a link its own."""
    return Path(os.path.abspath(path)).name.removesuffix(".json")  # noqa: PTH100 - follows links


def _storages(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        try:
            parse_storage(name)
        except KVCacheError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return list(dict.fromkeys(names))


def _policies(text: str) -> list[str]:
    """The named policies; an unknown one is refused before anything is read."""
    known = policy_names()
    names: list[str] = []
    for name in text.split(","):
        if name != "all" and name not in known:
            raise InvalidArgumentError(
                f"--policy: {name!r} is not known; known policies: all, {', '.join(known)}"
            )
        names += known if name == "all" else [name]
    return list(dict.fromkeys(names))


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not least <= value < 1 << 31:
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        raise argparse.ArgumentTypeError(
            f"needs a whole number of {least} to 2^31 - 1, got {shown!r}"
        )
    return value


def _positive(text: str) -> int:
    return _whole(text, 1)


def _natural(text: str) -> int:
    return _whole(text, 0)


def _positives(text: str) -> list[int]:
    return list(dict.fromkeys(_positive(part) for part in text.split(",")))


def _memories(args: argparse.Namespace) -> list[int]:
    if args.memory is not None:
        sizes = [parse_bytes(part, name="--memory") for part in args.memory.split(",")]
        return list(dict.fromkeys(sizes))
    demo = args.model is None and args.trace is None
    return [_DEMO_MEMORY if demo else _DEFAULT_MEMORY]


# -- output ------------------------------------------------------------------------------------


def _check_writable(path: Path, option: str) -> None:
    """Refuse what cannot be written before the work is done."""
    problem = ""
    if path.is_dir():
        problem = "is a folder"
    elif not path.parent.is_dir():
        problem = f"{path.parent} is no folder"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = "no permission to write there"
    if problem:
        raise KVCacheIOError(f"{option}: {path}: {problem}")


def _write(path: Path | None, text: str) -> None:
    if path is None:
        return
    try:
        path.write_text(text + "\n")
    except OSError as error:
        raise KVCacheIOError(f"--out: {path}: {error.strerror or error}") from error
