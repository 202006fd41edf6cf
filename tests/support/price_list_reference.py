"""The price list on single blocks, by brute force: what the one in C++ must find on runs."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict

BUCKETS = 36
EDGES = [0.0] + [250 * math.sqrt(2) ** k for k in range(BUCKETS - 1)]
EVIDENCE, PRIOR, HALF_LIFE, REPRICE, FAN, WARM = 5.0, 0.05, 4000, 64, 4, 32
DEAD, TAIL, CLASSES = 0, 1, 38


def uses_level(uses):
    return sum(uses > most for most in (1, 2, 4, 8, 32))


class Block:
    """One block of one path, stored or a ghost."""

    def __init__(self, name, parent):
        self.name, self.parent = name, parent
        self.cls = self.bucket = self.uses = self.children = self.stored_children = 0
        self.weight, self.t0 = 0.0, 0
        self.latest = None
        self.stored = False


class Debt:
    """What LRU would have and was evicted, and whether more may be."""

    def __init__(self):
        self.owed = set()
        self.found = self.ended = self.recent = self.lead = self.lately = 0.0

    def request(self, blocks, ours, lru):
        self.lead = self.lead * (1 - 1 / 8000) + ours - lru
        self.lately = self.lately * (1 - 1 / 8000) + blocks

    def end(self, names, found):
        names = self.owed.intersection(names)
        self.owed -= names
        if not names:
            return
        keep = 0.5 ** (len(names) / 5000)
        self.found = self.found * keep + (len(names) if found else 0)
        self.ended = self.ended * keep + len(names)
        keep = 0.5 ** (len(names) / max(16, len(self.owed) / 10))
        self.recent = self.recent * keep + (1 - keep) * found

    def allows_another(self):
        risk = max(self.recent, (self.found + 150) / (self.ended + 150), 0.1)
        return self.lead - risk * (len(self.owed) + 1) >= -0.003 * self.lately


class PriceList:
    """Hits request by request; `block_tokens` per block, `capacity` blocks between requests."""

    def __init__(self, capacity, block_tokens):
        self.capacity, self.block_tokens = capacity, block_tokens
        self.blocks, self.timers = {}, [OrderedDict() for _ in range(BUCKETS)]
        self.drawers = {(c, b): OrderedDict() for c in range(CLASSES) for b in range(BUCKETS)}
        self.reused = [[0.0] * BUCKETS for _ in range(CLASSES)]
        self.entered = [[0.0] * BUCKETS for _ in range(CLASSES)]
        self.stored_blocks = 0
        self.lru = OrderedDict()  # what LRU would have, by last use
        self.debt = Debt()
        self.requests = self.reuses = 0
        self.reprice()

    def request(self, now_ms, path, tokens, output):
        """Serve a prompt of `tokens` positions in the blocks `path`; the blocks it found."""
        self.advance(now_ms)
        known = next((i for i, b in enumerate(path) if b not in self.blocks), len(path))
        blocks = [self.blocks[name] for name in path[:known]]
        found = next((i for i, b in enumerate(blocks) if not b.stored), known)
        for block in blocks:
            self.reused[block.cls][block.bucket] += block.weight
        self.reuses += known
        if 0 < known < len(path):
            self.supersede(blocks[-1], now_ms)
        for name in path[known:]:
            block = self.blocks[name] = Block(name, blocks[-1] if blocks else None)
            if len(blocks) > known:
                blocks[-1].children += 1
            blocks.append(block)
        self.file(blocks, known, tokens, output, now_ms)
        for above, below in itertools.pairwise(blocks):
            above.latest = below
        self.debt.end(path, found=True)
        for place, block in enumerate(blocks):
            if not block.stored:
                block.stored = True
                self.stored_blocks += 1
                if place:
                    blocks[place - 1].stored_children += 1
                    self.unlist(blocks[place - 1])
        self.serve_lru(path, found)
        if not blocks[-1].stored_children:
            self.drawer(blocks[-1]).setdefault(blocks[-1].name, blocks[-1])
        self.requests += 1
        if self.requests % REPRICE == 0:
            self.reprice()
        self.evict()
        return found

    def serve_lru(self, path, ours):
        hits = next((i for i, name in enumerate(path) if name not in self.lru), len(path))
        for name in reversed(path):
            self.lru[name] = None
            self.lru.move_to_end(name)
        while len(self.lru) > self.capacity:
            name, _ = self.lru.popitem(last=False)
            self.debt.end([name], found=False)
        self.debt.request(len(path), ours, hits)

    def drawer(self, block):
        return self.drawers[block.cls, block.bucket]

    def unlist(self, block):
        return self.drawer(block).pop(block.name, None) is not None

    def refile(self, block, cls, bucket):
        listed = self.unlist(block)
        self.timers[block.bucket].pop(block.name, None)
        block.cls, block.bucket = cls, bucket
        self.timers[bucket][block.name] = block
        self.entered[cls][bucket] += block.weight
        if listed:
            self.drawer(block)[block.name] = block

    def advance(self, now_ms):
        for bucket in range(BUCKETS - 1):
            for block in list(self.timers[bucket].values()):
                if now_ms - block.t0 < EDGES[bucket + 1]:
                    break
                self.refile(block, block.cls, bucket + 1)

    def open(self, blocks, cls, now_ms):
        for block in blocks:
            block.weight, block.t0 = 1 / len(blocks), now_ms
            self.refile(block, cls, 0)

    def supersede(self, last, now_ms):
        last.children += 1
        chain, block = [], last.latest
        while block is not None:
            chain.append(block)
            block = block.latest
        if chain and last.children < FAN:
            self.open(chain, DEAD, now_ms)

    def file(self, blocks, known, tokens, output, now_ms):
        much_new = tokens - known * self.block_tokens > 3072
        kind = 2 * ((output > 32) + (output > 128)) + much_new
        classes = []
        for block in blocks:
            block.uses += 1
            classes.append(2 + 6 * uses_level(block.uses) + kind)
        if tokens % self.block_tokens:
            classes[-1] = TAIL
        start = 0
        for stop in range(1, len(blocks) + 1):
            if stop == len(blocks) or classes[stop] != classes[start]:
                self.open(blocks[start:stop], classes[start], now_ms)
                start = stop

    def reprice(self):
        def smooth(rows, prior):
            return [
                (sum(self.reused[c][b] for c in rows) + EVIDENCE * prior[b])
                / (sum(self.entered[c][b] for c in rows) + EVIDENCE)
                for b in range(BUCKETS)
            ]

        pooled = smooth(range(CLASSES), [PRIOR] * BUCKETS)
        self.prices = {}
        for cls in range(CLASSES):
            first = cls if cls < 2 else 2 + (cls - 2) // 6 * 6
            peers = [cls] if cls < 2 else range(first, first + 6)
            hazard = smooth([cls], smooth(peers, pooled))
            for start in range(BUCKETS):
                self.prices[cls, start] = self.price(hazard, start)
        fade = 0.5 ** (REPRICE / HALF_LIFE)
        for table in (self.reused, self.entered):
            for row in table:
                row[:] = [value * fade for value in row]

    @staticmethod
    def price(hazard, start):
        survival, uses, seconds, best = 1.0, 0.0, 0.0, 0.0
        for b in range(start, BUCKETS - 1):
            width = (EDGES[b + 1] - EDGES[b]) / 1000
            uses += survival * hazard[b]
            seconds += survival * width * (1 - hazard[b] / 2)
            survival *= 1 - hazard[b]
            best = max(best, uses / seconds)
        return best

    def cheapest(self, may_go):
        heads = [next(filter(may_go, d.values()), None) for d in self.drawers.values() if d]
        heads = [block for block in heads if block is not None]
        return min(heads, key=lambda b: (self.prices[b.cls, b.bucket], b.t0), default=None)

    def evict(self):
        emptied = None  # its blocks go on being evicted, tails before heads
        while self.stored_blocks > self.capacity:
            block = None
            if self.reuses < WARM or not self.debt.allows_another():
                block = self.cheapest(lambda block: block.name not in self.lru)
            block = block or self.cheapest(lambda _: True)
            if block.name in self.lru:
                self.debt.owed.add(block.name)
            emptied = (block.cls, block.bucket)
            self.unlist(block)
            block.stored = False
            self.stored_blocks -= 1
            parent = block.parent
            if parent is None:
                continue
            parent.stored_children -= 1
            if not parent.stored_children:
                self.drawer(parent)[parent.name] = parent
                if (parent.cls, parent.bucket) == emptied:
                    self.drawer(parent).move_to_end(parent.name, last=False)
