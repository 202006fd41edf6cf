"""Greedy decoding with drafts from the prompt itself, token for token what plain decoding says.

    python examples/prompt_lookup.py                       # a tiny model, offline
    python examples/prompt_lookup.py --model PATH_OR_NAME --text FILE

Drafts come from a `kvcache.PromptLookupIndex`, one forward pass judges all of them, and the cache
of transformers takes back those that the model would not have said. The prompt starts from a prefix
store and what was said goes into it, so a follow-up begins where this ended. For models whose cache
can take positions back: attention, full or sliding.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from chat import load

from kvcache import PromptLookupIndex
from kvcache.integrations.transformers import PrefixStore

TEXT = (
    "def area(shape):\n    return shape.width * shape.height\n\n"
    "def perimeter(shape):\n    return 2 * (shape.width + shape.height)\n\n"
) * 6
ASK = "The same again, with every shape renamed to figure:\n\ndef area("


@torch.no_grad()
def decode(model: Any, store: PrefixStore, ids: torch.Tensor, count: int) -> tuple[list[int], int]:
    """``count`` greedy tokens after a prompt, and the forward passes they took."""
    index = PromptLookupIndex(max_drafts=8, occurrence="repeating")
    index.extend(ids[0].numpy())
    cache, known = store.lookup(ids)

    def picks(tokens: torch.Tensor) -> list[int]:
        return model(tokens, cache=cache, use_cache=True).logits[0].argmax(-1).tolist()

    said, runs = [picks(ids[:, known:])[-1]], 1
    store.insert(ids, cache)  # before drafts are taken back, which narrows windows
    while len(said) < count:
        index.extend(said[-1:])
        drafts = index.propose(count - len(said) - 1).tolist()
        chosen = picks(torch.tensor([[said[-1], *drafts]]))
        runs += 1
        agreed = 0  # the longest run of drafts that the model would have said itself
        while agreed < len(drafts) and drafts[agreed] == chosen[agreed]:
            agreed += 1
        cache.crop(agreed - len(drafts))
        if drafts:
            index.settle(agreed)
        index.extend(drafts[:agreed])
        said += [*drafts[:agreed], chosen[agreed]]
    store.insert(torch.cat([ids, torch.tensor([said])], dim=1), cache)
    return said, runs


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="name or path of a model of transformers, or a GGUF file")
    parser.add_argument("--text", type=Path, help="a prompt that the answer will quote")
    parser.add_argument("--tokens", type=int, default=96, help="of the answer (%(default)s)")
    given = parser.parse_args(arguments)

    model, encode = load(given.model)
    ids = torch.tensor([encode(given.text.read_text() if given.text else TEXT + ASK)])
    store = PrefixStore(model, memory="512MiB")
    start = time.perf_counter()
    said, runs = decode(model, store, ids, given.tokens)
    middle = time.perf_counter()
    options = {"max_new_tokens": given.tokens, "min_new_tokens": given.tokens}
    plain = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **options)
    end = time.perf_counter()
    if said != plain[0, ids.shape[1] :].tolist():
        raise SystemExit("the tokens differ")
    print(f"{len(said)} equal tokens in {runs} forward passes instead of {len(said)}")
    print(f"{middle - start:.2f} s with drafts, {end - middle:.2f} s without")
    _, known = store.lookup(torch.cat([plain, plain[:, -1:]], dim=1))
    print(f"a follow-up begins at {known} of {plain.shape[1]} tokens")


if __name__ == "__main__":
    main()
