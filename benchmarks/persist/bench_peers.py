"""The segment log beside LMCache's C++ file connector (`fs_native`), in one run.

    python benchmarks/persist/bench_peers.py build/bench_persist/bench_segments LMCACHE DIR [rounds]

LMCACHE is a folder that ``pip install --no-deps --target LMCACHE lmcache==0.5.6`` has filled; its
connector needs PyTorch beside it. Both write and read 128 MiB in records of 1, 4 and 16 MiB, files
in the page cache, by turns; the best round of each counts. The connector has two threads and takes
all records in one call; the log writes with one thread and reads with one and with two. The log
verifies a checksum of every byte that it reads; the connector has none.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import lmcache

_TOTAL = 128 << 20
_SIZES = (1, 4, 16)  # MiB


def connector_round(make: Any, directory: Path, size: int) -> tuple[float, float]:
    """Seconds that writing and reading take."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    client = make(str(directory), 2)
    blob = np.random.default_rng(1).integers(0, 256, size << 20, dtype=np.uint8)
    count = _TOTAL // (size << 20)
    keys = [f"model@1@0@{i:x}" for i in range(count)]  # model, ranks, rank, hash
    back = [np.zeros_like(blob) for _ in keys]
    start = time.perf_counter()
    lmcache.wait(client, client.submit_batch_set(keys, [memoryview(blob)] * count))
    written = time.perf_counter()
    lmcache.wait(client, client.submit_batch_get(keys, [memoryview(each) for each in back]))
    read = time.perf_counter()
    if not all(np.array_equal(each, blob) for each in back):
        raise RuntimeError("LMCache gave other bytes back")
    client.close()
    shutil.rmtree(directory)
    return written - start, read - written


def log_round(program: str, directory: Path) -> dict[int, tuple[float, float, float]]:
    """GB/s of one round by size: written, read with one thread, with two."""
    shutil.rmtree(directory, ignore_errors=True)
    run = subprocess.run([program, str(directory), "1"], check=True, capture_output=True, text=True)
    found = {}
    for line in run.stdout.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if cells[0].endswith(" MiB"):
            found[int(cells[0][:-4])] = (float(cells[2]), float(cells[5]), float(cells[7]))
    return found


def main() -> None:
    program, folder, root = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    make = lmcache.load(folder, "fs").LMCacheFSClient
    root.mkdir()
    ours = dict.fromkeys(_SIZES, (0.0, 0.0, 0.0))
    theirs = dict.fromkeys(_SIZES, (0.0, 0.0))
    for _ in range(rounds):
        for size, speeds in log_round(program, root / "log").items():
            ours[size] = tuple(map(max, ours[size], speeds))  # type: ignore[assignment]
        for size in _SIZES:
            write, read = (_TOTAL / 1e9 / s for s in connector_round(make, root / "files", size))
            theirs[size] = (max(theirs[size][0], write), max(theirs[size][1], read))
    shutil.rmtree(root)
    print("GB/s   | fs_native w | log w | ratio | fs_native r | log r | ratio | 2 threads | ratio")
    for size in _SIZES:
        write, read = theirs[size]
        put, get, both = ours[size]
        print(
            f"{size:2} MiB | {write:11.2f} | {put:5.2f} | {put / write:5.2f} | {read:11.2f} | "
            f"{get:5.2f} | {get / read:5.2f} | {both:9.2f} | {both / read:5.2f}"
        )


if __name__ == "__main__":
    main()
