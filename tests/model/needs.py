"""Which positions a layer needs to go on, spelled out position by position."""

from __future__ import annotations

from kvcache import StatePlan


class Needs:
    def __init__(self, plan: StatePlan) -> None:
        self.block = plan.block_tokens
        groups = plan.core.groups
        self.pooling = [group.record_tokens for group in groups]  # positions of one record
        self.windows = {p.layer: g for g in groups if g.record_tokens == 1 for p in g.components}
        self.streams = {
            (p.layer, plan.declarations[p.decl].component): (number, g.record_tokens)
            for number, g in enumerate(groups)
            if g.record_tokens > 1
            for p in g.components
        }  # pooled state: its group, and positions of one record
        #: Layers of each group whose rows are by position; a group of records has none.
        self.groups = [[p.layer for p in g.components if g.record_tokens == 1] for g in groups]

    def needed(self, layer: int, end: int) -> list[int]:
        """Positions before `end` that the query there sees."""
        group = self.windows[layer]
        window = group.window
        if window and group.chunked:
            return [p for p in range(end) if p // window == end // window]
        return [p for p in range(end) if not window or p < group.sinks or p > end - window]

    def resumes(self, layer: int, end: int) -> set[int]:
        """Positions without whose rows nobody goes on at `end`: whole rows of a begun block too."""
        tail = range(end // self.block * self.block, end)
        return {*self.needed(layer, end), *(tail if self.windows[layer].window != 1 else ())}

    def kept_blocks(self, layer: int, length: int) -> set[int]:
        """Blocks of a sequence at `length` that are not let go, up to the one it goes on in."""
        sinks = range(self.windows[layer].sinks)
        return {p // self.block for p in (*self.needed(layer, length), *sinks, length)}

    def resumable_blocks(self, layer: int, position: int) -> set[int]:
        """Blocks that a snapshot at `position` keeps until it is published."""
        blocks = {p // self.block for p in self.needed(layer, position)}
        if self.windows[layer].window != 1 and position % self.block:  # 1 never reads a page
            blocks.add(position // self.block)
        return blocks
