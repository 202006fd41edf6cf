"""Long seeded runs of a cache against the reference, over every plan shape and kind of shortage.

    python tests/model/soak.py --operations 1000000 --jobs 2

Prints for each run what was done, and the command that repeats it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from model.driver import AMPLE, FEW_BLOCKS, FEW_BYTES, SHAPES, Driver, make_driver
from model.operations import step

MEMORIES: dict[str, dict[str, Any]] = {
    "ample": AMPLE,
    "few-blocks": FEW_BLOCKS,
    "few-bytes": FEW_BYTES,
}
_LIFE = 4000  # operations until a new cache takes over, so that what is stored stays small


def soak(shape: str, memory: str, operations: int, seed: int) -> str:
    """Random operations on one plan; a line that says what came of them."""
    rng = random.Random(f"{shape} {memory} {seed}")
    started = time.monotonic()
    opens = hits = blocks = snapshots = refused = 0
    for first in range(0, operations, _LIFE):
        driver: Driver = make_driver(shape, MEMORIES[memory])
        for _ in range(min(_LIFE, operations - first)):
            step(rng, driver)
        driver.finish()
        stats = driver.cache.stats()
        opens, hits = opens + stats.opens, hits + stats.hits
        blocks += stats.evicted_blocks
        snapshots += stats.evicted_snapshots
        refused += driver.failures
    return (
        f"{shape}, {memory}: {operations} operations, {opens} opens, {hits} hits, {blocks} blocks "
        f"and {snapshots} snapshots evicted, {refused} refused, {time.monotonic() - started:.1f} s"
    )


def run(shape: str, memory: str, operations: int, seed: int) -> tuple[bool, str]:
    try:
        return True, soak(shape, memory, operations, seed)
    except Exception:  # told by the parent
        again = f"--shape {shape!r} --memory {memory} --seed {seed} --each {operations}"
        return False, f"{traceback.format_exc()}repeat with: python tests/model/soak.py {again}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=100_000, help="over all runs together")
    parser.add_argument("--each", type=int, help="operations of each run, instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="one or more; else all")
    parser.add_argument("--memory", choices=MEMORIES, action="append", help="likewise")
    options = parser.parse_args()
    runs = [
        (shape, memory)
        for shape in options.shape or SHAPES
        for memory in options.memory or MEMORIES
        if memory != "few-bytes" or shape == "large"
    ]
    each = options.each or -(-options.operations // len(runs))
    started = time.monotonic()
    failed = 0
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=spawn) as pool:
        tasks = [pool.submit(run, shape, memory, each, options.seed) for shape, memory in runs]
        for task in tasks:
            done, text = task.result()
            failed += not done
            print(text, flush=True)
    print(f"{each * len(runs)} operations in {time.monotonic() - started:.0f} s, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
