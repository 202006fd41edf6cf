"""Drafts without a draft model: what followed when the end of the history occurred before."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from kvcache import _core
from kvcache._arguments import (
    adapter_key,
    as_bytes,
    as_count,
    as_counts,
    as_instances,
    as_tokens,
    is_scalar,
)
from kvcache._handles import described
from kvcache.errors import InvalidArgumentError
from kvcache.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Occurrence",
    "PromptLookupCache",
    "PromptLookupIndex",
    "PromptLookupScope",
    "propose_batch",
    "settle_batch",
]

_MOST_DRAFTS = 2**16


class Occurrence(enum.StrEnum):
    """Which of several earlier occurrences is continued."""

    LATEST = "latest"  #: what was said last; near the end of a loop it gives few tokens
    EARLIEST = "earliest"  #: the most tokens; the rule of vLLM and transformers
    #: the latest, as if what follows it repeated itself: in a loop as many tokens as asked for
    REPEATING = "repeating"


_OCCURRENCES = {each: _core.Occurrence[each.name] for each in Occurrence}


class PromptLookupIndex:
    """Prompt lookup for one sequence: an n-gram index over its growing history.

    The longest end of the history that occurred before is continued as it was then. Every proposal
    is checked against the history token by token. A call takes time for the tokens that are new,
    however long the history is. For one thread at a time.

    The history is all tokens of the sequence, the last one included. Give it whole, by `observe`,
    or what is new of it, by `extend`; not both for one index.

    Args:
        min_match: tokens that must be equal before a draft.
        max_match: most tokens that are compared; the longest match wins. Up to 64, and up to 16
            lengths. Each length takes an entry of 16 bytes for each token, so that
            `kvcache.LookupInputs` has so many times the ``history_tokens``.
        max_drafts: most tokens of a proposal.
        max_pause: most rounds that pass without a proposal after misses; 0 never pauses.
        history_tokens: tokens whose n-grams are kept at once; of a longer history the stalest are
            given up.
        reserve: take the memory for ``history_tokens`` now, instead of as the history grows.
        occurrence: which of several occurrences of the longest match is continued.

    Raises:
        InvalidArgumentError: an argument is out of range.
        OutOfCapacityError: no memory to reserve.

    >>> index = PromptLookupIndex(min_match=2, max_match=3)
    >>> index.extend([5, 6, 7, 8, 9, 1, 5, 6, 7])
    >>> index.propose()  # the window of an index that has not learned yet is 2
    array([8, 9], dtype=int32)
    >>> index.settle(2)
    >>> index.window
    4

    Source: prompt lookup decoding (Saxena, 2023), with a window that adapts to what is accepted.
    """

    __slots__ = ("_buffer", "_core", "_history", "_max_drafts")

    def __init__(
        self,
        *,
        min_match: int = 2,
        max_match: int = 4,
        max_drafts: int = 16,
        max_pause: int = 32,
        history_tokens: int = 2**17,
        reserve: bool = False,
        occurrence: Occurrence | str = Occurrence.LATEST,
    ) -> None:
        try:
            which = _OCCURRENCES[Occurrence(occurrence)]
        except ValueError:
            raise InvalidArgumentError(
                f"occurrence: expected 'latest', 'earliest' or 'repeating', got {occurrence!r}"
            ) from None
        self._max_drafts = as_count(max_drafts, "max_drafts")
        self._core = _core.PromptLookupIndex(
            min_match=as_count(min_match, "min_match"),
            max_match=as_count(max_match, "max_match"),
            max_drafts=self._max_drafts,
            max_pause=as_count(max_pause, "max_pause"),
            history_tokens=as_count(history_tokens, "history_tokens"),
            reserve=bool(reserve),
            occurrence=which,
        )
        self._history = np.empty(0, np.int32)
        self._buffer: NDArray[np.int32] | None = None  # of `extend`, longer than the history

    def observe(self, history: ArrayLike) -> None:
        """Index what is new in the whole history.

        A history that is shorter than before moves the mark back. An int32 array is borrowed until
        the next call, not copied, and must not change meanwhile but by growing; a list is copied.

        Raises:
            InvalidArgumentError: not one axis of ids that fit int32, or `extend` was used.
            OutOfCapacityError: no memory; nothing was changed.
        """
        if self._buffer is not None:
            raise InvalidArgumentError("observe: this index was given its history by extend")
        tokens = as_tokens(history, "history")
        self._core.observe(tokens)
        self._history = tokens

    def extend(self, tokens: ArrayLike) -> None:
        """Append tokens to the history, which the index then keeps itself (4 bytes a token).

        Raises:
            InvalidArgumentError: not one axis of ids that fit int32, or `observe` was used.
            OutOfCapacityError: no memory; nothing was changed.
        """
        new = as_tokens(tokens)
        if self._buffer is None and self._history.size:
            raise InvalidArgumentError("extend: this index was given its history by observe")
        held = self._history.size
        buffer = self._buffer
        if buffer is None or held + new.size > buffer.size:
            buffer = np.empty(max(1024, 2 * (held + new.size)), np.int32)
            buffer[:held] = self._history
        buffer[held : held + new.size] = new
        history = buffer[: held + new.size]
        self._core.observe(history)
        self._buffer, self._history = buffer, history

    def truncate(self, length: int) -> None:
        """Say that tokens from ``length`` on go, or will be others.

        Needed before other tokens take the place of observed ones; a history that was only cut
        short may just be observed.
        """
        length = as_count(length, "length")
        self._core.truncate(length)
        self._history = self._history[:length]

    def find(self, max_drafts: int | None = None) -> NDArray[np.int32]:
        """What followed the longest match; remembers nothing of the call.

        Args:
            max_drafts: most tokens; None for as many as the index was made with.

        Returns:
            Token ids, none without a match.
        """
        return self._core.find(self._history, self._drafts(max_drafts))

    def propose(
        self, max_drafts: int | None = None, *, shared: PromptLookupScope | None = None
    ) -> NDArray[np.int32]:
        """Drafts for the next verify, in flight until `settle` or `abandon`.

        Args:
            max_drafts: most tokens, beside ``window``; None for as many as the index was made with.
            shared: where to look when the history itself has no match.

        Returns:
            Token ids for `Sequence.begin_verify`; none without a match or in a pause, with nothing
            in flight then.

        Raises:
            InvalidArgumentError: drafts are in flight already.
        """
        if shared is not None and not isinstance(shared, PromptLookupScope):
            raise InvalidArgumentError(f"shared: expected a PromptLookupScope, got {shared!r}")
        scope = None if shared is None else shared._core
        return self._core.propose(self._history, self._drafts(max_drafts), scope)

    def settle(self, accepted: int) -> None:
        """Say how many of the drafts in flight were accepted, and adapt.

        All of them: ``window`` doubles; else it halves. None, m times in a row: the next
        ``2**(m-1)`` rounds pass without a proposal.

        Args:
            accepted: drafts; `VerifySession.commit` counts one more, the row before them.

        Raises:
            InvalidArgumentError: nothing is in flight, or fewer than ``accepted``.
        """
        self._core.settle(as_count(accepted, "accepted"))

    def abandon(self) -> None:
        """Forget the drafts in flight, if any, which were never verified: nothing is learned."""
        self._core.abandon()

    @property
    def length(self) -> int:
        """Tokens of the history that are indexed."""
        return self._core.observed

    @property
    def window(self) -> int:
        """Most tokens of the next proposal."""
        return self._core.window

    @property
    def pause(self) -> int:
        """Rounds that will pass without a proposal."""
        return self._core.pause

    @property
    def in_flight(self) -> int:
        """Drafts that were proposed and not settled."""
        return self._core.in_flight

    @property
    def entries(self) -> int:
        """N-grams that are kept."""
        return self._core.entries

    @property
    def bytes(self) -> int:
        """Memory of the index: ``hash_table_bytes(n * lengths, 16)`` for a history of n tokens."""
        return self._core.bytes

    def _drafts(self, max_drafts: int | None) -> int:
        return self._max_drafts if max_drafts is None else as_count(max_drafts, "max_drafts")

    def __repr__(self) -> str:
        return described(
            "PromptLookupIndex", lambda: f"{self.length} tokens, {format_bytes(self.bytes)}"
        )


def propose_batch(
    indexes: Iterable[PromptLookupIndex], max_drafts: int | ArrayLike | None = None
) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """`PromptLookupIndex.propose` of many indexes by one call, as `Batch.begin_verify` takes it.

    Args:
        indexes: of the sequences of a batch, none of them twice.
        max_drafts: most tokens of each proposal, one number for all or one for each; None for as
            many as each was made with.

    Returns:
        Token ids of all of them, one after the other, and how many each has.

    Raises:
        InvalidArgumentError: drafts of one are in flight already; then nothing is in flight that
            was not before.

    >>> indexes = [PromptLookupIndex() for _ in range(3)]
    >>> for index, first in zip(indexes, (1, 20, 30)):
    ...     index.extend([first, 2, 3, 4, 5, first, 2])
    >>> tokens, counts = propose_batch(indexes, max_drafts=[2, 0, 1])
    >>> tokens, counts
    (array([3, 4, 3], dtype=int32), array([2, 0, 1], dtype=uint64))
    >>> settle_batch(indexes, [2, 0, 0])
    >>> [index.window for index in indexes]
    [4, 2, 1]
    """
    listed = as_instances(indexes, PromptLookupIndex, "indexes")
    if max_drafts is None or is_scalar(max_drafts):
        max_drafts = [index._drafts(cast("int | None", max_drafts)) for index in listed]
    most = cast("NDArray[np.uint64]", as_counts(max_drafts, "max_drafts"))
    histories = [index._history for index in listed]
    return _core.propose_batch([index._core for index in listed], histories, most)


def settle_batch(indexes: Iterable[PromptLookupIndex], accepted: ArrayLike) -> None:
    """`PromptLookupIndex.settle` of all that have drafts in flight, after the commit of a batch.

    Args:
        indexes: as for `propose_batch`.
        accepted: drafts of each, 0 where none were proposed; `commit` counts a row more.

    Raises:
        InvalidArgumentError: fewer are in flight. Nothing was changed.
    """
    listed = as_instances(indexes, PromptLookupIndex, "indexes")
    given = as_counts(accepted, "accepted")
    if given is None:
        raise InvalidArgumentError("accepted: expected one number for each index, got None")
    _core.settle_batch([index._core for index in listed], given)


class PromptLookupCache:
    """What finished sequences said, for prompt lookup by later ones.

    Sequences share n-grams within a scope, never across: a scope is a model, tokenizer, adapter and
    tenant. Its tokens lie in a ring of fixed size, where the oldest go first; when memory for one
    more scope is short, the one that was used longest ago is dropped whole. Thread-safe.

    Args:
        memory: bytes of all scopes, as a number or as text ("64MiB").
        scope: bytes of one scope, at least 8 KiB.
        match: tokens that must be equal before a draft, up to 64.

    Raises:
        InvalidArgumentError: an argument is out of range, or one scope does not fit ``memory``.

    >>> cache = PromptLookupCache(memory="1MiB", scope="64KiB", match=2)
    >>> scope = cache.scope(model="m", tokenizer="t", tenant="a")
    >>> scope.insert([1, 2, 3, 4, 5])
    >>> scope.find([9, 2, 3], max_drafts=8)
    array([4, 5], dtype=int32)
    >>> cache.scope(model="m", tokenizer="t", tenant="b").find([9, 2, 3], max_drafts=8)
    array([], dtype=int32)
    """

    __slots__ = ("_core",)

    def __init__(
        self, *, memory: str | int = "64MiB", scope: str | int = "1MiB", match: int = 3
    ) -> None:
        self._core = _core.PromptLookupCache(
            memory_bytes=parse_bytes(memory),
            scope_bytes=parse_bytes(scope, name="scope"),
            match=as_count(match, "match"),
        )

    def scope(
        self,
        *,
        model: str | bytes,
        tokenizer: str | bytes,
        adapter: str | tuple[str, str] | None = None,
        tenant: str | bytes,
    ) -> PromptLookupScope:
        """A name for what sequences of these four share; takes no memory before its first insert.

        Args:
            model: which model, its revision and weights included.
            tokenizer: which tokenizer.
            adapter: name, or name and revision, as for `Cache.open`.
            tenant: who may see whose tokens.
        """
        return PromptLookupScope(self._core.scope(*_key(model, tokenizer, adapter, tenant)))

    def drop(
        self,
        *,
        model: str | bytes,
        tokenizer: str | bytes,
        adapter: str | tuple[str, str] | None = None,
        tenant: str | bytes,
    ) -> bool:
        """Forget a scope, as when a tenant leaves; False when it holds nothing."""
        return self._core.drop(*_key(model, tokenizer, adapter, tenant))

    @property
    def scopes(self) -> int:
        """Scopes that hold tokens."""
        return self._core.scopes

    @property
    def bytes(self) -> int:
        """Memory that they take."""
        return self._core.bytes

    def __repr__(self) -> str:
        return described(
            "PromptLookupCache", lambda: f"{self.scopes} scopes, {format_bytes(self.bytes)}"
        )


class PromptLookupScope:
    """One scope of a `PromptLookupCache`; stays valid, though empty, when that drops it."""

    __slots__ = ("_core",)

    def __init__(self, core: _core.PromptLookupScope) -> None:
        self._core = core

    def insert(self, tokens: ArrayLike) -> None:
        """Learn a finished sequence, but for the parts that the scope predicts already.

        Args:
            tokens: all ids of a sequence that ended without an error, prompt and output.

        Raises:
            InvalidArgumentError: not one axis of ids, or a negative one.
            OutOfCapacityError: the system has no memory for the scope.
        """
        self._core.insert(as_tokens(tokens))

    def find(self, history: ArrayLike, max_drafts: int = 16) -> NDArray[np.int32]:
        """What followed the last ``match`` tokens of ``history``, up to the end of its sequence."""
        most = as_count(max_drafts, "max_drafts", most=_MOST_DRAFTS)
        return self._core.find(as_tokens(history, "history"), most)

    @property
    def tokens(self) -> int:
        """Tokens that the scope keeps; 0 when it was dropped or never filled."""
        return self._core.tokens

    def __repr__(self) -> str:
        return described("PromptLookupScope", lambda: f"{self.tokens} tokens")


def _key(model: Any, tokenizer: Any, adapter: Any, tenant: Any) -> tuple[bytes, ...]:
    for name, part in (("model", model), ("tokenizer", tokenizer), ("tenant", tenant)):
        if part is None:  # those who forget it would share
            raise InvalidArgumentError(f"{name}: expected text or bytes, got None")
    return (
        as_bytes(model, "model"),
        as_bytes(tokenizer, "tokenizer"),
        adapter_key(adapter),
        as_bytes(tenant, "tenant"),
    )
