"""Scalars that a model keeps, counted position by position: slow, and unlike the planner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["fixed_scalars", "position_scalars", "scalars_at"]


def position_scalars(layer: Any, *, indexer: bool = True) -> int:
    """Scalars that one position adds to one layer, while it is inside the window."""
    total = 0
    for component in layer.components():
        name = component.role.stable_name()
        if not name.startswith("attention.") or ("indexer" in name and not indexer):
            continue
        size = 1
        for axis in component.shape:
            size *= axis.resolve(1, 1)
        total += size
    return total


def fixed_scalars(layers: Iterable[Any]) -> int:
    """Scalars of the state that does not grow, of one sequence; media left out."""
    total = 0
    for layer in layers:
        for tensor in layer.fixed_state:
            if any(axis.depends_on_prefix for axis in tensor.shape):
                continue
            if tensor.role.stable_name() == "state.prefix_embedding":
                continue
            size = 1
            for axis in tensor.shape:
                size *= axis.resolve(1, 0)
            total += size
    return total


def scalars_at(layers: Iterable[Any], tokens: int) -> int:
    """Scalars that attention keeps after ``tokens`` positions: those the last query sees."""
    total = 0
    for layer in layers:
        if layer.attention is None:
            continue
        kept = sum(position in layer.attention.sees(tokens - 1) for position in range(tokens))
        total += kept * position_scalars(layer)
    return total
