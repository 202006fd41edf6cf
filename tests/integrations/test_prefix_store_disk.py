"""What a process has stored on disk, another one restores exactly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from support.native import ROOT  # noqa: E402
from support.tiny_transformers import CONFIGS, WINDOW, prompt, tiny_model  # noqa: E402
from support.transformers_runs import answer, go_on, insert, run, stored_answer  # noqa: E402

from kvcache import DiskTier  # noqa: E402
from kvcache.errors import InvalidArgumentError  # noqa: E402
from kvcache.integrations.transformers import PrefixStore  # noqa: E402

LENGTH = 70

# What the first process does with each model, in a directory of its own.
FIRST = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from support.tiny_transformers import CONFIGS, prompt, tiny_model
from support.transformers_runs import go_on, insert, run, stored_answer
from kvcache.integrations.transformers import PrefixStore

for name in CONFIGS:
    model = tiny_model(name)
    store = PrefixStore(model, memory="16MiB", disk=f"{sys.argv[2]}/{name}")
    ids = prompt(80, seed=4)
    live, found = store.lookup(ids, one_by_one=True)
    assert found == 0
    run(model, ids[:, :70], live)
    rows = [getattr(layer, "keys", None) for layer in live.layers]
    insert(store, ids[:, :70], live)
    stored_answer(model, store, prompt(50, seed=5))
    store.flush(60)
    torch.save((rows, go_on(model, ids, 70, live)), f"{sys.argv[2]}/{name}.pt")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("disk")
    command = [sys.executable, "-P", "-W", "ignore", "-c", FIRST, str(ROOT / "tests"), str(made)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return made


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_new_process_goes_on_where_the_last_one_stopped(name: str, folder: Path) -> None:
    model = tiny_model(name)
    store = PrefixStore(model, memory="16MiB", disk=folder / name)
    ids = prompt(80, seed=4)
    restored, found = store.lookup(ids, one_by_one=True)
    rows, expected = torch.load(folder / f"{name}.pt")
    for layer, keys in zip(restored.layers, rows, strict=True):
        if keys is not None:
            held = layer.keys.shape[2]
            assert held >= min(found, WINDOW - 1)
            assert torch.equal(layer.keys, keys[:, :, found - held : found])
    if store.has_fixed:
        assert found == LENGTH
        assert torch.equal(go_on(model, ids, LENGTH, restored), expected)
    else:  # whole blocks, and what windows need at a boundary
        assert found >= LENGTH // 16 * 16
    other = prompt(50, seed=5)
    assert torch.equal(stored_answer(model, store, other), answer(model, other))
    assert store.cache.disk is not None
    stats = store.cache.disk.stats()
    assert stats.fetched_tokens >= found + 48  # a window resumes one position early
    assert stats.damaged_records == 0


def test_other_weights_find_nothing_on_disk(tmp_path: Path) -> None:
    ids = prompt(40)
    tier = DiskTier(tmp_path / "tier", max_bytes="64MiB")
    first = PrefixStore(tiny_model("llama"), memory="16MiB", disk=tier)
    live, _ = first.lookup(ids)
    run(tiny_model("llama"), ids, live)
    insert(first, ids, live)
    first.flush()
    del first
    other = PrefixStore(tiny_model("llama", seed=1), memory="16MiB", disk=tier)
    assert other.lookup(ids)[1] == 0
    del other
    again = PrefixStore(tiny_model("llama"), memory="16MiB", disk=tier)
    assert again.lookup(ids)[1] == 32
    named = PrefixStore(tiny_model("llama"), memory="16MiB", weights="mine")
    with pytest.raises(InvalidArgumentError, match="made without it"):
        named.flush()
