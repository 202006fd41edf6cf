"""What a replay without arguments serves: a small hybrid model and a generated chat trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvcache.replay.trace import Request

__all__ = ["DEMO_MODEL", "generate_trace"]

# A Qwen3-Next in miniature: every fourth layer attends, the others are gated delta nets.
DEMO_MODEL: dict[str, Any] = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 8,
    "full_attention_interval": 4,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_key_head_dim": 32,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 32768,
    "vocab_size": 32000,
}
_VOCABULARY = 32_000


@dataclass(slots=True)
class _Conversation:
    system: int  # positions of the system prompt
    history: list[int]  # token ids of everything said so far
    question: int = 0  # where the last question starts
    turns_left: int = 0
    ready_ms: float = field(default=0.0)


def generate_trace(
    *, seed: int = 0, conversations: int = 96, applications: int = 5
) -> list[Request]:
    """Multi-turn chats of a few applications, interleaved in time and reproducible from `seed`.

    All chats of one application share its system prompt. Each turn's prompt is the whole history
    with the recorded answers; now and then a user has an answer generated anew, or edits the last
    question, so that the chat branches.
    """
    rng = np.random.default_rng(seed)
    systems = [_words(rng, 300, 1500) for _ in range(applications)]
    chats = []
    for index in range(conversations):
        system = systems[int(rng.integers(applications))]
        chat = _Conversation(len(system), list(system), ready_ms=index * 2000.0)
        chat.turns_left = int(rng.integers(1, 9))
        _ask(rng, chat)
        chats.append(chat)
    requests: list[Request] = []
    while chats:
        chat = min(chats, key=lambda other: other.ready_ms)
        answer = _words(rng, 20, 250)
        requests.append(
            Request(
                number=len(requests),
                timestamp_ms=round(chat.ready_ms),
                input_length=len(chat.history),
                output_length=len(answer),
                source=np.array(chat.history, dtype=np.int32),
                answer=np.array(answer, dtype=np.int32),
                stops=(chat.system, chat.question),
            )
        )
        _continue(rng, chat, answer)
        if chat.turns_left == 0:
            chats.remove(chat)
    return requests


def _continue(rng: np.random.Generator, chat: _Conversation, answer: list[int]) -> None:
    chat.turns_left -= 1
    chat.ready_ms += float(rng.exponential(30_000.0))
    choice = rng.random()
    if choice < 0.1:  # regenerate: the same prompt once more
        return
    if choice < 0.2:  # edit: another question in the place of the last
        del chat.history[chat.question :]
    else:
        chat.history.extend(answer)
    _ask(rng, chat)


def _ask(rng: np.random.Generator, chat: _Conversation) -> None:
    chat.question = len(chat.history)
    chat.history.extend(_words(rng, 20, 400))


def _words(rng: np.random.Generator, low: int, high: int) -> list[int]:
    words: list[int] = rng.integers(_VOCABULARY, size=int(rng.integers(low, high))).tolist()
    return words
