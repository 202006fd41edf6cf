"""What one decoder layer keeps between tokens: its attention cache, and state beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvcache.enums import StateResidencyClass
from kvcache.errors import CachePolicyError
from kvcache.policy.attention import AttentionPolicy
from kvcache.policy.components import StateComponentPolicy, StateComponentRole, attention_component
from kvcache.policy.tensors import StateTensorPolicy
from kvcache.serde import Dim, Variant

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "CompressedLatentRotary",
    "FixedState",
    "KeyOnly",
    "KeyOnlyWithFixedState",
    "KeyValue",
    "KeyValueWithFixedState",
    "LayerCachePolicy",
    "NoState",
]


class LayerCachePolicy(Variant):
    """The persistent state of one decoder layer on one rank.

    Head counts are those of the rank, after tensor-parallel sharding. Two fields extend the
    published JSON and are absent from it while unset:

    - ``value_head_dim`` of the key-value variants: width of a value row where it differs from
      that of a key row (MiMo-V2: keys 192, values 128).
    - ``indexer_dim`` of every attention variant: width of one more key per position, shared by
      all heads, by which sparse attention selects positions (DeepSeek-V3.2, GLM-5).
    """

    __slots__ = ()
    ERROR = CachePolicyError
    EXTENSIONS = frozenset({"value_head_dim", "indexer_dim"})

    @staticmethod
    def no_state() -> LayerCachePolicy:
        """A layer that keeps nothing."""
        return NoState()

    @staticmethod
    def key_value(
        attention: AttentionPolicy,
        num_key_value_heads: int,
        head_dim: int,
        *,
        value_head_dim: int | None = None,
        indexer_dim: int | None = None,
    ) -> LayerCachePolicy:
        """Attention with keys and values."""
        return KeyValue(attention, num_key_value_heads, head_dim, value_head_dim, indexer_dim)

    @staticmethod
    def key_only(
        attention: AttentionPolicy,
        num_key_heads: int,
        head_dim: int,
        *,
        indexer_dim: int | None = None,
    ) -> LayerCachePolicy:
        """Attention whose values are its keys."""
        return KeyOnly(attention, num_key_heads, head_dim, indexer_dim)

    @staticmethod
    def compressed_latent_rotary(
        attention: AttentionPolicy,
        latent_dim: int,
        rotary_dim: int,
        *,
        indexer_dim: int | None = None,
    ) -> LayerCachePolicy:
        """Multi-head latent attention."""
        return CompressedLatentRotary(attention, latent_dim, rotary_dim, indexer_dim)

    @staticmethod
    def fixed_only(tensors: Sequence[StateTensorPolicy]) -> LayerCachePolicy:
        """A layer without attention: state space, linear attention, convolution."""
        return FixedState(tuple(tensors))

    @staticmethod
    def key_value_with_fixed_state(
        attention: AttentionPolicy,
        num_key_value_heads: int,
        head_dim: int,
        tensors: Sequence[StateTensorPolicy],
        *,
        value_head_dim: int | None = None,
        indexer_dim: int | None = None,
    ) -> LayerCachePolicy:
        """Keys and values, and state tensors in the same layer."""
        return KeyValueWithFixedState(
            attention, num_key_value_heads, head_dim, tuple(tensors), value_head_dim, indexer_dim
        )

    @staticmethod
    def key_only_with_fixed_state(
        attention: AttentionPolicy,
        num_key_heads: int,
        head_dim: int,
        tensors: Sequence[StateTensorPolicy],
        *,
        indexer_dim: int | None = None,
    ) -> LayerCachePolicy:
        """Keys, and state tensors in the same layer."""
        return KeyOnlyWithFixedState(
            attention, num_key_heads, head_dim, tuple(tensors), indexer_dim
        )

    if TYPE_CHECKING:

        @property
        def attention(self) -> AttentionPolicy | None:
            """The attention of the layer, or None."""

    @property
    def fixed_state(self) -> tuple[StateTensorPolicy, ...]:
        """The state tensors beside attention."""
        return getattr(self, "tensors", ())

    @property
    def attention_residency_class(self) -> StateResidencyClass | None:
        """The residency of the attention components, or None."""
        return None if self.attention is None else StateResidencyClass.SEALABLE_PAGED

    def components(self) -> tuple[StateComponentPolicy, ...]:
        """Every named part of the state: attention first, then tensors as declared.

        Shapes are those of an unbounded cache; the window of ``attention`` is applied where
        positions are counted.
        """
        tensors = (
            StateComponentPolicy(
                StateComponentRole.fixed(tensor.role),
                tensor.shape,
                tensor.dtype,
                tensor.residency,
                tensor.presence,
            )
            for tensor in self.fixed_state
        )
        return (*self._attention_components(), *tensors)

    def _attention_components(self) -> tuple[StateComponentPolicy, ...]:
        part = attention_component
        role = StateComponentRole
        parts: list[StateComponentPolicy] = []
        match self:
            case KeyValue() | KeyValueWithFixedState():
                heads, width = self.num_key_value_heads, self.head_dim
                parts.append(part(role.attention_keys(), heads, width))
                parts.append(part(role.attention_values(), heads, self.value_head_dim or width))
            case KeyOnly() | KeyOnlyWithFixedState():
                parts.append(part(role.attention_keys(), self.num_key_heads, self.head_dim))
            case CompressedLatentRotary():
                parts.append(part(role.compressed_latent(), None, self.latent_dim))
                parts.append(part(role.rotary_keys(), None, self.rotary_dim))
        indexer_dim = getattr(self, "indexer_dim", None)
        if indexer_dim is not None:
            parts.append(part(role.indexer_keys(), None, indexer_dim))
        return tuple(parts)

    def validate(self) -> None:
        """Check it again; every instance was already checked when it was made.

        Raises:
            CachePolicyError: a width or window beyond 32 bits signed, no tensor where one is
                needed, two tensors of one role.
        """
        self._validate()

    def _validate(self) -> None:
        window = self.attention.window if self.attention is not None else None
        if window is not None and window > 2**31 - 1:
            self._fail(".attention.sliding.window", f"expected at most {2**31 - 1}, got {window}")
        if not hasattr(self, "tensors"):
            return
        if not self.fixed_state:
            self._fail(".tensors", "expected at least one tensor")
        roles = [tensor.role for tensor in self.fixed_state]
        for index, role in enumerate(roles):
            if role in roles[:index]:
                self._fail(f".tensors[{index}].role", f"{role.stable_name()} is declared twice")


@dataclass(frozen=True, slots=True)
class NoState(LayerCachePolicy):
    """Keeps nothing."""

    TAG: ClassVar[str] = "no_state"

    @property
    def attention(self) -> None:
        """No attention."""
        return None


@dataclass(frozen=True, slots=True)
class KeyValue(LayerCachePolicy):
    """Keys and values."""

    TAG: ClassVar[str] = "key_value"
    attention: AttentionPolicy
    num_key_value_heads: Dim
    head_dim: Dim
    value_head_dim: Dim | None = None
    indexer_dim: Dim | None = None


@dataclass(frozen=True, slots=True)
class KeyOnly(LayerCachePolicy):
    """Keys that are also the values."""

    TAG: ClassVar[str] = "key_only"
    attention: AttentionPolicy
    num_key_heads: Dim
    head_dim: Dim
    indexer_dim: Dim | None = None


@dataclass(frozen=True, slots=True)
class CompressedLatentRotary(LayerCachePolicy):
    """The latent and rotary key of multi-head latent attention."""

    TAG: ClassVar[str] = "compressed_latent_rotary"
    attention: AttentionPolicy
    latent_dim: Dim
    rotary_dim: Dim
    indexer_dim: Dim | None = None


@dataclass(frozen=True, slots=True)
class FixedState(LayerCachePolicy):
    """State tensors and no attention."""

    TAG: ClassVar[str] = "fixed_state"
    tensors: tuple[StateTensorPolicy, ...]

    @property
    def attention(self) -> None:
        """No attention."""
        return None


@dataclass(frozen=True, slots=True)
class KeyValueWithFixedState(LayerCachePolicy):
    """Keys, values and state tensors."""

    TAG: ClassVar[str] = "key_value_with_fixed_state"
    attention: AttentionPolicy
    num_key_value_heads: Dim
    head_dim: Dim
    tensors: tuple[StateTensorPolicy, ...]
    value_head_dim: Dim | None = None
    indexer_dim: Dim | None = None


@dataclass(frozen=True, slots=True)
class KeyOnlyWithFixedState(LayerCachePolicy):
    """Keys and state tensors."""

    TAG: ClassVar[str] = "key_only_with_fixed_state"
    attention: AttentionPolicy
    num_key_heads: Dim
    head_dim: Dim
    tensors: tuple[StateTensorPolicy, ...]
    indexer_dim: Dim | None = None
