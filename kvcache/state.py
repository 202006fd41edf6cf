"""From policies to state declarations, the list every size and file is computed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcache.enums import DType, Gate, Lifetime, Section, StateKind, VerifyRule
from kvcache.errors import InvalidArgumentError, UnsupportedError
from kvcache.policy import LayerCachePolicy, LayerSchedule
from kvcache.policy.tensors import (
    Batch,
    Fixed,
    Optional,
    PrefixEmbedding,
    PrefixTokens,
    PrefixTokensDiv,
    PrefixTokensRem,
    Recurrent,
    StateTensorDtype,
    StateTensorRole,
)
from kvcache.serde import U32, PositiveU32, PositiveU64, Value, describe
from kvcache.storage import KvStorageFormat, Storage, parse_storage, stored_as

if TYPE_CHECKING:
    from kvcache import _core
    from kvcache.policy.components import StateComponentPolicy

__all__ = [
    "DType",
    "Gate",
    "Lifetime",
    "Section",
    "StateDecl",
    "StateKind",
    "VerifyRule",
    "declare",
]

_TENSOR_DTYPES = {
    StateTensorDtype.FLOAT32: DType.F32,
    StateTensorDtype.INT32: DType.I32,
    StateTensorDtype.UINT32: DType.U32,
}


@dataclass(frozen=True, slots=True)
class StateDecl(Value):
    """One component of one layer, as the compiled core sizes and stores it.

    Attributes:
        id: unique in a model, e.g. ``l3.attention.keys``.
        layer: global decoder layer; -1 for state of no layer.
        component: stable name, e.g. ``attention.keys``.
        kind: which of the twelve kinds.
        section: main model or draft head.
        dtype: stored element.
        shape: elements of one unit: ``[heads, width]`` of one record for paged state, the tensor
            of one sequence for recurrent state.
        row_scale_bytes: paged state: bytes of scale beside each row of ``width`` elements.
        window: paged state: positions a query sees, itself included; 0 means all of them.
        verify: recurrent state: how many intermediate copies a speculative verify keeps.
        record_tokens: paged state: positions that one record stands for; more than 1 for state
            pooled over positions.
        chunked: paged state with a window: it starts anew at each multiple of its length instead of
            sliding, so that a query at p sees positions from ``p // window * window`` on.
        sinks: paged state with a sliding window: first positions, which every query sees as well.
        gate: recurrent state of the ``h_steps`` rule: what one gate of an update is for.
    """

    id: str
    layer: int
    component: str
    kind: StateKind
    section: Section
    dtype: DType
    shape: tuple[PositiveU64, ...]
    row_scale_bytes: U32 = 0
    window: U32 = 0
    verify: VerifyRule = VerifyRule.NONE
    record_tokens: PositiveU32 = 1
    chunked: bool = False
    sinks: U32 = 0
    gate: Gate = Gate.HEAD

    def _validate(self) -> None:
        if not -1 <= self.layer < 2**31:
            self._fail(".layer", f"expected -1 or a layer index, got {self.layer}")
        if not self.shape:
            self._fail(".shape", "expected at least one axis")
        paged = self.kind is StateKind.PAGED_KV
        if not paged and (self.window, self.row_scale_bytes, self.record_tokens) != (0, 0, 1):
            self._fail("", "window, row_scale_bytes and record_tokens are of paged state only")
        if self.window == 0 and self.chunked:
            self._fail(".chunked", "only a window can be chunked")
        if self.sinks and (self.window == 0 or self.chunked):
            self._fail(".sinks", f"{self.sinks} sinks need a sliding window")
        if self.record_tokens > 1 and self.window:
            self._fail(".window", f"pooled state keeps all its records, got {self.window}")
        if self.kind is not StateKind.RECURRENT and self.verify is not VerifyRule.NONE:
            self._fail(".verify", "only recurrent state has a verify rule")
        if self.verify is not VerifyRule.H_STEPS and self.gate is not Gate.HEAD:
            self._fail(".gate", "only state of the h_steps rule has gates")

    def to_core(self) -> _core.StateDecl:
        """The same declaration for the compiled core."""
        from kvcache import _core

        return _core.StateDecl(
            id=self.id,
            layer=self.layer,
            component=self.component,
            kind=_core.StateKind[self.kind.name],
            section=_core.Section[self.section.name],
            dtype=_core.DType[self.dtype.name],
            shape=list(self.shape),
            row_scale_bytes=self.row_scale_bytes,
            window=self.window,
            verify=_core.VerifyRule[self.verify.name],
            record_tokens=self.record_tokens,
            chunked=self.chunked,
            sinks=self.sinks,
            gate=_core.Gate[self.gate.name],
        )


def declare(
    schedule: LayerSchedule[LayerCachePolicy],
    *,
    storage: Storage | str = KvStorageFormat.F16,
    state_dtype: DType | str = DType.F32,
    draft_layers: int = 0,
    sinks: int = 0,
    channel_gates: bool = False,
) -> tuple[StateDecl, ...]:
    """Declare the state of one sequence of a model, layer by layer, component by component.

    Args:
        schedule: one cache policy per layer.
        storage: format of everything floating that grows by the position: a `KvStorageFormat`,
            `DType.BF16`, `DType.F32`, or a name of one, such as ``"bf16"``.
        state_dtype: element of fixed-size tensors that are declared floating.
        draft_layers: how many layers at the end belong to a draft head.
        channel_gates: whether recurrent matrices have a gate for each key channel, as KDA and
            RWKV6, instead of one for each head; the models that `kvcache.models` reads know.
        sinks: first positions that layers with a sliding window keep as well (StreamingLLM,
            arXiv:2309.17453); no configuration says so, an engine decides it.

    The batch axis is dropped: a unit is one sequence. Rows a pooling stream has not pooled yet
    are declared at their most. Optional multimodal embeddings are an input, not declared state.

    Raises:
        InvalidArgumentError: not a schedule of cache policies, more draft layers than layers, or
            an unknown storage, or a number of sinks that is none.
        UnsupportedError: a tensor whose axes depend on the prefix in a way that has no unit.
    """
    if not isinstance(schedule, LayerSchedule) or not isinstance(schedule[0], LayerCachePolicy):
        raise InvalidArgumentError(
            f"schedule: expected LayerCachePolicy per layer, got {describe(schedule)}"
        )
    if type(draft_layers) is not int or not 0 <= draft_layers <= len(schedule):
        raise InvalidArgumentError(
            f"draft_layers: expected 0..{len(schedule)}, got {describe(draft_layers)}"
        )
    if type(sinks) is not int or not 0 <= sinks < 2**32:
        raise InvalidArgumentError(f"sinks: expected a number of positions, got {describe(sinks)}")
    storage, floating = parse_storage(storage), DType(state_dtype)
    declared = []
    for index, policy in enumerate(schedule):
        drafts = index >= len(schedule) - draft_layers
        section = Section.DRAFT if drafts else Section.MAIN
        for component in policy.components():
            unit = _unit(component, policy, storage, floating, channel_gates=channel_gates)
            if unit is not None:
                if unit.get("window") and not unit["chunked"]:
                    unit["sinks"] = sinks
                name = component.stable_name()
                declared.append(
                    StateDecl(
                        id=f"l{index}.{name}", layer=index, component=name, section=section, **unit
                    )
                )
    return tuple(declared)


def _unit(
    component: StateComponentPolicy,
    policy: LayerCachePolicy,
    storage: Storage,
    floating: DType,
    *,
    channel_gates: bool,
) -> dict[str, Any] | None:
    """The declaration fields that say what one unit is; None for what is not declared."""
    role = getattr(component.role, "role", None)  # of a state tensor; None for attention
    if isinstance(role, PrefixEmbedding) and isinstance(component.presence, Optional):
        return None
    axes = [axis for axis in component.shape if not isinstance(axis, Batch)]
    if role is None or any(_grows(axis) for axis in axes):
        dtype, scale = stored_as(storage)
        if component.dtype is not StateTensorDtype.FLOATING:
            dtype, scale = _TENSOR_DTYPES[component.dtype], 0
        attention = policy.attention if role is None else None
        return {
            "kind": StateKind.PAGED_KV,
            "dtype": dtype,
            "shape": _record_shape(component, axes),
            "row_scale_bytes": scale,
            "window": (attention.window or 0) if attention is not None else 0,
            "chunked": attention is not None and attention.chunked,
            "record_tokens": next((a.divisor for a in axes if isinstance(a, PrefixTokensDiv)), 1),
        }
    shape = [_most(axis) for axis in axes] or [1]
    if 0 in shape:  # a remainder by 1: never any row
        return None
    return {
        "kind": StateKind.RECURRENT,
        "dtype": _TENSOR_DTYPES.get(component.dtype, floating),
        "shape": shape,
        "verify": _verify_rule(role),
        "gate": _gate(role, len(shape), channel_gates=channel_gates),
    }


def _grows(axis: object) -> bool:
    return isinstance(axis, PrefixTokens | PrefixTokensDiv)


def _record_shape(component: StateComponentPolicy, axes: list[Any]) -> list[int]:
    """``[heads, width]`` of one record of a component that grows with the prefix."""
    sizes = [axis.size for axis in axes if isinstance(axis, Fixed)]
    if len(sizes) != len(axes) - 1 or len(sizes) > 2 or not sizes:
        raise UnsupportedError(
            f"{component.stable_name()}: a tensor that grows with the prefix needs one growing"
            f" axis and one or two constant ones, got {component.to_dict()['shape']}"
        )
    return [1, *sizes] if len(sizes) == 1 else sizes


def _most(axis: Any) -> int:
    if isinstance(axis, PrefixTokensRem):
        return axis.divisor - 1
    return axis.size if isinstance(axis, Fixed) else 1


def _verify_rule(role: StateTensorRole | None) -> VerifyRule:
    """The matrix keeps what each slot needs; small tensors keep every row of a verify."""
    return VerifyRule.H_STEPS if isinstance(role, Recurrent) else VerifyRule.CONV_STEPS


def _gate(role: StateTensorRole | None, axes: int, *, channel_gates: bool) -> Gate:
    """States without heads are elementwise recurrences: Mamba, RG-LRU."""
    if not isinstance(role, Recurrent):
        return Gate.HEAD
    if axes != 3:
        return Gate.ELEMENT
    return Gate.CHANNEL if channel_gates else Gate.HEAD
