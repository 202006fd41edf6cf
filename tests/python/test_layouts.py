"""Engine layouts: what is refused, and that a refusal changes nothing."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.declarations import paged

import kvcache
from kvcache import EngineLayout, InvalidArgumentError

Array = NDArray[Any]
HEADS, DIM, TOKENS, BLOCK = 2, 8, 10, 4


def plan(*, int8: bool = False, layers: int = 2, window: int = 0) -> kvcache.StatePlan:
    return kvcache.StatePlan(
        [
            paged(layer, name, HEADS, DIM, int8=int8, window=window)
            for layer in range(layers)
            for name in ("attention.keys", "attention.values")
        ],
        memory="1MiB",
        block_tokens=BLOCK,
    )


@pytest.fixture
def sequence() -> Any:
    with kvcache.Cache(plan()).open(np.arange(TOKENS)) as sequence:
        yield sequence


def random(*shape: int, dtype: str = "float16") -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def filled(sequence: kvcache.Sequence) -> tuple[Array, Array]:
    keys, values = random(TOKENS, HEADS, DIM), random(TOKENS, HEADS, DIM) + 1
    for layer in range(2):
        sequence.import_rows(layer, 0, TOKENS, (keys, values), "tokens heads dim")
    sequence.advance(TOKENS)
    return keys, values


@pytest.mark.parametrize(
    ("axes", "why"),
    [
        ("", "one axis must be dim"),
        ("tokens heads", "one axis must be dim"),
        ("heads dim", "positions are either tokens, or blocks together with block"),
        ("tokens blocks block dim", "positions are either tokens, or blocks together with block"),
        ("blocks heads dim", "positions are either tokens, or blocks together with block"),
        ("(blocks block) heads dim", "blocks and block cannot share an axis"),
        ("tokens heads dim heads", "'heads' is there twice"),
        ("tokens head dim", "unknown word 'head'; known: layers, kv, blocks"),
        ("tokens (heads dim", "parentheses do not match"),
        ("tokens heads) dim", "parentheses do not match"),
        ("tokens ((heads) dim)", "parentheses do not match"),
        ("tokens () dim", "empty parentheses"),
        ("x" * 300, "300 characters, at most 256"),
    ],
)
def test_a_layout_that_says_nothing_sensible_is_refused(axes: str, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^layout") as error:
        EngineLayout(axes)
    assert why in str(error.value)


def test_a_layout_is_a_value() -> None:
    layout = EngineLayout(" kv  blocks block (heads dim) ")
    assert layout == EngineLayout("kv blocks block (heads dim)")
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert len({layout, EngineLayout("kv blocks block (heads dim)")}) == 1
    with pytest.raises(InvalidArgumentError):
        EngineLayout(3)  # type: ignore[arg-type]


def good() -> dict[str, Any]:
    """Arguments of a call that is fine: layer 0 of a FlashAttention tensor of 5 blocks of 4."""
    return {
        "layers": 0,
        "start": 0,
        "stop": TOKENS,
        "tensors": random(2, 5, 4, HEADS, DIM),
        "layout": "kv blocks block heads dim",
        "block_table": [4, 0, 2],
    }


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tensors": random(2, 5, 4, HEADS, DIM + 1)}, "axis 4 of 5: expected 8, got 9"),
    ({"tensors": random(2, 5, 4, HEADS + 1, DIM)}, "axis 3 of 5: expected 2, got 3"),
    ({"tensors": random(3, 5, 4, HEADS, DIM)}, "axis 0 of 5: expected 2, got 3"),
    ({"tensors": random(2, 5, 4, HEADS * DIM)}, "has 5 axes, the tensor 4"),
    ({"tensors": random(2, 5, 0, HEADS, DIM)}, "a block of 0"),
    ({"tensors": np.zeros((2, 5, 4, HEADS, DIM), np.int8)}, "must be f32, f16 or bf16, got i8"),
    ({"tensors": np.zeros((2, 5, 4, HEADS, DIM), np.int64)}, "dtype int64 is not float32"),
    ({"tensors": "text"}, "no buffer"),
    ({"block_table": [4, 0, 5]}, "block_table[2] is 5; the tensor has 5 blocks"),
    ({"block_table": [4, -1, 2]}, "block_table[1] is -1; the tensor has 5 blocks"),
    ({"block_table": [4, 0]}, "block_table has 2 entries; position 9 needs 3 of blocks of 4"),
    ({"block_table": None}, "needs a block_table or a slot_mapping"),
    ({"block_table": [2**40, 0, 1]}, "expected values that fit int32, got 0..1099511627776"),
    ({"block_table": [0.5, 1, 2]}, "expected one axis of integers"),
    ({"block_table": [[0, 1, 2]]}, "expected one axis of integers"),
    ({"slot_mapping": range(10)}, "a block_table and a slot_mapping; give one of them"),
    ({"block_table": None, "slot_mapping": range(9)}, "has 9 entries for 10 positions"),
    (
        {"block_table": None, "slot_mapping": [0, 1, 2, 3, 4, 5, 6, 7, 8, 20]},
        "slot_mapping[9] is 20; the tensor has 20 slots",
    ),
    (
        {"block_table": None, "slot_mapping": [-1, 1, 2, 3, 4, 5, 6, 7, 8, 9]},
        "slot_mapping[0] is -1; the tensor has 20 slots",
    ),
    ({"layers": [0, 1]}, "has no layers, but 2 are moved"),
    ({"layers": []}, "expected at least one"),
    ({"layers": [0, 0]}, "is there twice"),
    ({"layers": 7}, "layer 7 keeps no pages; layers that do: 0, 1"),
    ({"layers": -1}, "layer: must be 0..2147483647, got -1"),
    ({"layers": "0"}, "layer: expected an integer"),
    ({"layers": None}, "expected a layer or a list of layers"),
    ({"start": 6, "stop": 5}, "positions [6, 5) end before they start"),
    ({"layout": ("tokens heads dim", "tokens heads dim")}, "expected one, or 1"),
    ({"layout": 3}, "expected an EngineLayout or its axes, got 3"),
    ({"layout": "1 blocks block heads dim"}, "keeps 2 components, got 1 tensors and no layout"),
    (
        {"tensors": [random(2, 5, 4, HEADS, DIM)] * 2},
        "2 layouts have kv; one tensor may hold several components",
    ),
    (
        {"tensors": [random(10, HEADS, DIM)] * 3, "layout": "tokens heads dim"},
        "layer 0 keeps 2 components, got 3 tensors",
    ),
    (
        {"tensors": [random(9, HEADS, DIM)] * 2, "layout": "tokens heads dim", "block_table": None},
        "the tensor has 9 tokens for 10 positions",
    ),
    (
        {"tensors": [random(10, HEADS, DIM)] * 2, "layout": "tokens heads dim"},
        "a block_table needs a layout with blocks",
    ),
    (
        {"tensors": [random(10, DIM)] * 2, "layout": "tokens dim", "block_table": None},
        "has no heads, but 2 are kept",
    ),
]


@pytest.mark.parametrize(("change", "why"), WRONG)
@pytest.mark.parametrize("call", ["import_rows", "export_rows"])
def test_a_call_that_does_not_fit_is_refused_and_changes_nothing(
    sequence: kvcache.Sequence, call: str, change: dict[str, Any], why: str
) -> None:
    arguments = good() | change
    if call == "export_rows":
        filled(sequence)
    before = [np.array(part) for part in _arrays(arguments["tensors"])]
    with pytest.raises(InvalidArgumentError) as error:
        getattr(sequence, call)(**arguments)
    assert why in str(error.value)
    for tensor, same in zip(_arrays(arguments["tensors"]), before, strict=True):
        np.testing.assert_array_equal(tensor, same)
    if call == "import_rows":
        assert [sequence._core.written(layer) for layer in range(2)] == [0, 0]
        sequence.import_rows(**good())


def _arrays(tensors: Any) -> list[Any]:
    if isinstance(tensors, str):
        return []
    return tensors if isinstance(tensors, list) else [tensors]


def test_positions_that_cannot_be_written_are_refused(sequence: kvcache.Sequence) -> None:
    for change, why in (
        ({"stop": TOKENS + 1}, "rows reach position 11 but only 10 tokens are known"),
        ({"start": 1}, "writes may start at 0..0"),
    ):
        with pytest.raises(InvalidArgumentError, match=why):
            sequence.import_rows(**(good() | change))
    filled(sequence)
    with pytest.raises(InvalidArgumentError, match=r"writes may start at 10\.\.10"):
        sequence.import_rows(**good())
    with pytest.raises(InvalidArgumentError, match=r"\[3, 11\) are not within the 10 written"):
        sequence.export_rows(**(good() | {"start": 3, "stop": 11}))


def test_rows_behind_a_window_are_not_exported() -> None:
    with kvcache.Cache(plan(window=5)).open(np.arange(TOKENS)) as sequence:
        filled(sequence)
        out = np.zeros((2, 5, 4, HEADS, DIM), np.float16)
        with pytest.raises(kvcache.NotFoundError, match="have left its window of 5"):
            sequence.export_rows(**(good() | {"tensors": out}))
        assert not out.any()
        sequence.export_rows(**(good() | {"tensors": out, "start": 6}))
        assert out[:, 2].any()
        assert not out[:, 4].any()


def test_a_tensor_that_would_be_overwritten_is_refused(sequence: kvcache.Sequence) -> None:
    filled(sequence)
    fixed = np.zeros((2, 5, 4, HEADS, DIM), np.float16)
    fixed.flags.writeable = False
    base = np.zeros((TOKENS, HEADS, 2 * DIM), np.float16)
    stairs = np.lib.stride_tricks.as_strided(base, (TOKENS, HEADS, DIM), (2, 2, 2))
    rows: dict[str, Any] = {"layout": "tokens heads dim", "block_table": None}
    for change, why in (
        ({"tensors": fixed}, "read-only"),
        ({"block_table": [1, 1, 2]}, "block_table names 1 twice"),
        ({"block_table": None, "slot_mapping": [3] * 10}, "slot_mapping names 3 twice"),
        ({"tensors": np.broadcast_to(fixed[:1], fixed.shape)}, "read-only"),
        (rows | {"tensors": [stairs, base[..., :DIM]]}, "elements of the tensor share memory"),
        (rows | {"tensors": [base[..., :DIM], base[..., :DIM]]}, "share memory"),
        (rows | {"tensors": [base[..., :DIM], base[..., 1 : DIM + 1]]}, "share memory"),
        (
            rows | {"tensors": [base[..., :DIM], base[::-1, :, DIM - 1 : 2 * DIM - 1]]},
            "share memory",
        ),
    ):
        with pytest.raises(InvalidArgumentError, match=why):
            sequence.export_rows(**(good() | change))
    assert not base.any()


def test_tensors_woven_into_each_other_are_fine(sequence: kvcache.Sequence) -> None:
    keys, values = filled(sequence)
    base = np.zeros((HEADS, TOKENS, 2, DIM), np.float16)
    halves = (base[:, ::-1, 0], base[:, ::-1, 1])
    sequence.export_rows(1, 0, TOKENS, halves, "heads tokens dim")
    np.testing.assert_array_equal(base[:, ::-1, 0], keys.transpose(1, 0, 2))
    np.testing.assert_array_equal(base[:, ::-1, 1], values.transpose(1, 0, 2))


def test_layers_are_written_all_or_none() -> None:
    with kvcache.Cache(plan(int8=True)).open(np.arange(TOKENS)) as sequence:
        tensor = random(2, 2, TOKENS, HEADS, DIM)
        tensor[1, 0, 7, 1, 3] = np.inf
        arguments = (range(2), 0, TOKENS, tensor, "layers kv tokens heads dim")
        with pytest.raises(kvcache.NonFiniteError) as error:
            sequence.import_rows(*arguments)
        assert "layer 1 attention.keys: position 7, head 1" in str(error.value)
        assert [sequence._core.written(layer) for layer in range(2)] == [0, 0]
        tensor[1, 0, 7, 1, 3] = 0
        sequence.import_rows(*arguments)
        assert [sequence._core.written(layer) for layer in range(2)] == [TOKENS, TOKENS]


def test_no_page_is_taken_when_not_all_fit() -> None:
    small = kvcache.StatePlan(plan().declarations, memory="4MiB", block_tokens=BLOCK)
    cache = kvcache.Cache(small, capacity_blocks=2)
    with cache.open(np.arange(TOKENS)) as sequence:
        with pytest.raises(kvcache.OutOfCapacityError):
            sequence.import_rows(
                [0, 1], 0, TOKENS, random(2, 2, TOKENS, HEADS, DIM), "layers kv tokens heads dim"
            )
        assert cache.stats().pages == 0


def test_a_closed_sequence_and_a_ledger_move_nothing(sequence: kvcache.Sequence) -> None:
    with kvcache.Cache(plan(), backing=False).open(np.arange(TOKENS)) as ledger:
        for call in (ledger.import_rows, ledger.export_rows):
            with pytest.raises(kvcache.UnsupportedError):
                call(**good())
    sequence.close()
    for call in (sequence.import_rows, sequence.export_rows):
        with pytest.raises(InvalidArgumentError, match="closed"):
            call(**good())


def test_keys_and_values_of_different_layouts(sequence: kvcache.Sequence) -> None:
    keys, values = random(HEADS, TOKENS, DIM), random(HEADS, DIM, TOKENS)
    sequence.import_rows(0, 0, TOKENS, (keys, values), ("heads tokens dim", "heads dim tokens"))
    got = sequence._core.written(0)
    assert got == TOKENS
    read_keys, read_values = sequence.read(0, 0, TOKENS)
    np.testing.assert_array_equal(read_keys, keys.transpose(1, 0, 2))
    np.testing.assert_array_equal(read_values, values.transpose(2, 0, 1))


def test_bfloat16_tensors_of_torch(sequence: kvcache.Sequence) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.randn(2, 5, 4, HEADS, DIM).bfloat16()
    sequence.import_rows(**(good() | {"tensors": tensor}))
    out = torch.zeros_like(tensor)
    sequence.export_rows(**(good() | {"tensors": out}))
    for block in (4, 0):
        assert torch.equal(out[:, block], tensor[:, block])
    assert torch.equal(out[:, 2, :2], tensor[:, 2, :2])
    assert not out[:, 2, 2:].any()
    assert not out[:, 1].any()
