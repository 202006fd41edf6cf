"""Decoder state of many sequences under one byte budget, with prefix reuse for hybrids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from kvcache import _core
from kvcache._arguments import (
    as_count,
    as_layer,
    as_path,
    as_space,
    as_text,
    as_tokens,
)
from kvcache.errors import InvalidArgumentError
from kvcache.plan import StatePlan
from kvcache.speculate import VerifySession

if TYPE_CHECKING:
    import os

    from numpy.typing import ArrayLike, NDArray


__all__ = ["Cache", "CacheStats", "Explanation", "Sequence"]

Rows = Any  # an array [tokens, heads, width]
_ROW_DTYPES = ("float16", "float32", "bfloat16")

Limit = Literal["last token", "tokens", "snapshot", "window"]

_LIMITS: dict[_core.HitLimit, Limit] = {
    _core.HitLimit.NONE: "last token",
    _core.HitLimit.TOKENS: "tokens",
    _core.HitLimit.SNAPSHOT: "snapshot",
    _core.HitLimit.WINDOW: "window",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Counters of a cache. Bytes are the arena's ledger, not the process's memory."""

    budget_bytes: int
    committed_bytes: int  #: spans taken from the budget
    peak_bytes: int  #: most spans ever taken
    used_bytes: int  #: exact bytes of live pages, slots and snapshots
    open_sequences: int
    pages: int  #: live, of all groups
    slots: int
    snapshots: int  #: live, of sequences, of verify sessions and of the index
    indexed_blocks: int
    indexed_tokens: int
    indexed_snapshots: int
    evicted_blocks: int
    evicted_snapshots: int
    opens: int
    hits: int  #: opens with cached tokens
    asked_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a prompt would hit as far as it does."""

    tokens: int  #: asked
    matched_tokens: int  #: longest prefix whose tokens are known
    cached_tokens: int  #: what a hit would cover
    nearest_snapshot: int  #: deepest resident snapshot at or below ``matched_tokens``
    limited_by: Limit

    @property
    def lost_tokens(self) -> int:
        """Known positions that must be computed again."""
        return self.matched_tokens - self.cached_tokens

    def __str__(self) -> str:
        reason = {
            "last token": "only the last token must run",
            "tokens": "no stored prefix continues with these tokens",
            "snapshot": (
                "the fixed-size state has no snapshot further on "
                f"(nearest at {self.nearest_snapshot}); take snapshot() where prompts branch"
            ),
            "window": "a sliding group has lost its window there; publish() after each chunk",
        }[self.limited_by]
        return (
            f"{self.cached_tokens} of {self.tokens} tokens reusable, {self.matched_tokens} known, "
            f"{self.lost_tokens} lost: {reason}"
        )


def _empty_rows(shape: tuple[int, ...], dtype: str | np.dtype[Any]) -> Any:
    if dtype == "bfloat16":
        return _core.Bfloat16Array(np.empty(shape, np.uint16))
    return np.empty(shape, dtype)


class Sequence:
    """The live state of one sequence. Made by `Cache.open`; close it, or use it with ``with``.

    Thread-safe: calls on one sequence run one at a time, on different ones side by side.
    """

    __slots__ = ("_core", "_plan")

    def __init__(self, core: _core.Sequence, plan: StatePlan) -> None:
        self._core = core
        self._plan = plan

    @property
    def cached_tokens(self) -> int:
        """Positions restored by `Cache.open`; the engine starts here."""
        return self._core.cached_tokens

    @property
    def matched_tokens(self) -> int:
        """Positions whose tokens were known, whether or not all components were resident."""
        return self._core.matched_tokens

    @property
    def length(self) -> int:
        """Positions complete in every layer."""
        return self._core.length

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Known token ids, a copy: those of `open` and of `extend`."""
        return self._core.tokens()

    def extend(self, tokens: ArrayLike) -> None:
        """Declare the ids of further positions, before they are written.

        Raises:
            InvalidArgumentError: the sequence is closed, or an id does not fit int32.
        """
        self._core.extend(as_tokens(tokens))

    def write(
        self,
        layer: int,
        start: int,
        keys: Rows,
        values: Rows | None = None,
        index_keys: Rows | None = None,
    ) -> None:
        """Store one layer's rows of positions ``[start, start + tokens)``, encoding included.

        Args:
            layer: index of the decoder layer.
            start: first position, within ``length`` and what is written of the layer.
            keys: ``[tokens, heads, width]`` of float16, float32 or bfloat16, after RoPE; any object
                with the buffer protocol, DLPack on the host or ``__array_interface__``, at any
                strides as long as the last axis is contiguous; copied, never kept. For MLA the
                latent, ``[tokens, 1, latent_dim]``.
            values: the same for values, or the rotary keys of MLA; None for key-only layers.
            index_keys: the same for the keys of a sparse-attention indexer; None without one.

        Raises:
            OutOfCapacityError: no page is free and nothing can be evicted.
            NonFiniteError: an INT8 row is not finite. InvalidArgumentError: shape, position, or
            closed. After an error no new position is readable.
        """
        components = [keys, *(rows for rows in (values, index_keys) if rows is not None)]
        self._core.write(as_layer(layer), as_count(start, "start"), components)

    def read(self, layer: int, start: int, stop: int, dtype: str = "float16") -> tuple[Any, ...]:
        """Decode one layer's rows of positions ``[start, stop)``.

        Args:
            layer: index of the decoder layer.
            start: first position.
            stop: one past the last position.
            dtype: ``"float16"``, ``"float32"`` or ``"bfloat16"``.

        Returns:
            What `write` took, in that order: keys and values ``[stop - start, heads, width]``, or
            latent and rotary keys, and the index keys where there are any; keys and None for
            key-only layers. numpy arrays, or for bfloat16, which numpy lacks, `Bfloat16Array`.

        Raises:
            NotFoundError: positions have left the layer's window.
            InvalidArgumentError: positions not written, unknown layer or dtype, or closed.
        """
        layer, start = as_layer(layer), as_count(start, "start")
        stop = as_count(stop, "stop")
        if not isinstance(dtype, str | np.dtype) or dtype not in _ROW_DTYPES:
            raise InvalidArgumentError(
                f"dtype: expected {', '.join(map(repr, _ROW_DTYPES))}, got {dtype!r}"
            )
        if not start <= stop <= self._core.written(layer):
            raise InvalidArgumentError(
                f"positions [{start}, {stop}) of layer {layer} are not within the "
                f"{self._core.written(layer)} written ones"
            )
        rows = [
            _empty_rows((stop - start, part.heads, part.width), dtype)
            for part in self._plan.paged_components(layer)
        ]
        self._core.read(layer, start, rows)
        return tuple(rows) if len(rows) > 1 else (rows[0], None)

    def state(self, layer: int, name: str) -> NDArray[Any]:
        """A writable view of one fixed-size tensor, such as ``"state.recurrent"``.

        The view is live: update it in place as positions run, then `advance`. It stays valid, and
        keeps its memory, after the sequence is closed. bfloat16 appears as its uint16 bits.

        Raises:
            NotFoundError: the layer keeps no such tensor; the message lists those it keeps.
        """
        return self._core.state(as_layer(layer), as_text(name, "name"))

    def advance(self, positions: int) -> None:
        """The next ``positions`` are complete in every layer, and the fixed-size state is there.

        Raises:
            InvalidArgumentError: a layer's rows are missing, or the tokens are not known.
        """
        self._core.advance(as_count(positions, "positions"))

    def snapshot(self) -> int:
        """Copy all fixed-size state at ``length``; `publish` makes the copy usable.

        Returns:
            The position. A model without fixed-size state has nothing to copy.

        Raises:
            OutOfCapacityError: no room, and nothing can be evicted.
        """
        return self._core.snapshot()

    def prefill_stops(self) -> list[int]:
        """Positions at which a prefill chunk should end, so that a snapshot there pays.

        Where this prompt leaves what is known, and before its last token (which must run again).
        """
        return self._core.prefill_stops()

    def publish(self) -> None:
        """Let later sequences reuse the complete positions, the tail and the snapshots."""
        self._core.publish()

    def fork(self) -> Sequence:
        """Open a second sequence in the same state; pages are shared until written.

        Raises:
            OutOfCapacityError: no slot is free, or the plan's ``sequences`` are all open.
        """
        return Sequence(self._core.fork(), self._plan)

    def truncate(self, position: int) -> None:
        """Forget everything from ``position`` on, tokens included.

        Raises:
            UnsupportedError: the fixed-size state has no snapshot there, or a window has passed.
            InvalidArgumentError: ``position`` is negative or beyond ``length``.
        """
        self._core.truncate(as_count(position, "position"))

    def begin_verify(self, drafts: ArrayLike) -> VerifySession:
        """Start running the last known token and ``drafts`` after it, to keep some of them.

        Exactly one token must be known that has not run: `extend` by the one sampled last, first.
        Until the session is committed or rolled back every other call that changes the sequence,
        and `state`, raises InvalidArgumentError; `read` sees what the session has written, and
        `close` ends both.

        Args:
            drafts: proposed ids of the positions after that token; may be empty.

        Raises:
            InvalidArgumentError: not exactly one token waits, a session is open, or closed.
            OutOfCapacityError: no room for the rows and a copy of the fixed-size state for each.
        """
        return VerifySession(self, _core.begin_verify(self._core, as_tokens(drafts)))

    def close(self) -> None:
        """Give everything back. What was published stays. Closing twice is fine."""
        self._core.close()

    @property
    def is_open(self) -> bool:
        """False once closed."""
        return self._core.is_open

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self.is_open:
            return "<Sequence closed>"
        return f"<Sequence {self.length} of {len(self.tokens)} positions>"


class Cache:
    """Pages, slots, snapshots and the prefix index of one model, within the plan's memory.

    Args:
        plan: sizes and layout.
        policy: eviction policy, ``"lru"``.
        backing: False for a ledger that places, counts and evicts but stores no bytes.
        capacity_blocks: most blocks in a group; 0 for as many as the memory allows. Without
            backing it replaces the memory budget.

    Raises:
        OutOfCapacityError: the memory holds not even one block of one sequence.
        InvalidArgumentError: an unknown policy.
    """

    __slots__ = ("_core", "plan")

    def __init__(
        self,
        plan: StatePlan,
        *,
        policy: str = "lru",
        backing: bool = True,
        capacity_blocks: int = 0,
    ) -> None:
        if not isinstance(plan, StatePlan):
            raise InvalidArgumentError(f"plan: expected a StatePlan, got {type(plan).__name__}")
        self.plan = plan
        self._core = _core.Cache(
            plan.core,
            policy=as_text(policy, "policy"),
            backing=bool(backing),
            capacity_blocks=as_count(capacity_blocks, "capacity_blocks"),
        )

    def open(
        self,
        tokens: ArrayLike,
        *,
        namespace: str | bytes = "",
        adapter: str | tuple[str, str] | None = None,
        salt: bytes | str = b"",
    ) -> Sequence:
        """Start a sequence at the longest prefix that needs no recomputation.

        Args:
            tokens: the prompt, any integers that fit int32; at least one.
            namespace: whose prefixes may be shared.
            adapter: name, or name and revision, of the adapter that computes the state.
            salt: further secret that must agree.

        Raises:
            OutOfCapacityError: the plan's ``sequences`` are all open, or no slot is free.
            InvalidArgumentError: no tokens, or an id that does not fit int32.
        """
        core = self._core.open(
            as_tokens(tokens),
            *as_space(namespace, adapter, salt),
        )
        return Sequence(core, self.plan)

    def explain(
        self,
        tokens: ArrayLike,
        *,
        namespace: str | bytes = "",
        adapter: str | tuple[str, str] | None = None,
        salt: bytes | str = b"",
    ) -> Explanation:
        """What `open` would reuse of ``tokens``, and what limits it. Changes nothing."""
        found = self._core.explain(
            as_tokens(tokens),
            *as_space(namespace, adapter, salt),
        )
        return Explanation(
            tokens=found.tokens,
            matched_tokens=found.matched_tokens,
            cached_tokens=found.cached_tokens,
            nearest_snapshot=found.nearest_snapshot,
            limited_by=_LIMITS[found.limit],
        )

    def save(
        self,
        path: str | os.PathLike[str],
        tokens: ArrayLike,
        *,
        namespace: str | bytes = "",
        adapter: str | tuple[str, str] | None = None,
        salt: bytes | str = b"",
        replace: bool = False,
    ) -> int:
        """Write the longest usable prefix of ``tokens`` to disk, with all that resuming it needs.

        Unlike `open`, the last token counts too. A model with fixed-size state is saved at its
        deepest snapshot; when that is at the last token, the one that `open` of the same tokens
        would use is saved beside it.

        Args:
            path: directory to create; its parent must exist. Readers see all of it or nothing.
            tokens: the prompt, at least one token.
            namespace: as in `open`; `load` must name the same.
            adapter: as in `open`; `load` must name the same.
            salt: as in `open`; `load` must name the same. Only a digest is stored.
            replace: let a prompt cache that is there already give way, in one step.

        Returns:
            Positions written, at most ``len(tokens)``.

        Raises:
            NotFoundError: no prefix of the tokens is resident and usable.
            InvalidArgumentError: ``path`` exists, or is to be replaced and is no prompt cache.
            KVCacheIOError: the system refused; what was at ``path`` is as before.
        """
        return self._core.save(
            as_path(path),
            as_tokens(tokens),
            *as_space(namespace, adapter, salt),
            replace=bool(replace),
        )

    def load(
        self,
        path: str | os.PathLike[str],
        *,
        namespace: str | bytes = "",
        adapter: str | tuple[str, str] | None = None,
        salt: bytes | str = b"",
    ) -> int:
        """Make a saved prefix usable by `open`. Everything is checked before anything changes.

        The plan may differ from the saving one in memory, sequences and ``block_tokens``.

        Args:
            path: directory written by `save`.
            namespace: the one it was saved under.
            adapter: the one it was saved under.
            salt: the one it was saved under.

        Returns:
            Positions made usable.

        Raises:
            CorruptionError: a file is damaged, missing or not what it claims; the message names it.
            UnsupportedError: another format version, model, storage format, namespace, adapter or
                salt; or ``block_tokens`` so much larger that a window does not fill its first page.
            OutOfCapacityError: no room, even after evicting; none of it was kept.
            KVCacheIOError: the system refused.
        """
        return self._core.load(
            as_path(path),
            *as_space(namespace, adapter, salt),
        )

    def stats(self) -> CacheStats:
        """Counters at this moment."""
        core = self._core.stats()
        return CacheStats(**{name: getattr(core, name) for name in CacheStats.__slots__})

    def clear(self) -> None:
        """Drop every stored prefix. Open sequences keep what they hold."""
        self._core.clear()

    @property
    def policy(self) -> str:
        """Name of the eviction policy."""
        return self._core.policy
