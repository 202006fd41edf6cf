"""Prompt lookup for each decoded token, against vLLM's n-gram proposer and transformers' generator.

    PYTHONPATH=$VLLM:$TORCH:$NUMBA python benchmarks/speculate/prompt_lookup.py

All three look for the longest of 1..3 tokens at the end of the history and continue its earliest
occurrence; every proposal is compared. Ours observes the new token and finds; the others scan. The
last row of ours is what an engine calls with the options as they are: the latest occurrence of 2..4
tokens, and the adaptive window. Needs vllm, transformers, torch and numba.
"""

from __future__ import annotations

import argparse
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator
from vllm.v1.spec_decode.ngram_proposer import NgramProposer

import kvcache

if TYPE_CHECKING:
    from collections.abc import Callable

LEAST, MOST, DRAFTS = 1, 3, 8
VOCABULARY = 50_000


def random_text(tokens: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCABULARY, tokens).astype(np.int32)


def repetitive_text(tokens: int) -> np.ndarray:
    """A page of 500 tokens said again and again, with one token in twenty another one."""
    rng = np.random.default_rng(0)
    text = np.resize(rng.integers(0, VOCABULARY, 500), tokens)
    changed = rng.random(tokens) < 0.05
    text[changed] = rng.integers(0, VOCABULARY, int(changed.sum()))
    return text.astype(np.int32)


Propose = Any  # a function of how many tokens are known


def ours(text: np.ndarray, begin: int, **options: Any) -> tuple[kvcache.PromptLookupIndex, float]:
    """An index of the history, and the seconds that it took."""
    index = kvcache.PromptLookupIndex(max_drafts=DRAFTS, history_tokens=2 * text.size, **options)
    start = time.perf_counter()
    index.observe(text[:begin])
    return index, time.perf_counter() - start


def finding(index: kvcache.PromptLookupIndex, text: np.ndarray) -> Propose:
    def find(known: int) -> np.ndarray:
        index.observe(text[:known])
        return index.find()

    return find


def proposing(index: kvcache.PromptLookupIndex, text: np.ndarray) -> Propose:
    def propose(known: int) -> np.ndarray:
        if index.in_flight:
            index.settle(min(1, index.in_flight))  # the round before: all of one, or some
        index.observe(text[:known])
        return index.propose()

    return propose


def of_vllm(text: np.ndarray) -> Propose:
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(
            prompt_lookup_min=LEAST, prompt_lookup_max=MOST, num_speculative_tokens=DRAFTS
        ),
        model_config=SimpleNamespace(max_model_len=2 * text.size),
        scheduler_config=SimpleNamespace(max_num_seqs=1024),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
    proposer: Any = NgramProposer(config)
    row = text[None]

    def propose(known: int) -> list[int]:
        sampled = [[int(text[known - 1])]]
        [drafts] = proposer.propose(DRAFTS, sampled, np.array([known], np.int32), row)
        return drafts

    return propose


def of_transformers(text: np.ndarray) -> Propose:
    generator = PromptLookupCandidateGenerator(
        num_output_tokens=DRAFTS, max_matching_ngram_size=MOST, max_length=4 * text.size
    )
    ids = torch.from_numpy(text.astype(np.int64))[None]

    def propose(known: int) -> np.ndarray:
        candidates, _ = generator.get_candidates(ids[:, :known])
        return candidates[0, known:].numpy()

    return propose


def timed(propose: Propose, begin: int, end: int) -> tuple[float, list[list[int]]]:
    """Median of microseconds for each token, and what was proposed."""
    took, proposed = [], []
    for known in range(begin + 1, end):
        start = time.perf_counter()
        drafts = propose(known)
        took.append(time.perf_counter() - start)
        proposed.append([int(token) for token in drafts])
    return 1e6 * float(np.median(took)), proposed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300, help="tokens decoded after the history")
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    texts: dict[str, Callable[[int], np.ndarray]] = {
        "random": random_text,
        "repetitive": repetitive_text,
    }
    print(
        "| history | text | ours | window | vLLM | transformers | vLLM / ours "
        "| transformers / ours | prompt |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for history in (8 << 10, 128 << 10):
        for name, make in texts.items():
            text = make(history + steps + DRAFTS)
            end = history + steps
            lengths = {"min_match": LEAST, "max_match": MOST}
            index, prompt = ours(text, history, occurrence="earliest", **lengths)
            mine, expected = timed(finding(index, text), history, end)
            adaptive, _ = ours(text, history)
            windowed, _ = timed(proposing(adaptive, text), history, end)
            rows = [
                timed(make_peer(text), history, end) for make_peer in (of_vllm, of_transformers)
            ]
            for _, proposed in rows:
                assert proposed == expected, "the proposals differ"
            vllm, transformers = (micros for micros, _ in rows)
            print(
                f"| {history >> 10}k | {name} | {mine:.1f} us | {windowed:.1f} us "
                f"| {vllm:.1f} us | {transformers:.0f} us | {vllm / mine:.0f} "
                f"| {transformers / mine:.0f} | {1e3 * prompt:.1f} ms |"
            )


if __name__ == "__main__":
    main()
