"""Rows between pages and engine tensors: ratios to a copy of the same bytes, in one run.

    python benchmarks/arena/bench_layouts.py [--tokens 8192] [--rounds 9] [--storage f16]

For each layout an import and an export, the call itself beside NumPy and torch (if installed),
which gather or scatter the same rows by index from or to a plain [kv, tokens, heads, dim]. Figures
are memcpy's time over theirs, medians of the rounds: more is better, 1 is a copy.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import kvcache
from kvcache import DType, Section, StateDecl, StateKind

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    import torch
except ImportError:
    torch = None

HEADS, DIM = 8, 128


@dataclass
class Case:
    """A layout, and its view [kv, tokens, heads, dim] or [kv, blocks, block, heads, dim]."""

    axes: str
    block: int
    shape: Callable[[int], tuple[int, ...]]  # of so many tokens, or of so many blocks
    order: tuple[int, ...]


CASES = [
    Case("kv tokens heads dim", 0, lambda n: (2, n, HEADS, DIM), (0, 1, 2, 3)),
    Case("tokens kv heads dim", 0, lambda n: (n, 2, HEADS, DIM), (1, 0, 2, 3)),
    Case("kv heads tokens dim", 0, lambda n: (2, HEADS, n, DIM), (0, 2, 1, 3)),
    Case("kv heads dim tokens", 0, lambda n: (2, HEADS, DIM, n), (0, 3, 1, 2)),
    Case("kv blocks block heads dim", 16, lambda n: (2, n, 16, HEADS, DIM), (0, 1, 2, 3, 4)),
    Case("kv blocks block heads dim", 256, lambda n: (2, n, 256, HEADS, DIM), (0, 1, 2, 3, 4)),
    Case("blocks kv block heads dim", 16, lambda n: (n, 2, 16, HEADS, DIM), (1, 0, 2, 3, 4)),
    Case("blocks kv heads block dim", 16, lambda n: (n, 2, HEADS, 16, DIM), (1, 0, 3, 2, 4)),
    Case("kv tokens heads dim", 1, lambda n: (2, n, HEADS, DIM), (0, 1, 2, 3)),  # a slot a token
]


def median_seconds(rounds: int, call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def sequence_of(tokens: int, storage: str) -> kvcache.Sequence:
    int8 = storage == "int8"
    declarations = [
        StateDecl(
            id=f"l0.{name}",
            layer=0,
            component=name,
            kind=StateKind.PAGED_KV,
            section=Section.MAIN,
            dtype=DType.I8 if int8 else DType.F16,
            shape=(HEADS, DIM),
            row_scale_bytes=4 if int8 else 0,
        )
        for name in ("attention.keys", "attention.values")
    ]
    plan = kvcache.StatePlan(declarations, memory=tokens * 16384, block_tokens=16, sequences=1)
    return kvcache.Cache(plan).open(np.arange(tokens))


def peer_times(case: Case, tensor: Any, ids: Any, rows: Any, rounds: int) -> tuple[float, float]:
    """Seconds of an import and of an export by indexing; tensors of NumPy or of torch."""
    view = (
        tensor.transpose(case.order)
        if isinstance(tensor, np.ndarray)
        else tensor.permute(case.order)
    )
    if ids is None:
        chosen: Any = slice(None)
        flat = rows
    else:
        chosen = ids if isinstance(tensor, np.ndarray) else torch.from_numpy(ids)
        flat = rows.reshape(2, len(ids), *view.shape[2:])

    def gather() -> None:
        flat[...] = view[:, chosen]

    def scatter() -> None:
        view[:, chosen] = flat

    return median_seconds(rounds, gather), median_seconds(rounds, scatter)


def measure(case: Case, sequence: kvcache.Sequence, tokens: int, rounds: int) -> list[float]:
    """Seconds: a copy, then import and export by us, by NumPy and by torch."""
    rng = np.random.default_rng(0)
    held = tokens + tokens // 4 if case.block else tokens  # the engine holds others as well
    tensor = rng.integers(0, 15000, case.shape(held // max(case.block, 1)), np.int16)
    tensor = tensor.view(np.float16)
    rows = np.zeros((2, tokens, HEADS, DIM), np.float16)
    ids, places = None, {}
    if case.block:
        ids = rng.permutation(held // case.block)[: tokens // case.block]
        places = {"slot_mapping" if case.block == 1 else "block_table": ids}
    arguments = (0, 0, tokens, tensor, case.axes)
    other = np.ones_like(rows)
    times = [
        median_seconds(rounds, lambda: np.copyto(rows, other)),
        median_seconds(rounds, lambda: sequence.import_rows(*arguments, **places)),
        median_seconds(rounds, lambda: sequence.export_rows(*arguments, **places)),
        *peer_times(case, tensor, ids, rows, rounds),
    ]
    if torch is not None:
        times += peer_times(case, torch.from_numpy(tensor), ids, torch.from_numpy(rows), rounds)
    return times


def main() -> None:
    """Print one line for each layout."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--storage", choices=["f16", "int8"], default="f16")
    options = parser.parse_args()
    if torch is not None:
        torch.set_num_threads(1)
    sequence = sequence_of(options.tokens, options.storage)
    print(f"{options.tokens} tokens, {HEADS} heads of {DIM}, f16 tensors, {options.storage} pages")
    print(f"{'':33}{'import':>7} {'export':>7} | {'numpy':>7} {'':>7} | {'torch':>7}")
    for case in CASES:
        copy, *times = measure(case, sequence, options.tokens, options.rounds)
        ratios = [f"{copy / seconds:7.2f}" for seconds in times]
        pairs = [" ".join(ratios[i : i + 2]) for i in range(0, len(ratios), 2)]
        print(f"{case.axes:27}{case.block or '':>6}{' | '.join(pairs)}", flush=True)


if __name__ == "__main__":
    main()
