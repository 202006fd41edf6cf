"""Which part of each prompt of a trace earlier ones had: a radix tree over the whole trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcache.replay.trace import HASH_BLOCK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kvcache.replay.trace import Request

__all__ = ["Span", "TracePaths", "trace_paths"]

_STRETCH = 4096  # items compared at once


class Span:
    """Blocks that all prompts have together or not at all; they follow those of its parent."""

    __slots__ = ("begin", "children", "end", "items", "parent", "positions")

    def __init__(
        self, parent: Span | None, items: NDArray[Any], positions: int, begin: int, end: int
    ) -> None:
        self.parent = parent
        self.items = items  # of one prompt that has the span, from its start
        self.positions = positions  # of that prompt
        self.begin = begin  # blocks from the start of the prompt
        self.end = end
        self.children: dict[bytes, Span] = {}

    @property
    def size(self) -> int:
        """Blocks of this span alone."""
        return self.end - self.begin


class TracePaths:
    """What a trace asks for and what it leaves behind, as spans of blocks.

    Attributes:
        block_tokens: positions of a block; 1 counts positions.
        blocks: blocks of each prompt.
        tails: whether the last block of a prompt is a partial one, and all of it is the begin of a
            block that an earlier request had.
        asked: the spans of each prompt, first to last, without such a tail.
        stored: the spans of each prompt and of its answer where the trace spells it out.
    """

    def __init__(
        self, block_tokens: int, leaves: Sequence[tuple[Span, Span]], tails: Sequence[bool]
    ) -> None:
        self.block_tokens = block_tokens
        self.blocks = [asked.end for asked, _ in leaves]
        self.tails = list(tails)
        self.asked = []
        self.stored = []
        for (asked, stored), tail in zip(leaves, tails, strict=True):
            # Behind a known tail's blocks others go on, so that it is a span by itself.
            path = _path(asked)
            self.asked.append(path[:-1] if tail else path)
            self.stored.append(self.asked[-1] if asked is stored else _path(stored))


def trace_paths(requests: Iterable[Request], block_tokens: int) -> TracePaths:
    """Find what the prompts share, without writing their tokens out.

    A block that a prompt does not fill is its own: it is equal only in an equal prompt. A block
    that goes on behind it has its positions too, which `TracePaths.tails` tells.

    Args:
        requests: the trace.
        block_tokens: positions of a block.
    """
    listed = list(requests)
    # Two ways to say a prompt have no items in common; their tokens have.
    mixed = len({request.source.dtype for request in listed}) > 1
    tree, positions = _Tree(block_tokens), _Tree(1)
    leaves, tails = [], []
    for request in listed:
        items, length = (request.prompt() if mixed else request.source), request.input_length
        partial = length % block_tokens != 0
        asked = tree.insert(items, length)
        stored, whole = asked, items
        tails.append(partial and positions.goes_on(items, length))
        if request.answer is not None and request.answer.size and items.dtype == np.int32:
            whole = np.concatenate([items, request.answer])
            length = whole.size
            stored = tree.insert(whole, length)
        if block_tokens > 1:
            positions.insert(whole, length)
        leaves.append((asked, stored))
    return TracePaths(block_tokens, leaves, tails)


class _Tree:
    def __init__(self, block_tokens: int) -> None:
        self._block = block_tokens
        self._root = Span(None, np.empty(0, np.int32), 0, 0, 0)

    def insert(self, items: NDArray[Any], positions: int) -> Span:
        """The last span of a prompt, which ends there."""
        blocks = -(-positions // self._block)
        span = self._root
        while span.end < blocks:
            key = self._key(items, positions, span.end)
            child = span.children.get(key)
            if child is None:
                child = Span(span, items, positions, span.end, blocks)
                span.children[key] = child
                return child
            shared = self._shared(child, items, positions)
            span = child if shared == child.end else self._split(child, shared)
        return span

    def goes_on(self, items: NDArray[Any], positions: int) -> bool:
        """Whether a prompt is known and something known follows it; in a tree of positions."""
        span = self._root
        while span.end < positions:
            child = span.children.get(self._key(items, positions, span.end))
            if child is None:
                return False
            shared = self._shared(child, items, positions)
            if shared < child.end:
                return shared == positions
            span = child
        return bool(span.children)

    def _shared(self, span: Span, items: NDArray[Any], positions: int) -> int:
        """First block at or behind the span's start in which the prompt leaves it."""
        width = _width(items)
        start = span.begin * self._block // width
        most = min(span.end * self._block, span.positions, positions)
        stop = -(-most // width)
        alike = min(_alike(span.items, items, start, stop) * width, most)
        ends = alike == span.positions == positions  # the partial block of equal prompts
        return min(-(-alike // self._block) if ends else alike // self._block, span.end)

    def _split(self, span: Span, at: int) -> Span:
        """Cut a span; what had it keeps its lower part, the upper part is new."""
        parent = span.parent or self._root
        upper = Span(parent, span.items, span.positions, span.begin, at)
        parent.children[self._key(span.items, span.positions, span.begin)] = upper
        upper.children[self._key(span.items, span.positions, at)] = span
        span.parent, span.begin = upper, at
        return upper

    def _key(self, items: NDArray[Any], positions: int, block: int) -> bytes:
        """What tells one block from another that follows the same ones."""
        width = _width(items)
        start, stop = block * self._block, min((block + 1) * self._block, positions)
        return b"%d:%b" % (stop - start, items[start // width : -(-stop // width)].tobytes())


def _width(items: NDArray[Any]) -> int:
    """Positions of one item."""
    return 1 if items.dtype == np.int32 else HASH_BLOCK_TOKENS


def _alike(left: NDArray[Any], right: NDArray[Any], start: int, stop: int) -> int:
    """Where two prompts differ first, in items; `stop` where they do not before."""
    for begin in range(start, stop, _STRETCH):
        end = min(begin + _STRETCH, stop)
        differ = left[begin:end] != right[begin:end]
        if differ.any():
            return begin + int(differ.argmax())
    return stop


def _path(leaf: Span) -> tuple[Span, ...]:
    spans: list[Span] = []
    span: Span | None = leaf
    while span is not None and span.parent is not None:
        spans.append(span)
        span = span.parent
    spans.reverse()
    return tuple(spans)
