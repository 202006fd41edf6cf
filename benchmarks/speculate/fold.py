"""kvcache.fold beside NumPy and torch on the same rows and state, in one process, one thread each.

    python benchmarks/speculate/fold.py [--heads 48] [--layers 8] [--rounds 9]

The state is that of a gated delta net, ``[heads, 128, 128]`` float32 a layer. NumPy and torch apply
the rows one after the other, in place, as decoding does; torch also compiled where it can be.
memcpy is ``numpy.copyto`` of the state. Everyone takes turns; figures are medians of the time, as
ratios to memcpy.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import kvcache

DIM = 128
Case = tuple[str, Callable[[], object]]


def optional(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:
        print(f"without {module}: {str(error).splitlines()[0]}", file=sys.stderr)
        return None


def numpy_fold(state: Any, gate: Any, left: Any, right: Any, scratch: Any) -> None:
    for n in range(len(gate)):
        np.multiply(state, gate[n][:, None, None], out=state)
        np.multiply(left[n][:, :, None], right[n][:, None, :], out=scratch)
        np.add(state, scratch, out=state)


def torch_fold(state: Any, gate: Any, left: Any, right: Any) -> None:
    for n in range(len(gate)):
        state.mul_(gate[n][:, None, None])
        state.add_(left[n][:, :, None] * right[n][:, None, :])


def cases(states: Any, rows: int, heads: int, torch: Any, compiled: Any) -> list[Case]:
    rng = np.random.default_rng(rows)
    gate = rng.uniform(0.8, 1, (rows, heads)).astype(np.float32)
    left, right = (rng.standard_normal((rows, heads, DIM), dtype=np.float32) for _ in range(2))
    scratch, copy = np.empty_like(states[0]), np.empty_like(states)

    def each(fold: Callable[..., None], *inputs: Any, layers: Any = states) -> Callable[[], object]:
        return lambda: [fold(layer, *inputs) for layer in layers]

    found: list[Case] = [
        ("memcpy", lambda: np.copyto(copy, states)),
        ("kvcache", each(kvcache.fold, gate, left, right)),
        ("numpy", each(numpy_fold, gate, left, right, scratch)),
    ]
    if torch is not None:
        tensors = [torch.from_numpy(array) for array in (gate, left, right)]
        layers = list(torch.from_numpy(states))
        found.append(("torch", each(torch_fold, *tensors, layers=layers)))
        if compiled is not None:
            found.append(("torch compiled", each(compiled, *tensors, layers=layers)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=48)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--compile", action="store_true")
    given = parser.parse_args()
    torch = optional("torch")
    compiled = None
    if torch is not None:
        torch.set_num_threads(1)
        compiled = torch.compile(torch_fold) if given.compile else None
    states = np.zeros((given.layers, given.heads, DIM, DIM), np.float32)
    print(f"{states.nbytes / 2**20:.0f} MiB of state, {kvcache.codec.active_isa()}")
    for rows in (1, 2, 4, 8):
        turns = cases(states, rows, given.heads, torch, compiled)
        seconds: dict[str, list[float]] = {name: [] for name, _ in turns}
        for round_ in range(given.rounds + 1):
            for name, run in turns:
                start = time.perf_counter()
                run()
                if round_:  # the first one warms up
                    seconds[name].append(time.perf_counter() - start)
        copied = statistics.median(seconds["memcpy"])
        ratios = (f"{name} {statistics.median(s) / copied:.2f}" for name, s in seconds.items())
        print(f"{rows} rows: {', '.join(ratios)}")


if __name__ == "__main__":
    main()
