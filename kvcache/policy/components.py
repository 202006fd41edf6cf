"""The named parts of a layer's state, one list for estimator, allocator and files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvcache.enums import StateResidencyClass
from kvcache.errors import CachePolicyError
from kvcache.policy.tensors import (
    StateTensorDimension,
    StateTensorDtype,
    StateTensorPresence,
    StateTensorRole,
)
from kvcache.serde import Value, Variant

__all__ = ["StateComponentPolicy", "StateComponentRole"]


class StateComponentRole(Variant):
    """What a component is to its layer."""

    __slots__ = ()
    ERROR = CachePolicyError

    @staticmethod
    def attention_keys() -> StateComponentRole:
        """Keys, after rotation."""
        return AttentionKeys()

    @staticmethod
    def attention_values() -> StateComponentRole:
        """Values."""
        return AttentionValues()

    @staticmethod
    def compressed_latent() -> StateComponentRole:
        """The latent of multi-head latent attention."""
        return CompressedLatent()

    @staticmethod
    def rotary_keys() -> StateComponentRole:
        """The rotary key beside a latent."""
        return RotaryKeys()

    @staticmethod
    def indexer_keys() -> StateComponentRole:
        """The key by which sparse attention selects positions (not in the published JSON)."""
        return IndexerKeys()

    @staticmethod
    def fixed(role: StateTensorRole) -> StateComponentRole:
        """A state tensor."""
        return FixedRole(role)

    def stable_name(self) -> str:
        """The name used in ids and files, e.g. ``attention.keys``."""
        if isinstance(self, FixedRole):
            return self.role.stable_name()
        return self.NAME

    NAME: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class AttentionKeys(StateComponentRole):
    """Keys."""

    TAG: ClassVar[str] = "attention_keys"
    NAME: ClassVar[str] = "attention.keys"


@dataclass(frozen=True, slots=True)
class AttentionValues(StateComponentRole):
    """Values."""

    TAG: ClassVar[str] = "attention_values"
    NAME: ClassVar[str] = "attention.values"


@dataclass(frozen=True, slots=True)
class CompressedLatent(StateComponentRole):
    """Latent of multi-head latent attention."""

    TAG: ClassVar[str] = "compressed_latent"
    NAME: ClassVar[str] = "attention.compressed_latent"


@dataclass(frozen=True, slots=True)
class RotaryKeys(StateComponentRole):
    """Rotary key beside a latent."""

    TAG: ClassVar[str] = "rotary_keys"
    NAME: ClassVar[str] = "attention.rotary_keys"


@dataclass(frozen=True, slots=True)
class IndexerKeys(StateComponentRole):
    """Key by which sparse attention selects positions."""

    TAG: ClassVar[str] = "indexer_keys"
    NAME: ClassVar[str] = "attention.indexer_keys"


@dataclass(frozen=True, slots=True)
class FixedRole(StateComponentRole):
    """A state tensor."""

    TAG: ClassVar[str] = "fixed"
    NEWTYPE: ClassVar[bool] = True
    role: StateTensorRole


@dataclass(frozen=True, slots=True)
class StateComponentPolicy(Value):
    """One named part of a layer's state."""

    ERROR: ClassVar[type[CachePolicyError]] = CachePolicyError
    role: StateComponentRole
    shape: tuple[StateTensorDimension, ...]
    dtype: StateTensorDtype
    residency: StateResidencyClass
    presence: StateTensorPresence

    def stable_name(self) -> str:
        """The name of its role."""
        return self.role.stable_name()


def attention_component(
    role: StateComponentRole, heads: int | None, width: int
) -> StateComponentPolicy:
    """A row of ``width`` per position, or one per position and head."""
    dim = StateTensorDimension
    head_axis = () if heads is None else (dim.fixed(heads),)
    return StateComponentPolicy(
        role,
        (dim.batch(), *head_axis, dim.prefix_tokens(), dim.fixed(width)),
        StateTensorDtype.FLOATING,
        StateResidencyClass.SEALABLE_PAGED,
        StateTensorPresence.required(),
    )
