"""States in a directory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcache.errors import CorruptionError, KVCacheIOError, OutOfCapacityError, UnsupportedError
from kvcache.integrations.llama_cpp.base import StateCache
from kvcache.integrations.llama_cpp.folder import StateFolder
from kvcache.integrations.llama_cpp.state_file import (
    StateHead,
    read_head,
    read_record,
    record_bytes,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from kvcache.integrations.llama_cpp.state import Record

__all__ = ["LlamaDiskCache"]


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    name: str
    tokens: NDArray[np.int32]


class LlamaDiskCache(StateCache[_Entry]):
    """A `llama_cpp.LlamaDiskCache` that survives restarts, damage and other processes.

    A file holds what `LlamaRAMCache` would hold of a state, with checksums. A damaged one is a
    miss: it is counted and removed. Several models and processes may share a directory; they share
    its budget, and no model finds the states of another. Thread-safe.

    Args:
        cache_dir: directory; it and its parents are made.
        capacity_bytes: most bytes of all its files, as a number or as text ("2GiB").
        model: the `llama_cpp.Llama` that uses it, of which it keeps no reference; or a text that
            names the model and its context, for which the caller vouches.
        logits_all: as in `LlamaRAMCache`.
        partial_hits: as in `LlamaRAMCache`.

    Raises:
        InvalidArgumentError: a value out of range or of another type.
        UnsupportedError: a model with images or sound.
        KVCacheIOError: the directory cannot be made, or the file of the model cannot be read.
    """

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] = ".cache/llama_cache",
        capacity_bytes: str | int = 2 << 30,
        *,
        model: Any,
        logits_all: bool | None = None,
        partial_hits: bool | None = None,
    ) -> None:
        super().__init__(capacity_bytes, model, logits_all, partial_hits)
        self._folder = StateFolder(cache_dir, self._capacity_bytes)
        self._entries: dict[str, _Entry] = {}
        self._ignored: set[str] = set()  # that cannot be read, and not be removed
        self._seen_ns = 0
        try:
            self._counts.update(evicted=self._folder.trim())
        except OSError as error:
            self._fail("write", error)
        self._refresh()

    @property
    def cache_size(self) -> int:
        """Bytes of all files, those of other models and processes too."""
        return self._folder.used_bytes()

    def clear(self) -> None:
        """Remove every state of this model.

        Raises:
            KVCacheIOError: the system refuses to remove some of them.
        """
        self._prepared([])
        with self._lock:
            entries = list(self._entries.values())
        kept = [entry.name for entry in entries if not self._folder.remove(entry.name)]
        for entry in entries:
            self._forget(entry)
        if kept:
            raise KVCacheIOError(
                f"cache_dir: {len(kept)} of {len(entries)} states cannot be removed from"
                f" {self._folder.path}, such as {kept[0]}"
            )

    def _prepared(self, key: Sequence[int]) -> NDArray[np.int32]:
        tokens = super()._prepared(key)
        self._refresh()
        return tokens

    def _size(self, record: Record) -> int:
        return record_bytes(record)

    def _store(self, record: Record) -> None:
        name = self._name(record.tokens)
        try:
            evicted = self._folder.store(name, self._facts.identity, record)
        except OutOfCapacityError as error:
            self._refuse("room", str(error))
            return
        except OSError as error:
            self._fail("write", error)
            return
        with self._lock:
            self._counts.update(stored=1, evicted=evicted, replaced=name in self._entries)
            self._ignored.discard(name)
            self._insert(_Entry(name, record.tokens))

    def _read(self, entry: _Entry) -> Record | None:
        try:
            with self._folder.reading(entry.name) as file:
                head = self._own_head(entry.name, read_head(file))
                record = read_record(file, head)
                self._folder.use(file)
                return record
        except FileNotFoundError:
            pass  # another process removed it
        except (OSError, CorruptionError, UnsupportedError) as error:
            self._leave_out(entry.name, error)
        self._forget(entry)
        return None

    def _refresh(self) -> None:
        """Take what other processes have stored and removed into the index."""
        with self._lock:
            seen_ns = self._seen_ns
        try:
            listed = self._folder.names(seen_ns)
        except OSError as error:
            self._fail("read", error)
            return
        if listed is None:
            return
        prefix = self._facts.identity.hex()
        names = {name for name in listed[1] if name.startswith(prefix)}
        with self._lock:
            self._seen_ns = listed[0]
            gone = [entry for name, entry in self._entries.items() if name not in names]
            new = names - self._entries.keys() - self._ignored
        for entry in gone:
            self._forget(entry)
        for name in sorted(new):
            self._discover(name)

    def _discover(self, name: str) -> None:
        try:
            with self._folder.reading(name) as file:
                head = self._own_head(name, read_head(file))
        except FileNotFoundError:
            return
        except (OSError, CorruptionError, UnsupportedError) as error:
            self._leave_out(name, error)
            return
        with self._lock:
            self._insert(_Entry(name, head.tokens))

    def _insert(self, entry: _Entry) -> None:
        self._entries[entry.name] = entry
        self._index.insert(entry.tokens, entry)

    def _forget(self, entry: _Entry) -> None:
        with self._lock:
            if self._entries.get(entry.name) is entry:
                del self._entries[entry.name]
                self._index.remove(entry.tokens)

    def _own_head(self, name: str, head: StateHead) -> StateHead:
        if head.identity != self._facts.identity or self._name(head.tokens) != name:
            raise CorruptionError("its name is not that of its model and tokens")
        return head

    def _leave_out(self, name: str, error: Exception) -> None:
        """Count a file that cannot be used, and remove it if it is damaged."""
        is_damaged = isinstance(error, CorruptionError)
        is_removed = is_damaged and self._folder.remove(name)
        with self._lock:
            self._counts.update(damaged=int(is_damaged))
            if not is_removed:
                self._ignored.add(name)
        if is_damaged:
            self._warn("damaged", f"{name} is left out, it is damaged: {error}")
        elif isinstance(error, OSError):
            self._fail("read", error)

    def _fail(self, kind: str, error: OSError) -> None:
        with self._lock:
            self._counts.update({f"{kind}_errors": 1})
        self._warn(kind, f"cannot {kind} in {self._folder.path}: {error}")

    def _name(self, tokens: NDArray[np.int32]) -> str:
        digest = hashlib.sha256(tokens.astype("<i4").tobytes()).hexdigest()
        return f"{self._facts.identity.hex()}-{digest[:32]}.state"
