"""What a comparison found: tables for people, one document for programs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvcache.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcache.replay.job import Outcome

__all__ = ["comparison_document", "comparison_table", "lost_table"]

_SCHEMA = 1
_NAME_COLUMNS = 20
_UNLIMITED = 10_000  # columns

_Cells = dict[str, "Callable[[Outcome], str]"]


def comparison_document(
    outcomes: Sequence[Outcome], *, trace: str, real_bytes: bool
) -> dict[str, Any]:
    """One object for programs; keys are added, never renamed, while ``schema`` stays the same.

    Args:
        outcomes: of `kvcache.replay.compare.compare`.
        trace: name of the trace.
        real_bytes: whether state was moved and checked.
    """
    return {
        "schema": _SCHEMA,
        "trace": trace,
        "bytes": "real" if real_bytes else "none",
        "requests": outcomes[0].requests,
        "prompt_tokens": outcomes[0].prompt_tokens,
        "runs": [outcome.to_dict() for outcome in outcomes],
    }


def comparison_table(outcomes: Sequence[Outcome], *, width: int = 120) -> Table:
    """Hit rates and gaps closed, one row an outcome; what says least goes where it is narrow."""
    by_blocks = not any(each.memory for each in outcomes)  # as gaps are
    rates: _Cells = {
        "of tokens": lambda each: f"{each.token_hit_rate:.4f}",
        "of blocks": lambda each: f"{each.block_hit_rate:.4f}",
    }
    first, second = ("of blocks", "of tokens") if by_blocks else ("of tokens", "of blocks")
    cells: _Cells = {**_labels(outcomes), first: rates[first]}
    cells["gap closed"] = lambda each: _share((each.gap_closed or (None,))[0])
    if any(each.rejected for each in outcomes):
        cells["rejected"] = lambda each: f"{each.rejected:,}" if each.rejected else ""
    if any(each.flop_hit_rate is not None for each in outcomes):
        cells["of FLOPs"] = lambda each: (
            "" if each.flop_hit_rate is None else f"{each.flop_hit_rate:.4f}"
        )
    cells[second] = rates[second]
    if by_blocks:
        cells["blocks found"] = lambda each: f"{sum(each.hits):,}"
    if any(gap is not None for each in outcomes for gap in each.gap_closed or ()):
        cells["by half"] = lambda each: " ".join(map(_share, (each.gap_closed or ())[1:]))
    return _fitted(outcomes, cells, width)


def lost_table(outcomes: Sequence[Outcome], *, width: int = 120) -> Table | None:
    """Shares of the prompt positions, those reused and the others by what they lacked.

    None where no snapshot and no window was missing: the hit rates say the rest then.
    """
    served = [each for each in outcomes if each.lost is not None]
    if not any(each.lost and (each.lost.window or each.lost.snapshot) for each in served):
        return None
    cells: _Cells = {**_labels(served), "reused": lambda each: f"{each.token_hit_rate:.1%}"}
    for name in ("snapshot", "window", "attention", "new"):
        if any(getattr(each.lost, name) for each in served):
            cells[name] = partial(_lost_share, name)
    if any(each.rejected for each in served):
        cells["rejected"] = lambda each: f"{each.rejected_tokens / max(1, each.prompt_tokens):.1%}"
    return _fitted(served, cells, width)


def _fitted(outcomes: Sequence[Outcome], cells: _Cells, width: int) -> Table:
    """A table of as many of the columns, from the first, as there is room for."""
    cells = dict(cells)
    while _columns(table := _table(outcomes, cells)) > width and len(cells) > 3:
        cells.popitem()
    return table


def _labels(outcomes: Sequence[Outcome]) -> _Cells:
    """Columns that tell the rows apart."""
    cells: _Cells = {}
    if len({each.model for each in outcomes}) > 1:
        cells["model"] = lambda each: each.model
    if len({each.format for each in outcomes}) > 1:
        cells["format"] = lambda each: each.format
    if any(each.memory for each in outcomes):
        cells["memory"] = lambda each: format_bytes(each.memory)
    if any(each.capacity_blocks for each in outcomes):
        cells["capacity"] = lambda each: f"{each.capacity_blocks:,}"
    cells["policy"] = lambda each: each.policy
    return cells


def _table(outcomes: Sequence[Outcome], cells: _Cells) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in cells:
        left = name in ("model", "format", "policy")
        table.add_column(
            name,
            justify="left" if left else "right",
            no_wrap=True,
            max_width=_NAME_COLUMNS if name == "model" else None,
        )
    for outcome in outcomes:
        table.add_row(*(Text(cell(outcome)) for cell in cells.values()))  # brackets are no markup
    return table


def _columns(table: Table) -> int:
    return Console(width=_UNLIMITED).measure(table).maximum


def _lost_share(name: str, outcome: Outcome) -> str:
    return f"{getattr(outcome.lost, name) / max(1, outcome.prompt_tokens):.1%}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{round(value, 3) + 0.0:.1%}"  # no minus zero
