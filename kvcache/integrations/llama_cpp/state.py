"""What is kept of a `llama_cpp.LlamaState`, and a state made of it again."""

from __future__ import annotations

import functools
import importlib
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcache._arguments import as_count, as_tokens
from kvcache.errors import InvalidArgumentError
from kvcache.integrations.llama_cpp.token_trie import common_length

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcache.integrations.llama_cpp.identity import ModelFacts

__all__ = ["MOST_TOKENS", "LlamaState", "Record", "as_record"]

_INT64 = np.iinfo(np.int64)
_COUNT_MAX = 2**32 - 1  # in a file
MOST_TOKENS = 1 << 28
_NO_TOKEN = -1


@dataclass(slots=True)
class LlamaState:
    """What `llama_cpp.LlamaState` is, where llama-cpp-python is not installed."""

    input_ids: NDArray[np.intc]
    scores: NDArray[np.single]
    n_tokens: int
    llama_state: bytes
    llama_state_size: int
    seed: int


@functools.cache
def _state_class() -> Any:
    try:
        return importlib.import_module("llama_cpp.llama").LlamaState
    except ImportError:
        return LlamaState


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A state without what its restorer would not read."""

    tokens: NDArray[np.int32]  #: that it has seen
    context: int  #: elements of the model's ``input_ids``
    vocabulary: int  #: columns of its ``scores``
    scores: NDArray[np.float32] | None  #: ``[tokens, vocabulary]``, where the model keeps any
    seed: int
    blob: bytes  #: llama.cpp's own

    def state(self) -> Any:
        """The state that `Llama.load_state` takes.

        It fills ``input_ids`` behind the tokens with what is no token, so that nothing there
        counts as shared with a prompt. Scores that were not kept are one row of zeros.
        """
        input_ids = np.full(self.context, _NO_TOKEN, np.intc)
        input_ids[: len(self.tokens)] = self.tokens
        scores = self.scores
        if scores is None:
            scores = np.zeros((1, self.vocabulary), np.single)
        return _state_class()(
            input_ids=input_ids,
            scores=scores,
            n_tokens=len(self.tokens),
            llama_state=self.blob,
            llama_state_size=len(self.blob),
            seed=self.seed,
        )


def as_record(key: NDArray[np.int32], state: Any, facts: ModelFacts) -> Record:
    """What is to be kept of a state that the tokens ``key`` led to.

    Raises:
        InvalidArgumentError: what is no state, or not one of this model, or of other tokens.
    """
    names = ("input_ids", "scores", "n_tokens", "llama_state", "llama_state_size", "seed")
    if missing := [name for name in names if not hasattr(state, name)]:
        raise InvalidArgumentError(
            f"state: expected a llama_cpp.LlamaState, {type(state).__name__} has no {missing[0]}"
        )
    input_ids = as_tokens(state.input_ids, "state.input_ids")
    most = min(len(input_ids), MOST_TOKENS)
    length = as_count(state.n_tokens, "state.n_tokens", least=1, most=most)
    tokens = input_ids[:length].copy()
    if common_length(key, tokens) < min(len(key), length) - 1:  # the last one may be a draft's
        raise InvalidArgumentError(
            f"state: has seen other tokens than the key's from {common_length(key, tokens)} on"
        )
    scores = _scores(state.scores, length, facts.logits_all)
    vocabulary = state.scores.shape[1]
    for name, found, expected in [
        ("input_ids", len(input_ids), facts.context),
        ("scores", vocabulary, facts.vocabulary),
    ]:
        if expected is not None and found != expected:
            raise InvalidArgumentError(
                f"state.{name}: is of another model: {found} wide, expected {expected}"
            )
    as_count(len(input_ids), "state.input_ids", most=_COUNT_MAX)
    as_count(vocabulary, "state.scores: columns", least=1, most=_COUNT_MAX)
    return Record(tokens, len(input_ids), vocabulary, scores, _seed(state.seed), _blob(state))


def _scores(scores: Any, length: int, logits_all: bool | None) -> NDArray[np.float32] | None:
    """The scores that the model has written and may read again.

    It writes a row for each token with ``logits_all``, else none. Not knowing which, whatever has
    a row for each token is kept.
    """
    if getattr(scores, "ndim", 0) != 2 or getattr(scores, "dtype", None) != np.float32:
        raise InvalidArgumentError(
            "state.scores: expected float32 [rows, vocabulary], got"
            f" {getattr(scores, 'dtype', type(scores).__name__)} {getattr(scores, 'shape', '')}"
        )
    rows = len(scores)
    if logits_all and rows != length:
        raise InvalidArgumentError(
            f"state.scores: expected a row for each of {length} tokens, got {rows}"
        )
    if logits_all is False or rows != length:
        return None
    kept = np.ascontiguousarray(scores).view()  # of the state: `Llama.save_state` gives it away
    kept.setflags(write=False)
    return kept


def _seed(seed: Any) -> int:
    try:
        number = operator.index(seed)
    except TypeError:
        raise InvalidArgumentError(f"state.seed: expected an integer, got {seed!r}") from None
    if not _INT64.min <= number <= _INT64.max:
        raise InvalidArgumentError(f"state.seed: must fit 64 bits, got {number}")
    return number


def _blob(state: Any) -> bytes:
    try:
        held = len(memoryview(state.llama_state).cast("B"))
    except TypeError:
        raise InvalidArgumentError(
            f"state.llama_state: expected bytes, got {type(state.llama_state).__name__}"
        ) from None
    size = as_count(state.llama_state_size, "state.llama_state_size", most=held)
    if type(state.llama_state) is bytes and size == held:
        return state.llama_state
    return bytes(memoryview(state.llama_state).cast("B")[:size])
