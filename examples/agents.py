"""Twenty agents with a tool each, who share a preamble of four thousand tokens.

    python examples/agents.py                       # a tiny model with random weights, offline
    python examples/agents.py --model PATH_OR_NAME  # a model of transformers, with its tokenizer

The end of the preamble is marked, so the second agent already begins there; the model has recurrent
layers, which can be resumed at such places alone. Prints the time to first token of each agent with
the store and, for the first few, without.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import transformers
from chat import load, timed

from kvcache.integrations.transformers import PrefixStore, generate

PREAMBLE = "Use the tools below when they help, one call at a time, and say what you found. " * 52
PREAMBLE_TOKENS = 4096


def tiny_model() -> Any:
    torch.manual_seed(0)
    config = transformers.Lfm2Config(
        vocab_size=258,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["conv", "conv", "full_attention"] * 2,
        max_position_embeddings=8192,
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.Lfm2ForCausalLM(config).eval()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="name or path of a model of transformers, or a GGUF file")
    parser.add_argument("--agents", type=int, default=20, help="how many (%(default)s)")
    parser.add_argument("--memory", default="1GiB", help="budget of the store (%(default)s)")
    parser.add_argument("--compare", type=int, default=2, help="agents also run without it")
    given = parser.parse_args(arguments)

    model, encode = load(given.model, tiny_model)
    store = PrefixStore(model, memory=given.memory)
    preamble = encode(PREAMBLE)
    preamble = (preamble * (PREAMBLE_TOKENS // len(preamble) + 1))[:PREAMBLE_TOKENS]
    options = {"max_new_tokens": 8, "do_sample": False}

    def with_store(*call: Any, **also: Any) -> Any:
        return generate(model, *call, store=store, marks=[PREAMBLE_TOKENS], **also)

    print("agent  prompt  known  with the store     without")
    for agent in range(given.agents):
        tool = f"Tool {agent}: looks up the tide tables of harbour number {agent * 37}."
        ids = torch.tensor([preamble + encode(tool)])
        known = store.cache.stats().cached_tokens
        output, fast = timed(with_store, ids, **options)
        known = store.cache.stats().cached_tokens - known
        line = f"{agent:5}  {ids.shape[1]:6}  {known:5}  {fast * 1e3:11.1f} ms"
        if agent < given.compare:
            plain, slow = timed(model.generate, ids, **options)
            if not torch.equal(output, plain):
                raise SystemExit("the tokens differ")
            line += f"  {slow * 1e3:8.1f} ms"
        print(line)


if __name__ == "__main__":
    main()
