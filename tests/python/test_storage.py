"""Storage formats of pages: what is kept bit for bit, what is rounded, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.declarations import paged, recurrent
from support.int8_oracle import bfloat16_bits, from_bfloat16_bits

import kvcache
from kvcache import (
    Cache,
    DType,
    InvalidArgumentError,
    KvStorageFormat,
    StatePlan,
    UnsupportedError,
    parse_storage,
)
from kvcache.codec import Bfloat16Array

TOKENS = list(range(1, 22))
INT8 = KvStorageFormat.INT8_PER_TOKEN_HEAD_F32_SCALE_V1
# Two kinds of NaN, both infinities, a subnormal, the largest finite and a signed zero.
ODD_BITS = {
    DType.F16: (np.uint16, [0x7E01, 0xFC01, 0x7C00, 0xFC00, 0x0001, 0x7BFF, 0x8000]),
    DType.BF16: (np.uint16, [0x7FC1, 0xFF81, 0x7F80, 0xFF80, 0x0001, 0x7F7F, 0x8000]),
    DType.F32: (
        np.uint32,
        [0x7FC00001, 0xFF800001, 0x7F800000, 0xFF800000, 0x00000001, 0x7F7FFFFF, 0x80000000],
    ),
}
INTEGERS = {DType.U8: "uint8", DType.I32: "int32", DType.U32: "uint32", DType.U64: "uint64"}


def make_cache(dtype: DType, *, width: int = 10) -> Cache:
    decls = [paged(0, "attention.keys", 2, width, dtype=dtype), recurrent(1, "state.recurrent", 4)]
    return Cache(StatePlan(decls, memory="4MiB", block_tokens=4))


def row_bits(dtype: DType, width: int = 10) -> np.ndarray[Any, Any]:
    unsigned, odd = ODD_BITS[dtype]
    bits = np.random.default_rng(1).integers(
        0, np.iinfo(unsigned).max, (len(TOKENS), 2, width), unsigned
    )
    bits.reshape(-1)[: len(odd)] = odd
    return bits


def as_rows(bits: np.ndarray[Any, Any], dtype: DType) -> Any:
    if dtype is DType.BF16:
        return Bfloat16Array(bits)
    return bits.view(np.float16 if dtype is DType.F16 else np.float32)


def bits_of(rows: Any) -> np.ndarray[Any, Any]:
    if isinstance(rows, Bfloat16Array):
        return rows.bits
    return rows.view(np.uint32 if rows.itemsize == 4 else np.uint16)


@pytest.mark.parametrize("dtype", ODD_BITS)
class TestPassThrough:
    def test_rows_come_back_bit_for_bit_through_pages_hits_and_files(
        self, dtype: DType, tmp_path: Path
    ) -> None:
        cache, bits = make_cache(dtype), row_bits(dtype)
        with cache.open(TOKENS) as sequence:
            sequence.write(0, 0, as_rows(bits[:7], dtype))
            sequence.write(0, 7, as_rows(bits[7:], dtype))
            sequence.advance(len(TOKENS) - 1)
            sequence.snapshot()
            sequence.publish()
        cache.save(tmp_path / "saved", TOKENS)
        again = make_cache(dtype)
        again.load(tmp_path / "saved")
        for source in (cache, again):
            with source.open(TOKENS) as hit:
                assert hit.cached_tokens == len(TOKENS) - 1
                rows, _ = hit.read(0, 3, len(TOKENS) - 1)
                assert (bits_of(rows) == bits[3:-1]).all()

    @pytest.mark.parametrize("given", ODD_BITS)
    def test_other_elements_are_rounded_once(self, dtype: DType, given: DType) -> None:
        values = np.random.default_rng(2).standard_normal((5, 2, 10)).astype(np.float32)
        half = values.astype(np.float16)
        bfloat = bfloat16_bits(values)
        bits = {DType.F32: values.view(np.uint32), DType.F16: half.view(np.uint16)}.get(
            given, bfloat
        )
        exact = {DType.F32: values, DType.F16: half.astype(np.float32)}.get(
            given, from_bfloat16_bits(bfloat)
        )
        with make_cache(dtype).open(TOKENS) as sequence:
            sequence.write(0, 0, as_rows(bits, given))
            rows, _ = sequence.read(0, 0, 5, dtype="float32")
        if dtype is DType.F32:
            assert (rows == exact).all()
        elif dtype is DType.F16:
            assert (rows == exact.astype(np.float16).astype(np.float32)).all()
        else:
            assert (rows.view(np.uint32) >> 16 == bfloat16_bits(exact)).all()
            assert (rows.view(np.uint32) & 0xFFFF == 0).all()

    def test_files_of_another_storage_are_refused(self, dtype: DType, tmp_path: Path) -> None:
        cache = make_cache(dtype)
        with cache.open(TOKENS) as sequence:
            sequence.write(0, 0, as_rows(row_bits(dtype), dtype))
            sequence.advance(len(TOKENS))
            sequence.snapshot()
            sequence.publish()
        cache.save(tmp_path / "saved", TOKENS)
        manifest = next((tmp_path / "saved").glob(".generations/*/manifest.json")).read_text()
        assert f'"storage": "{dtype.value}"' in manifest
        other = DType.F32 if dtype is not DType.F32 else DType.BF16
        assert make_cache(other).plan.fingerprint != cache.plan.fingerprint
        with pytest.raises(UnsupportedError, match="rows are stored as"):
            make_cache(other).load(tmp_path / "saved")


@pytest.mark.parametrize(("dtype", "numpy_dtype"), INTEGERS.items())
class TestIntegers:
    def test_they_are_kept_and_read_as_they_are(self, dtype: DType, numpy_dtype: str) -> None:
        limits = np.iinfo(numpy_dtype)
        rows = np.random.default_rng(3).integers(
            limits.min, limits.max, (9, 2, 5), numpy_dtype, endpoint=True
        )
        with make_cache(dtype, width=5).open(TOKENS) as sequence:
            sequence.write(0, 0, rows)
            for asked in (None, "float32"):
                back, _ = sequence.read(0, 2, 9, dtype=asked)
                assert back.dtype == np.dtype(numpy_dtype)
                assert (back == rows[2:]).all()

    def test_no_other_element_is_converted(self, dtype: DType, numpy_dtype: str) -> None:
        with make_cache(dtype, width=5).open(TOKENS) as sequence:
            for other in ("float32", "int8", "uint16", "uint32", "int32"):
                if other == numpy_dtype:
                    continue
                with pytest.raises(InvalidArgumentError, match=r"cannot be|keys: dtype"):
                    sequence.write(0, 0, np.zeros((3, 2, 5), other))
            sequence.write(0, 0, np.zeros((3, 2, 5), numpy_dtype))


def test_float_pages_take_no_integers() -> None:
    with make_cache(DType.F16).open(TOKENS) as sequence:
        with pytest.raises(InvalidArgumentError, match="rows of f16 cannot be i32"):
            sequence.write(0, 0, np.zeros((3, 2, 10), np.int32))
        with pytest.raises(InvalidArgumentError, match="are not within the 0 written"):
            sequence.read(0, 0, 1)


def test_scales_that_a_format_does_not_have_are_refused() -> None:
    for decl in (
        paged(0, "attention.keys", 2, 4, dtype=DType.I8),
        paged(0, "attention.keys", 2, 4, dtype=DType.FP8),
    ):
        with pytest.raises((InvalidArgumentError, UnsupportedError), match=r"scale"):
            StatePlan([decl], memory="1MiB")


@pytest.mark.parametrize(
    ("name", "storage"),
    [
        ("f16", KvStorageFormat.F16),
        ("float16", KvStorageFormat.F16),
        (KvStorageFormat.F16, KvStorageFormat.F16),
        ("int8", INT8),
        (INT8.value, INT8),
        (str(INT8), INT8),
        ("bf16", DType.BF16),
        ("bfloat16", DType.BF16),
        (DType.BF16, DType.BF16),
        ("f32", DType.F32),
        (" FP32 ", DType.F32),
        (DType.F32, DType.F32),
        (DType.F16, KvStorageFormat.F16),
        (DType.I8, INT8),
    ],
)
def test_every_usual_name_of_a_storage(name: Any, storage: Any) -> None:
    assert parse_storage(name) is storage
    model = kvcache.models.from_config(
        {
            "model_type": "llama",
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hidden_size": 64,
        }
    )
    plan = StatePlan.for_model(model, memory="1MiB", format=name)
    assert {part.dtype for group in plan.groups for part in group.components} == {
        storage if isinstance(storage, DType) else DType.I8 if storage is INT8 else DType.F16
    }


@pytest.mark.parametrize("name", ["", "int4", "u8", None, 3, DType.U64])
def test_what_is_no_storage_is_refused(name: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"format: expected 'f16'"):
        parse_storage(name)


def test_fp8_has_no_storage() -> None:
    with pytest.raises(UnsupportedError, match="FP8"):
        parse_storage("fp8")
