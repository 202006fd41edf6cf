"""Caches whose every stored byte is known: rows and state are functions of tokens and place."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.declarations import paged, recurrent

import kvcache
from kvcache import StateDecl

Array = NDArray[Any]
SHAPES = {
    "attention.keys": (2, 8),
    "attention.values": (2, 8),
    "attention.latent": (1, 12),
    "attention.rotary_keys": (1, 4),
}
STATE = {"state.recurrent": (2, 3, 4), "state.convolution": (5, 3)}


def attention(
    layer: int, window: int = 0, *, int8: bool = False, mla: bool = False
) -> list[StateDecl]:
    names = list(SHAPES)[2:] if mla else list(SHAPES)[:2]
    return [paged(layer, name, *SHAPES[name], window=window, int8=int8) for name in names]


def linear(layer: int) -> list[StateDecl]:
    return [recurrent(layer, name, *shape) for name, shape in STATE.items()]


MODELS: dict[str, list[StateDecl]] = {
    "attention": attention(0) + attention(1),
    "int8": attention(0, int8=True) + attention(1, int8=True),
    "sliding": attention(0) + attention(1, window=7) + attention(2, window=7),
    "sliding only": attention(0, window=21),
    "window of one": attention(0) + attention(1, window=1),
    "mla": attention(0, mla=True) + attention(1, mla=True),
    "hybrid": linear(0) + attention(1) + linear(2),
    "hybrid with windows": linear(0) + attention(1, window=7, int8=True) + attention(2),
    "recurrent only": linear(0) + linear(1),
}


def make_cache(
    model: str, *, block_tokens: int = 4, memory: str | int = "8MiB", **options: Any
) -> Any:
    sequences = options.pop("sequences", 4)
    plan = kvcache.StatePlan(
        MODELS[model], memory=memory, block_tokens=block_tokens, sequences=sequences
    )
    return kvcache.Cache(plan, **options)


def prompt(length: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 1000, length).astype(np.int32)


def rows(tokens: Array, layer: int, component: int, shape: tuple[int, int]) -> Array:
    """Rows that depend on every token up to their position; float16 holds them exactly."""
    history = np.cumsum(tokens.astype(np.int64) * (np.arange(len(tokens)) + 1))
    lanes = np.arange(shape[0] * shape[1]).reshape(1, *shape)
    values = (history[:, None, None] * 31 + layer * 101 + component * 57 + lanes * 13) % 255 - 127
    # Every row reaches 127, so the INT8 scale is 1 and INT8 holds the rows exactly as well.
    values[..., 0] = 127
    return values.astype(np.float16)


def state(tokens: Array, layer: int, name: str) -> Array:
    shape = STATE[name]
    total = int(np.sum(tokens.astype(np.int64) * (np.arange(len(tokens)) + 1)))
    lanes = np.arange(np.prod(shape)).reshape(shape)
    return ((total * 17 + layer * 29 + len(name) + lanes) % 10007 / 8).astype(np.float32)


def paged_layers(cache: Any) -> list[int]:
    return sorted({part.layer for group in cache.plan.groups for part in group.components})


def run(cache: Any, sequence: Any, stops: list[int]) -> None:
    """Write up to each stop, take a snapshot there, publish."""
    tokens = sequence.tokens
    for stop in stops:
        start = sequence.length
        for layer in paged_layers(cache):
            parts = cache.plan.paged_components(layer)
            sequence.write(
                layer,
                start,
                *(
                    rows(tokens, layer, index, (part.heads, part.width))[start:stop]
                    for index, part in enumerate(parts)
                ),
            )
        for part in cache.plan.fixed:
            sequence.state(part.layer, part.name)[...] = state(tokens[:stop], part.layer, part.name)
        sequence.advance(stop - start)
        sequence.snapshot()
        sequence.publish()


def fill(cache: Any, tokens: Array, stops: list[int] | None = None, **space: Any) -> None:
    with cache.open(tokens, **space) as sequence:
        run(cache, sequence, stops or [len(tokens) - 1, len(tokens)])


def check(cache: Any, tokens: Array, **space: Any) -> int:
    """Open a prompt, compare everything that the hit restored, and return its length."""
    with cache.open(tokens, **space) as sequence:
        hit: int = sequence.cached_tokens
        if hit == 0:
            return 0
        for group in cache.plan.groups:
            start = max(0, hit - (group.window - 1)) if group.window else 0
            for layer in {part.layer for part in group.components if start < hit}:
                parts = cache.plan.paged_components(layer)
                for index, got in enumerate(sequence.read(layer, start, hit)):
                    want = rows(tokens, layer, index, (parts[index].heads, parts[index].width))
                    assert np.array_equal(got, want[start:hit]), (layer, index)
        for part in cache.plan.fixed:
            want = state(tokens[:hit], part.layer, part.name)
            assert np.array_equal(sequence.state(part.layer, part.name), want), part
    return hit
