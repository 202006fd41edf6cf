"""An in-memory stand-in for the cache, unbounded and obvious, to drive the serving loop."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from support.declarations import paged, recurrent

from kvcache import DType, StatePlan
from kvcache.errors import OutOfCapacityError


def make_plan(paged_parts, fixed_parts, *, memory=1 << 30, block_tokens=16, int8=False):
    """paged_parts: (layer, component, heads, width, window); fixed_parts: (layer, name, shape)."""
    decls = [
        paged(layer, name, heads, width, window=window, int8=int8)
        for layer, name, heads, width, window in paged_parts
    ]
    decls += [recurrent(layer, name, *shape) for layer, name, shape in fixed_parts]
    return StatePlan(decls, memory=memory, block_tokens=block_tokens, sequences=4)


class FakeCache:
    def __init__(self, plan, *, refuse_after=None, refuse_snapshots=False):
        self.plan = plan
        self.entries = []
        self.refuse_after = refuse_after
        self.refuse_snapshots = refuse_snapshots

    def open(self, tokens, **_request):
        return FakeSequence(self, np.asarray(tokens, dtype=np.int32))

    def stats(self):
        return SimpleNamespace(
            peak_bytes=0, budget_bytes=self.plan.memory_bytes, evicted_blocks=0, evicted_snapshots=0
        )


class FakeSequence:
    def __init__(self, cache, tokens):
        self.cache, self.tokens = cache, tokens
        self.plan = cache.plan
        self.rows = {}
        for group in self.plan.groups:
            for c in group.components:
                self.rows[c.layer, c.component] = np.zeros((0, c.heads, c.width), np.float16)
        self.states = {(f.layer, f.name): np.zeros(f.shape, np.float32) for f in self.plan.fixed}
        self.snapshots = {}
        self.matched_tokens, hit, source = 0, 0, None
        for entry in cache.entries:
            common = min(len(entry.tokens), len(tokens))
            differ = np.nonzero(entry.tokens[:common] != tokens[:common])[0]
            known = int(differ[0]) if differ.size else common
            self.matched_tokens = max(self.matched_tokens, known)
            usable = min(known, len(tokens) - 1)
            if self.plan.fixed:
                usable = max((n for n in entry.snapshots if n <= usable), default=0)
            if usable > hit:
                hit, source = usable, entry
        self.cached_tokens = self.length = hit
        if source is not None:
            self.rows = {key: rows[:hit].copy() for key, rows in source.rows.items()}
            if self.plan.fixed:
                self.states = {k: v.copy() for k, v in source.snapshots[hit].items()}

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self, **_ended):
        pass

    def _parts(self, layer):
        return [key for key in self.rows if key[0] == layer]

    def write(self, layer, start, *arrays):
        refuse = self.cache.refuse_after
        if refuse is not None and start >= refuse:
            raise OutOfCapacityError("full")
        for key, array in zip(self._parts(layer), arrays, strict=True):
            self.rows[key] = np.concatenate([self.rows[key][:start], array])

    def read(self, layer, start, stop, dtype="float16"):
        got = [self.rows[key][start:stop].astype(dtype or np.float16) for key in self._parts(layer)]
        if any(part.dtype is DType.I8 for part in self.plan.paged_components(layer)):
            got = [_int8(rows) for rows in got]
        return (*got, None)[:2]

    def state(self, layer, name):
        return self.states[layer, name]

    def extend(self, tokens):
        self.tokens = np.concatenate([self.tokens, tokens])

    def advance(self, count):
        self.length += count
        assert self.length <= len(self.tokens)

    def snapshot(self):
        if self.cache.refuse_snapshots:
            raise OutOfCapacityError("no room for a snapshot")
        self.snapshots[self.length] = {k: v.copy() for k, v in self.states.items()}

    def prefill_stops(self):
        return sorted({self.matched_tokens, len(self.tokens) - 1} - {0})

    def publish(self):
        self.cache.entries.append(
            SimpleNamespace(
                tokens=self.tokens[: self.length],
                snapshots=dict(self.snapshots),
                rows={k: v[: self.length] for k, v in self.rows.items()},
            )
        )


def _int8(rows):
    scale = np.abs(rows).max(axis=2, keepdims=True) / np.float32(127)
    scale[scale == 0] = 1
    return (np.rint(rows / scale) * scale).astype(np.float32)
