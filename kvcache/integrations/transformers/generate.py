"""`model.generate` that computes of a prompt only what no earlier one has."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import transformers

from kvcache._arguments import as_count, as_instance
from kvcache.errors import InvalidArgumentError, OutOfCapacityError, UnsupportedError
from kvcache.integrations.transformers.forward import Pieces, run_piece
from kvcache.integrations.transformers.linear import LinearCache
from kvcache.integrations.transformers.prompts import Prompts, as_prompts
from kvcache.integrations.transformers.record import Place, columns_of
from kvcache.integrations.transformers.store import PrefixStore

if TYPE_CHECKING:
    from kvcache.sequence import Sequence

__all__ = ["generate"]

_STEP = 8  # what a token alone costs, in tokens of a whole prompt
_FIRST = ("input_ids", "attention_mask", "use_cache")
_DRAFTS = ("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit")


def generate(
    model: Any,
    inputs: Any = None,
    *,
    store: PrefixStore,
    marks: Iterable[int] = (),
    **kwargs: Any,
) -> Any:
    """As ``model.generate(inputs, **kwargs)``, with prefixes from a store, and into it.

    What runs is what the store does not have of the prompts. Stored are the prompts, and what was
    generated for each, but for beams and several sequences of one prompt, of which only the prompts
    are. A model with recurrent state runs its prompt in pieces, which end where a snapshot pays, so
    that prompts that agree up to there begin at it.

    Args:
        model: the model of the store.
        inputs: token ids ``[batch, columns]``, or what a tokenizer returns.
        store: see `PrefixStore`.
        marks: positions at which other prompts will part from these, such as the end of the system
            prompt; counted without padding.
        **kwargs: of ``model.generate``.

    Returns:
        What ``model.generate`` returns, prompts included.

    Raises:
        InvalidArgumentError: no tokens, padding that is not on the left, or a cache among the
            arguments.
        UnsupportedError: inputs beside tokens and mask, an encoder-decoder model (see
            `PrefixStore.lookup`), drafts for a model without attention, or a kind of cache by name.
        OutOfCapacityError: more rows than the store's ``sequences``. Prompts that do not fit into
            the memory are generated all the same, and not stored.
    """
    kwargs = {**_given(inputs), **kwargs}
    as_instance(store, PrefixStore, "store")
    if not isinstance(marks, Iterable):
        raise InvalidArgumentError(f"marks: expected positions, got {marks!r}")
    _check(model, store, kwargs)
    ids = kwargs.pop("input_ids")
    mask = kwargs.pop("attention_mask", None)
    mask = _mask(model, ids, kwargs) if mask is None else mask
    prompts = as_prompts(ids, mask)
    with contextlib.ExitStack() as stack, torch.no_grad():
        run = _Run(model, store, prompts, _end_tokens(model, kwargs), stack)
        run.mark(marks)
        run.prefill(ids, mask)
        repeats = _repeats(model, kwargs)
        cache = run.expanded(repeats)
        output = model.generate(ids, attention_mask=mask, cache=cache, **kwargs)
        run.finish(cache, output if torch.is_tensor(output) else output.sequences, repeats)
    return output


class _Run:
    """One call: a sequence for each row, and the cache that the model goes on with."""

    def __init__(
        self,
        model: Any,
        store: PrefixStore,
        prompts: Prompts,
        ends: set[int],
        stack: contextlib.ExitStack,
    ) -> None:
        self.model = model
        self.store = store
        self.ends = ends  # tokens that end a row
        self.prompts = prompts
        self.layers = store.probe.layers
        rows, self.columns = store.open(prompts, b"", stack)
        steps = prompts.columns - 1 - self.columns
        if store.probe.pieces is Pieces.ONE and steps * _STEP > prompts.columns:
            stack.pop_all().close()
            rows, self.columns = store.open(prompts, b"", stack, most=0)
        self.rows: list[Sequence | None] = list(rows)  # None: not to be stored any more
        into = None if any(layer.rows for layer in self.layers) else LinearCache(store.probe.config)
        self.cache = store.restore(rows, prompts, self.columns, into)
        if store.exceeds(prompts.columns):
            self.rows = [None] * len(rows)
        self.window_stops: list[list[int]] = [[] for _ in rows]

    def mark(self, marks: Iterable[int]) -> None:
        """Hand the caller's marks to the sequences."""
        for position in [as_count(each, "marks") for each in marks]:
            for row, seq in enumerate(self.rows):
                if seq is not None and position <= len(self.prompts.tokens(row)):
                    seq.mark(position, "system")

    def prefill(self, ids: torch.Tensor, mask: torch.Tensor) -> None:
        """Run the prompt up to where a snapshot of fixed-size state pays last."""
        if not self.store.has_fixed:
            for row, seq in enumerate(self.rows):
                self.window_stops[row] = [] if seq is None else self.store.window_stops(seq)
            return
        stops: dict[int, list[int]] = {}
        least = max(self.prompts.pads)
        for row, seq in enumerate(self.rows):
            for position in [] if seq is None else seq.prefill_stops():
                column = position + self.prompts.pads[row]
                if max(least, self.columns) < column < self.prompts.columns:
                    stops.setdefault(column, []).append(row)
        for column in self._affordable(sorted(stops)):
            self._forward(ids, mask, column)
            for row in stops.get(column, []):
                self._commit(row, row, self.cache, column)

    def _affordable(self, stops: list[int]) -> list[int]:
        """Of a model that goes on by single tokens, a new prompt runs to its last stop at once."""
        if self.store.probe.pieces is Pieces.ANY:
            return stops
        last = self.prompts.columns - 1
        if self.columns:
            return [*stops, *([last] if last > max([self.columns, *stops]) else [])]
        return [last] if last in stops else []

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, stop: int) -> None:
        padding = mask if any(self.prompts.pads) else None
        steps = self.columns and self.store.probe.pieces is Pieces.ONE
        for end in range(self.columns + 1, stop + 1) if steps else [stop]:
            run_piece(self.model, ids, self.columns, end, self.cache, padding)
            self.columns = end
            if isinstance(self.cache, LinearCache):
                self.cache.seen = end

    def expanded(self, repeats: int) -> Any:
        """The cache with each row as often as `generate` repeats the prompt."""
        if isinstance(self.cache, LinearCache):
            self.cache.seen = self.columns
        if repeats > 1 and self.columns:
            index = torch.arange(len(self.prompts.ids)).repeat_interleave(repeats)
            for layer in self.cache.layers:
                if getattr(layer, "is_initialized", True):
                    layer.reorder_cache(index)
        return self.cache

    def finish(self, cache: Any, sequences: torch.Tensor, repeats: int) -> None:
        """Store what has run: of each prompt, and of what followed it where that is one row."""
        seen = columns_of(cache, self.layers)
        seen = int(sequences.shape[1]) - 1 if seen is None else seen
        known = min(seen, int(sequences.shape[1]))  # drafts may have run beyond it
        tokens = sequences.detach().cpu().numpy()
        for row, seq in enumerate(self.rows):
            if seq is None:
                continue
            stop = self.prompts.columns
            if repeats == 1:
                stop = self._end(tokens[row], known)
                more = tokens[row, self.prompts.columns : stop]
                if len(more):
                    seq.extend(more)
            if self.store.has_fixed and stop != seen:
                continue  # the state is that of later positions
            self._commit(row, row * repeats, cache, stop, seen)

    def _end(self, tokens: Any, known: int) -> int:
        """One past the column that ended a row; the rest of it is filling."""
        stop = self.prompts.columns
        while stop < known:
            stop += 1
            if int(tokens[stop - 1]) in self.ends:
                break
        return stop

    def _commit(self, row: int, index: int, cache: Any, stop: int, seen: int | None = None) -> None:
        """Store a row; one that does not fit is let go, and generated all the same."""
        seq, pad = self.rows[row], self.prompts.pads[row]
        columns = stop if seen is None else seen
        if seq is None or seq.length >= stop - pad:
            return
        try:
            if self.store.has_rows_since(cache, seq.length, pad, columns):
                place = Place(index, pad)
                self.store.commit(seq, cache, place, stop, columns, self.window_stops[row])
        except OutOfCapacityError:
            self.rows[row] = None
            seq.close()


def _given(inputs: Any) -> dict[str, Any]:
    if inputs is None:
        return {}
    if isinstance(inputs, Mapping):
        return dict(inputs)
    return {"input_ids": inputs}


def _check(model: Any, store: PrefixStore, kwargs: dict[str, Any]) -> None:
    ids = kwargs.get("input_ids")
    if ids is None or not torch.is_tensor(ids) or ids.ndim != 2:
        raise InvalidArgumentError(
            f"inputs: expected token ids [batch, columns] as a tensor, got {type(ids).__name__}"
        )
    for name in ("cache", "past_key_values"):
        if kwargs.get(name) is not None:
            raise InvalidArgumentError(f"{name}: the store gives the cache; leave it out")
    if kwargs.get("use_cache") is False:
        raise InvalidArgumentError("use_cache: a store needs the cache")
    if store.probe.is_encoder_decoder:
        raise UnsupportedError(
            "generate: encoder-decoder models go by PrefixStore.lookup() and insert()"
        )
    for name in kwargs.keys() - _options_of(model):
        if kwargs[name] is not None:
            raise UnsupportedError(
                f"{name}: an input of the model that tokens do not tell, so prefixes cannot be"
                " shared"
            )
    for name in ("custom_generate", "token_healing"):
        if _option(model, kwargs, name):
            raise UnsupportedError(f"{name}: what it runs need not be the tokens of the prompt")
    implementation = _option(model, kwargs, "cache_implementation")
    if implementation not in (None, "dynamic", "hybrid"):
        raise UnsupportedError(f"cache_implementation: {implementation!r} cannot be filled here")
    drafts = [name for name in _DRAFTS if _option(model, kwargs, name)]
    if drafts and not any(layer.rows for layer in store.probe.layers):
        raise UnsupportedError(f"{drafts[0]}: a model without attention cannot take drafts back")


def _options_of(model: Any) -> set[str]:
    """Arguments of `generate` that say how to go on, not what has been."""
    named = set(inspect.signature(model.generate).parameters)
    return {*_FIRST, *named, *vars(transformers.GenerationConfig())}


def _mask(model: Any, ids: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
    """The mask that `generate` takes where none is given: from padding, if it is told apart."""
    pad = _option(model, kwargs, "pad_token_id")
    if pad is None or pad in _end_tokens(model, kwargs):
        return torch.ones_like(ids)
    return ids.ne(pad).long()


def _end_tokens(model: Any, kwargs: dict[str, Any]) -> set[int]:
    end = _option(model, kwargs, "eos_token_id")
    if end is None:
        return set()
    return {int(each) for each in torch.as_tensor(end).reshape(-1)}


def _repeats(model: Any, kwargs: dict[str, Any]) -> int:
    """Rows that `generate` makes of each prompt."""
    names = ("num_beams", "num_return_sequences")
    return max(int(_option(model, kwargs, name) or 1) for name in names)


def _option(model: Any, kwargs: dict[str, Any], name: str) -> Any:
    """An option of generation: the caller's, else that of the configuration."""
    if name in kwargs:
        return kwargs[name]
    config = kwargs.get("generation_config")
    return getattr(model.generation_config if config is None else config, name, None)
