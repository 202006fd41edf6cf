"""Whether a request may start: the first thing that stands in its way, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvcache.capability import Available, EstimationCompleteness, InputTokenCount
from kvcache.errors import InvalidArgumentError
from kvcache.estimate import RuntimeStateEstimate
from kvcache.serde import U64, U64_MAX, Value, Variant

if TYPE_CHECKING:
    from kvcache.capability import AvailableMemory, ModelCapabilities

__all__ = [
    "AdmissionRejection",
    "AdmissionRequest",
    "AdmissionResult",
    "Admitted",
    "Rejected",
    "apply_admission_policy",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest(Value):
    """A request and the limits it must respect."""

    input: InputTokenCount
    max_output_tokens: U64
    batch_size: U64
    safety_reserve_bytes: U64
    application_memory_budget_bytes: U64 | None = None
    require_complete_estimate: bool


class AdmissionRejection(Variant):
    """Why a request may not start."""

    __slots__ = ()
    TAG_FIELD = "kind"


@dataclass(frozen=True, slots=True)
class EstimationUnsupported(AdmissionRejection):
    """The model's context or state cannot be told."""

    TAG: ClassVar[str] = "estimation_unsupported"
    reason: str


@dataclass(frozen=True, slots=True)
class PromptExceedsContext(AdmissionRejection):
    """The prompt alone is too long."""

    TAG: ClassVar[str] = "prompt_exceeds_context"
    prompt_positions: U64
    maximum_positions: U64


@dataclass(frozen=True, slots=True)
class OutputHeadroomExceedsContext(AdmissionRejection):
    """The prompt leaves too little room for the output."""

    TAG: ClassVar[str] = "output_headroom_exceeds_context"
    prompt_positions: U64
    output_tokens: U64
    maximum_positions: U64


@dataclass(frozen=True, slots=True)
class MemoryBudgetExceeded(AdmissionRejection):
    """More than the application allows."""

    TAG: ClassVar[str] = "memory_budget_exceeded"
    required_bytes: U64
    budget_bytes: U64


@dataclass(frozen=True, slots=True)
class AvailableMemoryUnavailable(AdmissionRejection):
    """Free memory is to be respected, but cannot be told."""

    TAG: ClassVar[str] = "available_memory_unavailable"
    reason: str


@dataclass(frozen=True, slots=True)
class InsufficientAvailableMemory(AdmissionRejection):
    """More than is free."""

    TAG: ClassVar[str] = "insufficient_available_memory"
    required_bytes: U64
    available_bytes: U64


class AdmissionResult(Variant):
    """Admitted with its numbers, or rejected with a reason."""

    __slots__ = ()
    TAG_FIELD = "status"


@dataclass(frozen=True, slots=True)
class Admitted(AdmissionResult):
    """The request may start."""

    TAG: ClassVar[str] = "admitted"
    requested_positions: U64
    state: RuntimeStateEstimate
    incremental_required_bytes: U64
    available_memory_bytes: U64 | None = None


@dataclass(frozen=True, slots=True)
class Rejected(AdmissionResult):
    """The request may not start."""

    TAG: ClassVar[str] = "rejected"
    NEWTYPE: ClassVar[bool] = True
    rejection: AdmissionRejection


def apply_admission_policy(
    capabilities: ModelCapabilities,
    request: AdmissionRequest,
    estimate: RuntimeStateEstimate,
    available_memory: AvailableMemory | None = None,
) -> AdmissionResult:
    """Decide on a request; the first failure wins, in the order of the checks below.

    The estimate is trusted as passed. Needing exactly what is there is admitted.

    Raises:
        InvalidArgumentError: a sum beyond 64 bits. Everything else is a ``Rejected`` value.
    """
    positions = request.input.model_positions + request.max_output_tokens
    required = estimate.requested_state_bytes + request.safety_reserve_bytes
    rejection = _context_rejection(capabilities, request, estimate)
    if rejection is not None:
        return Rejected(rejection)
    if required > U64_MAX:
        raise InvalidArgumentError("arithmetic overflow in required bytes: beyond 64 bits")
    budget = request.application_memory_budget_bytes
    if budget is not None and required > budget:
        return Rejected(MemoryBudgetExceeded(required, budget))
    available = None
    if available_memory is not None:
        observed = available_memory.available_memory_bytes
        if not isinstance(observed, Available):
            return Rejected(AvailableMemoryUnavailable(getattr(observed, "reason", "")))
        available = observed.value
        if required > available:
            return Rejected(InsufficientAvailableMemory(required, available))
    return Admitted(positions, estimate, required, available)


def _context_rejection(
    capabilities: ModelCapabilities, request: AdmissionRequest, estimate: RuntimeStateEstimate
) -> AdmissionRejection | None:
    maximum = capabilities.effective_max_context
    if not isinstance(maximum, Available):
        return EstimationUnsupported(getattr(maximum, "reason", ""))
    prompt, output = request.input.model_positions, request.max_output_tokens
    if prompt > maximum.value:
        return PromptExceedsContext(prompt, maximum.value)
    if prompt + output > U64_MAX:
        raise InvalidArgumentError("arithmetic overflow in requested positions: beyond 64 bits")
    if prompt + output > maximum.value:
        return OutputHeadroomExceedsContext(prompt, output, maximum.value)
    partial = estimate.completeness is EstimationCompleteness.PERSISTENT_STATE_ONLY
    if request.require_complete_estimate and partial:
        return EstimationUnsupported("the estimate covers persistent state only")
    return None
