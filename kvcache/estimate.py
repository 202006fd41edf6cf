"""Memory of the decoder state of a request, before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from kvcache.capability import EstimationCompleteness, ObservationKind
from kvcache.errors import InvalidArgumentError
from kvcache.policy.tensors import Optional, PrefixEmbedding, StateTensorDtype
from kvcache.serde import U64, U64_MAX, PositiveU64, Value, checked

if TYPE_CHECKING:
    from kvcache.capability import InputTokenCount, StateMemoryLayout
    from kvcache.policy import StateComponentPolicy

__all__ = ["RuntimeStateEstimate", "StateMemoryAssumptions", "estimate_runtime_state"]


@dataclass(frozen=True, slots=True)
class StateMemoryAssumptions(Value):
    """What an estimate was made for."""

    floating_state_dtype_bytes: Annotated[int, msgspec.Meta(ge=1, le=255)]
    batch_size: U64
    requested_positions: U64
    sliding_window_bounds: tuple[U64, ...]  # distinct, ascending
    allocation_granularity: PositiveU64


@dataclass(frozen=True, slots=True)
class RuntimeStateEstimate(Value):
    """Bytes of decoder state; activations and allocator caches are not in it.

    Attributes:
        fixed_state_bytes: state whose size does not depend on positions.
        bytes_per_position_per_batch: growth by one more position of one sequence.
        context_state_bytes: state that grows with positions.
        multimodal_embedding_bytes: embeddings of media positions.
        media_execution_workspace_bytes: scratch of the media encoder.
        requested_state_bytes: all of these together, but the growth.
        assumptions: what it was made for.
        completeness: what it covers.
    """

    fixed_state_bytes: U64
    bytes_per_position_per_batch: U64
    context_state_bytes: U64
    multimodal_embedding_bytes: U64
    media_execution_workspace_bytes: U64
    requested_state_bytes: U64
    assumptions: StateMemoryAssumptions
    completeness: EstimationCompleteness


def estimate_runtime_state(
    layout: StateMemoryLayout,
    input_tokens: InputTokenCount,
    max_output_tokens: int,
    batch_size: int,
    floating_state_dtype_bytes: int,
) -> RuntimeStateEstimate:
    """Estimate the decoder state of a batch that reads an input and writes an output.

    Windowed attention is bounded by its window and full attention is rounded up to the layout's
    granularity. Optional multimodal embeddings are charged with the input.

    Raises:
        InvalidArgumentError: a batch of 0, or arithmetic beyond 64 bits, whose operation is named.
    """
    from kvcache import _core

    checked("max_output_tokens", max_output_tokens)
    if checked("batch_size", batch_size) == 0:
        raise InvalidArgumentError("batch_size: expected a positive integer, got 0")
    positions = input_tokens.model_positions + max_output_tokens
    if positions > U64_MAX:
        raise InvalidArgumentError("arithmetic overflow in requested positions: beyond 64 bits")
    width = checked("floating_state_dtype_bytes", floating_state_dtype_bytes, 1)
    layers = [
        _core.EstimateLayer(
            prefix_lag=-offset,
            window=(policy.attention.window or 0) if policy.attention is not None else 0,
            components=[
                _core.EstimateComponent(**_component(p, width)) for p in policy.components()
            ],
        )
        for policy, offset in zip(layout.layer_layout, layout.layer_prefix_offsets, strict=True)
    ]
    sizes = _core.estimate_runtime_state(
        layers,
        positions=positions,
        batch=batch_size,
        floating_bytes=width,
        granularity=layout.allocation_granularity,
        media_positions=input_tokens.media_positions,
        hidden_size=layout.hidden_size,
        media_workspace_bytes=input_tokens.media_execution_workspace_bytes,
    )
    guessed = input_tokens.media_execution_workspace_kind is not ObservationKind.EXACT
    return RuntimeStateEstimate(
        sizes.fixed_bytes,
        sizes.growth_bytes,
        sizes.context_bytes,
        sizes.embedding_bytes,
        sizes.workspace_bytes,
        sizes.requested_bytes,
        StateMemoryAssumptions(
            width,
            batch_size,
            positions,
            tuple(sizes.window_bounds),
            layout.allocation_granularity,
        ),
        EstimationCompleteness.CONSERVATIVE
        if input_tokens.media_positions > 0 and guessed
        else layout.completeness,
    )


def _component(component: StateComponentPolicy, floating_bytes: int) -> dict[str, Any]:
    """Arguments of the core's component for one component of a layer."""
    from kvcache import _core

    role = getattr(component.role, "role", None)  # of a state tensor; None for attention
    presence = component.presence
    name = presence.TAG.upper()
    if isinstance(role, PrefixEmbedding) and isinstance(presence, Optional):
        name = "CHARGED_ELSEWHERE"
    floating = component.dtype is StateTensorDtype.FLOATING
    return {
        "name": component.stable_name(),
        "shape": [(_core.AxisKind[axis.TAG.upper()], _argument(axis)) for axis in component.shape],
        "element_bytes": floating_bytes if floating else 4,
        "presence": _core.Presence[name],
        "presence_value": _argument(presence),
        "attention": role is None,
    }


def _argument(variant: Any) -> int:
    """The one number of a dimension or presence; 1 where it has none."""
    names = [field.name for field in fields(variant)]
    return int(getattr(variant, names[0])) if names else 1
