"""What a cache of llama.cpp states counts."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LlamaCacheStats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCacheStats:
    """Counters of a cache, from its creation on, in this process.

    Attributes:
        capacity_bytes: that it may hold.
        used_bytes: that it holds; of a directory, all models and processes together.
        states: that can be found.
        hits: lookups that found a state.
        misses: lookups that did not.
        asked_tokens: of all prompts that were looked up.
        hit_tokens: of those, that the states found had seen.
        stored: states stored.
        replaced: of those, that took the place of one of the same tokens.
        evicted: states that gave way to others.
        refused: states not stored: larger than the capacity, or empty because llama.cpp failed.
        damaged: files that were not what they claim to be, and were removed.
        read_errors: states that the system refused to read.
        write_errors: states that the system refused to write.
    """

    capacity_bytes: int
    used_bytes: int
    states: int
    hits: int = 0
    misses: int = 0
    asked_tokens: int = 0
    hit_tokens: int = 0
    stored: int = 0
    replaced: int = 0
    evicted: int = 0
    refused: int = 0
    damaged: int = 0
    read_errors: int = 0
    write_errors: int = 0
