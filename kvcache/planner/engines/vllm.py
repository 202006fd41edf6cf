"""vLLM: pages of equal bytes, layers in groups of equal size, one page table a group.

Source: ``vllm/v1/core/kv_cache_utils.py``, ``kv_cache_interface.py`` and
``vllm/platforms/interface.py`` of vllm-project/vllm:

- layers of one type make one group, whose block holds a page of each of them;
- layers of several types are cut into groups of the smallest type's count (of the largest's, where
  that is less than half more); the last group of a type is padded with layers that hold nothing,
  and pages are made equal by longer blocks for the narrower types;
- next to recurrent state a block is so long that one page holds one state, which is padded to it;
- a window holds ``window - 1`` positions and those of one step, in whole blocks and one more;
- convolutions have ``kernel - 1`` taps and one more per draft token; drafting pins one more page
  of state per draft token and group, and a prefix cache another one;
- latents come in blocks of 64, and split over the ranks of decode context parallelism;
- "GPU KV cache size" is ``blocks // groups * block``, in newer versions concurrency times the
  longest sequence; neither is a rate on models with more than one type of layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcache.enums import DType
from kvcache.errors import UnsupportedError
from kvcache.planner.engines.base import (
    Allocation,
    Deployment,
    EngineReport,
    attention,
    pool_bytes,
    recurrent,
    slot_bytes,
    with_state,
)
from kvcache.planner.formats import declare_model, parse_format
from kvcache.terms import max_tokens, retained_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache.models import Model
    from kvcache.state import StateDecl

__all__ = ["PageLayout", "declarations", "page_layout", "report"]

ALIGNMENT = 16  # positions of a block of the usual attention kernels
LATENT_ALIGNMENT = 64  # of the kernels for latents


@dataclass(frozen=True, slots=True)
class LayerType:
    """Layers that vLLM gives the same specification.

    Attributes:
        name: full, window N or state.
        window: positions a query sees, 0 for all; 0 for state.
        layers: how many.
        block_tokens: positions of one page.
        groups: groups that these layers are cut into.
    """

    name: str
    window: int
    layers: int
    block_tokens: int
    groups: int

    def request_blocks(self, deployment: Deployment) -> int:
        """Blocks that one sequence of ``deployment.tokens`` pins, all groups."""
        tokens = -(-deployment.tokens // deployment.dcp)
        if self.name == "state":
            pages = 1 + deployment.drafts + deployment.prefix_cache
        elif self.window:
            seen = min(self.window - 1 + deployment.batched_tokens, tokens)
            pages = -(-seen // self.block_tokens) + 1
        else:
            pages = -(-tokens // self.block_tokens)
        return pages * self.groups


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Pages and groups of one model.

    Attributes:
        block_tokens: positions of the shortest block.
        block_bytes: bytes of one block: a page of each layer of a group.
        page_bytes: bytes of one page of one layer; those of a block where there is one group.
        group_size: layers of one group.
        types: the types of layers.
    """

    block_tokens: int
    block_bytes: int
    page_bytes: int
    group_size: int
    types: tuple[LayerType, ...]

    @property
    def groups(self) -> int:
        """Groups of all types."""
        return sum(each.groups for each in self.types)

    @property
    def layer_slots(self) -> int:
        """Layers with those that only pad."""
        return self.groups * self.group_size

    def blocks(self, memory_bytes: int) -> int:
        """Blocks that fit."""
        return memory_bytes // self.block_bytes

    def capacity_tokens(self, memory_bytes: int, dcp: int = 1) -> int:
        """What it prints as the size of its cache."""
        return self.blocks(memory_bytes) // self.groups * self.block_tokens * dcp

    def request_blocks(self, deployment: Deployment) -> int:
        """Blocks that one sequence pins."""
        return sum(each.request_blocks(deployment) for each in self.types)


def declarations(model: Model, deployment: Deployment) -> list[StateDecl]:
    """What vLLM keeps of a model."""
    drafts = deployment.drafts > 0
    stored = deployment.format
    decls = declare_model(model, stored, state_dtype=DType.BF16, drafts=drafts)
    if any(decl.component == "attention.indexer_keys" for decl in decls):
        # The sparse kernels read their own record, and fp8 index keys whatever the format.
        stored = parse_format("fp8_ds_mla") if stored.name == "fp8" else stored.with_fp8_index()
        decls = declare_model(model, stored, state_dtype=DType.BF16, drafts=drafts)
    return with_state(
        decls,
        recurrent_dtype=deployment.state_dtype,
        convolution_dtype=DType.BF16,
        more_taps=deployment.drafts,
    )


def page_layout(decls: Sequence[StateDecl], deployment: Deployment) -> PageLayout:
    """How vLLM pages and groups these declarations.

    Raises:
        UnsupportedError: state pooled over positions, or nothing to page.
    """
    if any(decl.record_tokens > 1 for decl in decls):
        raise UnsupportedError("vllm: pages of state pooled over positions are not modelled")
    paged, state = _by_layer(attention(decls)), _by_layer(recurrent(decls))
    types: dict[tuple[int, int], list[list[StateDecl]]] = {}
    for layer in paged:
        window = 0 if deployment.full_windows else layer[0].window
        types.setdefault((window, pool_bytes(layer, 1)), []).append(layer)
    if not types and not state:
        raise UnsupportedError("vllm: the model keeps no state")
    block = _block_tokens(paged, state, deployment)
    if not state and len({window for window, _ in types}) == 1:
        return _one_group(paged, next(window for window, _ in types), block)
    page = max((block * token for _, token in types), default=0)
    if state:
        page = max(page, *(slot_bytes(layer, 1) for layer in state))
    return _grouped(types, len(state), block, page)


def _one_group(paged: list[list[StateDecl]], window: int, block: int) -> PageLayout:
    """Layers of one type: a block holds a page of each, whatever their widths."""
    size = sum(pool_bytes(layer, block) for layer in paged)
    name = f"window {window}" if window else "full"
    return PageLayout(block, size, size, 1, (LayerType(name, window, len(paged), block, 1),))


def _grouped(
    types: dict[tuple[int, int], list[list[StateDecl]]], states: int, block: int, page: int
) -> PageLayout:
    counts = [len(layers) for layers in types.values()] + ([states] if states else [])
    group = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    found = [
        LayerType(
            f"window {window}" if window else "full",
            window,
            len(layers),
            max(block, page // (block * token) * block),
            -(-len(layers) // group),
        )
        for (window, token), layers in types.items()
    ]
    shortest = min((each.block_tokens for each in found), default=block)
    if states:
        found.append(LayerType("state", 0, states, shortest, -(-states // group)))
    return PageLayout(shortest, page * group, page, group, tuple(found))


def _by_layer(decls: Sequence[StateDecl]) -> list[list[StateDecl]]:
    found: dict[int, list[StateDecl]] = {}
    for decl in decls:
        found.setdefault(decl.layer, []).append(decl)
    return list(found.values())


def _block_tokens(
    paged: list[list[StateDecl]], state: list[list[StateDecl]], deployment: Deployment
) -> int:
    latent = any(d.component == "attention.compressed_latent" for layer in paged for d in layer)
    alignment = LATENT_ALIGNMENT if latent else ALIGNMENT
    block = deployment.block_tokens or alignment
    if not state or not paged:
        return block
    largest = max(slot_bytes(layer, 1) for layer in state)
    token = max(pool_bytes(layer, 1) for layer in paged)
    return max(block, alignment * -(-largest // (alignment * token)))


def report(model: Model, deployment: Deployment) -> EngineReport:
    """The pages that ``sequences`` of ``tokens`` positions pin, and what the memory holds."""
    decls = declarations(model, deployment)
    if any(decl.record_tokens > 1 for decl in decls):
        return _unpaged(decls, deployment)
    layout = page_layout(decls, deployment)
    found = tuple(
        Allocation(
            name=f"{each.name} layers, {each.groups} of {layout.groups} groups",
            layers=each.layers,
            units=each.request_blocks(deployment) * deployment.sequences,
            unit=f"blocks of {each.block_tokens}" if each.name != "state" else "blocks",
            bytes=each.request_blocks(deployment) * deployment.sequences * layout.block_bytes,
        )
        for each in layout.types
    )
    memory = deployment.memory_bytes
    request = layout.request_blocks(deployment)
    return EngineReport(
        engine="vllm",
        allocations=found,
        bytes=sum(each.bytes for each in found),
        block_tokens=layout.block_tokens,
        capacity_tokens=None if memory is None else layout.capacity_tokens(memory, deployment.dcp),
        concurrency=None if memory is None else layout.blocks(memory) / request,
        notes=_notes(decls, layout),
    )


def _notes(decls: Sequence[StateDecl], layout: PageLayout) -> tuple[str, ...]:
    notes = []
    used = sum(each.layers for each in layout.types)
    if layout.group_size > 1 and layout.layer_slots != used:
        notes.append(f"{used} layers are padded to {layout.layer_slots} slots in equal groups")
    states = [slot_bytes(layer, 1) for layer in _by_layer(recurrent(decls))]
    if states and layout.page_bytes > max(states):
        notes.append(f"a state of {max(states)} bytes is padded to {layout.page_bytes}")
    if len(layout.types) > 1:
        notes.append(
            "the capacity in tokens is no rate: see intercept and slope of the plan itself"
        )
    return tuple(notes)


def _unpaged(decls: Sequence[StateDecl], deployment: Deployment) -> EngineReport:
    """Models whose pages are not modelled: the bytes they need, without padding."""
    need = retained_bytes(decls, deployment.tokens) * deployment.sequences
    memory = deployment.memory_bytes
    layers = len({decl.layer for decl in decls})
    tokens = None if memory is None else max_tokens(decls, sequences=1, memory_bytes=memory) or 0
    return EngineReport(
        engine="vllm",
        allocations=(
            Allocation(
                name="state without page padding",
                layers=layers,
                units=deployment.sequences,
                unit="sequences",
                bytes=need,
            ),
        ),
        bytes=need,
        block_tokens=deployment.block_tokens or 1,
        capacity_tokens=tokens,
        concurrency=None if memory is None else memory * deployment.sequences / max(need, 1),
        notes=("pages of state pooled over positions are not modelled: bytes without padding",),
    )
