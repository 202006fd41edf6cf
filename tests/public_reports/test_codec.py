"""Public bug reports about quantised KV caches, as this codec meets their inputs."""

from __future__ import annotations

import numpy as np
import pytest
from support import int8_oracle as oracle

import kvcache
from kvcache import codec


def test_vllm_llm_compressor_1928_scales_are_never_zero() -> None:
    """vllm-project/llm-compressor#1928: all K/V scales stored as zero."""
    x = np.zeros((4, 2, 64), np.float32)
    x[1] = 2.0**-24  # the smallest that F16 holds
    x[2] = 2.0**-26  # rounds to zero in F16
    codes, scales = codec.encode(x)
    assert (scales > 0).all()
    assert np.isfinite(scales).all()
    assert (scales[[0, 2, 3]] == 1).all()
    assert (codes[[0, 2, 3]] == 0).all()
    assert (codec.decode(codes, scales)[[0, 2, 3]] == 0).all()


def test_weicj_vllm_2080ti_definitive_106_a_zero_row_first_does_not_clip_later_rows() -> None:
    """weicj/vLLM-2080Ti-Definitive#106: calibration on all-zero K stuck the scale."""
    keys = np.zeros((2, 1, 128), np.float32)
    keys[1] = 50
    codes, scales = codec.encode(keys)
    np.testing.assert_allclose(codec.decode(codes, scales)[1], 50, rtol=1e-6)
    assert scales[0, 0] == 1


def test_ikawrakow_ik_llama_1548_the_error_bound_holds_with_outlier_channels() -> None:
    """ikawrakow/ik_llama.cpp#1548: low-bit KV of hybrids gave NaN logits."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 2, 256)).astype(np.float32)
    x[..., 7] *= 300  # the outlier channels that such models have
    codes, scales = codec.encode(x)
    decoded = codec.decode(codes, scales)
    assert np.isfinite(decoded).all()
    h = x.astype(np.float16).astype(np.float32)
    assert (np.abs(decoded - h) <= 0.5000019 * scales[..., None]).all()


@pytest.mark.parametrize("head_dim", [80, 96, 192, 6, 1])
def test_mlx_vlm_2061_and_vllm_56197_any_head_dim(head_dim: int) -> None:
    """Blaizzy/mlx-vlm#2061 and vllm-project/vllm#56197: head_dim 96, 80, 192 not divisible."""
    x = np.random.default_rng(head_dim).standard_normal((33, 3, head_dim)).astype(np.float16)
    codes, scales = codec.encode(x)
    expected_codes, expected_scales = oracle.encode(x)
    np.testing.assert_array_equal(codes, expected_codes)
    np.testing.assert_array_equal(scales, expected_scales)


def test_exllamav3_unused_memory_beside_the_rows_is_neither_read_nor_written() -> None:
    """turboderp-org/exllamav3, 2026-07-24: uninitialised window memory turned into NaN."""
    pool = np.full((5, 4, 80), np.nan, np.float32)
    window = pool[1:4, :3, 8:72]
    window[...] = 1.5
    codes, scales = codec.encode(window)
    assert (codes == 127).all()
    codec.decode(codes, scales, out=window)
    assert np.isfinite(window).all()
    assert np.isnan(pool).sum() == pool.size - window.size
    with pytest.raises(kvcache.NonFiniteError, match="row 0:"):
        codec.encode(pool)
