"""States in memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from kvcache.integrations.llama_cpp.base import StateCache
from kvcache.integrations.llama_cpp.state import Record

__all__ = ["LlamaRAMCache"]

_ENTRY_BYTES = 4096  # objects of Python and nodes of the index, for one state


class LlamaRAMCache(StateCache[Record]):
    """A `llama_cpp.LlamaRAMCache` that finds by one walk and keeps within its budget.

    Stored bytes are those of llama.cpp, the tokens and, with ``logits_all``, the scores; all of
    them count, and room is made before a state is taken. Thread-safe.

    Args:
        capacity_bytes: most bytes that it may hold, as a number or as text ("2GiB").
        model: the `llama_cpp.Llama` that uses it, of which it keeps no reference, or a text.
        logits_all: whether the model was made with ``logits_all``, so that its scores are to be
            kept; None for what ``model`` says. Of a text, scores with a row for each token.
        partial_hits: whether states of the model can be cut back to a shorter prefix; None for
            what ``model`` says, of a text True.

    Raises:
        InvalidArgumentError: a value out of range or of another type.
        UnsupportedError: a model with images or sound.
        KVCacheIOError: the file of the model cannot be read.
    """

    def __init__(
        self,
        capacity_bytes: str | int = 2 << 30,
        *,
        model: Any = "",
        logits_all: bool | None = None,
        partial_hits: bool | None = None,
    ) -> None:
        super().__init__(capacity_bytes, model, logits_all, partial_hits)
        self._sizes: OrderedDict[Record, int] = OrderedDict()  # the least recently used first
        self._used = 0

    @property
    def cache_size(self) -> int:
        """Bytes that it holds."""
        return self._used

    def clear(self) -> None:
        """Drop every state."""
        self._check_process()
        with self._lock:
            for record in list(self._sizes):
                self._drop(record)

    def _size(self, record: Record) -> int:
        scores = 0 if record.scores is None else record.scores.nbytes
        # Twice the tokens: the index has them as well.
        return len(record.blob) + scores + 2 * record.tokens.nbytes + _ENTRY_BYTES

    def _store(self, record: Record) -> None:
        size = self._size(record)
        with self._lock:
            same = self._index.longest_whole(record.tokens)
            if same is not None and same[0] == len(record.tokens):
                self._drop(same[1])
                self._counts.update(replaced=1)
            while self._used + size > self._capacity_bytes:
                self._drop(next(iter(self._sizes)))
                self._counts.update(evicted=1)
            self._index.insert(record.tokens, record)
            self._sizes[record] = size
            self._used += size
            self._counts.update(stored=1)

    def _read(self, entry: Record) -> Record | None:
        with self._lock:
            if entry in self._sizes:  # evicted meanwhile, it is as good
                self._sizes.move_to_end(entry)
        return entry

    def _drop(self, record: Record) -> None:
        self._index.remove(record.tokens)
        self._used -= self._sizes.pop(record)
