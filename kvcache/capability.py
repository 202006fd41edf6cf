"""What a model can take, and how its state is laid out for an estimate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvcache.policy import LayerCachePolicy, LayerSchedule
from kvcache.serde import U64, OrderedStrEnum, Value, Variant, checked
from kvcache.strategy import CacheStateStrategy

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "AvailableMemory",
    "EstimationCompleteness",
    "InputModalities",
    "InputTokenCount",
    "ModelCapabilities",
    "ObservationKind",
    "Observed",
    "PhysicalMemorySemantics",
    "StateMemoryLayout",
]


class EstimationCompleteness(OrderedStrEnum):
    """What an estimate covers."""

    COMPLETE = "complete"
    CONSERVATIVE = "conservative"  # a safe upper bound
    PERSISTENT_STATE_ONLY = "persistent_state_only"


class ObservationKind(OrderedStrEnum):
    """How far a number may be trusted."""

    EXACT = "exact"
    CONSERVATIVE = "conservative"
    OBSERVATIONAL = "observational"
    ESTIMATED = "estimated"


class PhysicalMemorySemantics(OrderedStrEnum):
    """Whether device and host memory are the same memory."""

    UNIFIED = "unified"
    SEPARATE_TIERS = "separate_tiers"
    UNKNOWN = "unknown"


class Observed(Variant):
    """A number, or the reason why there is none."""

    __slots__ = ()
    TAG_FIELD = "status"

    @staticmethod
    def available(
        value: int, source: str, kind: ObservationKind = ObservationKind.EXACT
    ) -> Observed:
        """A number and where it comes from."""
        return Available(value, kind, source)

    @staticmethod
    def unsupported(reason: str) -> Observed:
        """A number that this model or system cannot have."""
        return Unsupported(reason)

    @staticmethod
    def unavailable(reason: str) -> Observed:
        """A number that could not be had now."""
        return Unavailable(reason)


@dataclass(frozen=True, slots=True)
class Available(Observed):
    """A number."""

    TAG: ClassVar[str] = "available"
    value: U64
    kind: ObservationKind
    source: str


@dataclass(frozen=True, slots=True)
class Unsupported(Observed):
    """No such number here."""

    TAG: ClassVar[str] = "unsupported"
    reason: str


@dataclass(frozen=True, slots=True)
class Unavailable(Observed):
    """No number now."""

    TAG: ClassVar[str] = "unavailable"
    reason: str


@dataclass(frozen=True, slots=True)
class InputModalities(Value):
    """What a model takes as input."""

    text: bool
    image: bool
    audio: bool
    video: bool

    TEXT: ClassVar[InputModalities]


InputModalities.TEXT = InputModalities(text=True, image=False, audio=False, video=False)


@dataclass(frozen=True, slots=True)
class ModelCapabilities(Value):
    """What a loaded model can do, as far as its state matters."""

    effective_model_type: str
    native_max_context: Observed
    effective_max_context: Observed
    state_strategy: CacheStateStrategy
    modalities: InputModalities
    estimation: EstimationCompleteness


@dataclass(frozen=True, slots=True)
class InputTokenCount(Value):
    """Positions that an input takes; use ``text`` or ``prepared`` to make one."""

    text_tokens: U64
    media_positions: U64
    model_positions: U64
    kind: ObservationKind
    media_execution_workspace_bytes: U64
    media_execution_workspace_kind: ObservationKind

    @classmethod
    def text(cls, tokens: int) -> InputTokenCount:
        """Text only: a position for each token."""
        return cls(tokens, 0, tokens, ObservationKind.EXACT, 0, ObservationKind.EXACT)

    @classmethod
    def prepared(
        cls,
        text_tokens: int,
        media_positions: int,
        model_positions: int,
        workspace_bytes: int,
        workspace_kind: ObservationKind,
    ) -> InputTokenCount:
        """Text and media whose positions are known.

        Args:
            text_tokens: tokens of text.
            media_positions: positions whose embeddings come from media.
            model_positions: positions the decoder sees, all together.
            workspace_bytes: scratch memory of the media encoder for one sequence.
            workspace_kind: how far that number may be trusted.
        """
        return cls(
            text_tokens,
            media_positions,
            model_positions,
            ObservationKind.EXACT,
            workspace_bytes,
            workspace_kind,
        )


@dataclass(frozen=True, slots=True)
class AvailableMemory(Value):
    """A report on memory; a number that is not available is never taken for 0."""

    physical_memory_bytes: Observed
    available_memory_bytes: Observed
    physical_semantics: PhysicalMemorySemantics


@dataclass(frozen=True, slots=True)
class StateMemoryLayout(Value):
    """The policies of a model's layers, with what an estimate needs beside them.

    Attributes:
        layer_layout: one cache policy per layer, draft layers included.
        layer_prefix_offsets: how far each layer's prefix is from the model's; 0, or negative for
            a layer that lags.
        hidden_size: width of an embedding.
        allocation_granularity: full attention grows in steps of so many positions.
        completeness: what an estimate from this layout covers.
    """

    layer_layout: LayerSchedule[LayerCachePolicy]
    layer_prefix_offsets: tuple[int, ...]
    hidden_size: U64
    allocation_granularity: U64
    completeness: EstimationCompleteness

    @classmethod
    def new(
        cls,
        policies: Iterable[LayerCachePolicy],
        *,
        hidden_size: int,
        layer_prefix_offsets: Iterable[int] | None = None,
        allocation_granularity: int = 1,
        completeness: EstimationCompleteness = EstimationCompleteness.COMPLETE,
    ) -> StateMemoryLayout:
        """A layout; without offsets every layer is as far as the model."""
        layout = LayerSchedule(policies)
        offsets = [0] * len(layout) if layer_prefix_offsets is None else layer_prefix_offsets
        return cls(layout, tuple(offsets), hidden_size, allocation_granularity, completeness)

    def _validate(self) -> None:
        layers = len(self.layer_layout)
        if len(self.layer_prefix_offsets) != layers:
            self._fail(
                ".layer_prefix_offsets",
                f"expected {layers} offsets, got {len(self.layer_prefix_offsets)}",
            )
        for index, offset in enumerate(self.layer_prefix_offsets):
            if not -(2**31) <= offset <= 0:
                self._fail(f".layer_prefix_offsets[{index}]", f"expected 0 or less, got {offset}")
        for name in ("hidden_size", "allocation_granularity"):
            if getattr(self, name) == 0:
                self._fail(f".{name}", "expected a positive integer, got 0")
        if not isinstance(self.layer_layout[0], LayerCachePolicy):
            self._fail(".layer_layout[0]", "expected a cache policy, got an attention policy")

    def layer_tokens(self, positions: int) -> tuple[int, ...]:
        """Positions of each layer when the model is at ``positions``."""
        checked("positions", positions)
        return tuple(max(0, positions + offset) for offset in self.layer_prefix_offsets)
