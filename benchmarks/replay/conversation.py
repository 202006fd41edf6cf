"""The Mooncake conversation trace, whole: every restored byte checked, and the known LRU hit rates.

python benchmarks/replay/conversation.py conversation_trace.jsonl [--memory 2GiB]

The trace is published with Mooncake (FAST'25). The block hit rates of exact LRU over its 512-token
blocks are facts of the trace that other implementations get as well.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LRU_BLOCK_HIT_RATES = {10_000: 0.2116, 50_000: 0.3546}
TOLERANCE = 0.002


def replay(trace: Path, model: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "kvcache", "replay", "--json", "--trace", str(trace)]
    done = subprocess.run(
        [*command, "--model", str(HERE / model), *options], check=True, stdout=subprocess.PIPE
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--memory", default="2GiB")
    arguments = parser.parse_args()
    wrong = 0
    for form in ("f16", "int8"):
        options = ("--memory", arguments.memory, "--format", form)
        run = replay(arguments.trace, "qwen3_next_8_layers.json", *options)
        wrong += run["mismatches"] + (run["restored_bytes"] != run["verified_bytes"])
        print(
            f"real bytes, {form}: {run['requests']} requests, {run['prompt_tokens']} prompt tokens,"
            f" {run['verified_bytes']} bytes restored and verified, {run['mismatches']} mismatches,"
            f" token hit rate {run['token_hit_rate']:.4f}, {run['seconds']:.0f} s"
        )
    for blocks, known in LRU_BLOCK_HIT_RATES.items():
        ledger = ("--bytes", "none", "--block-tokens", "512", "--policy", "lru")
        run = replay(arguments.trace, "llama_block.json", *ledger, "--capacity-blocks", str(blocks))
        rate = run["block_hit_rate"]
        wrong += abs(rate - known) > TOLERANCE
        print(f"LRU of {blocks} blocks: block hit rate {rate:.4f}, known {known:.4f}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
