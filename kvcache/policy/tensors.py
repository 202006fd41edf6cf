"""State tensors beside attention: what they are, their shapes, when they are present."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from kvcache.enums import MutableStateResidency, StateResidencyClass
from kvcache.errors import CachePolicyError
from kvcache.serde import U32, U64, Dim, OrderedStrEnum, PositiveU32, Value, Variant

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "PoolingStateComponent",
    "StateTensorDimension",
    "StateTensorDtype",
    "StateTensorOwner",
    "StateTensorPolicy",
    "StateTensorPresence",
    "StateTensorRole",
]

_I32_MAX = 2**31 - 1


class PoolingStateComponent(OrderedStrEnum):
    """The tensors of one pooling stream."""

    PENDING_VALUES = "pending_values"
    PENDING_GATES = "pending_gates"
    POOLED = "pooled"
    OVERLAP_VALUES = "overlap_values"
    OVERLAP_GATES = "overlap_gates"


class StateTensorRole(Variant):
    """What a state tensor is to its layer."""

    __slots__ = ()
    ERROR = CachePolicyError

    @staticmethod
    def convolution(slot: int) -> StateTensorRole:
        """History of causal convolution number ``slot`` of the layer."""
        return Convolution(slot)

    @staticmethod
    def recurrent() -> StateTensorRole:
        """The state matrix of an SSM or of linear attention."""
        return Recurrent()

    @staticmethod
    def prefix_embedding() -> StateTensorRole:
        """The prepared embeddings of a multimodal prefix."""
        return PrefixEmbedding()

    @staticmethod
    def position_delta() -> StateTensorRole:
        """The offset between token count and rotary position of multimodal input."""
        return PositionDelta()

    @staticmethod
    def pooling(stream: int, component: PoolingStateComponent) -> StateTensorRole:
        """One tensor of a pooling stream."""
        return Pooling(stream, component)

    @property
    def required_residency(self) -> StateResidencyClass:
        """The one residency class this role admits."""
        if isinstance(self, Recurrent):
            return StateResidencyClass.LAYER_SCOPED_OFFLOADABLE
        if isinstance(self, Pooling) and self.component is PoolingStateComponent.POOLED:
            return StateResidencyClass.SEALABLE_PAGED
        return StateResidencyClass.ALWAYS_DEVICE_MUTABLE

    def stable_name(self) -> str:
        """The name used in ids and files, e.g. ``state.convolution.0``."""
        match self:
            case Convolution(slot):
                return f"state.convolution.{slot}"
            case Pooling(stream, component):
                return f"state.pooling.{stream}.{component}"
            case _:
                return f"state.{self.TAG}"


@dataclass(frozen=True, slots=True)
class Convolution(StateTensorRole):
    """History of a causal convolution."""

    TAG: ClassVar[str] = "convolution"
    slot: U32


@dataclass(frozen=True, slots=True)
class Recurrent(StateTensorRole):
    """State matrix of an SSM or of linear attention."""

    TAG: ClassVar[str] = "recurrent"


@dataclass(frozen=True, slots=True)
class PrefixEmbedding(StateTensorRole):
    """Prepared multimodal prefix."""

    TAG: ClassVar[str] = "prefix_embedding"


@dataclass(frozen=True, slots=True)
class PositionDelta(StateTensorRole):
    """Multimodal rotary offset."""

    TAG: ClassVar[str] = "position_delta"


@dataclass(frozen=True, slots=True)
class Pooling(StateTensorRole):
    """One tensor of a pooling stream."""

    TAG: ClassVar[str] = "pooling"
    stream: U32
    component: PoolingStateComponent


class StateTensorDimension(Variant):
    """One axis of a state tensor, for a batch and a prefix length of the layer."""

    __slots__ = ()
    ERROR = CachePolicyError

    @staticmethod
    def batch() -> StateTensorDimension:
        """The batch size."""
        return Batch()

    @staticmethod
    def prefix_tokens() -> StateTensorDimension:
        """The prefix length."""
        return PrefixTokens()

    @staticmethod
    def prefix_tokens_div(divisor: int) -> StateTensorDimension:
        """The prefix length divided by ``divisor``, rounded down."""
        return PrefixTokensDiv(divisor)

    @staticmethod
    def prefix_tokens_rem(divisor: int) -> StateTensorDimension:
        """The prefix length modulo ``divisor``."""
        return PrefixTokensRem(divisor)

    @staticmethod
    def fixed(size: int) -> StateTensorDimension:
        """A constant."""
        return Fixed(size)

    @staticmethod
    def scalar() -> StateTensorDimension:
        """The only axis of a tensor of one element, whatever the batch."""
        return Scalar()

    @property
    def depends_on_prefix(self) -> bool:
        """Whether the axis changes as the sequence grows."""
        return isinstance(self, PrefixTokens | PrefixTokensDiv | PrefixTokensRem)

    def resolve(self, batch: int, prefix_tokens: int) -> int:
        """Elements along this axis."""
        match self:
            case Batch():
                return batch
            case PrefixTokens():
                return prefix_tokens
            case PrefixTokensDiv(n):
                return prefix_tokens // n
            case PrefixTokensRem(n):
                return prefix_tokens % n
            case Fixed(n):
                return n
            case _:
                return 1


@dataclass(frozen=True, slots=True)
class Batch(StateTensorDimension):
    """The batch size."""

    TAG: ClassVar[str] = "batch"


@dataclass(frozen=True, slots=True)
class PrefixTokens(StateTensorDimension):
    """The prefix length."""

    TAG: ClassVar[str] = "prefix_tokens"


@dataclass(frozen=True, slots=True)
class PrefixTokensDiv(StateTensorDimension):
    """The prefix length divided by ``divisor``, rounded down."""

    TAG: ClassVar[str] = "prefix_tokens_div"
    NEWTYPE: ClassVar[bool] = True
    divisor: PositiveU32


@dataclass(frozen=True, slots=True)
class PrefixTokensRem(StateTensorDimension):
    """The prefix length modulo ``divisor``."""

    TAG: ClassVar[str] = "prefix_tokens_rem"
    NEWTYPE: ClassVar[bool] = True
    divisor: PositiveU32


@dataclass(frozen=True, slots=True)
class Fixed(StateTensorDimension):
    """A constant."""

    TAG: ClassVar[str] = "fixed"
    NEWTYPE: ClassVar[bool] = True
    size: Dim


@dataclass(frozen=True, slots=True)
class Scalar(StateTensorDimension):
    """One element; the only axis of its tensor."""

    TAG: ClassVar[str] = "scalar"


class StateTensorDtype(OrderedStrEnum):
    """Element type class of a state tensor."""

    FLOATING = "floating"  # the run-time state dtype
    FLOAT32 = "float32"
    INT32 = "int32"
    UINT32 = "uint32"

    def accepts_name(self, name: str) -> bool:
        """Whether a persisted array of dtype ``name`` (``Float16``, ...) may hold it."""
        return name in _PERSISTED[self]


_PERSISTED = {
    StateTensorDtype.FLOATING: ("Float16", "Bfloat16", "Float32", "Float64"),
    StateTensorDtype.FLOAT32: ("Float32",),
    StateTensorDtype.INT32: ("Int32",),
    StateTensorDtype.UINT32: ("Uint32",),
}


class StateTensorPresence(Variant):
    """When a state tensor exists, by the prefix length T of its layer."""

    __slots__ = ()
    ERROR = CachePolicyError

    @staticmethod
    def required() -> StateTensorPresence:
        """Always."""
        return Required()

    @staticmethod
    def optional() -> StateTensorPresence:
        """It may be absent at any length."""
        return Optional()

    @staticmethod
    def prefix_remainder_non_zero(divisor: int) -> StateTensorPresence:
        """While T is no multiple of ``divisor``."""
        return PrefixRemainderNonZero(divisor)

    @staticmethod
    def prefix_at_least(tokens: int) -> StateTensorPresence:
        """Once T reaches ``tokens``."""
        return PrefixAtLeast(tokens)

    def is_required_for(self, prefix_tokens: int) -> bool:
        """Whether the tensor must be there at this prefix length."""
        match self:
            case Required():
                return True
            case PrefixRemainderNonZero(n):
                return prefix_tokens % n != 0
            case PrefixAtLeast(n):
                return prefix_tokens >= n
            case _:
                return False


@dataclass(frozen=True, slots=True)
class Required(StateTensorPresence):
    """Always present."""

    TAG: ClassVar[str] = "required"


@dataclass(frozen=True, slots=True)
class Optional(StateTensorPresence):
    """May be absent."""

    TAG: ClassVar[str] = "optional"


@dataclass(frozen=True, slots=True)
class PrefixRemainderNonZero(StateTensorPresence):
    """Present while the prefix is no multiple of ``divisor``."""

    TAG: ClassVar[str] = "prefix_remainder_non_zero"
    NEWTYPE: ClassVar[bool] = True
    divisor: PositiveU32


@dataclass(frozen=True, slots=True)
class PrefixAtLeast(StateTensorPresence):
    """Present once the prefix has ``tokens`` tokens."""

    TAG: ClassVar[str] = "prefix_at_least"
    NEWTYPE: ClassVar[bool] = True
    tokens: PositiveU32


class StateTensorOwner(Variant):
    """What a persisted state tensor belongs to."""

    __slots__ = ()
    ERROR = CachePolicyError

    @staticmethod
    def layer(index: int) -> StateTensorOwner:
        """A decoder layer, by its global index."""
        return LayerOwner(index)


@dataclass(frozen=True, slots=True)
class LayerOwner(StateTensorOwner):
    """A decoder layer."""

    TAG: ClassVar[str] = "layer"
    NEWTYPE: ClassVar[bool] = True
    index: U64


@dataclass(frozen=True, slots=True)
class StateTensorPolicy(Value):
    """One state tensor of a layer."""

    ERROR: ClassVar[type[CachePolicyError]] = CachePolicyError
    role: StateTensorRole
    shape: tuple[StateTensorDimension, ...]
    dtype: StateTensorDtype
    residency: StateResidencyClass
    presence: StateTensorPresence

    def __init__(
        self,
        role: StateTensorRole,
        shape: Sequence[StateTensorDimension],
        dtype: StateTensorDtype,
        residency: StateResidencyClass,
        presence: StateTensorPresence | None = None,
    ) -> None:
        for name, value in (("role", role), ("shape", shape), ("dtype", dtype)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "residency", residency)
        object.__setattr__(self, "presence", Required() if presence is None else presence)
        self.__post_init__()

    @classmethod
    def new(
        cls,
        role: StateTensorRole,
        shape: Sequence[StateTensorDimension],
        dtype: StateTensorDtype,
        residency: MutableStateResidency,
    ) -> StateTensorPolicy:
        """A required tensor that is written in place."""
        return cls.new_with_residency(role, shape, dtype, StateResidencyClass(residency))

    @classmethod
    def new_with_residency(
        cls,
        role: StateTensorRole,
        shape: Sequence[StateTensorDimension],
        dtype: StateTensorDtype,
        residency: StateResidencyClass,
    ) -> StateTensorPolicy:
        """A required tensor of any residency class."""
        return cls(role, shape, dtype, residency)

    def optional(self) -> StateTensorPolicy:
        """The same tensor, but it may be absent."""
        return replace(self, presence=Optional())

    def when_prefix_remainder_nonzero(self, divisor: int) -> StateTensorPolicy:
        """The same tensor, present while the prefix is no multiple of ``divisor``."""
        return replace(self, presence=PrefixRemainderNonZero(divisor))

    def when_prefix_at_least(self, tokens: int) -> StateTensorPolicy:
        """The same tensor, present once the prefix has ``tokens`` tokens."""
        return replace(self, presence=PrefixAtLeast(tokens))

    def resolved_shape(self, batch: int, prefix_tokens: int) -> tuple[int, ...]:
        """Elements along each axis.

        Raises:
            CachePolicyError: an axis does not fit 32 bits, signed.
        """
        shape = tuple(axis.resolve(batch, prefix_tokens) for axis in self.shape)
        for index, size in enumerate(shape):
            if not 0 <= size <= _I32_MAX:
                raise CachePolicyError(
                    f"{self.role.stable_name()}.shape[{index}]: {size} is not in 0..{_I32_MAX} for"
                    f" batch {batch} and {prefix_tokens} prefix tokens"
                )
        return shape

    def accepts_dtype_name(self, name: str) -> bool:
        """Whether a persisted array of dtype ``name`` may hold it."""
        return self.dtype.accepts_name(name)

    @property
    def depends_on_prefix(self) -> bool:
        """Whether its size changes as the sequence grows."""
        return any(axis.depends_on_prefix for axis in self.shape)

    def _validate(self) -> None:
        if not self.shape:
            self._fail(".shape", "expected at least one axis")
        if Scalar() in self.shape and len(self.shape) > 1:
            self._fail(".shape", "`scalar` must be the only axis")
        required = self.role.required_residency
        if self.residency is not required:
            self._fail(".residency", f"{self.role.stable_name()} must be {required}")
