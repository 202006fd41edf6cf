"""transformers: tensors that grow with the longest sequence of a batch.

Source: ``cache_utils.py`` and the modelling files of huggingface/transformers: a dynamic layer
concatenates, a sliding layer keeps ``window - 1`` positions between steps, a convolution keeps
``kernel`` taps, a recurrence float32; every sequence of a batch is padded to the longest. Draft
layers are not run, and an indexer keeps its keys in the type of the model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcache.budget import largest_fitting
from kvcache.enums import DType
from kvcache.planner.engines.base import (
    Allocation,
    Deployment,
    EngineReport,
    attention,
    by_window,
    layer_count,
    pool_bytes,
    recurrent,
    slot_bytes,
    with_state,
)
from kvcache.planner.formats import declare_model

if TYPE_CHECKING:
    from kvcache.models import Model
    from kvcache.state import StateDecl

__all__ = ["declarations", "report"]


def declarations(model: Model, deployment: Deployment) -> list[StateDecl]:
    """What transformers keeps of a model."""
    return with_state(
        declare_model(model, deployment.format, state_dtype=DType.BF16),
        recurrent_dtype=deployment.state_dtype,
        convolution_dtype=DType.BF16,
        more_taps=1,
    )


def kept(window: int, deployment: Deployment) -> int:
    """Positions that a layer keeps between two steps."""
    if not window or deployment.full_windows:
        return deployment.tokens
    return min(deployment.tokens, max(window - 1, 1))


def report(model: Model, deployment: Deployment) -> EngineReport:
    """The tensors of a batch whose longest sequence has ``tokens`` positions."""
    decls = declarations(model, deployment)
    found = []
    for window, part in by_window(decls):
        size = kept(window, deployment)
        found.append(
            Allocation(
                name=f"sliding layers, window {window}" if window else "dynamic layers",
                layers=layer_count(part),
                units=size * deployment.sequences,
                unit="positions",
                bytes=pool_bytes(part, size, pools=deployment.sequences),
            )
        )
    if recurrent(decls):
        part = recurrent(decls)
        found.append(
            Allocation(
                name="recurrent and convolution state",
                layers=layer_count(part),
                units=deployment.sequences,
                unit="sequences",
                bytes=slot_bytes(part, deployment.sequences),
            )
        )
    return EngineReport(
        engine="transformers",
        allocations=tuple(found),
        bytes=sum(each.bytes for each in found),
        block_tokens=1,
        capacity_tokens=_capacity(decls, deployment),
        concurrency=None,
        notes=("every sequence is padded to the longest of its batch",),
    )


def _capacity(decls: list[StateDecl], deployment: Deployment) -> int | None:
    memory = deployment.memory_bytes
    if memory is None or not attention(decls):
        return None
    fixed = slot_bytes(decls, deployment.sequences)

    def fits(tokens: int) -> bool:
        one = replace(deployment, tokens=tokens)
        sizes = (
            pool_bytes(part, kept(window, one), pools=one.sequences)
            for window, part in by_window(decls)
        )
        return fixed + sum(sizes) <= memory

    return largest_fitting(1, 2**40, fits) or 0
