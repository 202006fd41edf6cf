"""SGLang: a pool of token rows per layer, and slots of recurrent state.

Source: ``python/sglang/srt/mem_cache/memory_pool.py`` and ``model_executor`` of
sgl-project/sglang: a pool has one page more than its size, for padding rows; keys and values are
separate buffers and are printed one by one; layers with a window share a pool that is 0.8 of the
full one by default (``swa_full_tokens_ratio``); recurrent state has one slot per request and one
for padding, convolutions ``kernel - 1`` taps in bf16 and the recurrence in f32, and each draft
token one more copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.budget import largest_fitting
from kvcache.enums import DType
from kvcache.planner.engines.base import (
    Allocation,
    Deployment,
    EngineReport,
    attention,
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

__all__ = ["declarations", "report"]

WINDOW_RATIO = (4, 5)  # rows of windowed layers for rows of full ones


def declarations(model: Model, deployment: Deployment) -> list[StateDecl]:
    """What SGLang keeps of a model."""
    stored = deployment.format.with_fp8_index()
    decls = declare_model(model, stored, state_dtype=DType.BF16, drafts=deployment.drafts > 0)
    return with_state(decls, recurrent_dtype=deployment.state_dtype, convolution_dtype=DType.BF16)


def report(model: Model, deployment: Deployment) -> EngineReport:
    """The pools for ``sequences`` of ``tokens`` positions each."""
    decls = declarations(model, deployment)
    page = deployment.block_tokens or 1
    rows = round_up(deployment.tokens, page) * deployment.sequences
    found = []
    for window in sorted({decl.window for decl in attention(decls)}):
        part = [decl for decl in attention(decls) if decl.window == window]
        size = rows if not window or deployment.full_windows else _window_rows(decls, rows, page)
        for name, members in _buffers(part):
            label = f"{name}, window {window}" if window else name
            found.append(
                Allocation(
                    name=label,
                    layers=layer_count(members),
                    units=size + page,
                    unit="rows",
                    bytes=pool_bytes(members, size + page),
                )
            )
    found += _state(decls, deployment)
    return EngineReport(
        engine="sglang",
        allocations=tuple(found),
        bytes=sum(each.bytes for each in found),
        block_tokens=page,
        capacity_tokens=_capacity(decls, deployment, page),
        concurrency=None,
        notes=("one page beyond the pool serves padding rows",),
    )


def _window_rows(decls: list[StateDecl], rows: int, page: int) -> int:
    """Rows of windowed layers; where no layer keeps everything they get them all."""
    if all(decl.window for decl in attention(decls)):
        return rows
    return round_up(rows * WINDOW_RATIO[0] // WINDOW_RATIO[1], page)


def _buffers(part: list[StateDecl]) -> list[tuple[str, list[StateDecl]]]:
    names = {
        "attention.keys": "K",
        "attention.values": "V",
        "attention.indexer_keys": "index K",
    }
    found: dict[str, list[StateDecl]] = {}
    for decl in part:
        found.setdefault(names.get(decl.component, "KV"), []).append(decl)
    return list(found.items())


def _state(decls: list[StateDecl], deployment: Deployment) -> list[Allocation]:
    part = recurrent(decls)
    if not part:
        return []
    slots = deployment.sequences + 1
    found = [_slots("recurrent state", part, slots)]
    if deployment.drafts:
        copies = slots * deployment.drafts
        found.append(_slots("recurrent state of draft tokens", part, copies))
    return found


def _slots(name: str, part: list[StateDecl], slots: int) -> Allocation:
    return Allocation(
        name=name,
        layers=layer_count(part),
        units=slots,
        unit="slots",
        bytes=slot_bytes(part, slots),
    )


def _capacity(decls: list[StateDecl], deployment: Deployment, page: int) -> int | None:
    memory = deployment.memory_bytes
    if memory is None or not attention(decls):
        return None
    slots = (deployment.sequences + 1) * (1 + deployment.drafts)
    free = memory - slot_bytes(decls, slots)

    def fits(pages: int) -> bool:
        used = 0
        for decl in attention(decls):
            windowed = decl.window and not deployment.full_windows
            rows = _window_rows(decls, pages * page, page) if windowed else pages * page
            used += pool_bytes([decl], rows)
        return used <= free

    most = largest_fitting(1, 2**40 // page, fits) if free > 0 else None
    return 0 if most is None else most * page
