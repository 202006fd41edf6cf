"""State of plain attention layers, for the benchmarks of this folder."""

from __future__ import annotations

from kvcache import DType, Section, StateDecl, StateKind


def attention(layers: int, heads: int, width: int) -> list[StateDecl]:
    """Keys and values of each layer in F16."""
    return [
        StateDecl(
            id=f"l{layer}.{name}",
            layer=layer,
            component=name,
            kind=StateKind.PAGED_KV,
            section=Section.MAIN,
            dtype=DType.F16,
            shape=(heads, width),
        )
        for layer in range(layers)
        for name in ("attention.keys", "attention.values")
    ]
