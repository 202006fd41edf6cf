"""Decoder state against context length as stacked areas; needs the extra ``plot``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcache.errors import KVCacheIOError, UnsupportedError
from kvcache.terms import retained_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kvcache.state import StateDecl

__all__ = ["components_by_length", "plot_growth"]

_POINTS = 65


def components_by_length(
    decls: Sequence[StateDecl], lengths: Sequence[int]
) -> dict[str, list[int]]:
    """Bytes of one sequence by component, one number for each length; fixed state first.

    Args:
        decls: what the model keeps.
        lengths: positions of the sequence.
    """
    parts: dict[str, list[StateDecl]] = {}
    for decl in decls:
        parts.setdefault(decl.component, []).append(decl)
    ordered = sorted(parts.items(), key=lambda item: (item[1][0].kind, item[0]))
    return {
        name: [retained_bytes(members, length) for length in lengths] for name, members in ordered
    }


def plot_growth(models: Mapping[str, Sequence[StateDecl]], tokens: int, path: Path) -> None:
    """Draw bytes of one sequence against its length, one panel a model.

    Args:
        models: declarations by name.
        tokens: longest length.
        path: where to write; the suffix says the format.

    Raises:
        UnsupportedError: matplotlib is not installed, or cannot write this format.
        KVCacheIOError: the file cannot be written.
    """
    figure, panels = _figure(len(models))
    lengths = sorted({tokens * i // (_POINTS - 1) for i in range(_POINTS)})
    for panel, (name, decls) in zip(panels, models.items(), strict=True):
        sizes = components_by_length(decls, lengths)
        rows = [[size / 2**20 for size in row] for row in sizes.values()]
        panel.stackplot(lengths, *rows, labels=list(sizes))
        panel.set_title(name, parse_math=False)  # a name may have any letter
        panel.set_xlabel("positions of one sequence")
        panel.legend(loc="upper left", fontsize="small")
    panels[0].set_ylabel("MiB")
    try:
        figure.savefig(path)
    except OSError as error:
        raise KVCacheIOError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UnsupportedError(f"{path}: {error}") from error


def _figure(panels: int) -> tuple[Any, list[Any]]:
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise UnsupportedError("--plot needs matplotlib: pip install 'kvcache[plot]'") from error
    figure = Figure(figsize=(6 * panels, 4.5), layout="constrained")
    axes = figure.subplots(1, panels, sharey=True, squeeze=False)
    return figure, list(axes[0])
