"""What a configuration of a test must be read as.

``kept`` counts layers by window (None: every position) and scalars a position; layers without
attention count as ``("-", 0)``. ``fixed`` is the scalars of all state that does not grow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["FULL", "NONE", "Family", "dense"]

Kept = dict[tuple[Any, int], int]


@dataclass(frozen=True)
class Family:
    """A configuration and its meaning."""

    config: dict[str, Any]
    kept: Kept
    fixed: int = 0
    drafts: int = 0
    strategy: str = "FullKv"
    indexed: int = field(default=0)  # layers with index keys


def dense(model_type: str, **fields: Any) -> dict[str, Any]:
    """Eight layers of four heads of 16, two of them for keys and values."""
    return {
        "model_type": model_type,
        "num_hidden_layers": 8,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        **fields,
    }


NONE = ("-", 0)
FULL = (None, 64)
