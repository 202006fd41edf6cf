"""What an engine calls for each decoded token, from Python: through pybind11 and through Cython.

    python benchmarks/arena/bench_step.py --sequences 64 --prompt 2000 --steps 2000

One step is: declare the sampled token of each sequence, take pages, get the block table, and, when
the kernels have stored their rows, declare the position complete. Needs Cython and a C++ compiler.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import kvcache
from kvcache import _core

if TYPE_CHECKING:
    from collections.abc import Callable

HEADS, WIDTH, MEMORY = 8, 128, 4 << 30


def cython_module(folder: Path) -> Any:
    """step.pyx, built against the installed package."""
    [root] = [path for path in map(Path, kvcache.__path__) if (path / "lib/libkvcache.a").is_file()]
    pxd = next(path for path in map(Path, kvcache.__path__) if (path / "c.pxd").is_file()).parent
    source = folder / "step.c"
    target = folder / f"step{sysconfig.get_config_var('EXT_SUFFIX')}"
    pyx = Path(__file__).with_name("step.pyx")
    subprocess.run([sys.executable, "-m", "cython", "-3", "-I", pxd, "-o", source, pyx], check=True)
    include = [f"-I{sysconfig.get_path('include')}", f"-I{root / 'include'}"]
    flags = ["-O3", "-DNDEBUG", "-fPIC", "-shared"]
    subprocess.run(["gcc", *flags[:3], *include, "-c", source, "-o", folder / "step.o"], check=True)
    subprocess.run(
        ["g++", *flags, folder / "step.o", root / "lib/libkvcache.a", "-pthread", "-o", target],
        check=True,
    )
    spec = importlib.util.spec_from_file_location("step", target)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pybind_batch(prompts: np.ndarray) -> kvcache.Batch:
    declaration = kvcache.StateDecl(
        id="k",
        layer=0,
        component="attention.keys",
        kind=kvcache.StateKind.PAGED_KV,
        section=kvcache.Section.MAIN,
        dtype=kvcache.DType.F16,
        shape=(HEADS, WIDTH),
    )
    plan = kvcache.StatePlan([declaration], memory=MEMORY, sequences=len(prompts))
    cache = kvcache.Cache(plan)
    sequences = [cache.open(prompt) for prompt in prompts]
    for sequence in sequences:
        sequence.prepare(prompts.shape[1])
        sequence.advance(prompts.shape[1], in_place=True)
    return kvcache.Batch(sequences)


def of_batch(batch: kvcache.Batch, tokens: np.ndarray) -> Callable[[], None]:
    def step() -> None:
        batch.extend(tokens)
        batch.prepare()
        batch.block_table(0)
        batch.advance(in_place=True)

    return step


def of_core(batch: _core.Batch, tokens: np.ndarray) -> Callable[[], None]:
    def step() -> None:
        batch.extend(tokens, None)
        batch.prepare(None)
        batch.block_table(0)
        batch.advance(None, True)

    return step


def of_cython(batch: Any, tokens: np.ndarray) -> Callable[[], None]:
    def step() -> None:
        batch.extend(tokens)
        batch.prepare()
        batch.block_table(0)
        batch.advance()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    shape = (options.sequences, options.prompt)
    prompts = rng.integers(0, 1 << 17, shape).astype(np.int32)
    tokens = prompts[:, 0].copy()
    facade, bare = pybind_batch(prompts), pybind_batch(prompts)
    with tempfile.TemporaryDirectory() as folder:
        module = cython_module(Path(folder))
        args = (options.sequences, prompts, HEADS, WIDTH, MEMORY)
        cython, fused = module.Batch(*args), module.Batch(*args)
        variants = {
            "kvcache.Batch, four calls": of_batch(facade, tokens),
            "pybind11 alone, four calls": of_core(bare._core, tokens),
            "Cython, four calls": of_cython(cython, tokens),
            "Cython, one call": lambda: fused.step(tokens),
        }
        times: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(options.steps):  # side by side, so that all meet the same disturbances
            for name, step in variants.items():
                start = time.perf_counter()
                step()
                times[name].append(time.perf_counter() - start)
    print(f"{options.sequences} sequences, prompts of {options.prompt}, {options.steps} steps; us:")
    base = np.median(times["kvcache.Batch, four calls"])
    for name, seen in times.items():
        half, high = np.percentile(seen, [50, 99])
        print(f"  {name:28} median {half * 1e6:6.2f}  p99 {high * 1e6:7.2f}  {base / half:5.2f}x")


if __name__ == "__main__":
    main()
