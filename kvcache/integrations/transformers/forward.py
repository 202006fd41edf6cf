"""Running a piece of a prompt, and whether a model can be run in pieces at all."""

from __future__ import annotations

import contextlib
import enum
import inspect
from typing import TYPE_CHECKING, Any

import torch

from kvcache.errors import UnsupportedError
from kvcache.integrations.transformers.record import keep_past

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcache.integrations.transformers.layers import Layer

__all__ = ["Pieces", "evaluating", "run_piece", "try_pieces"]

_TRIED = 8  # tokens
# Relative differences of state that rounding does not explain. Half precision may flip a router.
_LARGEST, _LARGEST_HALF = 1e-2, 0.5


class Pieces(enum.Enum):
    """How a model goes on from a state that it has."""

    ANY = "any number of tokens at once"
    ONE = "one token at a time"


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Without gradients and dropout; models in training may refuse to keep a cache."""
    was_training = model.training
    if was_training:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if was_training:
            model.train()


def run_piece(
    model: Any,
    ids: torch.Tensor,
    start: int,
    stop: int,
    cache: Any,
    mask: torch.Tensor | None = None,
) -> None:
    """Run columns ``[start, stop)`` of a batch, told their positions as `generate` tells them.

    Args:
        model: the model.
        ids: ``[batch, columns]``.
        start: the columns that the cache has seen.
        stop: one past the last column.
        cache: takes the state.
        mask: 0 for padding, else 1; None for no padding.
    """
    takes = _parameters(model)
    piece: dict[str, Any] = {"input_ids": ids[:, start:stop]}
    if "logits_to_keep" in takes:
        piece["logits_to_keep"] = 1
    positions = torch.arange(stop, device=ids.device)[None]
    if mask is not None:
        piece["attention_mask"] = mask[:, :stop]
        positions = (mask[:, :stop].long().cumsum(-1) - 1).clamp(min=0)
    if "position_ids" in takes:
        piece["position_ids"] = positions[:, start:]
    model(**piece, cache=cache, use_cache=True, return_dict=True)


def _parameters(model: Any) -> set[str]:
    return set(inspect.signature(model.forward).parameters)


def try_pieces(model: Any, layers: tuple[Layer, ...], empty_cache: Any) -> Pieces:
    """Run a few tokens at once and in pieces, and compare what they leave.

    Args:
        model: with weights.
        layers: what it keeps.
        empty_cache: makes a cache.

    Raises:
        UnsupportedError: they do not run, or the state depends on how they were divided.
    """
    vocabulary = model.get_input_embeddings().num_embeddings
    ids = torch.arange(_TRIED, device=model.device)[None] % vocabulary

    def state(*stops: int) -> list[torch.Tensor]:
        cache, start = empty_cache(), 0
        keep_past(cache)
        for stop in (*stops, _TRIED):
            run_piece(model, ids, start, stop, cache)
            start = stop
        return [tensor for layer in layers for tensor in _held(cache, layer)]

    try:
        with evaluating(model):
            whole = state()
            heeds = _heeds_its_state(model, layers, ids, empty_cache)
            way, stops = (Pieces.ANY, (3, 7)) if heeds else (Pieces.ONE, tuple(range(3, _TRIED)))
            parts = state(*stops)
    except Exception as error:
        raise UnsupportedError(
            f"{type(model).__name__}: {_TRIED} tokens did not run in pieces: {error}"
        ) from error
    is_half = any(each.dtype.itemsize < 4 for each in (*model.parameters(), *whole))
    largest = _LARGEST_HALF if is_half else _LARGEST
    for one, other in zip(whole, parts, strict=True):
        difference = _difference(one, other)
        if not difference <= largest:
            raise UnsupportedError(
                f"{type(model).__name__}: the state after a prompt depends on how it is divided"
                f" into forward passes (a relative difference of {difference:.2g}), so it cannot be"
                " resumed"
            )
    return way


def _heeds_its_state(
    model: Any, layers: tuple[Layer, ...], ids: torch.Tensor, empty_cache: Any
) -> bool:
    """Whether several tokens at once go on from recurrent state, instead of from none.

    Some models do so for single tokens alone. State that is changed beyond all measure must show.
    """
    layer = next((each for each in layers if _recurrent(each)), None)
    if layer is None:
        return True
    after = []
    for change in (0.0, 1e4):
        cache = empty_cache()
        keep_past(cache)
        run_piece(model, ids, 0, 3, cache)
        for index in _recurrent(layer):
            cache.layers[layer.index].recurrent_states[index].add_(change)
        run_piece(model, ids, 3, _TRIED, cache)
        states = cache.layers[layer.index].recurrent_states
        after.append(torch.cat([states[i].reshape(-1) for i in _recurrent(layer)]))
    return not torch.equal(*after)


def _recurrent(layer: Layer) -> list[int]:
    return [each.index for each in layer.fixed if each.attribute == "recurrent_states"]


def _held(cache: Any, layer: Layer) -> list[torch.Tensor]:
    held = cache.layers[layer.index]
    rows = [getattr(held, part.attribute) for part in layer.rows]
    fixed = [(getattr(held, part.attribute)[part.index], part) for part in layer.fixed]
    # A convolution that records its past has more.
    return [*rows, *(state[..., -part.shape[-1] :] for state, part in fixed)]


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.shape != other.shape:
        return float("inf")
    scale = one.float().norm().clamp(min=1e-20)
    return float((one.float() - other.float()).norm() / scale)
