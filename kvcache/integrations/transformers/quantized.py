"""A cache whose full-attention layers keep their history in INT8 pages."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from transformers import cache_utils

from kvcache._arguments import as_count
from kvcache.cache import Cache
from kvcache.errors import InvalidArgumentError, UnsupportedError
from kvcache.integrations.transformers.layers import declare
from kvcache.integrations.transformers.probe import probe
from kvcache.plan import StatePlan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcache.integrations.transformers.layers import Layer
    from kvcache.sequence import Sequence

__all__ = ["Int8Cache", "Int8Layer"]

_AXES = "heads tokens dim"


class _Pages:
    """The history of all INT8 layers, a sequence for each row of the batch."""

    def __init__(self, cache: Cache, first: int) -> None:
        self.cache = cache
        self.first = first  # the layer that each forward pass writes first
        self.rows: list[Sequence] = []

    def begin(self, layer: int, batch: int, start: int, positions: int) -> None:
        """Make room for positions that a layer is about to write."""
        if not self.rows:
            self.rows = [self.cache.open([0]) for _ in range(batch)]
        if len(self.rows) != batch:
            raise InvalidArgumentError(
                f"key_states: a batch of {batch}, the cache has {len(self.rows)} rows"
            )
        if layer == self.first:
            self.settle(start)
        missing = start + positions - len(self.rows[0].tokens) if layer == self.first else 0
        if missing > 0:
            for row in self.rows:
                row.extend(np.zeros(missing, np.int32))  # nothing is found by these ids

    def settle(self, positions: int) -> None:
        """All layers have written so many positions."""
        for row in self.rows:
            if row.length < positions:
                row.advance(positions - row.length)

    def truncate(self, positions: int) -> None:
        """Forget what follows."""
        for row in self.rows:
            row.truncate(positions)

    def select(self, rows: Iterable[int]) -> None:
        """New rows that go on from these; pages are shared until one of them writes.

        Raises:
            InvalidArgumentError: there is no such row. OutOfCapacityError: the plan does not allow
                so many, beside those that are there. In both cases nothing has changed.
        """
        most = len(self.rows) - 1
        chosen = [as_count(row, "row", most=most) for row in rows] if self.rows else []
        if chosen == list(range(len(self.rows))):
            return
        with contextlib.ExitStack() as stack:
            new = [stack.enter_context(self.rows[row].fork()) for row in chosen]
            stack.pop_all()
        self.close()
        self.rows = new

    def close(self) -> None:
        """Give everything back."""
        for row in self.rows:
            row.close()
        self.rows = []


class Int8Layer(cache_utils.CacheLayerMixin):  # type: ignore[misc]
    """One full-attention layer: INT8 codes with one float32 scale for each position and head.

    What a forward pass adds is attended to as it is computed, and quantised for those that follow.
    """

    is_sliding = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, pages: _Pages, layer: Layer) -> None:
        super().__init__()
        self._pages = pages
        self._layer = layer.index
        self.cumulative_length = 0

    def lazy_initialization(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,  # noqa: ARG002 - the interface
    ) -> None:
        """Learn the device."""
        self.device = key_states.device
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new rows, and give those of all positions.

        Args:
            key_states: ``[batch, heads, tokens, width]``.
            value_states: of the same batch, heads and tokens.

        Raises:
            OutOfCapacityError: the memory of the cache is used up.
            NonFiniteError: a row is not finite.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, new = self.cumulative_length, key_states.shape[2]
        self._pages.begin(self._layer, key_states.shape[0], start, new)
        keys, values = self._store_and_read(start, new, (key_states, value_states))
        self.cumulative_length = start + new
        return keys, values

    def _store_and_read(
        self, start: int, new: int, states: tuple[torch.Tensor, torch.Tensor]
    ) -> list[torch.Tensor]:
        fresh = [each.detach().cpu() for each in states]
        old = [each.new_empty((*each.shape[:2], start, each.shape[3])) for each in fresh]
        for b, row in enumerate(self._pages.rows):
            if start:
                row.export_rows(self._layer, 0, start, [each[b] for each in old], _AXES)
            row.import_rows(self._layer, start, start + new, [each[b] for each in fresh], _AXES)
        return [
            torch.cat([history.to(each.device), each], dim=2)
            for history, each in zip(old, states, strict=True)
        ]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Rows that attention sees, and the position of the first."""
        return self.cumulative_length + query_length, 0

    def get_seq_length(self) -> int:
        """Positions stored."""
        return self.cumulative_length

    def get_max_length(self) -> int:
        """No limit but the memory."""
        return -1

    def offload(self) -> None:
        """Nothing to do: pages lie in host memory."""

    def prefetch(self) -> None:
        """Nothing to do: pages are read when they are needed."""


class Int8Cache(transformers.Cache):  # type: ignore[misc]
    """Keys and values of full attention in INT8 pages; where `QuantizedCache` goes, this does too.

    ``model.generate(..., cache=Int8Cache(model))``. Layers of other classes, whose state does not
    grow, or selects positions, are those of `transformers.DynamicCache`. An update reads the
    history of its layer, so no more than one layer is ever there in full.

    Args:
        model_or_config: the model, which runs one token, or its configuration.
        memory: the most that the pages take, as bytes or as text ("2GiB").
        block_tokens: positions in a page.
        sequences: rows at once, twice the beams of a batch.

    Raises:
        UnsupportedError: an encoder-decoder model, a cache that is not known, or no layer of full
            attention.
    """

    def __init__(
        self,
        model_or_config: Any,
        *,
        memory: str | int = "1GiB",
        block_tokens: int = 16,
        sequences: int = 256,
    ) -> None:
        seen = probe(model_or_config)
        if seen.is_encoder_decoder:
            raise UnsupportedError("Int8Cache: encoder-decoder models are not supported")
        layers = seen.empty_cache().layers
        full = [
            layer
            for layer in seen.layers
            if type(layers[layer.index]) is cache_utils.DynamicLayer and layer.rows
        ]
        if not full:
            raise UnsupportedError(f"Int8Cache: no layer of full attention in {layers}")
        plan = StatePlan(
            declare(tuple(full), "int8"),
            memory=memory,
            block_tokens=block_tokens,
            sequences=sequences,
        )
        self.pages = _Pages(Cache(plan), full[0].index)
        for layer in full:
            layers[layer.index] = Int8Layer(self.pages, layer)
        super().__init__(layers=layers)

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last positions; as in `transformers.Cache`, a number that is not above 0."""
        count = as_count(tokens_to_remove, "tokens_to_remove", least=-(2**63))
        if count > 0:
            raise InvalidArgumentError(
                f"tokens_to_remove: expected 0 or a negative number, got {count}"
            )
        for layer in self._others():
            layer.crop(count)
        length = max(0, self._int8()[0].cumulative_length + count)
        for layer in self._int8():
            layer.cumulative_length = length
        self.pages.settle(length)
        self.pages.truncate(length)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Rows that go on from those of the beams chosen."""
        self._select(beam_idx.tolist())
        for layer in self._others():
            layer.reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row so many times."""
        times = as_count(repeats, "repeats", least=1)
        self._select(row for row in range(len(self.pages.rows)) for _ in range(times))
        for layer in self._others():
            layer.batch_repeat_interleave(times)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """These rows alone."""
        try:
            chosen = torch.arange(len(self.pages.rows))[indices.cpu()]
        except IndexError as error:
            raise InvalidArgumentError(f"indices: {error}") from None
        self._select(chosen.tolist())
        for layer in self._others():
            layer.batch_select_indices(indices)

    def reset(self) -> None:
        """Forget everything."""
        for layer in self._others():
            layer.reset()
        for layer in self._int8():
            layer.cumulative_length = 0
            layer.is_initialized = False
        self.pages.close()

    def _select(self, rows: Iterable[int]) -> None:
        self.pages.settle(self._int8()[0].cumulative_length)
        self.pages.select(rows)

    def _int8(self) -> list[Int8Layer]:
        return [layer for layer in self.layers if isinstance(layer, Int8Layer)]

    def _others(self) -> list[Any]:
        return [layer for layer in self.layers if not isinstance(layer, Int8Layer)]
