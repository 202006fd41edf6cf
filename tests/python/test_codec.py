"""kvcache.codec against an oracle written from the definition, and its inputs and errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from support import int8_oracle as oracle

import kvcache
from kvcache import _core, codec
from kvcache.errors import InvalidArgumentError

RNG = np.random.default_rng(20240501)
HEAD_DIMS = [
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    17,
    31,
    33,
    48,
    64,
    72,
    80,
    96,
    127,
    128,
    192,
    256,
    512,
    576,
    1024,
]


def bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.view(f"u{array.dtype.itemsize}")


def assert_same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> None:
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(bits(a), bits(b))


class OnlyDLPack:
    """A tensor of a library whose only door is DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class OldDLPack(OnlyDLPack):
    """A producer from before DLPack 1.0: no max_version."""

    def __dlpack__(self, stream: None = None) -> Any:
        return self.array.__dlpack__()


class OnlyArrayInterface:
    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.owner = array
        self.__array_interface__ = array.__array_interface__


GOLDEN = [
    ([127, -127, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5], 0x3F800000, [127, -127, 0, 0, 2, -2, 2, -2]),
    ([127, 0.5, 1.5, -0.5, -1.5, -127], 0x3F800000, [127, 0, 2, 0, -2, -127]),
    ([0.0, -0.0], 0x3F800000, [0, 0]),
    ([-0.0, 1.0], 0x3C010204, [0, 127]),
    ([2.0**-24, -(2.0**-24)], 0x30010204, [127, -127]),
    ([65504, 0.625, -65504, 257.9, 258.0], 0x4400F1E4, [127, 0, -127, 1, 1]),
    ([65519.996, 1], 0x4400F1E4, [127, 0]),
    ([2.0**-25, 1e-3, 1.0], 0x3C010204, [0, 0, 127]),
    ([0.1, 0.2, 0.3, -0.4, 1 / 3], 0x3B4E5CB9, [32, 64, 95, -127, 106]),
    (
        [i / 8 for i in range(-8, 8)],
        0x3C010204,
        [-127, -111, -95, -79, -64, -48, -32, -16, 0, 16, 32, 48, 64, 79, 95, 111],
    ),
]
# float16 bits; what a reciprocal, ties away from zero, and a * (1 / 127) get wrong.
TRAPS = [
    ([0x3C03, 0x3803, 0xB803], 0x3C0162C6, [127, 63, -63]),
    ([0x3C77, 0x1C80, 0x25A0, 0x2910, 0x2B50], 0x3C100000, [127, 0, 2, 4, 6]),
    ([0x3C78, 0x3800], 0x3C102041, [127, 57]),
]
VECTORS = [(np.array(row, np.float32), scale, codes) for row, scale, codes in GOLDEN] + [
    (np.array(row, np.uint16).view(np.float16), scale, codes) for row, scale, codes in TRAPS
]


@pytest.mark.parametrize(("row", "scale_bits", "expected"), VECTORS)
@pytest.mark.parametrize("repeats", [1, 17, 32])
def test_golden_rows(
    row: np.ndarray[Any, Any], scale_bits: int, expected: list[int], repeats: int
) -> None:
    codes, scales = codec.encode(np.tile(row, (3, repeats)))
    assert bits(scales).tolist() == [scale_bits] * 3
    assert codes.tolist() == [expected * repeats] * 3
    assert oracle.encode(row)[0].tolist() == expected


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_encode_and_decode_equal_the_oracle(head_dim: int, dtype: str) -> None:
    size = 2.0 ** RNG.integers(-24, 10, (37, 2, 1))
    x = (RNG.standard_normal((37, 2, head_dim)) * size).astype(dtype)
    codes, scales = codec.encode(x)
    expected_codes, expected_scales = oracle.encode(x)
    assert_same_bits(codes, expected_codes)
    assert_same_bits(scales, expected_scales)
    decoded = oracle.decode(codes, scales)
    assert_same_bits(codec.decode(codes, scales), decoded)
    assert_same_bits(codec.decode(codes, scales, dtype="float16"), decoded.astype(np.float16))
    half = codec.decode(codes, scales, dtype="bfloat16")
    assert_same_bits(half.bits, oracle.bfloat16_bits(decoded))
    assert half.shape == codes.shape


@pytest.mark.parametrize("head_dim", [1, 16, 80, 128, 200])
def test_bfloat16_rows_equal_the_oracle(head_dim: int) -> None:
    size = 2.0 ** RNG.integers(-40, 10, (64, 1))
    x = oracle.bfloat16_bits(RNG.standard_normal((64, head_dim)) * size)
    codes, scales = codec.encode(codec.Bfloat16Array(x))
    expected_codes, expected_scales = oracle.encode(oracle.from_bfloat16_bits(x))
    assert_same_bits(codes, expected_codes)
    assert_same_bits(scales, expected_scales)


@pytest.mark.parametrize("stride", [int(os.environ.get("KVCACHE_SWEEP_STRIDE", "64"))])
def test_every_largest_and_element_of_float16_equals_the_oracle(stride: int) -> None:
    """All 503,856,639 pairs with KVCACHE_SWEEP_STRIDE=1; every stride-th largest element else."""
    pairs = 0
    for largest in range(1, 0x7C00, stride):
        elements = np.arange(largest + 1, dtype=np.uint16)
        row = np.concatenate([elements, elements[::-1] | 0x8000]).view(np.float16)
        codes, scales = codec.encode(row)
        expected_codes, expected_scales = oracle.encode(row)
        if not np.array_equal(codes, expected_codes) or scales != expected_scales:
            pytest.fail(f"largest bits {largest:#06x}")
        pairs += largest + 1
    assert stride != 1 or pairs == 503_856_639


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[:, :, 0],  # K of K and V interleaved
        lambda a: a[:, 1:3, 1],
        lambda a: a[::2, ::-1],  # four axes, no two of which join
        lambda a: a[::-1, :, :, 3:24],
        lambda a: a.transpose(1, 2, 0, 3),
        lambda a: a[0, 0, 0],
        lambda a: np.broadcast_to(a[:1], a.shape),
        lambda a: a[:, :, :, :1],
        lambda a: a[:0],
    ],
)
def test_strided_inputs_equal_a_contiguous_copy(dtype: str, view: Any) -> None:
    x = view(RNG.standard_normal((9, 4, 2, 32)).astype(dtype))
    codes, scales = codec.encode(x)
    expected_codes, expected_scales = oracle.encode(np.ascontiguousarray(x))
    assert_same_bits(codes, expected_codes)
    assert_same_bits(scales, expected_scales)


def test_decode_into_a_strided_array_writes_only_its_elements() -> None:
    codes, scales = codec.encode(RNG.standard_normal((6, 3, 40)).astype(np.float32))
    larger = np.full((6, 3, 2, 48), 7, np.float32)
    target = larger[:, ::-1, 1, 4:44]
    assert codec.decode(codes, scales, out=target) is target
    assert_same_bits(np.ascontiguousarray(target), oracle.decode(codes, scales))
    target[...] = 7
    assert (larger == 7).all()


@pytest.mark.parametrize("wrap", [OnlyDLPack, OldDLPack, OnlyArrayInterface, memoryview])
def test_every_array_protocol_is_read_and_written(wrap: Any) -> None:
    x = RNG.standard_normal((5, 48)).astype(np.float32)
    if wrap is not OldDLPack:
        x = np.lib.stride_tricks.as_strided(np.repeat(x, 2, axis=0), (5, 48), (2 * 192, 4))
    codes, scales = np.zeros((5, 48), np.int8), np.zeros(5, np.float32)
    codec.encode(wrap(x), out=(wrap(codes), wrap(scales)))
    assert_same_bits(codes, oracle.encode(x)[0])
    out = np.zeros((5, 48), np.float16)
    codec.decode(wrap(codes), wrap(scales), dtype="float16", out=wrap(out))
    assert_same_bits(out, oracle.decode(codes, scales).astype(np.float16))


def test_torch_tensors_are_read_and_written_without_a_copy() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(7, 4, 2, 96)
    for dtype in [torch.float32, torch.float16, torch.bfloat16]:
        keys = x.to(dtype)[:, :, 0]
        codes, scales = codec.encode(keys)
        expected, expected_scales = oracle.encode(keys.float().numpy())
        assert_same_bits(codes, expected)
        assert_same_bits(scales, expected_scales)
        out = torch.zeros(7, 4, 2, 96, dtype=dtype)
        name = str(dtype).removeprefix("torch.")
        codec.decode(codes, scales, dtype=name, out=out[:, :, 1])
        assert torch.equal(out[:, :, 1], torch.from_numpy(oracle.decode(codes, scales)).to(dtype))
        assert (out[:, :, 0] == 0).all()
    shared = torch.from_dlpack(codec.decode(codes, scales, dtype="bfloat16"))
    assert shared.dtype == torch.bfloat16
    with pytest.raises(kvcache.InvalidArgumentError, match="grad"):
        codec.encode(x.requires_grad_())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 65520, -7e4])
@pytest.mark.parametrize("row", [0, 7, 20, 59])
def test_a_non_finite_row_is_named(bad: float, row: int) -> None:
    x = np.ones((5, 12, 33), np.float32)
    x.reshape(60, 33)[row, 32] = bad
    x[4, 11, 0] = np.nan
    for view in (x, x.reshape(5, 3, 4, 33), np.repeat(x, 2, axis=0)[::2]):
        with pytest.raises(kvcache.NonFiniteError, match=f"row {row}:") as caught:
            codec.encode(view)
        assert isinstance(caught.value, ValueError)
    spread = np.zeros((5, 2, 3, 2, 4, 33), np.float32)
    spread[:, 1, :, 1] = x.reshape(5, 3, 4, 33)  # three axes that do not join
    with pytest.raises(kvcache.NonFiniteError, match=f"row {row}:"):
        codec.encode(spread[:, 1, :, 1])


def f32(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


def i8(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.int8)


class Cuda:
    def __dlpack__(self, **kwargs: Any) -> Any:
        raise AssertionError("not asked")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


def read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


SHARED = f32(64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: codec.encode([[1.0]]), "list has no buffer"),
        (lambda: codec.encode(None), "NoneType"),
        (lambda: codec.encode(b"abcd"), "x: dtype u8"),
        (lambda: codec.encode(np.ones((2, 4))), "float64"),
        (lambda: codec.encode(np.ones((2, 4), ">f4")), ">f4"),
        (lambda: codec.encode(np.ones((2, 4), np.int32)), "i32"),
        (lambda: codec.encode(i8(2, 4)), "i8"),
        (lambda: codec.encode(np.float32(1)), "no axes"),
        (lambda: codec.encode(f32(2, 0)), r"head_dim is 0 in shape \[2, 0\]"),
        (lambda: codec.encode(f32(8, 8).T), "last axis must be contiguous; its stride is 32"),
        (lambda: codec.encode(f32(8, 8)[:, ::-1]), "stride is -4"),
        (lambda: codec.encode(Cuda()), "host memory"),
        (lambda: codec.encode(OnlyDLPack(np.ones((2, 4)))), "float32, float16, bfloat16"),
        (lambda: codec.encode(f32(2, 4), threads=0), "threads: must be 1..1024, got 0"),
        (lambda: codec.encode(f32(2, 4), threads=2**80), "threads"),
        (lambda: codec.encode(f32(2, 4), threads="two"), "threads: expected an integer"),
        (lambda: codec.encode(f32(2, 4), out=i8(2, 4)), r"codes: shape \[4\]"),
        (lambda: codec.encode(f32(2, 4), out=(i8(2, 4),)), r"pair \(codes, scales\)"),
        (lambda: codec.encode(f32(2, 4), out=(i8(2, 5), f32(2))), r"codes: shape \[2, 5\]"),
        (lambda: codec.encode(f32(2, 4), out=(i8(2, 4), f32(2, 1))), r"scales: shape \[2, 1\]"),
        (lambda: codec.encode(f32(2, 4), out=(f32(2, 4), f32(2))), "codes: dtype must be i8"),
        (lambda: codec.encode(f32(2, 4), out=(i8(4, 4)[::2], f32(2))), "contiguous"),
        (lambda: codec.encode(f32(2, 4), out=(read_only(i8(2, 4)), f32(2))), "read-only"),
        (
            lambda: codec.encode(f32(2, 4), out=(i8(2, 4), i8(9)[1:].view(np.float32))),
            "multiple of 4",
        ),
        (
            lambda: codec.encode(SHARED[:32].reshape(4, 8), out=(i8(4, 8), SHARED[28:32])),
            "scales and x overlap",
        ),
        (lambda: codec.decode(i8(2, 4), f32(3)), r"scales: shape \[3\] does not fit codes"),
        (lambda: codec.decode(i8(4, 4)[::2], f32(2)), "codes: must be contiguous"),
        (lambda: codec.decode(f32(2, 4), f32(2)), "codes: dtype must be i8"),
        (lambda: codec.decode(i8(2, 4), f32(2), dtype="float64"), "dtype: expected 'float32'"),
        (lambda: codec.decode(i8(2, 4), f32(2), out=np.ones((2, 4), "f2")), "f16, but"),
        (lambda: codec.decode(i8(2, 4), f32(2), out=f32(2, 5)), r"out: shape \[2, 5\]"),
        (lambda: codec.decode(i8(2, 4), f32(2), out=f32(4, 2).T), "last axis"),
        (
            lambda: codec.decode(
                i8(2, 4), f32(2), out=np.lib.stride_tricks.as_strided(f32(8), (2, 4), (4, 4))
            ),
            "overlap each other",
        ),
        (
            lambda: codec.decode(i8(2, 4), SHARED[:2], out=SHARED[:8].reshape(2, 4)),
            "out and scales overlap",
        ),
    ],
)
def test_bad_calls_are_refused_with_what_is_wrong(call: Any, message: str) -> None:
    with pytest.raises(kvcache.InvalidArgumentError, match=message):
        call()


class Described:
    """An object whose __array_interface__ is whatever the test says."""

    def __init__(self, **fields: Any) -> None:
        array = f32(2, 2, 4)
        self.kept = array
        self.__array_interface__ = {**array.__array_interface__, **fields}


class RaisesWithoutText:
    def __dlpack__(self, **_: Any) -> Any:
        class MuteError(Exception):
            def __str__(self) -> str:
                raise ValueError

        raise MuteError

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (Described(strides=()), "x: 0 strides for the shape [2, 2, 4]"),
        (Described(strides=(16, 4)), "x: 2 strides for"),
        (Described(shape=(-1, 2, 4)), "x: a negative size in the shape [-1, 2, 4]"),
        (Described(shape=(2**62, 2, 4)), "exceeds the address space"),
        (Described(strides=(2**62, 2**62, 4)), "exceeds the address space"),
        (Described(data=(0, False)), "x: a null address"),
        (Described(data=(-1, False)), "x: Described describes itself with values of a wrong type"),
        (Described(shape=(2.5, 2, 4)), "wrong type or range"),
        (Described(typestr=None), "wrong type or range"),
        (RaisesWithoutText(), "x: raised an exception without a text"),
    ],
)
def test_a_description_that_does_not_hold_together_is_refused(x: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        codec.encode(x)


@pytest.mark.parametrize("dtype", [[], {}, np.zeros(2), None, "float64"], ids=repr)
def test_an_unknown_dtype_is_refused(dtype: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="dtype: expected 'float32'"):
        codec.decode(i8(2, 4), f32(2), dtype=dtype)


def test_a_refused_call_writes_nothing() -> None:
    codes, scales = i8(2, 4), f32(3)
    with pytest.raises(kvcache.InvalidArgumentError):
        codec.encode(np.full((2, 4), 5, np.float32), out=(codes, scales))
    assert (codes == 1).all()
    assert (scales == 1).all()


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_change_nothing(threads: int) -> None:
    x = RNG.standard_normal((6000, 2, 128)).astype(np.float16)
    one, many = codec.encode(x), codec.encode(x, threads=threads)
    assert_same_bits(one[0], many[0])
    assert_same_bits(one[1], many[1])
    assert_same_bits(codec.decode(*one), codec.decode(*one, threads=threads))


def test_large_arrays_take_the_streaming_path_with_the_same_bytes() -> None:
    x = RNG.standard_normal((80_001, 128)).astype(np.float16)[1:, :]  # 20 MB, off every alignment
    x[17] = 0
    codes, scales = codec.encode(x)
    expected_codes, expected_scales = oracle.encode(x)
    assert_same_bits(codes, expected_codes)
    assert_same_bits(scales, expected_scales)
    out = np.empty(x.size + 3, np.float32)[3:].reshape(x.shape)
    assert_same_bits(codec.decode(codes, scales, out=out), oracle.decode(codes, scales))


ISA_PROGRAM = """
import numpy as np, kvcache
from kvcache import codec
x = np.random.default_rng(5).standard_normal((50, 100), np.float32)
for call in (
    codec.active_isa,
    lambda: codec.encode(x)[0].tobytes().hex(),
    lambda: codec.decode(np.ones((2, 4), "i1"), np.ones(2, "f4")).tobytes().hex(),
):
    try:
        print(call())
    except kvcache.KVCacheError as error:
        print(type(error).__name__, error)
"""


def run_with_isa(isa: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KVCACHE_ISA": isa}
    return subprocess.run(
        [sys.executable, "-P", "-c", ISA_PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512", "neon"])
def test_the_environment_forces_an_instruction_set_or_every_call_fails(isa: str) -> None:
    lines = run_with_isa(isa).stdout.splitlines()
    assert len(lines) == 3
    if lines[0] == isa:
        assert lines[1:] == run_with_isa("scalar").stdout.splitlines()[1:]
    else:
        assert isa != "scalar"
        assert all(line.startswith(f"UnsupportedError KVCACHE_ISA={isa}: ") for line in lines)


def test_an_unknown_instruction_set_is_an_error_of_every_call() -> None:
    lines = run_with_isa("sse9").stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("InvalidArgumentError KVCACHE_ISA=sse9: unknown") for line in lines)


def test_bfloat16_arrays_leave_by_both_dlpack_versions_and_keep_their_memory() -> None:
    array = codec.decode(i8(3, 4), f32(3), dtype="bfloat16")
    assert array.__dlpack_device__() == (1, 0)
    assert "dltensor_versioned" in repr(array.__dlpack__(max_version=(1, 0)))
    assert '"dltensor"' in repr(array.__dlpack__())
    counts = [sys.getrefcount(array.bits)]
    capsule = array.__dlpack__()
    counts.append(sys.getrefcount(array.bits))
    del capsule
    counts.append(sys.getrefcount(array.bits))
    assert np.diff(counts).tolist() == [1, -1]
    with pytest.raises(BufferError):
        array.__dlpack__(dl_device=(2, 0))
    assert isinstance(array, _core.Bfloat16Array)
