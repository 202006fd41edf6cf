"""Recurrent state moved on by rows of inputs, on the CPU, with one pass over the state.

One form serves gated delta nets (arXiv:2412.06464), KDA (arXiv:2510.26692), Mamba2
(arXiv:2405.21060), lightning attention, RWKV6 and elementwise recurrences. Every instruction set
gives the bytes that NumPy gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcache import _core
from kvcache._arguments import as_threads

if TYPE_CHECKING:
    from kvcache.codec import Array

__all__ = ["append_rows", "fold"]


def fold(
    state: Array,
    gate: Array,
    left: Array | None,
    right: Array,
    *,
    round_once: bool = False,
    threads: int = 1,
) -> None:
    """Fold n rows into a state, in place and one after the other.

    For each row ``state[h, i, j] = gate * state[h, i, j] + left[h, i] * right[h, j]``, each product
    and the sum rounded to float32. The state is read and written once for all rows::

        kvcache.fold(S, gate=np.exp(g), left=k, right=beta * (v - read))  # a gated delta net
        kvcache.fold(S, gate=np.exp(dt * A), left=dt[..., None] * x, right=B)  # Mamba2
        kvcache.fold(h, gate=a, left=None, right=b)  # RG-LRU: h = a * h + b

    Args:
        state: float32, float16 or bfloat16 ``[heads, i, j]``, ``[i, j]`` or ``[j]``, contiguous.
        gate: float32 ``[n, heads]``, ``[n, heads, i]`` (a gate for each key channel) or
            ``[n, heads, i, j]``: after the rows the first axes of the state, up to two left out.
        left: float32 ``[n, heads, i]`` or ``[n, i]``; None for ones. Fewer heads that divide those
            of the state are shared by neighbours, as key heads and Mamba2's groups are.
        right: float32 ``[n, heads, j]``, ``[n, j]`` where the state has no heads; shared likewise.
        round_once: keep float32 between rows of a float16 or bfloat16 state instead of rounding
            after each, as decoding one token at a time does; ends within ``(n + 1) * u * M`` of
            that for gates of magnitude 1 at most, with ``u`` = 2**-11 or 2**-8 and ``M`` the
            largest magnitude of the element on the way.
        threads: at most this many work on the call; small states use one.

    Raises:
        InvalidArgumentError: shapes, dtypes or strides that do not fit, or arrays that overlap; the
            state is as it was. NaN and infinities are no error and pass as in NumPy.
    """
    _core.fold(state, gate, left, right, bool(round_once), as_threads(threads))


def append_rows(window: Array, rows: Any) -> None:
    """Append rows to the history of a causal convolution, in place: the oldest ones leave it.

    Args:
        window: ``[width, ...]``, contiguous; oldest row first.
        rows: ``[n, ...]`` of the same dtype; more than ``width`` of them replace it all.

    Raises:
        InvalidArgumentError: shapes or dtypes that do not fit, or arrays that overlap; the window
            is as it was.
    """
    _core.append_rows(window, rows)
