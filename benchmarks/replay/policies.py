"""Every eviction policy on a trace of 512-token blocks, beside LRU and a clairvoyant.

python benchmarks/replay/policies.py TRACE.jsonl [--policies lru,price_list] [--capacities 1000,...]

Checks what is known of the Mooncake conversation trace (FAST'25): the hits of exact LRU and of a
clairvoyant that evicts deepest first, and those of the price list simulated block by block. It
may not find more than .004 less than LRU at any capacity.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from kvcache.cache import policy_names
from kvcache.models import from_config
from kvcache.replay.compare import CLAIRVOYANT, compare
from kvcache.replay.comparison import comparison_table
from kvcache.replay.job import Job

MODEL = Path(__file__).with_name("llama_block.json")
CAPACITIES = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
CONVERSATION_BLOCKS = 288_500
KNOWN_RATES = {
    "lru": (0.0445, 0.0543, 0.1118, 0.2116, 0.2878, 0.3546),
    CLAIRVOYANT: (0.1907, 0.2550, 0.3412, 0.3664, 0.3664, 0.3664),
}
PRICE_LIST_HITS = (23_147, 32_105, 51_765, 68_957, 89_017, 104_977)
FLOOR = 0.004


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--policies", default=",".join(policy_names()))
    parser.add_argument("--capacities", default=",".join(map(str, CAPACITIES)))
    arguments = parser.parse_args()
    job = Job(
        model=from_config(MODEL),
        trace=arguments.trace,
        limit=None,
        memory=1 << 30,
        block_tokens=512,
        real_bytes=False,
    )
    capacities = [int(size) for size in arguments.capacities.split(",")]
    outcomes = compare(job, arguments.policies.split(","), capacities)
    Console(width=120).print(comparison_table(outcomes))
    rates = {(o.policy, o.capacity_blocks): o.block_hit_rate for o in outcomes}
    wrong = 0
    for size in capacities:
        short = rates["lru", size] - rates.get(("price_list", size), 1.0)
        if short > FLOOR:
            wrong += 1
            print(f"price_list at {size} blocks is {short:.4f} under LRU")
    if sum(outcomes[0].blocks) == CONVERSATION_BLOCKS:
        for place, size in enumerate(CAPACITIES):
            for policy, known in KNOWN_RATES.items():
                rate = rates.get((policy, size), known[place])
                if abs(rate - known[place]) > 1e-4:
                    wrong += 1
                    print(f"{policy} at {size} blocks: {rate:.4f}, known {known[place]:.4f}")
            known_rate = PRICE_LIST_HITS[place] / CONVERSATION_BLOCKS
            rate = rates.get(("price_list", size), known_rate)
            if abs(rate / known_rate - 1) > 0.01:
                wrong += 1
                print(f"price_list at {size} blocks: {rate:.4f}, simulated {known_rate:.4f}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
