"""What other engines allocate and print for the same model, one module per engine.

The facts of an engine (padding, grouping, taps, copies) are in its module, with their source; the
bytes come from the compiled core, by declarations rewritten as the engine stores them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.errors import InvalidArgumentError
from kvcache.planner.engines import llama_cpp, sglang, transformers, vllm
from kvcache.planner.engines.base import Allocation, Deployment, EngineReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache.models import Model

__all__ = ["ENGINES", "Allocation", "Deployment", "EngineReport", "engine_report"]

ENGINES: dict[str, Callable[[Model, Deployment], EngineReport]] = {
    "vllm": vllm.report,
    "sglang": sglang.report,
    "llama.cpp": llama_cpp.report,
    "transformers": transformers.report,
}


def engine_report(engine: str, model: Model, deployment: Deployment) -> EngineReport:
    """What ``engine`` would allocate for ``model``.

    Raises:
        InvalidArgumentError: an unknown engine, or a value it cannot run with.
    """
    if engine not in ENGINES:
        raise InvalidArgumentError(f"engine: expected one of {', '.join(ENGINES)}, got {engine!r}")
    return ENGINES[engine](model, deployment)
