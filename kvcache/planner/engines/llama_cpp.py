"""llama.cpp: one buffer of cells for layers that keep everything, one for layers with a window.

Source: ``src/llama-kv-cache.cpp``, ``llama-kv-cache-iswa.cpp``, ``llama-memory-recurrent.cpp`` of
ggml-org/llama.cpp:

- a context is padded to 256 cells; without a unified buffer every sequence has its own stream;
- the buffer of a window holds ``n_swa * (n_seq if unified) + n_ubatch`` cells, padded to 256 and
  capped at the context;
- recurrent state is float32, convolutions ``kernel - 1`` taps, one cell per sequence and one more
  for each draft token that can be rolled back;
- without flash attention values are transposed, with one width for all layers, the largest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcache.budget import largest_fitting
from kvcache.enums import DType, VerifyRule
from kvcache.planner.engines.base import (
    Allocation,
    Deployment,
    EngineReport,
    attention,
    by_window,
    layer_count,
    pool_bytes,
    recurrent,
    round_up,
    slot_bytes,
    with_state,
)
from kvcache.planner.formats import declare_model

if TYPE_CHECKING:
    from kvcache.models import Model
    from kvcache.state import StateDecl

__all__ = ["PAD", "context_cells", "declarations", "report", "state_copies", "window_cells"]

PAD = 256  # cells


def declarations(model: Model, deployment: Deployment) -> list[StateDecl]:
    """What llama.cpp keeps of a model."""
    decls = declare_model(model, deployment.format, drafts=deployment.drafts > 0)
    kept = with_state(decls, recurrent_dtype=DType.F32, convolution_dtype=DType.F32)
    if deployment.flash_attention:
        return kept
    widest = max((d.shape[-1] * d.shape[0] for d in kept if _is_values(d)), default=0)
    return [replace(d, shape=(1, widest)) if _is_values(d) else d for d in kept]


def _is_values(decl: StateDecl) -> bool:
    return decl.component == "attention.values"


def streams(deployment: Deployment) -> int:
    """Buffers of one kind: one, or one a sequence."""
    return 1 if deployment.unified else deployment.sequences


def context_cells(deployment: Deployment) -> int:
    """Cells of one stream of a layer that keeps everything, for ``tokens`` in all."""
    padded = round_up(deployment.tokens, PAD)
    return round_up(-(-padded // streams(deployment)), PAD)


def window_cells(window: int, deployment: Deployment, cells: int) -> int:
    """Cells of one stream of a layer with a window."""
    shared = deployment.sequences if deployment.unified else 1
    return min(cells, round_up(window * shared + deployment.ubatch, PAD))


def state_copies(sequences: int, rollback: int) -> int:
    """Cells of recurrent state: one a sequence, and one more for each step that can be undone."""
    return sequences * (1 + rollback)


def report(model: Model, deployment: Deployment) -> EngineReport:
    """The buffers of a context of ``deployment.tokens`` cells in all."""
    decls = declarations(model, deployment)
    cells, pools = context_cells(deployment), streams(deployment)
    found = []
    for window, part in by_window(decls):
        windowed = window and not deployment.full_windows
        size = window_cells(window, deployment, cells) if windowed else cells
        found.append(
            Allocation(
                name=f"KV buffer, window {window}" if window else "KV buffer",
                layers=layer_count(part),
                units=size * pools,
                unit="cells",
                bytes=pool_bytes(part, size, pools=pools),
            )
        )
    copies = state_copies(deployment.sequences, deployment.drafts)
    for name, rule in (("R", VerifyRule.CONV_STEPS), ("S", VerifyRule.H_STEPS)):
        part = [decl for decl in recurrent(decls) if decl.verify is rule]
        if part:
            found.append(
                Allocation(
                    name=f"recurrent state {name} (f32)",
                    layers=layer_count(part),
                    units=copies,
                    unit="cells",
                    bytes=slot_bytes(part, copies),
                )
            )
    total = sum(each.bytes for each in found)
    return EngineReport(
        engine="llama.cpp",
        allocations=tuple(found),
        bytes=total,
        block_tokens=1,
        capacity_tokens=_capacity(decls, deployment),
        concurrency=None,
        notes=_notes(deployment, cells, bool(recurrent(decls))),
    )


def _capacity(decls: list[StateDecl], deployment: Deployment) -> int | None:
    """Largest context, a multiple of 256 cells, that fits; windows keep what they keep."""
    memory = deployment.memory_bytes
    if memory is None or not attention(decls):
        return None
    fixed = slot_bytes(decls, state_copies(deployment.sequences, deployment.drafts))

    def fits(pads: int) -> bool:
        one = replace(deployment, tokens=pads * PAD)
        cells = context_cells(one)
        used = fixed
        for window, part in by_window(decls):
            windowed = window and not one.full_windows
            size = window_cells(window, one, cells) if windowed else cells
            used += pool_bytes(part, size, pools=streams(one))
        return used <= memory

    most = largest_fitting(1, 2**24, fits)
    return 0 if most is None else most * PAD


def _notes(deployment: Deployment, cells: int, has_state: bool) -> tuple[str, ...]:
    notes = []
    if cells * streams(deployment) != deployment.tokens:
        notes.append(f"{deployment.tokens} positions are padded to {cells} cells a stream")
    if deployment.drafts and has_state:
        notes.append(f"recurrent state is kept 1 + {deployment.drafts} times for rollback")
    return tuple(notes)
