"""Engine tensors by the definition of their axes: slow, obvious, independent of the package."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["EngineShape", "read_rows", "write_rows"]

Array = NDArray[Any]


@dataclass
class EngineShape:
    """Axes and sizes of one tensor that holds ``parts``, each ``(heads, dim)``, of ``layers``."""

    axes: str
    parts: tuple[tuple[int, int], ...]
    layers: int = 1
    tokens: int = 0
    blocks: int = 0
    block: int = 0

    @property
    def words(self) -> list[list[str]]:
        found = re.findall(r"\(([^)]*)\)|(\S+)", self.axes)
        return [inner.split() if inner else [word] for inner, word in found]

    def size(self, word: str, part: int) -> int:
        heads, dim = self.parts[part]
        return {"heads": heads, "dim": dim, "1": 1}.get(word) or getattr(self, word)

    def _inner(self, words: list[str], part: int) -> int:
        """Elements that one step of what is left of ``words`` passes over."""
        if "kv" not in words:
            return int(np.prod([self.size(word, part) for word in words], dtype=int))
        at = words.index("kv")
        outer = int(np.prod([self.size(word, part) for word in words[:at]], dtype=int))
        return outer * sum(self._inner(words[at + 1 :], p) for p in range(len(self.parts)))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._inner(words, 0) for words in self.words)

    def index(self, part: int, **at: Array) -> tuple[Array, ...]:
        """Index of elements; ``at`` has an array for each word, all of one shape."""
        result = []
        for words in self.words:
            place: Any = 0
            for i, word in enumerate(words):
                rest = words[i + 1 :]
                if word == "kv":
                    place = place + sum(self._inner(rest, p) for p in range(part))
                elif word != "1":
                    place = place + at[word] * self._inner(rest, part)
            result.append(np.broadcast_to(place, next(iter(at.values())).shape))
        return tuple(result)


def _places(shape: EngineShape, part: int, layer: int, slots: Array) -> tuple[Array, ...]:
    heads, dim = shape.parts[part]
    slot, head, element = np.meshgrid(slots, np.arange(heads), np.arange(dim), indexing="ij")
    at = {"heads": head, "dim": element, "layers": np.full_like(slot, layer), "tokens": slot}
    if shape.block:
        at |= {"blocks": slot // shape.block, "block": slot % shape.block}
    return shape.index(part, **at)


def write_rows(
    tensor: Array, shape: EngineShape, part: int, layer: int, slots: Array, rows: Array
) -> None:
    """Put rows ``[tokens, heads, dim]`` where the axes say."""
    tensor[_places(shape, part, layer, slots)] = rows


def read_rows(tensor: Array, shape: EngineShape, part: int, layer: int, slots: Array) -> Array:
    """Rows ``[tokens, heads, dim]`` from where the axes say."""
    return tensor[_places(shape, part, layer, slots)]
