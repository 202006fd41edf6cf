"""Running tiny models of transformers: step by step, and in conversations."""

from __future__ import annotations

from typing import Any

import torch
from support.tiny_transformers import prompt

from kvcache.integrations.transformers import PrefixStore, generate

NEW = 6  # tokens of an answer


def has_attention(store: PrefixStore) -> bool:
    return any(layer.rows for layer in store.probe.layers)


@torch.no_grad()
def run(model: Any, ids: torch.Tensor, cache: Any) -> torch.Tensor:
    """The logits of the last token of a piece, which the cache has seen then."""
    return model(input_ids=ids, cache=cache, use_cache=True).logits[:, -1]


@torch.no_grad()
def go_on(model: Any, ids: torch.Tensor, cache: Any, steps: int = NEW) -> torch.Tensor:
    """Logits ``[steps, vocabulary]``: after a piece, then of greedy tokens one by one."""
    found = [run(model, ids, cache)]
    for _ in range(steps - 1):
        found.append(run(model, found[-1].argmax(-1, keepdim=True), cache))
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
