"""Declarations of one component of one layer, in the two kinds that a cache serves."""

from __future__ import annotations

from kvcache import DType, Gate, Section, StateDecl, StateKind, VerifyRule

__all__ = ["paged", "recurrent"]


def paged(
    layer: int,
    component: str,
    heads: int,
    width: int,
    *,
    window: int = 0,
    int8: bool = False,
    chunked: bool = False,
    sinks: int = 0,
    record_tokens: int = 1,
    dtype: DType = DType.F16,
) -> StateDecl:
    """Rows ``[heads, width]`` of each position, plain or INT8 with a scale a row."""
    return StateDecl(
        id=f"l{layer}.{component}",
        layer=layer,
        component=component,
        kind=StateKind.PAGED_KV,
        section=Section.MAIN,
        dtype=DType.I8 if int8 else dtype,
        shape=(heads, width),
        row_scale_bytes=4 if int8 else 0,
        window=window,
        chunked=chunked,
        sinks=sinks,
        record_tokens=record_tokens,
    )


def recurrent(
    layer: int,
    component: str,
    *shape: int,
    dtype: DType = DType.F32,
    gate: Gate | None = None,
) -> StateDecl:
    """A tensor of one sequence; with a gate, of a recurrence that folds."""
    return StateDecl(
        id=f"l{layer}.{component}",
        layer=layer,
        component=component,
        kind=StateKind.RECURRENT,
        section=Section.MAIN,
        dtype=dtype,
        shape=shape,
        verify=VerifyRule.NONE if gate is None else VerifyRule.H_STEPS,
        gate=gate or Gate.HEAD,
    )
