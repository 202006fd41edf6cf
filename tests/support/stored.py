"""Ledgers with stored prefixes, and what presses them out."""

from __future__ import annotations

from typing import Any

from model.driver import SHAPES

from kvcache import Cache, StatePlan

PROMPT = list(range(100, 122))


def make_cache(shape: str = "hybrid", **options: Any) -> Cache:
    options = {"backing": False, "capacity_blocks": 40, **options}
    return Cache(StatePlan(SHAPES[shape], memory="16MiB", block_tokens=4, sequences=8), **options)


def store(cache: Cache, tokens: list[int], **space: Any) -> None:
    with cache.open(tokens, **space) as sequence:
        for stop in [*sequence.prefill_stops(), len(tokens)]:
            sequence.advance(max(0, stop - sequence.length))
            sequence.snapshot()
        sequence.publish()


def press(cache: Cache) -> None:
    """So many other prompts that nothing stays that may go."""
    for first in range(1000, 60_000, 1000):
        store(cache, list(range(first, first + 30)))


def cached(cache: Cache, tokens: list[int], **space: Any) -> int:
    return cache.explain(tokens, **space).cached_tokens
