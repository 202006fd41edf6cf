"""A batched verify from Python: what begin_verify and commit cost beside the forward pass.

    python benchmarks/speculate/bench_batch.py --sequences 32 --drafts 4

The models: 32 layers of attention; 12 of them and 36 tensors of state, which is left to kernels by
a `VerifyTable`; the same by a `CarryTable`, so that accepted rows are folded at once (replay) or
wait (carry). Rows are stored in place, as an engine does. State is of a few bytes: what moving and
folding takes is measured apart. Beside it a step of the same batch without drafts: pages, advance.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import kvcache
from kvcache import DType, Gate, Section, StateDecl, StateKind, VerifyRule

# Layers of attention, tensors of state, strategy.
MODELS = ((32, 0, "steps"), (12, 36, "steps"), (12, 36, "replay"), (12, 36, "carry"))


def declaration(layer: int, component: str, kind: StateKind, *shape: int) -> StateDecl:
    return StateDecl(
        id=f"l{layer}.{component}",
        layer=layer,
        component=component,
        kind=kind,
        section=Section.MAIN,
        dtype=DType.F16 if kind is StateKind.PAGED_KV else DType.F32,
        shape=shape,
        verify=VerifyRule.H_STEPS if kind is StateKind.RECURRENT else VerifyRule.NONE,
        gate=Gate.HEAD,
    )


def declarations(attention: int, states: int) -> list[StateDecl]:
    names = ("attention.keys", "attention.values")
    rows = [
        declaration(layer, name, StateKind.PAGED_KV, 1, 8)
        for layer in range(attention)
        for name in names
    ]
    tensors = [
        declaration(attention + layer, "state.recurrent", StateKind.RECURRENT, 2, 2, 4)
        for layer in range(states)
    ]
    return rows + tensors


class Engine:
    """What an engine calls around the forward pass of a batch, its arrays being ready."""

    def __init__(
        self, sequences: int, drafts: int, attention: int, states: int, strategy: str
    ) -> None:
        plan = kvcache.StatePlan(
            declarations(attention, states),
            memory="1GiB",
            sequences=sequences,
            stash_rows=0 if strategy == "steps" else 2 * (drafts + 1),
        )
        cache = kvcache.Cache(plan)
        self.batch = kvcache.Batch([cache.open([1]) for _ in range(sequences)])
        self.strategy = strategy
        self.tables: dict[str, kvcache.VerifyTable | kvcache.CarryTable] = {}
        self.flags = []
        if states and strategy == "steps":
            self.tables["table"] = kvcache.VerifyTable(plan, batch_rows=sequences)
        elif states:
            table = self.tables["carry"] = kvcache.CarryTable(plan, batch_rows=sequences)
            self.flags = [table.engaged(attention + layer) for layer in range(states)]
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
        session = self.batch.begin_verify(
            self.drafts, self.counts, strategy=self.strategy, **self.tables
        )
        begun = time.perf_counter()
        for flags in self.flags:  # a kernel's work
            flags[:] = 1
        run = time.perf_counter()
        session.commit(accepted, in_place=True)
        end = time.perf_counter()
        self.batch.extend(self.sampled)
        return 1e6 * (begun - start), 1e6 * (end - run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2000)
    given = parser.parse_args()
    for attention, states, strategy in MODELS:
        engine = Engine(given.sequences, given.drafts, attention, states, strategy)
        times = [(engine.step(), *engine.verify(turn)) for turn in range(given.rounds)]
        step, begin, commit = map(statistics.median, zip(*times, strict=True))
        name = f"{states} states, {strategy}" if states else "attention"
        print(
            f"{name:20} begin {begin:6.2f} us  commit {commit:6.2f} us  both {begin + commit:6.2f}"
            f" us  a step without drafts {step:6.2f} us"
        )


if __name__ == "__main__":
    main()
