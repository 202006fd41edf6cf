"""States such as llama-cpp-python saves, and a model that says what a cache asks it."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

try:
    from llama_cpp.llama import LlamaState
except ImportError:
    from kvcache.integrations.llama_cpp import LlamaState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CONTEXT, VOCABULARY, BATCH = 64, 11, 16


def state(
    tokens: Sequence[int], *, size: int = 1000, logits_all: bool = False, **changes: Any
) -> LlamaState:
    """What `Llama.save_state` gives after these tokens; its bytes depend on them."""
    count = len(tokens)
    input_ids = np.full(CONTEXT, 7, np.intc)  # what an earlier prompt has left there
    input_ids[:count] = tokens
    rows = count if logits_all else min(count, BATCH)
    random = np.random.default_rng([len(tokens), *(int(each) + 1 for each in tokens)])
    given = {
        "input_ids": input_ids,
        "scores": random.random((rows, VOCABULARY), np.float32),
        "n_tokens": count,
        "llama_state": random.bytes(size),
        "llama_state_size": size,
        "seed": 4_294_967_295,
    }
    return LlamaState(**(given | changes))


class Parameters(ctypes.Structure):
    """A context's parameters, such as `llama_cpp.llama_context_params`."""

    _fields_ = (
        ("n_ctx", ctypes.c_uint32),
        ("n_ubatch", ctypes.c_uint32),
        ("n_threads", ctypes.c_int32),
        ("rope_freq_base", ctypes.c_float),
        ("type_k", ctypes.c_int32),
        ("cb_eval", ctypes.c_void_p),
        ("swa_full", ctypes.c_bool),
    )


class Model:
    """What a cache reads of a `llama_cpp.Llama`."""

    def __init__(self, path: Path, *, logits_all: bool = False, **parameters: Any) -> None:
        self.model_path = str(path)
        given = {"n_ctx": CONTEXT, "n_ubatch": 16, "n_threads": 1, "swa_full": True}
        self.context_params = Parameters(**(given | parameters))
        self._logits_all = logits_all
        self._is_recurrent = self._is_hybrid = False
        self.lora_path: str | None = None
        self.lora_scale = 1.0
        self.kv_overrides: dict[str, Any] | None = None
        self.chat_handler: Any = None

    def n_vocab(self) -> int:
        return VOCABULARY


def is_restored(found: Any, stored: Any) -> bool:
    """Whether `Llama.load_state` would do the same with both, of a model without ``logits_all``."""
    count = stored.n_tokens
    return (
        found.n_tokens == count
        and found.input_ids.dtype == stored.input_ids.dtype
        and found.input_ids.shape == stored.input_ids.shape
        and np.array_equal(found.input_ids[:count], stored.input_ids[:count])
        and found.llama_state == stored.llama_state
        and found.llama_state_size == stored.llama_state_size
        and found.seed == stored.seed
    )
