"""Hit rates against the budget, and what limited them; needs the extra ``plot``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcache.errors import KVCacheIOError, UnsupportedError
from kvcache.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvcache.replay.job import Outcome

__all__ = ["check_plot", "plot_comparison", "position_shares"]

_SUFFIXES = (".png", ".svg", ".pdf")
_MOST_ROWS = 100  # a picture of more has too many pixels
_MOST_INCHES = 500.0
_BOUNDS = {"clairvoyant": "--", "infinite": ":"}
_PARTS = {
    "reused": "tab:blue",
    "no snapshot": "tab:orange",
    "no window": "tab:purple",
    "no attention": "tab:green",
    "new": "lightgrey",
    "rejected": "tab:red",
}


def check_plot(path: Path, settings: int = 1) -> None:
    """Refuse what could not be drawn.

    Args:
        path: where to write.
        settings: pairs of a model and a format, which have a row each.

    Raises:
        UnsupportedError: matplotlib is not installed, the suffix is not one of png, svg and pdf,
            or there are more than 100 rows.
    """
    _figure(1, 1)
    if path.suffix.lower() not in _SUFFIXES:
        raise UnsupportedError(
            f"--plot: {path}: expected a name that ends in {', '.join(_SUFFIXES)}"
        )
    if settings > _MOST_ROWS:
        raise UnsupportedError(
            f"--plot: {settings} pairs of a model and a format are more than one picture holds, "
            f"{_MOST_ROWS}; name fewer, or leave it out"
        )


def plot_comparison(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw one row of two panels for each model and format.

    On the left the share of prompt positions reused against the budget, one line a policy, with
    the bounds; on the right what became of all prompt positions.

    Args:
        outcomes: of `kvcache.replay.compare.compare`.
        path: where to write; the suffix says the format.

    Raises:
        UnsupportedError: as `check_plot` says, or matplotlib cannot draw it.
        KVCacheIOError: the file cannot be written.
    """
    settings = list(dict.fromkeys((each.model, each.format) for each in outcomes))
    check_plot(path, len(settings))
    try:
        _draw(outcomes, settings).savefig(path)
    except OSError as error:
        raise KVCacheIOError(f"--plot: {path}: {error.strerror or error}") from error
    except Exception as error:  # of the library, its fonts or its settings
        raise UnsupportedError(f"--plot: {path}: {type(error).__name__}: {error}") from error


def position_shares(outcome: Outcome) -> dict[str, float]:
    """Shares of all prompt positions by what became of them; they sum to 1.

    The last position of a prompt that is known as a whole counts as new: it always runs.
    """
    lost, total = outcome.lost, max(1, outcome.prompt_tokens)
    if lost is None:
        return {}
    counts = (
        outcome.reused_tokens,
        lost.snapshot,
        lost.window,
        lost.attention,
        lost.new + lost.last_token,
        outcome.rejected_tokens,
    )
    return {name: count / total for name, count in zip(_PARTS, counts, strict=True)}


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise UnsupportedError("--plot needs matplotlib: pip install 'kvcache[plot]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def _draw(outcomes: Sequence[Outcome], settings: Sequence[tuple[str, str]]) -> Any:
    bars = max(_count(outcomes, setting) for setting in settings)
    width = min(max(6.0, 0.3 * bars), _MOST_INCHES)
    figure = _figure(6 + width, 4.5 * len(settings))
    rows = figure.subplots(len(settings), 2, squeeze=False, width_ratios=[6, width])
    for (rates, parts), setting in zip(rows, settings, strict=True):
        mine = [each for each in outcomes if (each.model, each.format) == setting]
        rates.set_title(", ".join(setting), parse_math=False)  # a name may have any letter
        _draw_rates(rates, mine)
        _draw_parts(parts, [each for each in mine if each.lost is not None])
    return figure


def _count(outcomes: Sequence[Outcome], setting: tuple[str, str]) -> int:
    return sum((each.model, each.format) == setting for each in outcomes)


def _budget(outcome: Outcome) -> int:
    return outcome.capacity_blocks or outcome.memory


def _budget_text(outcome: Outcome) -> str:
    if outcome.capacity_blocks:
        return f"{outcome.capacity_blocks:,}"
    return format_bytes(outcome.memory)


def _draw_rates(panel: Any, outcomes: Sequence[Outcome]) -> None:
    ticks = {_budget(each): _budget_text(each) for each in outcomes}
    for policy in dict.fromkeys(each.policy for each in outcomes):
        points = sorted((_budget(e), e.token_hit_rate) for e in outcomes if e.policy == policy)
        style = _BOUNDS.get(policy)
        panel.plot(
            *zip(*points, strict=True),
            label=policy,
            marker="." if style is None or len(points) == 1 else None,
            linestyle=style or "-",
            color="black" if style else None,
        )
    panel.set_xscale("log")
    panel.set_xticks(list(ticks), labels=list(ticks.values()), rotation=45, minor=False)
    panel.minorticks_off()
    panel.set_ylim(bottom=0)
    panel.set_xlabel("blocks" if outcomes[0].capacity_blocks else "memory")
    panel.set_ylabel("share of prompt positions reused")
    panel.grid(alpha=0.3)
    panel.legend(fontsize="small")


def _draw_parts(panel: Any, outcomes: Sequence[Outcome]) -> None:
    shares = [position_shares(each) for each in outcomes]
    places = range(len(outcomes))
    base = [0.0] * len(outcomes)
    for name, color in _PARTS.items():
        heights = [each[name] for each in shares]
        if any(heights):
            panel.bar(places, heights, bottom=base, label=name, color=color)
        base = [low + height for low, height in zip(base, heights, strict=True)]
    names = [f"{each.policy} {_budget_text(each)}" for each in outcomes]
    panel.set_xticks(list(places), labels=names, rotation=90, fontsize="small")
    panel.set_ylabel("prompt positions by what became of them")
    panel.set_ylim(0, 1)
    panel.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(_PARTS))
