"""The carry stash: its bytes, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.declarations import paged, recurrent
from support.recurrences import (
    CONV,
    LAYERS,
    GatedDeltaNet,
    Griffin,
    H,
    KimiDelta,
    Layer,
    Mamba2,
    ShortConvolution,
)
from support.speculation import KEYS, attention_rows, cache_of, make_layers, run_layer

import kvcache
from kvcache import (
    AcceptStash,
    Batch,
    Cache,
    CacheInputs,
    DraftTokens,
    DType,
    InvalidArgumentError,
    NotFoundError,
    OutOfCapacityError,
    StateDecl,
    StatePlan,
    UnsupportedError,
    cache_terms,
    declare_stash,
)

# ---- Bytes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
def test_the_plan_the_terms_and_the_ledger_agree_to_the_byte(rows: int, dtype: DType) -> None:
    layers = make_layers(dtype)
    cache = cache_of(layers, stash_rows=rows)
    plan = cache.plan
    stashes = declare_stash(plan.declarations, rows=rows)
    terms = cache_terms(stashes, CacheInputs(carry=(3, 0)))
    assert sum(term.bytes for term in terms) == 3 * plan.stash_bytes > 0
    sequences = [cache.open([i]) for i in range(3)]
    before = cache.stats().used_bytes
    for count, sequence in enumerate(sequences, 1):
        assert plan.sequence_bytes(1) - cache_of(layers, stash_rows=0).plan.sequence_bytes(1) > 0
        with sequence.begin_verify([], strategy="carry"):
            pass
        assert cache.stats().used_bytes - before == count * plan.stash_bytes
    for sequence in sequences:
        sequence.close()
    assert cache.stats().used_bytes == 0


def test_row_bytes_of_a_gated_delta_net_are_the_published_ones() -> None:
    """27B: 8 rows of 98,688 / 8 floats; KDA has a gate for each of the key channels."""
    h = recurrent(0, H, 48, 128, 128)
    [delta] = [d for d in declare_stash([with_rule(h)], rows=8) if d.component == f"carry.{H}"]
    assert np.prod(delta.shape) == 98_688
    [kda] = [
        d
        for d in declare_stash([with_rule(h, gate="channel")], rows=8)
        if d.component == f"carry.{H}"
    ]
    assert np.prod(kda.shape) == 8 * 48 * (128 + 128 + 128)


def with_rule(decl: StateDecl, **fields: Any) -> StateDecl:
    return StateDecl.from_dict(decl.to_dict() | {"verify": "h_steps"} | fields)


def test_channel_gates_of_kda_are_read_from_its_config() -> None:
    kda = kvcache.models.from_config(KIMI)
    plan = StatePlan.for_model(kda, memory="64MiB", stash_rows=8)
    assert {d.gate.value for d in plan.declarations if d.component == H} == {"channel"}
    assert plan.stash_bytes == 3 * (8 * 4 * (3 * 2 * 16 + 3 * 32) + 4)


KIMI = {
    "model_type": "kimi_linear",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "vocab_size": 100,
    "linear_attn_config": {
        "num_heads": 2,
        "head_dim": 16,
        "short_conv_kernel_size": 4,
        "kda_layers": [1, 2, 3],
        "full_attn_layers": [4],
    },
}


# ---- What is refused -------------------------------------------------------------------------


def test_a_plan_without_stash_verifies_by_steps_only() -> None:
    cache = cache_of([GatedDeltaNet(0, DType.F32, 0)], stash_rows=0)
    with cache.open([1]) as sequence:
        for strategy in ("replay", "carry"):
            with pytest.raises(UnsupportedError, match="no carry stash; raise its stash_rows"):
                sequence.begin_verify([2], strategy=strategy)
        sequence.begin_verify([2]).rollback()


def test_attention_alone_needs_no_stash() -> None:
    plan = StatePlan([paged(0, KEYS, 1, 4)], memory="1MiB", stash_rows=8)
    assert plan.stash_bytes == 0
    with Cache(plan).open([1]) as sequence, sequence.begin_verify([2], strategy="carry") as session:
        session.write(0, np.ones((2, 1, 4), np.float16))
        assert session.commit(2) == 2


def test_more_rows_than_the_stash_holds_are_refused() -> None:
    cache = cache_of(make_layers(), stash_rows=4)
    with cache.open([1]) as sequence:
        used = cache.stats().used_bytes
        with pytest.raises(InvalidArgumentError, match="5 rows, the carry stash holds 4"):
            sequence.begin_verify([2, 3, 4, 5], strategy="replay")
        assert cache.stats().used_bytes == used
    with pytest.raises(InvalidArgumentError, match=r"stash_rows must be 0\.\.4096, got 5000"):
        cache_of(make_layers(), stash_rows=5000)
    with pytest.raises(InvalidArgumentError, match="stash_rows: must be 0"):
        cache_of(make_layers(), stash_rows=-1)


def test_no_memory_for_the_stash_leaves_the_sequence_as_it_was() -> None:
    layers = make_layers()
    roomy = cache_of(layers, stash_rows=64).plan
    cache = cache_of(layers, stash_rows=64, memory=roomy.sequence_bytes(4))
    with cache.open([1]) as first, cache.open([2]) as second:
        used = cache.stats().used_bytes
        first.begin_verify([3], strategy="carry").rollback()
        with pytest.raises(OutOfCapacityError):
            second.begin_verify([3], strategy="carry")
        assert second.length == 0
        assert cache.stats().used_bytes == used + roomy.stash_bytes
        first.close()
        second.begin_verify([3], strategy="carry").rollback()


def test_a_batch_that_finds_no_memory_holds_no_stash_and_ends_no_rows() -> None:
    layers = make_layers()
    plan = cache_of(layers, stash_rows=64).plan
    cache = cache_of(layers, stash_rows=64, memory=plan.sequence_bytes(4))
    with cache.open([1]) as first, cache.open([2]) as second:
        hidden = AcceptStash(2, 4, "float32")
        hidden.store([first, second], np.ones((2, 4), np.float32), [0, 1])
        drafts = DraftTokens(2, 1)
        drafts.put(first, [3])
        used = cache.stats().used_bytes
        with pytest.raises(OutOfCapacityError):
            Batch([first, second]).begin_verify([3, 4], [1, 1], strategy="carry")
        assert cache.stats().used_bytes == used
        assert hidden.rows(2).shape == (2, 4)
        assert drafts.take(first).tolist() == [3]
        first.begin_verify([3], strategy="carry").rollback()  # one has room
        assert cache.stats().used_bytes == used + plan.stash_bytes
        with pytest.raises(OutOfCapacityError):
            Batch([first, second]).begin_verify([3, 4], [1, 1], strategy="carry")
        assert cache.stats().used_bytes == used + plan.stash_bytes
        with pytest.raises(InvalidArgumentError, match="when the next verify"):
            hidden.rows(1)
        assert hidden.row(1).shape == (1, 4)


@pytest.mark.parametrize(
    ("strategy", "layer", "name", "inputs", "error", "message"),
    [
        ("steps", 0, H, {}, InvalidArgumentError, "begin it by replay or carry"),
        ("carry", 0, "state.other", {}, NotFoundError, "state.other"),
        ("carry", 99, H, {}, NotFoundError, "99"),
        ("carry", 0, H, {"gate": None}, InvalidArgumentError, "takes gate, left and right"),
        ("carry", 0, H, {"left": None}, InvalidArgumentError, "left is missing"),
        ("carry", 0, H, {"right": None}, InvalidArgumentError, "takes gate, left and right"),
        (
            "carry",
            0,
            H,
            {"gate": np.ones((2, 5))},
            InvalidArgumentError,
            "64 is not float32, float16 or",
        ),
        (
            "carry",
            0,
            H,
            {"gate": np.ones((2, 5), np.float32)},
            InvalidArgumentError,
            r"gate must be \[2, 6\], got \[2, 5\]",
        ),
        (
            "carry",
            0,
            H,
            {"left": np.ones((2, 4, 5), np.float32)},
            InvalidArgumentError,
            r"left must be \[2, 6, 5\], got \[2, 4, 5\]",
        ),
        (
            "carry",
            0,
            H,
            {"right": np.ones((3, 6, 7), np.float32)},
            InvalidArgumentError,
            r"right must be \[2, 6, 7\], got \[3, 6, 7\]",
        ),
        ("carry", 0, H, {"right": np.ones((2, 6, 7), np.int32)}, InvalidArgumentError, "of i32"),
        ("carry", 0, H, {"rows": np.ones((2, 6), np.float32)}, InvalidArgumentError, "no rows"),
        ("carry", 0, CONV + "0", {}, InvalidArgumentError, "takes rows, and nothing else"),
        (
            "carry",
            0,
            CONV + "0",
            {"gate": None, "left": None, "right": np.ones((2, 6), np.float32)},
            InvalidArgumentError,
            "takes rows, and nothing else",
        ),
        (
            "carry",
            0,
            CONV + "0",
            {"gate": None, "left": None, "right": None, "rows": np.ones((2, 3), np.float32)},
            InvalidArgumentError,
            r"rows must be \[2, \d+\], got \[2, 3\]",
        ),
        ("carry", 6, "state.tail", {}, UnsupportedError, "nothing folds 'state.tail'"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    strategy: str, layer: int, name: str, inputs: Any, error: type[Exception], message: str
) -> None:
    good = {
        "gate": np.ones((2, 6), np.float32),
        "left": np.ones((2, 6, 5), np.float16),
        "right": np.ones((2, 6, 7), np.float32),
    }
    cache = cache_of(make_layers(), extra=[recurrent(6, "state.tail", 3, 2)])
    with cache.open([1]) as sequence:
        with (
            sequence.begin_verify([2], strategy=strategy) as session,
            pytest.raises(error, match=message),
        ):
            session.stash(layer, name, **(good | inputs))
        assert sequence.length == 0
        with sequence.begin_verify([2], strategy="carry") as session:
            session.stash(0, H, **good)
    with pytest.raises(InvalidArgumentError, match="has ended"):
        session.stash(0, H, **good)
    with pytest.raises(InvalidArgumentError, match="has ended"):
        session.live(0, H)
    with pytest.raises(InvalidArgumentError, match="has ended"):
        session.pending(0, H)


def test_an_unknown_strategy_is_refused() -> None:
    with cache_of(make_layers()).open([1]) as sequence:
        for strategy in ("lazy", None, 1, ["carry"]):
            with pytest.raises(InvalidArgumentError, match="strategy: expected"):
                sequence.begin_verify([2], strategy=strategy)  # type: ignore[arg-type]


def test_commit_needs_every_tensor_stashed_or_taken() -> None:
    layers: list[Layer] = [Griffin(0, DType.F32, 0), Mamba2(1, DType.F32, 0)]
    cache = cache_of(layers)
    with cache.open([1]) as sequence, sequence.begin_verify([2], strategy="carry") as session:
        run_layer(session, layers[0], [-1, 0], stash=True)
        rows = attention_rows(session.tokens, session.positions)
        session.write(len(LAYERS), rows, rows)
        with pytest.raises(InvalidArgumentError, match="of layer 1 after row 0 was never taken"):
            session.commit(1)
        session.stash(1, CONV + "0", rows=np.ones((2, Mamba2.channels), np.float32))
        with pytest.raises(InvalidArgumentError, match="stash\\(\\) all of a layer or none"):
            session.commit(1)
        run_layer(session, layers[1], [-1, 0], stash=True)
        assert session.commit(1) == 1


@pytest.mark.parametrize("batched", [False, True])
def test_a_tensor_is_stashed_or_its_state_is_filled_but_not_both(batched: bool) -> None:
    layers: list[Layer] = [Griffin(0, DType.F32, 0), Mamba2(1, DType.F32, 0)]
    cache = cache_of(layers)
    sequences = [cache.open([i]) for i in range(2)]
    inputs = {"rows": np.ones((4 if batched else 2, Mamba2.channels), np.float32)}
    session: Any
    which: tuple[int, ...]
    if batched:
        session = Batch(sequences).begin_verify([2, 3], strategy="carry")
        which = (1,)  # the second alone: nothing of the first is stashed either
    else:
        session, which = sequences[0].begin_verify([2], strategy="carry"), ()
    session.state(*which, 0, 1, CONV + "0")
    with pytest.raises(InvalidArgumentError, match=r"state\(\) of it was taken"):
        session.stash(1, CONV + "0", **inputs)
    session.state(0, *which, 1, CONV + "0")  # the first is as it was
    session.stash(1, H, **stash_of(4 if batched else 2))
    with pytest.raises(InvalidArgumentError, match="its inputs were stashed in this session"):
        session.state(*which, 0, 1, H)
    session.rollback()


def stash_of(rows: int) -> dict[str, Any]:
    """Of Mamba2: a gate a head, x and B."""
    return {
        "gate": np.ones((rows, Mamba2.heads), np.float32),
        "left": np.ones((rows, Mamba2.heads, Mamba2.dim), np.float32),
        "right": np.ones((rows, Mamba2.groups, Mamba2.states), np.float32),
    }


def test_a_ledger_counts_the_stash() -> None:
    cache = cache_of([KimiDelta(0, DType.F32, 0), ShortConvolution(1, DType.F32, 0)], backing=False)
    with cache.open([1]) as sequence:
        before = cache.stats().used_bytes
        with sequence.begin_verify([2, 3], strategy="carry") as session:
            assert session.commit(2) == 2
        sequence.snapshot()
        sequence.extend([4])
        sequence.begin_verify([2], strategy="replay").rollback()
        grown = cache.stats().used_bytes - before
        pages = sum(g.page_bytes for g in cache.plan.groups)
        assert grown == cache.plan.stash_bytes + cache.plan.slot_bytes + pages
