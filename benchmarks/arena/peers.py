"""Block ids from Python: `kvcache.PagePool` beside vLLM's `BlockPool`, in one run.

vLLM's package must be importable; without it only our figures are printed.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING

from kvcache import PagePool

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCKS = 65536


def best(work: Callable[[], object], times: int, rounds: int) -> float:
    """Seconds of one call, the best of some rounds."""
    least = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(times):
            work()
        least = min(least, (time.perf_counter() - start) / times)
    return least


def ours() -> dict[str, Callable[[], object]]:
    pool = PagePool(BLOCKS, "64KiB", backing=False)

    def one() -> None:
        pool.free(pool.allocate())

    def many() -> None:
        pool.free(pool.allocate_many(2048))

    table = pool.allocate_many(2048)

    def share() -> None:
        pool.retain(table)
        pool.free(table)

    return {"one": one, "2048": many, "share 2048": share}


def vllm() -> dict[str, Callable[[], object]]:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        from vllm.v1.core.block_pool import BlockPool
    except ImportError as error:
        print(f"vLLM is not measured: {error}")
        return {}
    pool = BlockPool(BLOCKS, True, 16)

    def one() -> None:
        pool.free_blocks(pool.get_new_blocks(1))

    def many() -> None:
        pool.free_blocks(pool.get_new_blocks(2048))

    table = pool.get_new_blocks(2048)

    def share() -> None:
        pool.touch(table)
        pool.free_blocks(table)

    return {"one": one, "2048": many, "share 2048": share}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    peer = vllm()
    for name, work in ours().items():
        times = 20000 if name == "one" else 50
        mine = best(work, times, rounds)
        line = f"{name:12} kvcache {mine * 1e6:8.2f} us"
        if name in peer:
            theirs = best(peer[name], times, rounds)
            line += f", vLLM {theirs * 1e6:8.2f} us: {theirs / mine:.1f} times as long"
        print(line)


if __name__ == "__main__":
    main()
