"""A chat whose later turns compute only what is new, across restarts too.

    python examples/chat.py                       # a tiny model with random weights, offline
    python examples/chat.py --model PATH_OR_NAME  # a model of transformers, with its tokenizer
    python examples/chat.py --disk DIR            # keep the state there; run it twice

Prints the time to first token of each turn, with the store and with a plain `model.generate`, and
checks that the tokens are the same.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from kvcache.integrations.transformers import PrefixStore, generate

SAID = [
    "Tell me about the history of the lighthouse, and of those who kept it.",
    "How did they pass the winters?",
    "And who came after them?",
]
SYSTEM = "You are a patient guide who answers in full sentences. " * 40


class Bytes:
    """A tokenizer for the tiny model: one token a byte."""

    def __call__(self, text: str) -> list[int]:
        return [2 + byte for byte in text.encode()]


class FirstToken:
    """A streamer that notes when the first token comes."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.seconds: float | None = None
        self._prompt_seen = False

    def put(self, value: Any) -> None:
        """Called with the prompt, and then with each token."""
        del value
        if self._prompt_seen and self.seconds is None:
            self.seconds = time.perf_counter() - self.start
        self._prompt_seen = True

    def end(self) -> None:
        """Nothing to do."""


def tiny_model() -> Any:
    torch.manual_seed(0)
    config = transformers.Gemma3TextConfig(
        vocab_size=258,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        sliding_window=512,
        max_position_embeddings=8192,
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.Gemma3ForCausalLM(config).eval()


def load(name: str | None, tiny: Any = tiny_model) -> tuple[Any, Any]:
    """A model and what turns text into its tokens; of a GGUF file, which needs the package gguf."""
    if name is None:
        return tiny(), Bytes()
    options = {}
    if name.endswith(".gguf"):
        name, options = str(Path(name).parent), {"gguf_file": Path(name).name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(name, **options)
    model = transformers.AutoModelForCausalLM.from_pretrained(name, **options).eval()
    return model, lambda text: tokenizer(text, add_special_tokens=False).input_ids


def timed(call: Any, ids: torch.Tensor, **options: Any) -> tuple[torch.Tensor, float]:
    streamer = FirstToken()
    output = call(ids, attention_mask=torch.ones_like(ids), streamer=streamer, **options)
    return output, streamer.seconds or 0.0


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="name or path of a model of transformers, or a GGUF file")
    parser.add_argument("--disk", type=Path, help="directory to keep the state in")
    parser.add_argument("--memory", default="512MiB", help="budget of the store (%(default)s)")
    parser.add_argument("--tokens", type=int, default=16, help="of an answer (%(default)s)")
    given = parser.parse_args(arguments)

    model, encode = load(given.model)
    store = PrefixStore(model, memory=given.memory, disk=given.disk)
    options = {"max_new_tokens": given.tokens, "do_sample": False}
    history = encode(SYSTEM)
    print("turn  prompt  known  with the store   without")
    for turn, text in enumerate(SAID, 1):
        history += encode(text)
        ids = torch.tensor([history])
        known = store.cache.stats().cached_tokens
        output, fast = timed(lambda *a, **k: generate(model, *a, store=store, **k), ids, **options)
        known = store.cache.stats().cached_tokens - known
        plain, slow = timed(model.generate, ids, **options)
        if not torch.equal(output, plain):
            raise SystemExit("the tokens differ")
        print(f"{turn:4}  {len(history):6}  {known:5}  {fast * 1e3:11.1f} ms  {slow * 1e3:6.1f} ms")
        history = output[0].tolist()
    if given.disk is not None:
        store.flush()
        print(f"kept in {given.disk}: run this again, and the first turn is known as well")


if __name__ == "__main__":
    main()
