"""Values by the tokens they stand for: one walk finds the longest common prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Tokens = NDArray[np.int32]

__all__ = ["TokenTrie", "common_length"]

V = TypeVar("V")
_FIRST_COMPARED = 256


def common_length(left: Tokens, right: Tokens) -> int:
    """How many leading tokens are equal, in time linear in that number."""
    end = min(len(left), len(right))
    start, step = 0, _FIRST_COMPARED
    while start < end:
        stop = min(start + step, end)
        differs = left[start:stop] != right[start:stop]
        first = int(differs.argmax())
        if differs[first]:
            return start + first
        start, step = stop, 2 * step
    return end


class _Node(Generic[V]):
    """The place behind an edge, or the root."""

    __slots__ = ("children", "depth", "edge", "parent", "shortest", "value")

    def __init__(self, edge: Tokens, parent: _Node[V] | None, depth: int) -> None:
        self.edge = edge  # an array of its own: a view would keep the memory of removed tokens
        self.parent = parent
        self.depth = depth  # tokens from the root to its end
        self.children: dict[int, _Node[V]] = {}
        self.value: V | None = None
        self.shortest: _Node[V] | None = None  # of those with a value from here on

    def find_shortest(self) -> _Node[V] | None:
        if self.value is not None:
            return self
        below = [child.shortest for child in self.children.values() if child.shortest is not None]
        return min(below, key=lambda node: node.depth, default=None)


class TokenTrie(Generic[V]):
    """A radix tree over exact tokens.

    A lookup costs what it matches, however many values there are; each node knows the shortest
    value below it, so a prompt that ends or parts between values needs no search either.
    Thread-compatible: the caller locks.
    """

    def __init__(self) -> None:
        self._root: _Node[V] = _Node(np.empty(0, np.int32), None, 0)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def insert(self, tokens: Tokens, value: V) -> V | None:
        """Set the value of one token or more; what it replaces, or None."""
        node, at = self._root, 0
        while at < len(tokens):
            child = node.children.get(int(tokens[at]))
            if child is None:
                child = _Node(tokens[at:].copy(), node, len(tokens))
                node.children[int(tokens[at])] = child
                node = child
                break
            equal = common_length(child.edge, tokens[at:])
            node = child if equal == len(child.edge) else self._split(child, equal)
            at += equal
        replaced, node.value = node.value, value
        self._count += replaced is None
        up: _Node[V] | None = node
        while up is not None and (up.shortest is None or up.shortest.depth > node.depth):
            up.shortest = node
            up = up.parent
        return replaced

    def remove(self, tokens: Tokens) -> V | None:
        """Take a value out; None where there is none."""
        node, at = self._walk(tokens)
        if at < len(tokens) or node.depth != at or node.value is None:
            return None
        removed, node.value = node.value, None
        self._count -= 1
        up: _Node[V] | None = self._prune(node)
        while up is not None and up.shortest is node:
            up.shortest = up.find_shortest()
            up = up.parent
        return removed

    def nearest(self, tokens: Tokens) -> tuple[int, V] | None:
        """The longest prefix shared with a value, and the shortest value that shares it.

        Returns:
            How many tokens are shared, at least one, and the value; else None.
        """
        node, at = self._walk(tokens)
        if at == 0 or node.shortest is None or node.shortest.value is None:
            return None
        return at, node.shortest.value

    def longest_whole(self, tokens: Tokens) -> tuple[int, V] | None:
        """The longest value all of whose tokens begin ``tokens``; its length and it, or None."""
        node, at = self._walk(tokens)
        above: _Node[V] | None = node
        while above is not None and (above.value is None or above.depth > at):
            above = above.parent
        return None if above is None or above.value is None else (above.depth, above.value)

    def __iter__(self) -> Iterator[V]:
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children.values())
            if node.value is not None:
                yield node.value

    def _walk(self, tokens: Tokens) -> tuple[_Node[V], int]:
        """The node at or below the end of the longest shared prefix, and how long that is."""
        node, at = self._root, 0
        while at < len(tokens):
            child = node.children.get(int(tokens[at]))
            if child is None:
                break
            equal = common_length(child.edge, tokens[at:])
            node, at = child, at + equal
            if equal < len(child.edge):
                break
        return node, at

    def _split(self, node: _Node[V], length: int) -> _Node[V]:
        """Divide the edge to a node behind ``length`` tokens; the new node there."""
        parent = node.parent
        assert parent is not None
        depth = node.depth - len(node.edge) + length
        upper: _Node[V] = _Node(node.edge[:length].copy(), parent, depth)
        parent.children[int(upper.edge[0])] = upper
        node.edge, node.parent = node.edge[length:].copy(), upper
        upper.children[int(node.edge[0])] = node
        upper.shortest = node.shortest
        return upper

    def _prune(self, node: _Node[V]) -> _Node[V]:
        """Drop a node that stands for nothing; the lowest node left on its path."""
        parent = node.parent
        if parent is None or node.value is not None or len(node.children) > 1:
            return node
        first = int(node.edge[0])
        if not node.children:
            del parent.children[first]
            return self._prune(parent) if len(parent.children) == 1 else parent
        (child,) = node.children.values()
        child.edge, child.parent = np.concatenate([node.edge, child.edge]), parent
        parent.children[first] = child
        return parent
