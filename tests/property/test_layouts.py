"""Rows in and out of engine tensors of any layout, against index arithmetic in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.declarations import paged
from support.engine_tensors import EngineShape, read_rows, write_rows

import kvcache

Array = NDArray[Any]
NAMES = ("attention.keys", "attention.values", "attention.index_keys")


def sequence_of(
    parts: tuple[tuple[int, int], ...], layers: int, tokens: int, block: int, *, int8: bool
) -> kvcache.Sequence:
    plan = kvcache.StatePlan(
        [
            paged(layer, name, heads, width, int8=int8)
            for layer in range(layers)
            for name, (heads, width) in zip(NAMES, parts, strict=False)
        ],
        memory="16MiB",
        block_tokens=block,
        sequences=2,
    )
    return kvcache.Cache(plan).open(np.arange(tokens))


@st.composite
def layouts(draw: st.DrawFn) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Axes of one tensor, with the components it can hold."""
    places = draw(st.sampled_from([["tokens"], ["blocks", "block"]]))
    words = [*places, "dim", *draw(st.lists(st.just("1"), max_size=1)), "layers"]
    heads = draw(st.integers(1, 4))
    if heads > 1 or draw(st.booleans()):
        words.append("heads")
    count = draw(st.integers(1, 3))
    if count > 1:
        words.append("kv")
    axes: list[list[str]] = []
    for word in draw(st.permutations(words)):
        if axes and not {"blocks", "block"} <= {word, *axes[-1]} and draw(st.integers(0, 3)) == 0:
            axes[-1].append(word)
        else:
            axes.append([word])
    # Parts may be of different widths where they follow each other in one axis.
    width = st.integers(1, 19)
    if any(axis.index("kv") < axis.index("dim") for axis in axes if {"kv", "dim"} <= {*axis}):
        parts = [(heads, draw(width)) for _ in range(count)]
    else:
        parts = [(heads, draw(width))] * count
    text = " ".join(f"({' '.join(axis)})" if len(axis) > 1 else axis[0] for axis in axes)
    return text, tuple(parts)


def strided(draw: st.DrawFn, shape: tuple[int, ...], dtype: str) -> Array:
    """An array of the shape whose axes may have gaps or run backwards."""
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1])) for _ in shape]
    base = np.zeros([size * abs(step) for size, step in zip(shape, steps, strict=True)], dtype)
    return base[tuple(slice(None, None, step) for step in steps)]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_import_and_export_agree_with_index_arithmetic(data: st.DataObject) -> None:
    draw = data.draw
    axes, parts = draw(layouts())
    layers, tokens = draw(st.integers(1, 2)), draw(st.integers(1, 40))
    dtype, int8 = draw(st.sampled_from(["float16", "float32"])), draw(st.booleans())
    shape = EngineShape(axes, parts, layers=layers)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    places: dict[str, Array] = {}
    start = draw(st.integers(0, tokens))
    if "blocks" in axes:
        shape.block = draw(st.integers(1, 9))
        needed = -(-tokens // shape.block)
        shape.blocks = needed + draw(st.integers(0, 3))
        table = rng.permutation(shape.blocks)[:needed].astype(np.int32)
        slots = table[np.arange(tokens) // shape.block] * shape.block
        slots = slots + np.arange(tokens) % shape.block
        if draw(st.booleans()):
            places["block_table"] = table
        else:
            slots = rng.permutation(shape.blocks * shape.block)[:tokens]
    else:
        shape.tokens = tokens + draw(st.integers(0, 5))
        slots = rng.permutation(shape.tokens)[:tokens]
    tensor = strided(draw, shape.shape, dtype)
    tensor[...] = rng.standard_normal(shape.shape)
    with sequence_of(parts, layers, tokens, draw(st.integers(1, 20)), int8=int8) as sequence:
        for first, last in ((0, start), (start, tokens)):
            mapping = {} if places else {"slot_mapping": slots[first:last]}
            sequence.import_rows(range(layers), first, last, tensor, axes, **places, **mapping)
        sequence.advance(tokens)
        out = strided(draw, shape.shape, dtype)
        out[...] = 7
        expected = out.copy()
        for layer in range(layers):
            stored = [rows for rows in sequence.read(layer, 0, tokens, dtype) if rows is not None]
            for part, kept in enumerate(stored):
                rows = read_rows(tensor, shape, part, layer, slots)
                if not int8:
                    np.testing.assert_array_equal(kept, rows.astype(np.float16).astype(dtype))
                else:  # within half a step, and float16's own rounding
                    step = np.abs(rows).max(axis=-1, keepdims=True).astype(np.float32) / 127
                    assert (np.abs(kept - rows.astype(np.float32)) <= step * 0.52 + 2e-3).all()
                write_rows(expected, shape, part, layer, slots[start:], kept[start:])
        mapping = {} if places else {"slot_mapping": slots[start:]}
        sequence.export_rows(range(layers), start, tokens, out, axes, **places, **mapping)
        np.testing.assert_array_equal(out, expected)


def test_the_oracle_knows_known_layouts() -> None:
    rows = np.arange(24.0).reshape(4, 2, 3)
    slots = np.arange(4)
    tensor = np.zeros((2, 4, 6))
    shape = EngineShape("heads tokens (kv dim)", ((2, 3), (2, 3)), tokens=4)
    assert shape.shape == tensor.shape
    write_rows(tensor, shape, 1, 0, slots, rows)
    np.testing.assert_array_equal(tensor[:, :, 3:], rows.transpose(1, 0, 2))
    np.testing.assert_array_equal(read_rows(tensor, shape, 1, 0, slots), rows)
    latent = EngineShape("blocks block (kv dim)", ((1, 5), (1, 2)), blocks=2, block=4)
    assert latent.shape == (2, 4, 7)
    with pytest.raises(IndexError):
        read_rows(np.zeros(latent.shape), latent, 0, 0, np.array([8]))
