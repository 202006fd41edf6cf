"""Time to first token of a prompt whose first 4096 tokens are known, by the ways there are to know.

python benchmarks/transformers/first_token.py [--threads 1] [--models smollm2 gemma3 lfm2]

Each model has random weights and the shape of a published one. In one run, alternating:
- prefill: the whole prompt,
- copy: a deep copy of a prefilled cache of transformers, and the rest of the prompt,
- memory: `PrefixStore.lookup`, and the rest,
- disk: the same from a store made anew over the first one's directory, whose memory is empty.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from kvcache import DiskTier
from kvcache.integrations.transformers import PrefixStore

SHAPES: dict[str, Any] = {
    "smollm2": lambda: transformers.LlamaConfig(  # SmolLM2-135M
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(  # Gemma 3 270M, a smaller vocabulary
        vocab_size=32768,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        sliding_window=512,
    ),
    "lfm2": lambda: transformers.Lfm2Config(  # LFM2-350M, a smaller vocabulary
        vocab_size=32768,
        hidden_size=1024,
        intermediate_size=4608,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=8,
        layer_types=[
            "full_attention" if layer in (2, 5, 8, 10, 12, 14) else "conv" for layer in range(16)
        ],
    ),
}


@torch.no_grad()
def first_token(model: Any, ids: torch.Tensor, cache: Any) -> torch.Tensor:
    return model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1).logits[0, -1]


def seconds(call: Any) -> tuple[float, torch.Tensor]:
    gc.collect()
    start = time.perf_counter()
    logits = call()
    return time.perf_counter() - start, logits


def measure(name: str, given: argparse.Namespace, folder: Path) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(SHAPES[name]()).eval()
    tier = DiskTier(folder / name, max_bytes="4GiB")
    store = PrefixStore(model, memory=given.memory, disk=tier)
    shared, total = given.tokens, given.tokens + given.rest
    ids = torch.randint(2, 32768, (1, total))

    prefilled, _ = store.lookup(ids)
    _, expected = seconds(lambda: first_token(model, ids[:, :shared], prefilled))
    stored_in, _ = seconds(lambda: torch.tensor(store.insert(ids[:, :shared], prefilled)))
    store.flush()
    expected = first_token(model, ids[:, shared:], copy.deepcopy(prefilled))
    taken: dict[str, list[float]] = {way: [] for way in ("prefill", "copy", "memory", "disk")}
    open_store = store

    def from_store() -> torch.Tensor:
        cache, found = open_store.lookup(ids)
        return first_token(model, ids[:, found:], cache)

    def note(way: str, call: Any, exact: bool = True) -> None:
        took, logits = seconds(call)
        taken[way].append(took)
        assert not exact or torch.equal(logits, expected), way

    for round_ in range(given.rounds):
        if round_ < given.prefills:
            note("prefill", lambda: first_token(model, ids, None), exact=False)
        note("copy", lambda: first_token(model, ids[:, shared:], copy.deepcopy(prefilled)))
        note("memory", from_store)
    for _ in range(given.prefills):
        del open_store, store
        gc.collect()
        store = open_store = PrefixStore(model, memory=given.memory, disk=tier)
        note("disk", from_store, exact=False)  # whole blocks, or a position earlier
    median = {way: statistics.median(times) * 1e3 for way, times in taken.items()}
    size = store.cache.plan.hit_bytes(shared) / 2**20
    print(
        f"| {name} | {size:.0f} MiB | {median['prefill']:.0f} | {median['copy']:.1f} |"
        f" {median['memory']:.1f} | {median['disk']:.1f} | {stored_in * 1e3:.0f} |"
        f" {median['prefill'] / median['memory']:.0f} | {median['copy'] / median['memory']:.2f} |"
        f" {median['prefill'] / median['disk']:.0f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--tokens", type=int, default=4096, help="known (%(default)s)")
    parser.add_argument("--rest", type=int, default=16, help="new (%(default)s)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--prefills", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory", default="1GiB")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print("| model | state | prefill ms | copy ms | memory ms | disk ms | insert ms |", end="")
    print(" prefill / memory | copy / memory | prefill / disk |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in given.models:
            measure(name, given, Path(folder))


if __name__ == "__main__":
    main()
