"""Recurrent, KV, snapshot and carry terms of real server boots, to the printed digit."""

from __future__ import annotations

import csv
import json
import tomllib
from dataclasses import dataclass, field
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, Decimal
from typing import Any

import pytest
from support.corpus import corpus_path

from kvcache import (
    BlockPool,
    CacheInputs,
    DType,
    Holding,
    KvBudget,
    Section,
    StateDecl,
    StateInputs,
    StateKind,
    VerifyInputs,
    VerifyRule,
    block_bytes,
    cache_terms,
    demanded_blocks,
    state_terms,
    verify_steps_by_slot,
)

MIB = 2**20
GOLDEN = "ledgers/golden_states_qwen3.8-27b-recipe.csv"
BATCH_ROWS = 128  # rows of the verify tables of every boot here


def decl(
    name: str,
    kind: StateKind,
    dtype: DType,
    shape: tuple[int, ...],
    layer: int = -1,
    section: Section = Section.MAIN,
    verify: VerifyRule = VerifyRule.NONE,
) -> StateDecl:
    return StateDecl(
        id=f"l{layer}.{name}" if layer >= 0 else name,
        layer=layer,
        component=name,
        kind=kind,
        section=section,
        dtype=dtype,
        shape=shape,
        verify=verify,
    )


def recurrent_layer(layer: int, h: tuple[int, ...], conv: tuple[int, ...]) -> list[StateDecl]:
    """State of a linear-attention or SSM layer, and its snapshots; all float32."""
    snapshots = [
        decl(f"gdn.{pool}_{part}", kind, DType.F32, shape, layer)
        for pool, kind in (
            ("prefix", StateKind.PREFIX_SNAPSHOT),
            ("ring", StateKind.RING_SNAPSHOT),
        )
        for part, shape in (("h", h), ("conv", conv))
    ]
    state = [
        decl("gdn.h", StateKind.RECURRENT, DType.F32, h, layer, verify=VerifyRule.H_STEPS),
        decl("gdn.conv", StateKind.RECURRENT, DType.F32, conv, layer, verify=VerifyRule.CONV_STEPS),
    ]
    return state + snapshots


def carry_of_gated_delta_net(layer: int, dims: dict[str, int]) -> list[StateDecl]:
    """The carry of a verify: up to 8 rows of inputs per slot, and pointer tables."""
    heads, k, v = dims["lin_v_heads"], dims["lin_k_dim"], dims["lin_v_dim"]
    width = 2 * dims["lin_k_heads"] * k + heads * v
    stash, table = StateKind.CARRY_STASH, StateKind.CARRY_TABLE
    return [
        decl("gdn.carry_vgs", stash, DType.F32, (8, heads * v + heads + heads * k), layer),
        decl("gdn.carry_conv", stash, DType.BF16, (8, width), layer),
        decl("gdn.carry_pend", stash, DType.U32, (1,), layer),
        decl("gdn.carry_ptrs", table, DType.U64, (3,), layer),
        decl("gdn.carry_flags", table, DType.U32, (1,), layer),
        decl("gdn.verify_wy", StateKind.VERIFY_TABLE, DType.U64, (16,), layer),
    ]


def attention_layer(
    name: str, layer: int, dims: dict[str, int], dtype: DType, section: Section = Section.MAIN
) -> list[StateDecl]:
    shape = (dims["kv_heads"], dims["head_dim"])
    return [
        decl(f"{name}.{side}", StateKind.PAGED_KV, dtype, shape, layer, section) for side in "kv"
    ]


def head(hidden: int) -> list[StateDecl]:
    rows = {
        "head.prefix_hidden": StateKind.PREFIX_SNAPSHOT,
        "head.accept_hidden": StateKind.ACCEPT_STASH,
        "head.capture_hidden": StateKind.HIDDEN_CAPTURE,
    }
    hiddens = [decl(name, kind, DType.BF16, (hidden,)) for name, kind in rows.items()]
    return [*hiddens, decl("head.carry_slots", StateKind.CARRY_TABLE, DType.U32, (2,))]


def dense_27b(kv: DType) -> list[StateDecl]:
    return gated_delta_net("unsloth--Qwen3.8-27B-NVFP4", kv)


def moe_35b(kv: DType) -> list[StateDecl]:
    return gated_delta_net("nvidia--Qwen3.6-35B-A3B-NVFP4", kv)


def gated_delta_net(folder: str, kv: DType) -> list[StateDecl]:
    model = read_dims(folder)
    dims = model["dims"]
    h = (dims["lin_v_heads"], dims["lin_k_dim"], dims["lin_v_dim"])
    width = 2 * dims["lin_k_heads"] * dims["lin_k_dim"] + h[0] * h[2]
    decls = []
    for layer, kind in enumerate(model["layer_kinds"]):
        if kind == "G":
            decls += recurrent_layer(layer, h, (width, 4)) + carry_of_gated_delta_net(layer, dims)
        else:
            decls += attention_layer("attn", layer, dims, kv)
    drafts = len(model["layer_kinds"])
    draft = attention_layer("draft.attn", drafts, dims, DType.BF16, Section.DRAFT)
    return decls + draft + head(dims["hidden"])


def nemotron_nano(kv: DType) -> list[StateDecl]:
    model = read_dims("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4")
    dims = model["dims"]
    h = (dims["mamba_heads"], dims["mamba_head_dim"], dims["ssm_state"])
    width = h[0] * h[1] + 2 * dims["ssm_groups"] * dims["ssm_state"]
    decls = []
    for layer, kind in enumerate(model["layer_kinds"]):
        if kind == "M":
            decls += recurrent_layer(layer, h, (width, dims["conv_kernel"]))
        elif kind == "A":
            decls += attention_layer("attn", layer, dims, kv)
    return decls


def read_dims(folder: str) -> Any:
    return json.loads(corpus_path(f"ledgers/{folder}/derived_dims.json").read_text())


@dataclass(frozen=True)
class Boot:
    """What a server was started with; slots without the padding dummy."""

    decls: list[StateDecl]
    slots: int
    drafts: int = 0
    verify_slots: int = 0
    uniform: bool = False
    blocks: int = 0
    draft_blocks: int = 0
    caches: CacheInputs = field(default_factory=CacheInputs)

    def state_bytes(self, *holdings: Holding) -> int:
        verify = None
        if self.drafts:
            steps = verify_steps_by_slot(
                self.verify_slots, drafts=self.drafts, uniform=self.uniform
            )
            verify = VerifyInputs(steps, self.drafts + 1)
        inputs = StateInputs(
            self.slots + 1,
            verify,
            BlockPool(self.blocks, 16),
            BlockPool(self.draft_blocks, 16) if self.draft_blocks else None,
        )
        terms = state_terms(self.decls, inputs)
        return sum(term.bytes for term in terms if term.holding in holdings)

    def pool_bytes(self) -> int:
        return self.state_bytes(Holding.LIVE, Holding.STEPS, Holding.CHECKPOINT)

    def kv_bytes(self) -> int:
        return self.state_bytes(Holding.BLOCKS)

    def cache_bytes(self, *kinds: StateKind) -> int:
        return sum(t.bytes for t in cache_terms(self.decls, self.caches) if t.kind in kinds)


def boots() -> dict[str, Boot]:
    def caches(snapshots: int, verify_slots: int, capture: int) -> CacheInputs:
        return CacheInputs(
            prefix_snapshot_slots=snapshots,
            carry=(verify_slots + 1, BATCH_ROWS),
            verify_table_rows=BATCH_ROWS,
            capture_rows=capture,
        )

    return {
        "dense-27b-default-tier": Boot(
            dense_27b(DType.FP8), 128, 3, 32, False, 25437, 4128, caches(8, 32, 0)
        ),
        "dense-27b-recipe": Boot(
            dense_27b(DType.BF16), 1, 3, 1, False, 8764, 8764, caches(256, 1, 32768)
        ),
        "moe-35b-fp8-recipe": Boot(
            moe_35b(DType.BF16), 8, 1, 8, False, 168652, 168652, caches(16, 8, 32768)
        ),
        "moe-35b-nvfp4-branch": Boot(
            moe_35b(DType.BF16), 128, 1, 128, False, 104260, 16512, caches(32, 128, 2048)
        ),
        "nemotron-3-nano-recipe": Boot(
            nemotron_nano(DType.FP8), 8, blocks=4105, caches=CacheInputs(ring=(8, 8))
        ),
    }


def printed(count: int, digits: str = "0.1", rounding: str = ROUND_HALF_EVEN) -> Decimal:
    return (Decimal(count) / MIB).quantize(Decimal(digits), rounding)


SNAPSHOTS = (StateKind.PREFIX_SNAPSHOT, StateKind.RING_SNAPSHOT)
VERIFY_BUFFERS = (StateKind.VERIFY_TABLE, StateKind.ACCEPT_STASH, StateKind.HIDDEN_CAPTURE)
CARRY = (StateKind.CARRY_STASH, StateKind.CARRY_TABLE)


@pytest.mark.parametrize(
    ("name", "pool", "snapshots", "kv", "buffers"),
    [
        ("dense-27b-default-tier", "32877.0", "1212.1", "12976.5", None),
        ("dense-27b-recipe", "1530.0", "38786.5", "9311.8", "322.0"),
        ("moe-35b-fp8-recipe", "1755.0", "1020.1", "57974.1", "129.0"),
        ("moe-35b-nvfp4-branch", "25155.0", "2040.1", "33097.2", "9.0"),
        ("nemotron-3-nano-recipe", "433.4", "3082.0", "192.4", None),
    ],
)
def test_terms_of_a_boot_equal_its_ledger(
    name: str, pool: str, snapshots: str, kv: str, buffers: str | None
) -> None:
    boot = boots()[name]
    assert printed(boot.pool_bytes()) == Decimal(pool)
    assert printed(boot.cache_bytes(*SNAPSHOTS)) == Decimal(snapshots)
    assert printed(boot.kv_bytes()) == Decimal(kv)
    if buffers is not None:
        assert printed(boot.cache_bytes(*VERIFY_BUFFERS)) == Decimal(buffers)


LEDGER_FILES = {
    "ssm_pool.rs": Boot.pool_bytes,
    "ssm_snapshot_init.rs": lambda boot: boot.cache_bytes(*SNAPSHOTS),
    "paged_impl.rs": Boot.kv_bytes,
    "spec_buffers.rs": lambda boot: boot.cache_bytes(*VERIFY_BUFFERS),
}
RESERVES = {
    "ssm_pool": Boot.pool_bytes,
    "decode_ring": lambda boot: boot.cache_bytes(StateKind.RING_SNAPSHOT),
    "gdn_carry_stash": lambda boot: boot.cache_bytes(*CARRY),
}


@pytest.mark.parametrize(
    "name", ["dense-27b-recipe", "moe-35b-nvfp4-branch", "nemotron-3-nano-recipe"]
)
def test_terms_equal_the_lines_of_the_ledger_file(name: str) -> None:
    ledger = tomllib.loads(corpus_path(f"ledgers/{name}.toml").read_text())
    boot = boots()[name]
    assert (ledger["kv_blocks"], ledger["draft_kv_blocks"]) == (boot.blocks, boot.draft_blocks)
    compared = 0
    for path, (mib, _) in ledger["ledger"].items():
        if term := LEDGER_FILES.get(path.rpartition("/")[2]):
            assert printed(term(boot)) == Decimal(str(mib)), path
            compared += 1
    for key, mib in ledger["reserve"].items():
        if term := RESERVES.get(key):
            assert printed(term(boot), "1", ROUND_DOWN) == mib, key
            compared += 1
    assert compared >= 3


def test_carry_of_the_default_tier_is_843_mib_after_truncation() -> None:
    carry = boots()["dense-27b-default-tier"].cache_bytes(*CARRY)
    assert printed(carry, "1", ROUND_DOWN) == 843


def test_every_golden_row_of_the_27b_report() -> None:
    rows = list(csv.DictReader(corpus_path(GOLDEN).read_text().splitlines()))
    assert len(rows) == 22
    decls = [d for d in dense_27b(DType.BF16) if d.kind is not StateKind.RING_SNAPSHOT]
    by_id = {d.id: d for d in decls}
    found: dict[tuple[str, str], list[tuple[str, str, str, int, int]]] = {}
    inputs = StateInputs(2, VerifyInputs((3, 3), 4), BlockPool(4380, 16), BlockPool(4380, 16))
    for term in state_terms(decls, inputs):
        d = by_id[term.state]
        line = (d.kind.value, term.lifetime.value, term.dtype.value, term.units, term.bytes)
        found.setdefault((d.component, term.holding.value), []).append(line)
    caches = CacheInputs(
        prefix_snapshot_slots=256, carry=(2, 128), verify_table_rows=128, capture_rows=32768
    )
    for cache in cache_terms(decls, caches):
        d = by_id[cache.state]
        line = (d.kind.value, d.kind.lifetime.value, cache.dtype.value, cache.units, cache.bytes)
        found.setdefault((d.component, "cache"), []).append(line)
    for row in rows:
        terms = found.pop((row["state"], row["holding"]))
        kinds = {line[:4] for line in terms}
        assert kinds == {(row["kind"], row["lifetime"], row["dtype"], int(row["units_each"]))}
        assert len(terms) == int(row["declarations"]), row
        assert printed(sum(line[4] for line in terms)) == Decimal(row["MiB"]), row
    assert found == {}, "terms that the report does not have"


@pytest.mark.parametrize(
    ("name", "main", "draft"),
    [
        ("dense-27b-recipe", 1024, 64),
        ("dense-27b-default-tier", 512, 64),
        ("moe-35b-nvfp4-branch", 320, 32),
    ],
)
def test_one_block_index_takes_the_published_kib(name: str, main: int, draft: int) -> None:
    decls = boots()[name].decls
    assert block_bytes(decls, 16) == main * 1024
    assert block_bytes(decls, 16, Section.DRAFT) == draft * 1024


def test_published_block_counts_follow_from_demand_and_clamp() -> None:
    # (2048/16+1) blocks of a draft sequence, times the sequences that draft.
    assert demanded_blocks(32, 2048) - 1 == 4128
    assert demanded_blocks(128, 2048) - 1 == 16512
    budget = KvBudget(
        available_bytes=10**12,
        reserved_bytes=0,
        block_bytes=block_bytes(nemotron_nano(DType.FP8), 16),
        sequences=8,
        max_tokens=8192,
        prefix_cache=False,
    )
    pools = budget.solve()
    assert (pools.blocks, pools.clamped) == (4105, True)
