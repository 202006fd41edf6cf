"""kvcache.fold and append_rows: the bytes that NumPy gives, and clear errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import kvcache
from kvcache import Bfloat16Array, InvalidArgumentError

Array = NDArray[Any]


def definition(state: Array, gate: Array, left: Array | None, right: Array) -> Array:
    """Row after row, in the state's own element."""
    for n in range(len(right)):
        gates = gate[n].reshape(gate[n].shape + (1,) * (state.ndim - gate[n].ndim))
        added = right[n]
        if left is not None:
            shared = state.shape[:-2]
            lefts, rights = left[n], right[n]
            if shared:
                lefts = np.repeat(lefts, shared[0] // len(lefts), axis=0)
                rights = np.repeat(rights, shared[0] // len(rights), axis=0)
            added = lefts[..., :, None] * rights[..., None, :]
        state = (gates * state.astype(np.float32) + added).astype(state.dtype)
    return state


def arrays(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[Array]:
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("shape", "gates"),
    [
        ((4, 16, 24), 1),
        ((4, 16, 24), 2),
        ((4, 16, 24), 3),
        ((3, 128, 128), 1),
        ((16, 20), 1),
        ((16, 20), 2),
        ((1, 1, 1), 2),
    ],
)
def test_fold_gives_the_bytes_of_numpy(
    shape: tuple[int, ...], gates: int, dtype: type[np.generic]
) -> None:
    rng = np.random.default_rng(7)
    for rows in (0, 1, 2, 8, 11):
        (state,) = arrays(rng, shape)
        folded = state.astype(dtype)
        gate = rng.uniform(0.5, 1, (rows, *shape[:gates])).astype(np.float32)
        left, right = arrays(rng, (rows, *shape[:-1]), (rows, *shape[:-2], shape[-1]))
        expected = definition(folded.copy(), gate, left, right)
        kvcache.fold(folded, gate, left, right)
        np.testing.assert_array_equal(folded, expected)


@pytest.mark.parametrize("gates", [0, 1])
def test_elementwise_recurrences_have_no_left(gates: int) -> None:
    rng = np.random.default_rng(1)
    state, right = arrays(rng, (37,), (5, 37))
    gate = rng.uniform(0, 1, (5, 37)[: gates + 1]).astype(np.float32)
    expected = definition(state.copy(), gate, None, right)
    kvcache.fold(state, gate, None, right)
    np.testing.assert_array_equal(state, expected)


def test_heads_share_keys_and_groups() -> None:
    rng = np.random.default_rng(2)
    state, gate, left, right = arrays(rng, (6, 4, 5), (3, 6), (3, 2, 4), (3, 1, 5))
    expected = definition(state.copy(), gate, left, right)
    kvcache.fold(state, gate, left, right, threads=2)
    np.testing.assert_array_equal(state, expected)


def test_nan_and_infinity_pass_as_in_numpy() -> None:
    state = np.array([[np.inf, np.nan, 1.0, 3e38]], np.float32)
    gate = np.array([[[1, 1, np.inf, 1]], [[0, 1, 0, 2]]], np.float32)
    right = np.array([[0, 0, 0, 1], [1, 1, 1, 1]], np.float32)
    left = np.ones((2, 1), np.float32)
    with np.errstate(all="ignore"):
        expected = definition(state.copy(), gate, left, right)
    kvcache.fold(state, gate, left, right)
    np.testing.assert_array_equal(state, expected)
    assert np.isnan(state[0, 0])
    assert np.isinf(state[0, 3])


def test_bfloat16_states_are_rounded_after_each_row() -> None:
    bits = np.array([0x3F80, 0x3F80], np.uint16)  # 1, 1
    step = np.full((2, 2), 2.0**-8, np.float32)  # half of what bfloat16 can tell from 1
    kvcache.fold(Bfloat16Array(bits), np.ones((2, 2), np.float32), None, step)
    assert bits.tolist() == [0x3F80, 0x3F80]
    once = np.array([0x3F80, 0x3F80], np.uint16)
    kvcache.fold(Bfloat16Array(once), np.ones((2, 2), np.float32), None, step, round_once=True)
    assert once.tolist() == [0x3F81, 0x3F81]


def test_rows_may_lie_apart() -> None:
    rng = np.random.default_rng(3)
    state, wide = arrays(rng, (2, 3, 4), (5, 2 + 6 + 8))
    gate, left, right = wide[:, :2], wide[:, 2:8].reshape(5, 2, 3), wide[:, 8:].reshape(5, 2, 4)
    assert not left.flags.c_contiguous
    expected = definition(state.copy(), gate, left, right)
    kvcache.fold(state, gate, left, right)
    np.testing.assert_array_equal(state, expected)


def good() -> dict[str, Any]:
    """Arguments that are right, of 2 rows."""
    ones = np.ones((2, 4, 3), np.float32)
    return {
        "state": np.ones((4, 3, 5), np.float32),
        "gate": ones[:, :, 0].copy(),
        "left": ones,
        "right": np.ones((2, 4, 5), np.float32),
    }


def ones(*shape: int, dtype: Any = np.float32) -> Array:
    return np.ones(shape, dtype)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"state": ones(4, 3, 5, dtype=np.int32)}, "a state of i32 is not f32, f16 or bf16"),
        ({"state": ones(1, 4, 3, 5)}, r"state: expected \[heads, i, j\]"),
        ({"state": ones(4, 3, 10)[:, :, ::2]}, "state: must be contiguous"),
        ({"state": 3}, "state: int has no buffer"),
        ({"gate": ones(2, 4, dtype=np.float16)}, "gate: dtype must be f32, is f16"),
        ({"gate": ones(2)}, "gate: a row of shape"),
        ({"gate": ones(2, 3)}, r"gate: a row of shape \[3\] does not fit"),
        ({"gate": ones(2, 4, 3, 5, 1)}, "gate: a row of shape"),
        ({"gate": ones(3, 4)}, "gate has 3 rows, right has 2"),
        ({"left": ones(1, 4, 3)}, "left has 1 rows, right has 2"),
        ({"left": ones(2, 4, 5)}, "left: a row of shape"),
        ({"left": ones(2, 3, 3)}, "left of 3 heads cannot be shared by the 4 heads"),
        ({"left": ones(2, 0, 3)}, "left of 0 heads"),
        ({"right": ones(2, 8, 5)}, "right of 8 heads"),
        ({"right": ones(2, 5)}, "right: a row of shape"),
        ({"right": ones(2, 4, 10)[:, :, ::2]}, "right: a row must be contiguous"),
        ({"right": ones(2, 4, 5)[::-1]}, "right: rows must lie at ascending addresses"),
        ({"threads": True}, "threads: expected an integer"),
        ({"threads": 0}, "threads: must be 1..1024"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_state_unchanged(
    wrong: dict[str, Any], message: str
) -> None:
    kvcache.fold(**good())
    arguments = good() | wrong
    before = np.array(arguments["state"])
    with pytest.raises(InvalidArgumentError, match=message):
        kvcache.fold(**arguments)
    np.testing.assert_array_equal(arguments["state"], before)


def test_inputs_and_state_must_not_overlap() -> None:
    state = ones(4, 3, 5)
    with pytest.raises(InvalidArgumentError, match="right and state overlap"):
        kvcache.fold(state, ones(1, 4), ones(1, 4, 3), state[:1, 0].reshape(1, 1, 5))
    window = ones(4, 2)
    with pytest.raises(InvalidArgumentError, match="rows and window overlap"):
        kvcache.append_rows(window, window[1:])


def test_a_read_only_state_is_refused() -> None:
    state = ones(4, 3, 5)
    state.flags.writeable = False
    with pytest.raises(InvalidArgumentError, match="state"):
        kvcache.fold(**(good() | {"state": state}))


def test_appended_rows_push_out_the_oldest() -> None:
    window = np.arange(6, dtype=np.float16).reshape(3, 2)
    rows = np.arange(100, 110, dtype=np.float16).reshape(5, 2)
    for count in range(6):
        expected = np.concatenate([window, rows[:count]])[-3:]
        moved = window.copy()
        kvcache.append_rows(moved, rows[:count])
        np.testing.assert_array_equal(moved, expected)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ones(1, 3), "rows of shape"),
        (ones(2), "rows of shape"),
        (ones(1, 2, dtype=np.float16), "rows: dtype must be f32, is f16"),
        (ones(2, 4)[:, ::2], "rows: must be contiguous"),
    ],
)
def test_rows_that_do_not_fit_a_window_are_refused(rows: Array, message: str) -> None:
    window = ones(3, 2)
    with pytest.raises(InvalidArgumentError, match=message):
        kvcache.append_rows(window, rows)
    assert (window == 1).all()
