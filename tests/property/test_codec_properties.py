"""Properties of the INT8 format that hold for every row."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from support import int8_oracle as oracle

from kvcache import codec

Array = np.ndarray[Any, Any]


@st.composite
def rows(draw: st.DrawFn) -> Array:
    shape = draw(npst.array_shapes(min_dims=1, max_dims=4, max_side=6))
    shape = (*shape[:-1], draw(st.integers(1, 140)))
    bits = draw(npst.arrays(np.uint16, shape))
    limit = draw(st.integers(1, 0x7BFF))  # rows of every size, and not only of huge elements
    return ((bits & 0x8000) | (bits & 0x7FFF) % (limit + 1)).astype(np.uint16).view(np.float16)


@given(rows())
def test_codes_and_scales_are_the_definitions(x: Array) -> None:
    codes, scales = codec.encode(x)
    expected_codes, expected_scales = oracle.encode(x)
    np.testing.assert_array_equal(codes, expected_codes)
    np.testing.assert_array_equal(scales.view(np.uint32), expected_scales.view(np.uint32))


@given(rows())
def test_decoding_errs_by_at_most_half_a_scale(x: Array) -> None:
    codes, scales = codec.encode(x)
    error = np.abs(codec.decode(codes, scales).astype(np.float64) - x.astype(np.float64))
    assert (error <= 0.5000019 * scales.astype(np.float64)[..., None]).all()


@given(rows())
def test_the_scale_is_recoverable_from_the_largest_element(x: Array) -> None:
    codes, scales = codec.encode(x)
    largest = np.abs(x).max(axis=-1)
    zero = largest == 0
    assert (scales[zero] == 1).all()
    assert (np.abs(codes).max(axis=-1)[~zero] == 127).all()
    recovered = (np.float32(127) * scales).astype(np.float16)
    np.testing.assert_array_equal(recovered[~zero], largest[~zero])


@given(rows())
def test_encoding_decoded_rows_again_gives_the_same_codes(x: Array) -> None:
    codes, scales = codec.encode(x)
    again, _ = codec.encode(codec.decode(codes, scales))
    np.testing.assert_array_equal(again, codes)


@given(rows())
def test_encoding_rows_decoded_to_float16_again_gives_the_same_codes_above_subnormals(
    x: Array,
) -> None:
    codes, scales = codec.encode(x)
    again, again_scales = codec.encode(codec.decode(codes, scales, dtype="float16"))
    largest = np.abs(x).max(axis=-1).astype(np.float16).view(np.uint16)
    normal = (largest > 0x7E) | (largest == 0)
    np.testing.assert_array_equal(again[normal], codes[normal])
    np.testing.assert_array_equal(again_scales[normal], scales[normal])


@given(rows(), st.randoms(use_true_random=False))
def test_a_row_is_encoded_alone(x: Array, random: Any) -> None:
    codes, scales = codec.encode(x)
    flat = x.reshape(-1, x.shape[-1])
    row = random.randrange(len(flat)) if len(flat) else None
    if row is not None:
        alone, scale = codec.encode(flat[row])
        np.testing.assert_array_equal(alone, codes.reshape(flat.shape)[row])
        assert scale == scales.reshape(-1)[row]


@given(rows())
def test_negated_rows_have_negated_codes_and_the_same_scales(x: Array) -> None:
    codes, scales = codec.encode(x)
    negated, same = codec.encode(-x)
    np.testing.assert_array_equal(negated, -codes)
    np.testing.assert_array_equal(same, scales)
