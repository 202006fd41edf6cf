"""Running tiny models of transformers: step by step, and in conversations."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from support.tiny_transformers import prompt

from kvcache.integrations.transformers import PrefixStore, generate

NEW = 6  # tokens of an answer
STEPWISE = {"jamba", "mamba"}  # go on from recurrent state by single tokens alone


def has_attention(store: PrefixStore) -> bool:
    return any(layer.rows for layer in store.probe.layers)


@torch.no_grad()
def run(model: Any, ids: torch.Tensor, cache: Any, start: int = 0) -> torch.Tensor:
    """The logits of the last token of a piece, which the cache has seen then."""
    pieces = [ids]
    if start and model.config.model_type in STEPWISE:
        pieces = list(ids.split(1, dim=1))
    takes = inspect.signature(model.forward).parameters
    for piece in pieces:
        stop = start + piece.shape[1]
        positions = {"position_ids": torch.arange(start, stop)[None]}
        known = positions if "position_ids" in takes else {}
        logits = model(input_ids=piece, cache=cache, use_cache=True, **known).logits[:, -1]
        start = stop
    return logits


@torch.no_grad()
def go_on(model: Any, ids: torch.Tensor, start: int, cache: Any, steps: int = NEW) -> torch.Tensor:
    """Logits ``[steps, vocabulary]``: after ``ids[:, start:]``, then of greedy tokens."""
    found = [run(model, ids[:, start:], cache, start)]
    for step in range(steps - 1):
        said = found[-1].argmax(-1, keepdim=True)
        found.append(run(model, said, cache, ids.shape[1] + step))
    return torch.cat(found)


def insert(store: PrefixStore, ids: torch.Tensor, cache: Any, **options: Any) -> int:
    """As a caller who knows what ran."""
    if not has_attention(store):
        options["length"] = ids.shape[1]
    return store.insert(ids, cache, **options)


def answer(model: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    """What plain generation says, greedily."""
    return model.generate(
        ids,
        attention_mask=options.pop("attention_mask", torch.ones_like(ids)),
        **{"max_new_tokens": NEW, "do_sample": False, **options},
    )


def stored_answer(
    model: Any, store: PrefixStore, ids: torch.Tensor, **options: Any
) -> torch.Tensor:
    """The same by way of a store."""
    return generate(
        model,
        ids,
        store=store,
        attention_mask=options.pop("attention_mask", torch.ones_like(ids)),
        **{"max_new_tokens": NEW, "do_sample": False, **options},
    )


def next_turn(said: torch.Tensor, seed: int, tokens: int = 11) -> torch.Tensor:
    """What was said, and what the user says then."""
    more = prompt(tokens, seed).expand(len(said), -1)
    return torch.cat([said, more], dim=1)
