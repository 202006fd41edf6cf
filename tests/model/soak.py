"""Long seeded runs of a cache against the reference.

    python tests/model/soak.py --operations 1000000 --seed 1

Prints the operations done, what ran out of room, and the seed to repeat a failure with.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from model.driver import AMPLE, FEW_BLOCKS, FEW_BYTES, SHAPES, Driver, make_driver


def some_tokens(rng: random.Random, driver: Driver) -> list[int]:
    """A prompt that shares a prefix with others most of the time."""
    pair = driver.pick(rng.randrange(1000))
    shared: list[int] = []
    if pair is not None and rng.random() < 0.7:
        shared = pair.twin.tokens[: rng.randrange(len(pair.twin.tokens) + 1)]
    return shared + [rng.choice([1, 2, -7]) for _ in range(rng.randrange(1, 12))]


def step(rng: random.Random, driver: Driver) -> None:
    """One random operation."""
    adapter = rng.choice(["", "", "a"])
    pair = driver.pick(rng.randrange(1000))
    kind = rng.choices(
        ["open", "turn", "run", "draft", "publish", "snapshot", "fork", "truncate", "close"],
        [7, 6, 8, 4, 3, 3, 1, 2, 6],
    )[0]
    if kind == "open" or pair is None:
        tokens = some_tokens(rng, driver)
        driver.explain(tokens, adapter)
        driver.open(tokens, adapter)
    elif kind == "run":
        if rng.random() < 0.5:
            tokens = [rng.choice([1, 2]) for _ in range(rng.randrange(4))]
            driver.extend(pair, tokens)
        driver.complete(pair, rng.randrange(12))
        driver.check(pair)
    elif kind == "turn":
        driver.turn(pair)
        driver.check(pair)
    elif kind == "draft":
        layer = rng.randrange(3)
        start = pair.twin.length + rng.randrange(-1, 4)
        driver.write(pair, layer, max(0, start), rng.randrange(6), draft=rng.randrange(2))
        start = rng.randrange(pair.twin.length + 2)
        driver.read(pair, layer, start, start + rng.randrange(4))
        driver.check(pair)
    elif kind == "publish":
        driver.publish(pair)
    elif kind == "snapshot":
        driver.snapshot(pair, rng.choice(["exact", "f16"]))
    elif kind == "fork":
        driver.fork(pair)
    elif kind == "truncate":
        driver.truncate(pair, rng.randrange(pair.twin.length + 2))
        driver.check(pair)
    else:
        driver.close(pair)
    if rng.random() < 0.002:
        driver.clear()


def soak(shape: str, memory: dict[str, Any], operations: int, seed: int) -> Driver:
    """Random operations on one plan; both sides are cleared now and then to stay small."""
    rng = random.Random(f"{shape} {memory} {seed}")
    driver = make_driver(shape, memory)
    for _ in range(operations):
        step(rng, driver)
        driver.check_ledger()
    driver.finish()
    return driver


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=100_000, help="over all shapes together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shape", choices=SHAPES, action="append", help="one or more; else all")
    options = parser.parse_args()
    shapes = options.shape or list(SHAPES)
    runs = [(shape, memory) for shape in shapes for memory in (AMPLE, FEW_BLOCKS)]
    runs += [("large", FEW_BYTES)] if "large" in shapes else []
    share = max(1, options.operations // len(runs))
    for shape, memory in runs:
        started = time.monotonic()
        driver = soak(shape, memory, share, options.seed)
        stats = driver.cache.stats()
        print(
            f"{shape} {memory}: {share} operations, {stats.opens} opens, {stats.hits} hits, "
            f"{stats.evicted_blocks} blocks and {stats.evicted_snapshots} snapshots evicted, "
            f"{driver.failures} refused, {time.monotonic() - started:.1f} s"
        )


if __name__ == "__main__":
    main()
