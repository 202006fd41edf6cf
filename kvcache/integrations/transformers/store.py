"""Prefixes of one model of `transformers`, found again by their tokens."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from transformers import cache_utils

from kvcache._arguments import as_bytes, as_count
from kvcache.cache import Cache
from kvcache.errors import InvalidArgumentError, UnsupportedError
from kvcache.integrations.transformers.forward import Pieces
from kvcache.integrations.transformers.identity import model_identity, weights_mark
from kvcache.integrations.transformers.layers import declare, layers_of, self_attention
from kvcache.integrations.transformers.probe import probe
from kvcache.integrations.transformers.prompts import Prompts, as_prompts
from kvcache.integrations.transformers.record import (
    Place,
    columns_of,
    first_columns,
    keep_past,
    reduce_past,
    write,
)
from kvcache.integrations.transformers.restore import Restored, fill
from kvcache.plan import StatePlan
from kvcache.snapshot import SnapshotFormat, core_format
from kvcache.tiers.disk import DiskTier

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from kvcache.sequence import Sequence
    from kvcache.storage import Storage

__all__ = ["PrefixStore"]

_MOST_DEPTH = 32  # of lists in a context, one of which may hold itself


class PrefixStore:
    """What a model has computed for prompts, kept in host memory and given back by tokens.

    Every row of a batch is a prompt of its own. What is given back is what was stored, bit for bit,
    unless ``format`` asks for less. Thread-safe, as far as the model itself is.

    Args:
        model_or_config: the model; it runs one token, to see what it keeps. Or its configuration,
            together with ``weights``.
        memory: budget, as bytes or as text ("2GiB").
        format: storage of keys and values: ``"f32"``, ``"bf16"``, ``"f16"`` or ``"int8"``; None for
            the model's own elements.
        namespace: whose prefixes may be shared.
        weights: names the weights; None for a fingerprint of the model's (docs/transformers.md
            says of what).
        block_tokens: positions in a block.
        sequences: prompts that may be looked up, inserted or generated at once, batch rows counted.
        snapshot_format: of fixed-size state, ``"exact"``, ``"f16"`` or ``"int8"``.
        disk: a directory in which what is stored is kept across restarts, 16 GiB at most, or a
            `kvcache.DiskTier` with other options; see `flush`.
        **cache_options: further arguments of `kvcache.Cache`.

    Raises:
        UnsupportedError: a model whose cache is not known here; the message names what.
        InvalidArgumentError: a value out of range, or a configuration without ``weights``.
        OutOfCapacityError: the memory holds not even one block.
    """

    def __init__(
        self,
        model_or_config: Any,
        *,
        memory: str | int = "1GiB",
        format: Storage | str | None = None,  # noqa: A002 - the field's word
        namespace: str | bytes = "",
        weights: str | None = None,
        block_tokens: int = 16,
        sequences: int = 64,
        snapshot_format: SnapshotFormat | str = SnapshotFormat.EXACT,
        disk: DiskTier | str | os.PathLike[str] | None = None,
        **cache_options: Any,
    ) -> None:
        is_config = isinstance(model_or_config, transformers.PretrainedConfig)
        if is_config and weights is None:
            raise InvalidArgumentError(
                "weights: a configuration does not tell whose weights compute the state; name them"
            )
        self.probe = probe(model_or_config)
        self._model = None if is_config or weights is not None else model_or_config
        self._mark = 0 if self._model is None else weights_mark(self._model)
        self._namespace = as_bytes(namespace, "namespace")
        core_format(snapshot_format)  # refused here, not when the first prefix is stored
        self._snapshot_format = snapshot_format
        plan = StatePlan(
            declare(self.probe.layers, format),
            memory=memory,
            block_tokens=block_tokens,
            sequences=sequences,
            costs=self.probe.costs,
        )
        name = model_identity(model_or_config) if weights is None else weights
        if disk is not None and not isinstance(disk, DiskTier):
            disk = DiskTier(disk, max_bytes="16GiB")
        self.cache = Cache(plan, weights=name, disk=disk, **cache_options)  #: what it is kept in
        self._has_windows = any(layer.window and layer.rows for layer in self.probe.layers)
        self.has_fixed = any(layer.fixed for layer in self.probe.layers)

    def lookup(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        *,
        context: Any = None,
        into: Any = None,
        one_by_one: bool = False,
    ) -> tuple[Any, int]:
        """The longest stored prefix of prompts, as a cache for the model to go on with.

        Run the model on ``input_ids[:, n:]`` with this cache and the whole attention mask, then
        call `insert` with all tokens. The last column always runs: its logits are not stored.

        Args:
            input_ids: ``[batch, columns]``, or of one prompt; for an encoder-decoder model the
                decoder's.
            attention_mask: 0 for padding, which must be on the left, else 1; None for none.
            context: what the state depends on beside the tokens: tensors, bytes or text, or a list
                of them. Needed for encoder-decoder models: the encoder's input and its mask.
            into: an empty cache to fill, such as a `StaticCache`; None for a new `DynamicCache`.
                Its sliding layers keep what leaves their window until `insert`.
            one_by_one: the caller runs what is left by single tokens; see below.

        Returns:
            The cache, and how many columns it has. All rows have the same; padding counts.

        Raises:
            InvalidArgumentError: shapes, padding that is not on the left, no ``context`` where it
                is needed, or ``into`` is not empty or does not fit.
            UnsupportedError: the model goes on from recurrent state by single tokens alone (Mamba,
                Jamba and Zamba in transformers 5.24), and ``one_by_one`` does not say so.
            OutOfCapacityError: more rows than the plan's ``sequences``.
        """
        if self.probe.pieces is Pieces.ONE and not one_by_one:
            raise UnsupportedError(
                "lookup: this model forgets its recurrent state when it is given several tokens at"
                " once; run what is left by single tokens and say one_by_one=True, or use"
                " generate()"
            )
        prompts = as_prompts(input_ids, attention_mask)
        salt = self.salt(context)
        with contextlib.ExitStack() as stack:
            rows, columns = self.open(prompts, salt, stack)
            cache = self.restore(rows, prompts, columns, into)
        return cache, columns

    def insert(
        self,
        input_ids: Any,
        past_key_values: Any,
        attention_mask: Any = None,
        *,
        context: Any = None,
        length: int | None = None,
    ) -> int:
        """Store what a cache has of the tokens that it has seen.

        Only what is new is copied. A model with recurrent state can be resumed where its forward
        pass ended, that is at the cache's length, and nowhere between.

        Args:
            input_ids: the tokens the cache has seen, from the first one on; further ones, such as a
                last token that has not run yet, are ignored.
            past_key_values: the cache, which is not changed, but that its sliding layers let go
                what has left their window.
            attention_mask: as in `lookup`; of the prompt's columns or of all.
            context: as in `lookup`.
            length: columns that the cache has seen, for models without attention, whose caches do
                not say so; None for all of ``input_ids``, elsewhere for what the cache says.

        Returns:
            Columns that are stored now.

        Raises:
            InvalidArgumentError: fewer tokens than the cache has seen, another batch, a cache that
                does not fit, or no ``length`` where it is needed.
            UnsupportedError: a class of layer that is not known here, or a sliding layer that has
                dropped rows that are not stored; caches from `lookup` keep them.
            OutOfCapacityError: no room; nothing of that row was stored.
        """
        held = self_attention(past_key_values)
        self._check_layers(held)
        columns = self._columns(held, length)
        prompts = as_prompts(*_all_columns(input_ids, attention_mask))
        if prompts.columns < columns:
            raise InvalidArgumentError(
                f"input_ids: the cache has seen {columns} positions, got {prompts.columns} tokens"
            )
        self._check_batch(held, len(prompts.ids))
        salt = self.salt(context)
        if self.exceeds(columns):
            return 0
        rows = range(len(prompts.ids))
        stored = [self._insert_row(prompts, row, held, columns, salt) for row in rows]
        reduce_past(held)
        return min(stored)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until what was stored is on disk, before the process ends.

        Args:
            timeout: seconds; None for as long as it takes.

        Raises:
            InvalidArgumentError: the store has no disk.
            OutOfCapacityError: not within ``timeout``; writing goes on.
            KVCacheIOError: the system refused some of it.
        """
        if self.cache.disk is None:
            raise InvalidArgumentError("disk: the store was made without it")
        self.cache.disk.flush(timeout)

    def salt(self, context: Any) -> bytes:
        """The digest of what the state depends on beside tokens.

        Raises:
            InvalidArgumentError: an encoder-decoder model without it, or of a type not known.
        """
        if context is None:
            if self.probe.is_encoder_decoder:
                raise InvalidArgumentError(
                    "context: the decoder's state depends on the encoder's input; pass it"
                )
            return b""
        digest = hashlib.sha256()
        _digest(digest, context)
        return digest.digest()

    def open(
        self,
        prompts: Prompts,
        salt: bytes,
        stack: contextlib.ExitStack,
        most: int | None = None,
    ) -> tuple[list[Sequence], int]:
        """Open one sequence a row, so that all rows can go on at the same column.

        Args:
            prompts: the batch.
            salt: from `salt`.
            stack: closes the sequences.
            most: positions to resume at most; None for any.

        Returns:
            The sequences and the column. With windows or fixed-size state each sequence is at that
            column; else it may have more.
        """
        self._check_weights()
        most = 0 if self.exceeds(prompts.columns) else most
        held: list[contextlib.ExitStack] = []
        rows: list[Sequence] = []
        for row in range(len(prompts.ids)):
            one = stack.enter_context(contextlib.ExitStack())
            held.append(one)
            rows.append(one.enter_context(self._open(prompts.tokens(row), salt, most)))
        column = self._common(prompts, rows)
        if not (self._has_windows or self.has_fixed):
            return rows, column
        while True:  # a shorter hit of one row may shorten the others, at most to nothing
            for row, pad in enumerate(prompts.pads):
                if rows[row].length > max(0, column - pad):
                    held[row].close()
                    limit = max(0, column - pad)
                    opened = self._open(prompts.tokens(row), salt, limit)
                    rows[row] = held[row].enter_context(opened)
            shorter = self._common(prompts, rows)
            if shorter == column and all(
                seq.length == max(0, column - pad)
                for seq, pad in zip(rows, prompts.pads, strict=True)
            ):
                return rows, column
            column = shorter

    def _common(self, prompts: Prompts, rows: list[Sequence]) -> int:
        """The last column that every row has."""
        column = min(p + seq.length for p, seq in zip(prompts.pads, rows, strict=True))
        if all(seq.length == 0 for seq in rows):
            return 0
        # Recurrent layers are right about padding only where a forward pass begins with it.
        if self.has_fixed and column < max(prompts.pads):
            return 0
        return column

    def _open(self, tokens: Any, salt: bytes, most: int | None) -> Sequence:
        """A sequence of all tokens that resumes at no more than ``most`` positions.

        `Cache.open` never resumes at the last token, so a shorter prompt bounds it.
        """
        if most is None or most >= len(tokens):
            return self.cache.open(tokens, namespace=self._namespace, salt=salt)
        seq = self.cache.open(tokens[: most + 1], namespace=self._namespace, salt=salt)
        try:
            seq.extend(tokens[most + 1 :])
        except BaseException:
            seq.close()
            raise
        return seq

    def restore(
        self, rows: list[Sequence], prompts: Prompts, columns: int, into: Any = None
    ) -> Any:
        """A cache of transformers with the first columns of a batch."""
        cache = self._empty(into)
        held = self_attention(cache)
        if columns:
            batch = [Restored(seq, pad) for seq, pad in zip(rows, prompts.pads, strict=True)]
            fill(held, self.probe.layers, batch, columns, self.probe.device_of)
        return cache

    def _empty(self, into: Any) -> Any:
        if into is None:
            cache = self.probe.empty_cache()
            keep_past(cache)
            if self.probe.is_encoder_decoder:
                other = self.probe.empty_cache()
                return cache_utils.EncoderDecoderCache(cache, other)
            return cache
        held = self_attention(into)
        for layer in held.layers:
            has_rows = getattr(layer, "keys", None) is not None and layer.get_seq_length() > 0
            if has_rows or any(getattr(layer, "has_previous_state", {}).values()):
                raise InvalidArgumentError("into: expected an empty cache, it has positions")
        return into

    def window_stops(self, seq: Sequence) -> list[int]:
        """Where a sequence should keep its windows, if that needs no forward pass to end there."""
        return seq.prefill_stops() if self._has_windows and not self.has_fixed else []

    def commit(
        self,
        seq: Sequence,
        held: Any,
        place: Place,
        stop: int,
        columns: int,
        window_stops: Iterable[int] = (),
    ) -> None:
        """Store one row up to column ``stop``, and let others find it.

        Args:
            seq: the row's, with its tokens up to ``stop``.
            held: the self-attention cache.
            place: where the row lies in it.
            stop: one past the last column to store.
            columns: what the cache has seen.
            window_stops: positions on the way whose windows are kept.
        """
        last = stop - place.pad
        for position in [*(each for each in window_stops if each < last), last]:
            if position > seq.length:
                write(seq, held, self.probe.layers, place, position, columns)
                seq.snapshot(self._snapshot_format)
                seq.publish()  # at each: a disk tier takes windows as they are now

    def has_rows_since(self, held: Any, position: int, pad: int, columns: int) -> bool:
        """Whether a cache still has all rows from a position of a row on."""
        return all(
            first_columns(held, layer, columns) <= position + pad
            for layer in self.probe.layers
            if layer.rows
        )

    def _insert_row(self, prompts: Prompts, row: int, held: Any, columns: int, salt: bytes) -> int:
        pad = prompts.pads[row]
        tokens = prompts.tokens(row, columns)
        if not len(tokens):
            return columns
        # One more token lets `open` find all of the others.
        with self._open(np.append(tokens, tokens[-1]), salt, None) as seq:
            if seq.length == len(tokens):
                return columns
            if not self.has_rows_since(held, seq.length, pad, columns):
                if not any(getattr(layer, "record_past", False) for layer in held.layers):
                    raise UnsupportedError(
                        f"past_key_values: sliding layers have dropped rows from position"
                        f" {seq.length} on; use the cache that lookup() gives, whose layers keep"
                        " them until insert()"
                    )
                return pad + seq.length
            stops = self.window_stops(seq)
            self.commit(seq, held, Place(row, pad), columns, columns, stops)
        return columns

    def exceeds(self, columns: int) -> bool:
        """Whether rows of so many positions depend on the length of the prompt."""
        most = self.probe.most_positions
        return most is not None and columns > most

    def _columns(self, held: Any, length: int | None) -> int:
        seen = columns_of(held, self.probe.layers)
        if length is not None:
            length = as_count(length, "length", 1)
        if seen is None and length is None:
            raise InvalidArgumentError(
                "length: a cache of recurrent layers alone does not say how many positions it has"
                " seen; pass it"
            )
        if seen is not None and length is not None and seen != length:
            raise InvalidArgumentError(f"length: the cache has seen {seen} positions, not {length}")
        columns = seen if length is None else length
        if not columns:
            raise InvalidArgumentError("past_key_values: the cache is empty")
        return columns

    def _check_layers(self, held: Any) -> None:
        """That a cache keeps what the plan says, whatever its classes."""
        layers = layers_of(held)
        if len(layers) != len(self.probe.layers):
            raise InvalidArgumentError(
                f"past_key_values: expected {len(self.probe.layers)} layers, got {len(layers)}"
            )
        for got, expected in zip(layers, self.probe.layers, strict=True):
            if got.rows != expected.rows:
                raise InvalidArgumentError(
                    f"past_key_values.layers[{got.index}]: expected {expected.rows}, got {got.rows}"
                )

    def _check_batch(self, held: Any, rows: int) -> None:
        for layer in self.probe.layers:
            parts = [getattr(held.layers[layer.index], part.attribute) for part in layer.rows]
            parts += [getattr(held.layers[layer.index], t.attribute)[t.index] for t in layer.fixed]
            for tensor in parts:
                if tensor.shape[0] != rows:
                    raise InvalidArgumentError(
                        f"past_key_values: a batch of {tensor.shape[0]}, input_ids have {rows} rows"
                    )

    def _check_weights(self) -> None:
        """Forget everything when the weights are not those of the last call."""
        if self._model is not None and weights_mark(self._model) != self._mark:
            self.refresh_weights()

    def refresh_weights(self) -> None:
        """Take the fingerprint of the model's weights anew.

        Calls do so by themselves, except after writes that torch does not count: ``.data.copy_``,
        or kernels of the caller's. What other weights have stored is dropped.
        """
        if self._model is None:
            raise InvalidArgumentError("weights: the store was given a name, call cache.bump_epoch")
        self._mark = weights_mark(self._model)
        self.cache.bump_epoch(model_identity(self._model))

    def __repr__(self) -> str:
        return f"<PrefixStore {self.cache!r}>"


def _all_columns(input_ids: Any, attention_mask: Any) -> tuple[Any, Any]:
    """The mask of a prompt, lengthened to the tokens that followed it."""
    if attention_mask is None:
        return input_ids, None
    ids, mask = np.atleast_2d(_host(input_ids)), np.atleast_2d(_host(attention_mask))
    if ids.ndim == 2 and mask.ndim == 2 and mask.shape[1] < ids.shape[1]:
        more = np.ones((mask.shape[0], ids.shape[1] - mask.shape[1]), mask.dtype)
        mask = np.concatenate([mask, more], axis=1)
    return ids, mask


def _host(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values


def _digest(digest: Any, context: Any, depth: int = 0) -> None:
    """Feed one part of a context, with what keeps different ones apart."""
    if isinstance(context, list | tuple):
        if depth == _MOST_DEPTH:
            raise InvalidArgumentError(f"context: lists in lists, at most {_MOST_DEPTH} deep")
        digest.update(f"list {len(context)};".encode())
        for each in context:
            _digest(digest, each, depth + 1)
        return
    if context is None:
        digest.update(b"none;")
        return
    if isinstance(context, torch.Tensor):
        if context.layout is not torch.strided or context.is_meta:
            raise InvalidArgumentError(
                f"context: expected tensors with all elements, got {context.layout} on"
                f" {context.device}"
            )
        held = context.detach().cpu().contiguous()
        digest.update(f"tensor {held.dtype} {tuple(held.shape)};".encode())
        digest.update(held.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(context, np.ndarray) and not context.dtype.hasobject:
        digest.update(f"array {context.dtype} {context.shape};".encode())
        digest.update(np.ascontiguousarray(context).tobytes())
    elif isinstance(context, str | bytes):
        data = as_bytes(context, "context")
        digest.update(f"{type(context).__name__} {len(data)};".encode())
        digest.update(data)
    else:
        raise InvalidArgumentError(
            f"context: expected tensors, bytes or text, got {type(context).__name__}"
        )
