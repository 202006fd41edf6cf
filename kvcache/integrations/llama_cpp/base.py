"""What the caches in memory and on disk have in common: the interface of `BaseLlamaCache`."""

from __future__ import annotations

import abc
import collections
import os
import threading
import warnings
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from kvcache._arguments import as_tokens
from kvcache.errors import InvalidArgumentError, KVCacheWarning, NotFoundError
from kvcache.integrations.llama_cpp.identity import model_facts
from kvcache.integrations.llama_cpp.state import Record, as_record
from kvcache.integrations.llama_cpp.stats import LlamaCacheStats
from kvcache.integrations.llama_cpp.token_trie import TokenTrie
from kvcache.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["PrefixNotFoundError", "StateCache"]


class PrefixNotFoundError(NotFoundError, KeyError):
    """No stored state begins like the prompt; `llama_cpp.Llama` takes it for a miss."""

    __str__ = Exception.__str__  # that of KeyError is a repr


class Entry(Protocol):
    """What the index leads to."""

    @property
    def tokens(self) -> NDArray[np.int32]: ...


E = TypeVar("E", bound=Entry)


class StateCache(abc.ABC, Generic[E]):
    """States of one model by their tokens."""

    def __init__(
        self,
        capacity_bytes: str | int,
        model: Any,
        logits_all: bool | None,
        partial_hits: bool | None,
    ) -> None:
        for name, flag in [("logits_all", logits_all), ("partial_hits", partial_hits)]:
            if flag is not None and not isinstance(flag, bool):
                raise InvalidArgumentError(f"{name}: expected True, False or None, got {flag!r}")
        self._capacity_bytes = parse_bytes(capacity_bytes, name="capacity_bytes")
        self._facts = model_facts(model, logits_all, partial_hits)
        self._index: TokenTrie[E] = TokenTrie()
        self._counts: collections.Counter[str] = collections.Counter()
        self._warned: set[str] = set()
        self._lock = threading.Lock()  # of all of these; nothing is read or written under it
        self._process = os.getpid()

    @property
    def capacity_bytes(self) -> int:
        """Bytes that it may hold."""
        return self._capacity_bytes

    @property
    @abc.abstractmethod
    def cache_size(self) -> int:
        """Bytes that it holds."""

    def __contains__(self, key: Sequence[int]) -> bool:
        """Whether `__getitem__` would find a state, unless its file is damaged."""
        tokens = self._prepared(key)
        with self._lock:
            return self._find(tokens) is not None

    def __getitem__(self, key: Sequence[int]) -> Any:
        """The state that shares the longest prefix with a prompt.

        Of several, the one with the fewest tokens, which is the fastest to restore. For a model
        whose state cannot be cut, the longest that is a prefix and not all of the prompt.

        Args:
            key: the tokens of the prompt.

        Returns:
            A `llama_cpp.LlamaState` for `llama_cpp.Llama.load_state`.

        Raises:
            PrefixNotFoundError: no state; it is a `KeyError`, as llama-cpp-python expects.
            InvalidArgumentError: what are no tokens, or the cache is of a parent process.
        """
        tokens = self._prepared(key)
        while True:
            with self._lock:
                found = self._find(tokens)
                if found is None:
                    self._counts.update(misses=1, asked_tokens=len(tokens))
                    raise PrefixNotFoundError(
                        f"no stored state begins like these {len(tokens)} tokens"
                    )
            shared, entry = found
            record = self._read(entry)
            if record is not None:  # else it is gone, and the next best one is looked for
                break
        with self._lock:
            self._counts.update(hits=1, asked_tokens=len(tokens), hit_tokens=shared)
        return record.state()

    def __setitem__(self, key: Sequence[int], value: Any) -> None:
        """Store a state, having evicted the least recently used ones where there is no room.

        What is not stored because it is too large, because llama.cpp could not save it, or because
        the system refuses to write, is counted and warned of once: it costs hits and nothing else.

        Args:
            key: the tokens that led to the state, with those that were generated. It is found by
                those that the state has seen, which lack the last one as a rule.
            value: a `llama_cpp.LlamaState`, from `llama_cpp.Llama.save_state`; it is not copied.

        Raises:
            InvalidArgumentError: what is no state of this model or of these tokens, or the cache
                is of a parent process.
        """
        self._check_process()
        record = as_record(as_tokens(key, "key"), value, self._facts)
        size = self._size(record)
        if not record.blob:
            self._refuse("empty", "llama.cpp gave a state of 0 bytes; it is not stored")
        elif size > self._capacity_bytes:
            self._refuse(
                "large",
                f"a state of {format_bytes(size)} ({len(record.tokens)} tokens) exceeds"
                f" capacity_bytes={format_bytes(self._capacity_bytes)} and is not stored",
            )
        else:
            self._store(record)

    def stats(self) -> LlamaCacheStats:
        """What happened so far."""
        self._prepared([])
        used = self.cache_size
        with self._lock:
            return LlamaCacheStats(
                capacity_bytes=self._capacity_bytes,
                used_bytes=used,
                states=len(self._index),
                **self._counts,
            )

    def _find_longest_prefix_key(self, key: Sequence[int]) -> tuple[int, ...] | None:
        """The tokens of the state that `__getitem__` would find."""
        tokens = self._prepared(key)
        with self._lock:
            found = self._find(tokens)
        return None if found is None else tuple(found[1].tokens.tolist())

    @abc.abstractmethod
    def clear(self) -> None:
        """Drop every state of this model."""

    @abc.abstractmethod
    def _size(self, record: Record) -> int:
        """Bytes that a record takes."""

    @abc.abstractmethod
    def _store(self, record: Record) -> None:
        """Make room and store; what fails is counted."""

    @abc.abstractmethod
    def _read(self, entry: E) -> Record | None:
        """What an entry stands for, now the most recently used; None if it left the index."""

    def _prepared(self, key: Sequence[int]) -> NDArray[np.int32]:
        """The tokens of a prompt, and the index ready to be asked."""
        self._check_process()
        return as_tokens(key, "key")

    def _find(self, tokens: NDArray[np.int32]) -> tuple[int, E] | None:
        if self._facts.partial_hits:
            return self._index.nearest(tokens)
        return self._index.longest_whole(tokens[:-1])  # the last token always runs

    def _refuse(self, kind: str, message: str) -> None:
        with self._lock:
            self._counts.update(refused=1)
        self._warn(kind, message)

    def _warn(self, kind: str, message: str) -> None:
        with self._lock:
            if kind in self._warned:
                return
            self._warned.add(kind)
        warnings.warn(f"{type(self).__name__}: {message}", KVCacheWarning, stacklevel=4)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise InvalidArgumentError(
                "this cache was made before fork() and is of no use in the child process;"
                " make a new one here"
            )
