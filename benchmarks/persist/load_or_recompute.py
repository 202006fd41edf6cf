"""What it takes to load a saved prefix of 32k tokens, beside computing it again.

    python benchmarks/persist/load_or_recompute.py DIR [tokens]

The state is that of a model of 0.5 billion parameters (24 layers, 2 KV heads of 64, F16): 384 MiB
at 32k tokens. `Cache.load` of a prompt cache, and `Cache.disk.prefetch` from a disk tier, are
measured, files in the page cache, every byte's checksum verified; both then open the prompt.
Computing is not run: its FLOPs (2 for each parameter and token, and attention) are divided by the
rate at which NumPy multiplies matrices of 2048 here, which flatters it.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import numpy as np
from attention_state import attention

from kvcache import Cache, DiskTier, StatePlan

LAYERS, HEADS, WIDTH, QUERY_HEADS, PARAMETERS = 24, 2, 64, 14, 494e6


def make_plan() -> StatePlan:
    return StatePlan(attention(LAYERS, HEADS, WIDTH), memory="600MiB", block_tokens=16, sequences=1)


def fill(cache: Cache, tokens: np.ndarray) -> None:
    rows = np.random.default_rng(2).standard_normal((len(tokens), HEADS, WIDTH)).astype(np.float16)
    with cache.open(tokens) as sequence:
        for layer in range(LAYERS):
            sequence.write(layer, 0, rows, rows)
        sequence.advance(len(tokens))
        sequence.publish()


def flops_per_second() -> float:
    a = np.random.default_rng(3).standard_normal((2048, 2048)).astype(np.float32)
    best = 1e9
    for _ in range(5):
        start = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - start)
    return 2 * 2048**3 / best


def main() -> None:
    root = Path(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 32768
    root.mkdir()
    tokens = np.random.default_rng(4).integers(0, 150_000, count + 1).astype(np.int32)
    cache = Cache(make_plan(), disk=DiskTier(root / "tier", "2GiB", durability="none"))
    fill(cache, tokens[:-1])
    start = time.perf_counter()
    cache.save(root / "prompt", tokens[:-1])
    saved = time.perf_counter() - start
    cache.disk.flush()
    size = make_plan().groups[0].page_bytes * count / 16
    del cache

    def timed(disk: DiskTier | None) -> float:
        best = 1e9
        for _ in range(3):
            fresh = Cache(make_plan(), disk=disk)
            start = time.perf_counter()
            if disk is None:
                fresh.load(root / "prompt")
            else:
                fresh.disk.prefetch(tokens)
            with fresh.open(tokens) as sequence:
                assert sequence.cached_tokens == count, sequence.cached_tokens
            best = min(best, time.perf_counter() - start)
            del fresh, sequence
        return best

    loaded = timed(None)
    fetched = timed(DiskTier(root / "tier", "2GiB", access="read"))
    shutil.rmtree(root)
    attention = 2 * 2 * LAYERS * QUERY_HEADS * WIDTH * count / 2
    work = count * (2 * PARAMETERS + attention)
    rate = flops_per_second()
    again = work / rate
    print(f"{count} tokens, {size / 2**20:.0f} MiB")
    print(f"save     {saved * 1e3:9.0f} ms  {size / saved / 1e6:6.0f} MB/s")
    for name, seconds in (("load", loaded), ("prefetch", fetched)):
        speed = size / seconds / 1e6
        print(f"{name:8} {seconds * 1e3:9.0f} ms  {speed:6.0f} MB/s  {again / seconds:.0f}x")
    print(f"compute  {again * 1e3:9.0f} ms  {work / 1e12:.0f} TFLOP at {rate / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
