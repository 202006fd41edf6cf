"""A batched verify from Python: what begin_verify and commit cost beside the forward pass.

    python benchmarks/speculate/bench_batch.py --sequences 32 --drafts 4

The model has 12 layers of attention in one group and 36 tensors of state; rows and state are left
to kernels (`in_place`, `VerifyTable`), as an engine does. Beside it a step of the same batch
without drafts: pages and advance.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import kvcache
from kvcache import DType, Section, StateDecl, StateKind


def declaration(layer: int, component: str, kind: StateKind, *shape: int) -> StateDecl:
    return StateDecl(
        id=f"l{layer}.{component}",
        layer=layer,
        component=component,
        kind=kind,
        section=Section.MAIN,
        dtype=DType.F16 if kind is StateKind.PAGED_KV else DType.F32,
        shape=shape,
    )


def declarations(attention: int, states: int) -> list[StateDecl]:
    names = ("attention.keys", "attention.values")
    rows = [
        declaration(layer, name, StateKind.PAGED_KV, 1, 8)
        for layer in range(attention)
        for name in names
    ]
    tensors = [
        declaration(attention + layer, "state.recurrent", StateKind.RECURRENT, 16)
        for layer in range(states)
    ]
    return rows + tensors


class Engine:
    """What an engine calls around the forward pass of a batch, its arrays being ready."""

    def __init__(self, sequences: int, drafts: int, states: int) -> None:
        plan = kvcache.StatePlan(
            declarations(12 if states else 32, states), memory="1GiB", sequences=sequences
        )
        cache = kvcache.Cache(plan)
        self.batch = kvcache.Batch([cache.open([1]) for _ in range(sequences)])
        self.table = kvcache.VerifyTable(plan, batch_rows=sequences) if states else None
        self.drafts = np.full(sequences * drafts, 7, np.int32)
        self.counts = np.full(sequences, drafts, np.uint64)
        self.sampled = np.full(sequences, 3, np.int32)

    def step(self) -> float:
        start = time.perf_counter()
        self.batch.prepare()
        self.batch.advance(in_place=True)
        took = time.perf_counter() - start
        self.batch.extend(self.sampled)
        return 1e6 * took

    def verify(self, turn: int) -> tuple[float, float]:
        accepted = 1 + (turn + np.arange(len(self.counts))) % (int(self.counts[0]) + 1)
        start = time.perf_counter()
        session = self.batch.begin_verify(self.drafts, self.counts, table=self.table)
        begun = time.perf_counter()
        session.commit(accepted, in_place=True)
        end = time.perf_counter()
        self.batch.extend(self.sampled)
        return 1e6 * (begun - start), 1e6 * (end - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2000)
    given = parser.parse_args()
    for states in (0, 36):
        engine = Engine(given.sequences, given.drafts, states)
        times = [(engine.step(), *engine.verify(turn)) for turn in range(given.rounds)]
        step, begin, commit = map(statistics.median, zip(*times, strict=True))
        name = f"{states} states by table" if states else "attention"
        print(
            f"{name:20} begin {begin:6.2f} us  commit {commit:6.2f} us  both {begin + commit:6.2f}"
            f" us  a step without drafts {step:6.2f} us"
        )


if __name__ == "__main__":
    main()
