"""`kvcache plan`: what the decoder state of a model takes, and what fits."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvcache.cli.console import json_text, report_console
from kvcache.cli.model import load_model
from kvcache.enums import DType
from kvcache.errors import InvalidArgumentError, KVCacheError
from kvcache.planner import declare_model, format_names, parse_format, plan_model
from kvcache.planner.emit_cpp import emit_cpp
from kvcache.planner.engines import ENGINES, Deployment, engine_report
from kvcache.plot import plot_growth
from kvcache.terms import LIMIT
from kvcache.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from kvcache.models import Model
    from kvcache.planner import Fit, ModelPlan
    from kvcache.planner.engines import EngineReport
    from kvcache.state import StateDecl

__all__ = ["add_parser", "run"]

_MOST = 1 << 40  # positions, sequences, drafts
_DESCRIPTION = """\
Read the config.json of a model and report the state its decoder keeps between tokens: bytes by
group of layers, what fits a memory size, every state kind, and what another engine would
allocate. All numbers are of one tensor-parallel rank."""


def add_parser(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "plan",
        help="what the decoder state of a model takes, and what fits",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    option = parser.add_argument
    option("configs", metavar="CONFIG.json", type=Path, nargs="+", help="a Hugging Face config")
    count = _count(1)
    option("--tokens", metavar="N", type=count, default=4096, help="positions a sequence (4096)")
    option("--batch", metavar="B", type=count, default=1, help="sequences (1)")
    option(
        "--format",
        metavar="F",
        help="how attention state is stored, or K/V for two types: "
        f"{', '.join(format_names())} (default: what the config asks for, else f16)",
    )
    option("--memory", metavar="SIZE", help="what fits in SIZE, such as 24GiB")
    option("--tp", metavar="N", type=_count(1, 1 << 16), default=1, help="ranks (1)")
    option("--drafts", metavar="N", type=_count(0, 1 << 16), default=0, help="draft tokens (0)")
    option(
        "--prefix-snapshots",
        metavar="N",
        type=_count(0),
        default=0,
        help="snapshots of fixed-size state that a prefix cache holds (0)",
    )
    option(
        "--state-dtype",
        choices=("f32", "f16", "bf16"),
        help="element of recurrent state (default: as declared, f32 unless the config says less)",
    )
    option("--as", dest="engine", choices=tuple(ENGINES), help="what this engine would allocate")
    option("--json", action="store_true", help="print JSON, not tables")
    option(
        "--emit",
        choices=("cpp",),
        help="print the layout as a C++ header instead, for one model that the cache can store",
    )
    option("--plot", metavar="FILE", type=Path, help="draw bytes against length; png, svg or pdf")


def run(args: argparse.Namespace) -> int:
    """Report every model; 0 when all could be planned."""
    memory = None if args.memory is None else parse_bytes(args.memory, name="--memory")
    if args.format is not None:
        parse_format(args.format)
    if args.emit is not None:
        print(_emit(args, memory), end="")
        return 0
    reports: list[tuple[ModelPlan, EngineReport | None]] = []
    declared: dict[str, tuple[StateDecl, ...]] = {}
    for path in args.configs:
        model = load_model(path, tp=args.tp)
        try:
            reports.append(_report(args, path, model, memory))
            stored = parse_format(_format(args, model))
            decls = declare_model(
                model,
                stored,
                state_dtype=args.state_dtype or DType.F32,
                drafts=args.drafts > 0,
            )
            declared[_unique(path.stem, declared)] = decls
        except KVCacheError as error:
            raise type(error)(f"{path}: {error}") from error
    if args.plot is not None:
        plot_growth(declared, args.tokens, args.plot)
    if args.json:
        _print_json(reports)
    else:
        console = report_console()
        for plan, engine in reports:
            _print_plan(console, plan)
            if engine is not None:
                _print_engine(console, engine)
    return 0


def _emit(args: argparse.Namespace, memory: int | None) -> str:
    if len(args.configs) > 1 or args.json or args.plot or args.engine:
        raise InvalidArgumentError(
            "--emit: prints one model's header; it goes with one CONFIG.json and without --json, "
            "--plot and --as"
        )
    [path] = args.configs
    model = load_model(path, tp=args.tp)
    stored = parse_format(_format(args, model))
    try:
        return emit_cpp(
            declare_model(
                model, stored, state_dtype=args.state_dtype or DType.F32, drafts=args.drafts > 0
            ),
            name=path.stem,
            model_type=model.model_type,
            format=stored.name,
            tokens=args.tokens,
            sequences=args.batch,
            prefix_snapshots=args.prefix_snapshots,
            memory_bytes=memory,
            costs=model.costs,
        )
    except KVCacheError as error:
        raise type(error)(f"{path}: {error}") from error


def _report(
    args: argparse.Namespace, path: Path, model: Model, memory: int | None
) -> tuple[ModelPlan, EngineReport | None]:
    stored = parse_format(_format(args, model))
    plan = plan_model(
        model,
        name=path.stem,
        tokens=args.tokens,
        batch=args.batch,
        format=stored,
        state_dtype=args.state_dtype or DType.F32,
        memory_bytes=memory,
        drafts=args.drafts,
        prefix_snapshots=args.prefix_snapshots,
    )
    if args.engine is None:
        return plan, None
    deployment = Deployment(
        tokens=args.tokens * (args.batch if args.engine == "llama.cpp" else 1),
        sequences=args.batch,
        format=stored,
        memory_bytes=memory,
        drafts=args.drafts,
        state_dtype=None if args.state_dtype is None else DType(args.state_dtype),
    )
    return plan, engine_report(args.engine, model, deployment)


def _format(args: argparse.Namespace, model: Model) -> str:
    """The format asked for, else what the configuration asks for, else f16."""
    chosen: str = args.format or model.cache_dtype or "f16"
    return chosen


def _unique(name: str, taken: dict[str, Any]) -> str:
    return name if name not in taken else f"{name} ({len(taken) + 1})"


def _count(least: int, most: int = _MOST) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = -1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"needs a whole number of {least} to {most}, got {text!r}"
            )
        return value

    return parse


# -- output ------------------------------------------------------------------------------------


def _print_json(reports: list[tuple[ModelPlan, EngineReport | None]]) -> None:
    found = [
        {**plan.to_dict(), "engine": None if engine is None else engine.to_dict()}
        for plan, engine in reports
    ]
    print(json_text(found[0] if len(found) == 1 else found))


def _print_plan(console: Console, plan: ModelPlan) -> None:
    title = f"{plan.name} ({plan.model_type}), {plan.format}"
    if plan.tp > 1:
        title += f", one of {plan.tp} ranks"
    length = f"B at {plan.tokens:,}"
    table = _table(title, "layers", "window", "positions", "B/token", "fixed B", length)
    for group in plan.groups:
        table.add_row(
            f"{group.name}{' (draft)' if group.draft else ''}",
            f"{group.layers:,}",
            f"{group.window:,}" if group.window else "-",
            f"{group.positions:,}" if group.positions else "-",
            _number(group.token_bytes),
            f"{group.fixed_bytes:,}",
            f"{group.sequence_bytes:,}",
        )
    table.add_section()
    layers = sum(group.layers for group in plan.groups)
    table.add_row(
        "one sequence",
        f"{layers:,}",
        "",
        "",
        _number(plan.token_bytes),
        f"{plan.fixed_bytes:,}",
        f"{plan.sequence_bytes:,}",
    )
    if plan.batch > 1:
        total = f"{plan.total_bytes:,}"
        table.add_row(f"{plan.batch:,} sequences", "", "", "", "", "", total)
    console.print(table)
    line = plan.growth
    since = f" from {line.from_tokens:,} positions on" if line.from_tokens else ""
    console.print(f"total: {_size(plan.total_bytes)}")
    console.print(
        f"growth: {line.fixed_bytes:,} B + {_number(line.token_bytes)} B a position{since}"
    )
    if plan.fit is not None:
        console.print(_fit_line(plan.fit, plan.tokens))
    console.print(_terms(plan))
    for note in plan.notes:
        console.print(f"note: {note}")


def _fit_line(fit: Fit, length: int) -> str:
    tokens = "no" if fit.tokens is None else _bounded(fit.tokens)
    sequences = "no" if fit.sequences is None else _bounded(fit.sequences)
    return (
        f"{format_bytes(fit.memory_bytes)} hold {tokens} positions of one sequence, or "
        f"{sequences} sequences of {length:,}"
    )


def _bounded(count: int) -> str:
    return "any number of" if count >= LIMIT else f"{count:,}"


def _terms(plan: ModelPlan) -> Table:
    table = _table("by state kind", "for", "units", "bytes")
    for term in plan.terms:
        if term.bytes:
            where = f"{term.holding}, host" if term.host else term.holding
            table.add_row(str(term.kind), where, f"{term.units:,}", _size(term.bytes))
    table.add_section()
    table.add_row("total", "", "", _size(plan.terms_bytes))
    return table


def _print_engine(console: Console, report: EngineReport) -> None:
    table = _table(f"as {report.engine}", "layers", "units", "bytes")
    for part in report.allocations:
        units = f"{part.units:,} {part.unit}"
        table.add_row(part.name, f"{part.layers:,}", units, _size(part.bytes))
    table.add_section()
    table.add_row("total", "", "", _size(report.bytes))
    console.print(table)
    if report.capacity_tokens is not None:
        console.print(f"capacity it would report: {report.capacity_tokens:,} tokens")
    if report.concurrency is not None:
        console.print(f"longest sequences at once: {report.concurrency:.2f}")
    for note in report.notes:
        console.print(f"note: {note}")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="left" if column == "for" else "right", no_wrap=True)
    return table


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:,.2f}"


def _size(count: int) -> str:
    return f"{count:,}" if count < 1024 else f"{count:,} ({format_bytes(count)})"
