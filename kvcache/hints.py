"""What a caller may say about a request, for eviction to learn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcache.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CostModel", "RequestHints"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHints:
    """What is known of a request when it arrives.

    Requests that agree in all fields are learned about together: how often and how soon they are
    continued. The first dozen kinds are told apart, further ones share a few places.

    Attributes:
        tenant: whose request it is; who is charged for what it stores, see `Cache.set_quota`.
        kind: what kind of turn it is, such as ``"chat"`` or ``"tool"``.
        expected_reuse: probability, 0 to 1, that the request is continued; None when unknown.
    """

    tenant: str = ""
    kind: str = ""
    expected_reuse: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """What computing one position costs, for policies that weigh recomputation.

    Only ratios matter. By default every position costs the same; `StatePlan.costs` has what a model
    read from its configuration costs.

    Attributes:
        flops_per_token: of one position, whatever lies before it.
        flops_per_token_per_position: more for each position before it.
    """

    flops_per_token: float = 1.0
    flops_per_token_per_position: float = 0.0

    def flops(self, start: int, stop: int) -> float:
        """FLOPs of computing positions ``[start, stop)``."""
        length = stop - start
        context = self.flops_per_token_per_position * (start + length / 2)
        return length * (self.flops_per_token + context)


def as_costs(costs: CostModel | None, default: CostModel) -> CostModel:
    """What was given, or the default for None."""
    if costs is None:
        return default
    if not isinstance(costs, CostModel):
        raise InvalidArgumentError(f"costs: expected a CostModel, got {costs!r}")
    return costs


def unknown_option(call: str, names: Iterable[str]) -> TypeError:
    """What Python says of an argument that there is none of, and where a hint belongs."""
    name = next(iter(names))
    hint = ""
    if name in RequestHints.__slots__:
        hint = f"; it is a hint: {call}(..., hints=RequestHints({name}=...))"
    return TypeError(f"{call}() got an unexpected keyword argument {name!r}{hint}")
