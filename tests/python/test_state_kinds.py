"""What the plan says each of the twelve state kinds takes is what the object at run time takes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.corpus import corpus_path
from support.declarations import paged, recurrent

import kvcache
from kvcache import (
    AcceptStash,
    BlockPool,
    CacheInputs,
    CarryTable,
    DraftTokens,
    DType,
    HiddenBands,
    HiddenCapture,
    Holding,
    LookupInputs,
    PromptLookupIndex,
    StateDecl,
    StateInputs,
    StateKind,
    TokenTree,
    VerifyInputs,
    VerifyRule,
    VerifyTable,
)

HEADS, KEYS, VALUES, CHANNELS, TAPS, HIDDEN = 3, 5, 7, 11, 4, 13
BLOCK, ROWS, SEQUENCES = 4, 5, 3


def model() -> list[StateDecl]:
    """Two layers of linear attention and one of attention, of odd sizes."""
    decls = []
    for layer in (0, 1):
        matrix = recurrent(layer, "state.recurrent", HEADS, KEYS, VALUES)
        window = recurrent(layer, "state.convolution.0", TAPS, CHANNELS)
        decls += [
            dataclasses.replace(matrix, verify=VerifyRule.H_STEPS),
            dataclasses.replace(window, verify=VerifyRule.CONV_STEPS),
        ]
    return [*decls, *(paged(2, f"attention.{side}", HEADS, KEYS) for side in ("keys", "values"))]


def planned(kind: StateKind, names: str = "", **counts: Any) -> int:
    """Bytes of a kind's terms, of all declarations or of those whose name has ``names``."""
    decls = kvcache.declare_caches(model(), hidden_size=HIDDEN)
    terms = kvcache.cache_terms(decls, CacheInputs(**counts))
    found = [term for term in terms if term.kind is kind and names in term.state]
    assert found
    return sum(term.bytes for term in found)


def planned_state(holding: Holding, **counts: Any) -> int:
    terms = kvcache.state_terms(model(), StateInputs(**counts))
    return sum(term.bytes for term in terms if term.holding is holding)


def cache(**options: int) -> kvcache.Cache:
    plan = kvcache.StatePlan(model(), memory="1MiB", block_tokens=BLOCK, sequences=8, **options)
    return kvcache.Cache(plan)


def run(sequence: kvcache.Sequence, tokens: int) -> None:
    sequence.extend(np.zeros(tokens, np.int32))
    rows = np.zeros((tokens, HEADS, KEYS), np.float16)
    sequence.write(2, sequence.length, rows, rows)
    sequence.advance(tokens)


def opened(owner: kvcache.Cache, tokens: int = 1) -> kvcache.Sequence:
    sequence = owner.open(np.zeros(1, np.int32))
    rows = np.zeros((1, HEADS, KEYS), np.float16)
    sequence.write(2, 0, rows, rows)
    sequence.advance(1)
    if tokens > 1:
        run(sequence, tokens - 1)
    return sequence


def used(owner: kvcache.Cache) -> int:
    """Exact bytes of live items of the arena."""
    return owner.stats().used_bytes


def recurrent_and_paged() -> None:
    owner = cache()
    sequences = [opened(owner, 3 * BLOCK) for _ in range(SEQUENCES)]
    stats = owner.stats()
    assert (stats.slots, stats.pages) == (SEQUENCES, 3 * SEQUENCES)
    live = planned_state(Holding.LIVE, slots=stats.slots)
    blocks = planned_state(Holding.BLOCKS, slots=0, kv=BlockPool(stats.pages, BLOCK))
    assert used(owner) == live + blocks
    # A verify of K rows keeps the state after each; the live state stays and is its checkpoint.
    for sequence in sequences:
        sequence.extend([0])
    before = used(owner)
    pages = owner.stats().pages
    sessions = [sequence.begin_verify([0] * (ROWS - 1)) for sequence in sequences]
    taken = planned_state(Holding.STEPS, slots=0, verify=VerifyInputs((ROWS,) * SEQUENCES, ROWS))
    grown = BlockPool(owner.stats().pages - pages, BLOCK)
    assert used(owner) - before == taken + planned_state(Holding.BLOCKS, slots=0, kv=grown)
    for session in sessions:
        session.rollback()
    for sequence in sequences:
        sequence.close()
    assert used(owner) == 0


def prefix_snapshots() -> None:
    owner = cache()
    sequence = opened(owner)
    before = used(owner)
    for count in range(1, 4):
        pages = owner.stats().pages
        sequence.snapshot()
        assert owner.stats().pages == pages
        bytes_ = planned(StateKind.PREFIX_SNAPSHOT, ".prefix.", prefix_snapshot_slots=count)
        assert used(owner) - before == bytes_
        run(sequence, BLOCK)
        before += planned_state(Holding.BLOCKS, slots=0, kv=BlockPool(1, BLOCK))


def ring_snapshots() -> None:
    owner = cache(ring_depth=2)
    sequences = [opened(owner) for _ in range(SEQUENCES)]
    before = used(owner)
    for sequence in sequences:
        for _ in range(3):  # the third takes the place of the first
            sequence.record()
    assert owner.stats().ring_snapshots == 2 * SEQUENCES
    assert used(owner) - before == planned(StateKind.RING_SNAPSHOT, ring=(2, SEQUENCES))


def carry_stash() -> None:
    owner = cache(stash_rows=ROWS)
    stashes = kvcache.declare_stash(model(), rows=ROWS)
    assert {decl.kind for decl in stashes} == {StateKind.CARRY_STASH}
    sequences = [opened(owner) for _ in range(SEQUENCES)]
    before = used(owner)
    for count, sequence in enumerate(sequences, 1):
        sequence.extend([0])
        sequence.begin_verify([], strategy="carry").rollback()
        terms = kvcache.cache_terms(stashes, CacheInputs(carry=(count, 0)))
        assert used(owner) - before == sum(term.bytes for term in terms) > 0


def carry_table() -> None:
    table = CarryTable(cache(stash_rows=ROWS).plan, batch_rows=ROWS)
    assert table.nbytes == planned(StateKind.CARRY_TABLE, ".carry.", carry=(0, ROWS))


def verify_table() -> None:
    table = VerifyTable(cache().plan, batch_rows=ROWS)
    layers = (table.pointers(layer, "state.recurrent") for layer in (0, 1))
    bytes_ = planned(StateKind.VERIFY_TABLE, verify_table_rows=ROWS)
    assert sum(entries.nbytes for entries in layers) == bytes_
    # The law knows one table a layer, of its recurrent state; the object has one a tensor.
    assert table.nbytes == 2 * bytes_


def accept_stash() -> None:
    assert AcceptStash(ROWS, HIDDEN).bytes == planned(
        StateKind.ACCEPT_STASH, verify_table_rows=ROWS
    )
    assert AcceptStash(ROWS, HIDDEN, catch_up=4).bytes == planned(
        StateKind.ACCEPT_STASH, verify_table_rows=5 * ROWS
    )


def hidden_capture() -> None:
    owner = cache()
    capture = HiddenCapture(37, HIDDEN, cache=owner)
    assert capture.bytes == planned(StateKind.HIDDEN_CAPTURE, capture_rows=37)
    assert owner.stats().reserved_bytes == capture.bytes
    bands = HiddenBands(SEQUENCES, ROWS, HIDDEN)
    assert bands.bytes == planned(StateKind.HIDDEN_CAPTURE, capture_rows=SEQUENCES * ROWS)


def prompt_lookup_index() -> None:
    for tokens in (1, 7, 8, 1000):
        history = np.arange(tokens, dtype=np.int32)
        indexes = [PromptLookupIndex(min_match=2, max_match=2) for _ in range(SEQUENCES)]
        for index in indexes:
            index.observe(history)
        bytes_ = planned(
            StateKind.PROMPT_LOOKUP_INDEX,
            lookup=LookupInputs(sequences=SEQUENCES, history_tokens=tokens),
        )
        assert sum(index.bytes for index in indexes) == bytes_


def token_tree_mask() -> None:
    for nodes in (1, 5, 16):
        trees = [TokenTree([-1, *range(nodes - 1)]) for _ in range(SEQUENCES)]
        bytes_ = planned(StateKind.TOKEN_TREE_MASK, tree=(SEQUENCES, nodes))
        assert sum(tree.mask().nbytes for tree in trees) == bytes_


def draft_tokens() -> None:
    drafts = DraftTokens(SEQUENCES, ROWS)
    assert drafts.bytes == planned(StateKind.DRAFT_TOKENS, drafts=(SEQUENCES, ROWS))


CHECKS: dict[StateKind, Callable[[], None]] = {
    StateKind.RECURRENT: recurrent_and_paged,
    StateKind.PAGED_KV: recurrent_and_paged,
    StateKind.PREFIX_SNAPSHOT: prefix_snapshots,
    StateKind.RING_SNAPSHOT: ring_snapshots,
    StateKind.CARRY_STASH: carry_stash,
    StateKind.CARRY_TABLE: carry_table,
    StateKind.VERIFY_TABLE: verify_table,
    StateKind.ACCEPT_STASH: accept_stash,
    StateKind.HIDDEN_CAPTURE: hidden_capture,
    StateKind.PROMPT_LOOKUP_INDEX: prompt_lookup_index,
    StateKind.TOKEN_TREE_MASK: token_tree_mask,
    StateKind.DRAFT_TOKENS: draft_tokens,
}


@pytest.mark.parametrize("kind", list(StateKind))
def test_the_object_takes_what_the_plan_says(kind: StateKind) -> None:
    CHECKS[kind]()


def test_the_caches_of_a_real_boot_have_its_bytes() -> None:
    """The golden rows of a dense model of 27 billion parameters: hidden rows of 5120."""
    assert AcceptStash(128, 5120).bytes == 1_310_720
    assert HiddenCapture(32_768, 5120).bytes == 335_544_320
    assert DraftTokens(4, 16).bytes == 256
    assert 4 * TokenTree.linear(16).mask().nbytes == 1024
    index = PromptLookupIndex(min_match=3, max_match=3, history_tokens=1000, reserve=True)
    assert 2 * index.bytes == 69_664


def of_a_boot(folder: str) -> list[StateDecl]:
    """What the layers of a model that was booted keep, from the dimensions in its log."""
    boot = json.loads(corpus_path(f"ledgers/{folder}/derived_dims.json").read_text())
    dims, decls = boot["dims"], []
    for layer, kind in enumerate(boot["layer_kinds"]):
        if kind == "G":
            matrix = (dims["lin_v_heads"], dims["lin_k_dim"], dims["lin_v_dim"])
            width = 2 * dims["lin_k_heads"] * matrix[1] + matrix[0] * matrix[2]
        elif kind == "M":
            matrix = (dims["mamba_heads"], dims["mamba_head_dim"], dims["ssm_state"])
            width = matrix[0] * matrix[1] + 2 * dims["ssm_groups"] * matrix[2]
        elif kind == "A":
            shape = (dims["kv_heads"], dims["head_dim"])
            sides = ("keys", "values")
            decls += [paged(layer, f"attention.{s}", *shape, dtype=DType.BF16) for s in sides]
        if kind in "GM":
            decls += [
                recurrent(layer, "state.recurrent", *matrix),
                recurrent(layer, "state.convolution.0", width, 4),
            ]
    return decls


@pytest.mark.parametrize(
    ("folder", "slot", "block"),
    [
        ("unsloth--Qwen3.8-27B-NVFP4", 158_859_264, 2**20),
        ("nvidia--Qwen3.6-35B-A3B-NVFP4", 66_846_720, 320 << 10),
        ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", 50_495_488, 96 << 10),
    ],
)
def test_the_arena_counts_the_slots_and_blocks_of_a_real_boot(
    folder: str, slot: int, block: int
) -> None:
    """One slot over all layers, and one block of 16 positions, as the boots' logs have them."""
    plan = kvcache.StatePlan(
        of_a_boot(folder), memory="64GiB", block_tokens=16, sequences=4, ring_depth=2
    )
    assert (plan.slot_bytes, plan.block_bytes) == (slot, block)
    owner = kvcache.Cache(plan, backing=False)
    opened = []
    for first in range(3):
        sequence = owner.open(np.full(40, first, np.int32))
        opened.append(sequence)
        sequence.prepare(40)
        sequence.advance(40)
        sequence.snapshot()
        sequence.record()
        stats = owner.stats()
        assert stats.used_bytes == (first + 1) * (3 * slot + 3 * block)
        assert stats.pages == 3 * (first + 1)
        sequence.publish()
