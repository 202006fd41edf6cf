"""This codec beside what else turns float rows into int8 rows, in one process on the same data.

    python benchmarks/codec/peers.py [--rows 262144] [--head-dim 128] [--rounds 7] [--compile]

Each peer that can be imported takes part: numpy, torch (eager, and compiled with --compile), gguf
(numpy), ggml's C library through llama-cpp-python, vLLM's CPU kernel. Peers take turns; the ratio
is the median over rounds of the peer's time to ours. ggml's format (q8_0) has a scale per 32
elements, in float16; vLLM's has ours, by a reciprocal, so some codes differ by one.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.util
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcache import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Case = tuple[str, str, "Callable[[], object]"]  # operation, who, one pass


def optional(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:
        print(f"without {module}: {str(error).splitlines()[0]}", file=sys.stderr)
        return None


def ours(x: Any, name: str, threads: int) -> Iterator[Case]:
    out = codec.encode(x)
    yield f"encode {name}", "kvcache", lambda: codec.encode(x, out=out, threads=threads)
    yield (
        f"decode {name}",
        "kvcache",
        lambda: codec.decode(*out, dtype=name, out=x, threads=threads),
    )


def with_memcpy(x: Any, name: str) -> Iterator[Case]:
    copy = np.empty_like(x)
    for operation in ("encode", "decode"):
        yield (
            f"{operation} {name}",
            "memcpy",
            lambda: ctypes.memmove(copy.ctypes.data, x.ctypes.data, x.nbytes),
        )


def numpy_encode(x: Any) -> object:
    h = x.astype(np.float16).astype(np.float32)
    largest = np.abs(h).max(axis=-1, keepdims=True)
    scales = np.where(largest == 0, np.float32(1), largest / np.float32(127))
    return np.rint(h / scales).astype(np.int8), scales


def with_numpy(x: Any, name: str) -> Iterator[Case]:
    codes, scales = codec.encode(x)
    yield f"encode {name}", "numpy", lambda: numpy_encode(x)
    yield (
        f"decode {name}",
        "numpy",
        lambda: (codes.astype(np.float32) * scales[:, None]).astype(x.dtype),
    )


def with_torch(x: Any, name: str, threads: int, compiled: bool) -> Iterator[Case]:
    torch = optional("torch")
    if torch is None:
        return
    torch.set_num_threads(threads)
    tensor = torch.from_numpy(x)
    codes, scales = (torch.from_numpy(a) for a in codec.encode(x))

    def encode(t: Any) -> object:
        h = t.to(torch.float16).to(torch.float32)
        largest = h.abs().amax(-1, keepdim=True)
        scale = torch.where(largest == 0, torch.ones_like(largest), largest / 127)
        return torch.round(h / scale).to(torch.int8), scale

    def decode(c: Any, s: Any) -> object:
        return (c.to(torch.float32) * s[:, None]).to(tensor.dtype)

    yield f"encode {name}", "torch eager", lambda: encode(tensor)
    yield f"decode {name}", "torch eager", lambda: decode(codes, scales)
    if compiled:
        fast_encode, fast_decode = torch.compile(encode), torch.compile(decode)
        yield f"encode {name}", "torch.compile", lambda: fast_encode(tensor)
        yield f"decode {name}", "torch.compile", lambda: fast_decode(codes, scales)


def with_gguf(x: Any, name: str) -> Iterator[Case]:
    quants = optional("gguf.quants")
    if quants is None:
        return
    f32, q8_0 = x.astype(np.float32), quants.GGMLQuantizationType.Q8_0
    packed = quants.quantize(f32, q8_0)
    yield f"encode {name}", "gguf q8_0", lambda: quants.quantize(x.astype(np.float32), q8_0)
    yield (
        f"decode {name}",
        "gguf q8_0",
        lambda: quants.dequantize(packed, q8_0).astype(x.dtype),
    )


def installed(package: str, below: str = "") -> Path | None:
    """The folder of a package, without importing it."""
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent / below if spec and spec.origin else None


def with_ggml(x: Any, name: str, folder: Path | None) -> Iterator[Case]:
    """ggml's own row functions; float16 rows become float32 first, as in llama.cpp."""
    if folder is None:
        print("without ggml: llama_cpp is not installed and no --ggml is given", file=sys.stderr)
        return
    base = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
    cpu = ctypes.CDLL(str(next(iter(sorted(folder.glob("libggml-cpu*.so"))))))
    rows, width = x.shape
    packed = np.empty((rows, width // 32 * 34), np.uint8)
    to_f32 = base.ggml_fp16_to_fp32_row
    quantize = cpu.quantize_row_q8_0
    for function in (to_f32, quantize):
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        function.restype = None
    whole = np.empty_like(x, dtype=np.float32)

    def encode() -> None:
        if x.dtype == np.float16:
            to_f32(x.ctypes.data, whole.ctypes.data, x.size)
            quantize(whole.ctypes.data, packed.ctypes.data, x.size)
        else:
            quantize(x.ctypes.data, packed.ctypes.data, x.size)

    yield f"encode {name}", "ggml q8_0", encode


def with_vllm(x: Any, name: str, folder: Path | None) -> Iterator[Case]:
    """vLLM's CPU kernel, from its compiled library alone."""
    torch = optional("torch")
    if torch is None or folder is None:
        print("without vLLM: it is not installed and no --vllm is given", file=sys.stderr)
        return
    if not hasattr(torch.ops._C, "dynamic_scaled_int8_quant"):
        fits = "avx512" in codec.active_isa() and (folder / "_C_AVX512.abi3.so").is_file()
        torch.ops.load_library(str(folder / ("_C_AVX512.abi3.so" if fits else "_C.abi3.so")))
    tensor = torch.from_numpy(x)
    out = torch.empty(x.shape, dtype=torch.int8)
    scales = torch.empty((x.shape[0], 1), dtype=torch.float32)
    quantise = torch.ops._C.dynamic_scaled_int8_quant
    yield f"encode {name}", "vLLM CPU", lambda: quantise(out, tensor, scales, None)


def measure(cases: list[Case], rounds: int, uncompressed_bytes: int) -> None:
    times: dict[tuple[str, str], list[float]] = {}
    for turn in range(rounds + 1):
        for operation, who, work in cases:
            work()
            repeats = max(1, int(2e-3 / max(1e-6, min(times.get((operation, who), [1])))))
            start = time.perf_counter()
            for _ in range(repeats):
                work()
            if turn:
                elapsed = (time.perf_counter() - start) / repeats
                times.setdefault((operation, who), []).append(elapsed)
    for (operation, who), seconds in sorted(times.items()):
        mine = times[operation, "kvcache"]
        ratio = statistics.median(t / m for t, m in zip(seconds, mine, strict=True))
        speed = uncompressed_bytes / min(seconds) / 1e9
        print(f"{operation:15} {who:14} {speed:7.2f} GB/s  time x{ratio:.2f} of ours")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=262_144)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument(
        "--ggml",
        type=Path,
        default=installed("llama_cpp", "lib"),
        help="folder with libggml-base.so and libggml-cpu.so",
    )
    parser.add_argument(
        "--vllm", type=Path, default=installed("vllm"), help="folder of the vLLM package for CPUs"
    )
    options = parser.parse_args()
    print(
        f"{options.rows} rows of {options.head_dim}, {codec.active_isa()}, {options.threads} thr."
    )
    for dtype in (np.float16, np.float32):
        x = np.random.default_rng(1).standard_normal((options.rows, options.head_dim)).astype(dtype)
        name = x.dtype.name
        cases = [
            *ours(x, name, options.threads),
            *with_memcpy(x, name),
            *with_numpy(x, name),
            *with_torch(x, name, options.threads, options.compile),
            *with_gguf(x, name),
            *with_ggml(x, name, options.ggml),
            *with_vllm(x, name, options.vllm),
        ]
        measure(cases, options.rounds, x.nbytes)


if __name__ == "__main__":
    main()
