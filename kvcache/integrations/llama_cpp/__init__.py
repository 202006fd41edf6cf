"""Prompt caches for `llama_cpp.Llama` of llama-cpp-python, in memory and on disk.

Install ``kvcache[llama-cpp]``. They take the place of `llama_cpp.LlamaRAMCache` and
`llama_cpp.LlamaDiskCache` in `Llama.set_cache`; docs/llama_cpp.md says how they differ.
"""

from __future__ import annotations

from kvcache.integrations.llama_cpp.base import PrefixNotFoundError
from kvcache.integrations.llama_cpp.disk import LlamaDiskCache
from kvcache.integrations.llama_cpp.ram import LlamaRAMCache
from kvcache.integrations.llama_cpp.state import LlamaState
from kvcache.integrations.llama_cpp.stats import LlamaCacheStats

__all__ = [
    "LlamaCacheStats",
    "LlamaDiskCache",
    "LlamaRAMCache",
    "LlamaState",
    "PrefixNotFoundError",
]
