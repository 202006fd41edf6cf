"""Public bug reports on saved prompt state, one test each."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from support.filled import MODELS, check, fill, make_cache, prompt, run, state
from support.saved import files_of, generation, put_byte, saved

from kvcache.errors import CorruptionError, UnsupportedError


@pytest.mark.parametrize("model", MODELS)
def test_the_same_prompt_twice_after_a_restart(tmp_path: Path, model: str) -> None:
    """Whallm issue 5 (2026): an entry one token short was stored on disk and failed ever after.

    https://github.com/yanun0323/Whallm/issues/5
    """
    tokens = prompt(33)
    cache = make_cache(model)
    fill(cache, tokens)
    cache.save(tmp_path / "p", tokens)
    for _ in range(2):
        cache = make_cache(model)
        assert cache.load(tmp_path / "p") == 33
        for _ in range(2):
            assert check(cache, tokens) == 32
        assert cache.save(tmp_path / "p", tokens, replace=True) == 33


@pytest.mark.parametrize("model", ["hybrid", "hybrid with windows", "recurrent only"])
def test_a_restored_hybrid_goes_on_where_it_was_saved(tmp_path: Path, model: str) -> None:
    """llama.cpp issue 25913 (2026): a restored slot had lost its checkpoints and ran everything.

    https://github.com/ggml-org/llama.cpp/issues/25913
    """
    tokens = prompt(50)
    cache = make_cache(model)
    fill(cache, tokens[:40])
    cache.save(tmp_path / "p", tokens[:40])
    fresh = make_cache(model)
    fresh.load(tmp_path / "p")
    with fresh.open(tokens) as sequence:
        assert sequence.cached_tokens == 40
        run(fresh, sequence, [50])
    assert check(fresh, np.append(tokens, 5)) == 50


def test_a_refused_file_leaves_no_state_behind(tmp_path: Path) -> None:
    """llama.cpp issue 27068 (2026): a damaged snapshot was refused after K/V was half written.

    https://github.com/ggml-org/llama.cpp/issues/27068
    """
    saved(tmp_path / "p")
    cache = make_cache("hybrid")
    tokens = prompt(30, seed=1)
    fill(cache, tokens)
    before = cache.stats()
    for file in files_of(generation(tmp_path / "p")):
        whole = file.read_bytes()
        at = len(whole) - 1
        put_byte(file, at, whole[at] ^ 0x10)
        with pytest.raises(CorruptionError, match=file.name):
            cache.load(tmp_path / "p")
        put_byte(file, at, whole[at])
        assert cache.stats() == before
    assert check(cache, np.append(tokens, 5)) == 30
    assert check(cache, prompt(22)) == 0
    with cache.open(prompt(22)) as sequence:
        assert not sequence.state(0, "state.recurrent").any()
        run(cache, sequence, [22])
    assert check(cache, np.append(prompt(22), 5)) == 22


def test_a_file_of_another_version_is_refused_by_its_version(tmp_path: Path) -> None:
    """home-ops pull request 9684 (2026): the layout changed and old files were read as new ones.

    https://github.com/joryirving/home-ops/pull/9684
    """
    saved(tmp_path / "p")
    old = generation(tmp_path / "p")
    content = json.loads((old / "manifest.json").read_text())
    text = json.dumps({"format": content["format"], "version": 7, "layout": "new"})
    (old / "manifest.json").write_text(text)
    name = f"generation-5-{hashlib.sha256(text.encode()).hexdigest()}"
    old.rename(old.parent / name)
    (tmp_path / "p" / "CURRENT").write_text(name + "\n")
    cache = make_cache("hybrid")
    with pytest.raises(UnsupportedError, match="version 7"):
        cache.load(tmp_path / "p")
    assert check(cache, prompt(22)) == 0
    assert cache.stats().pages == 0
    # What cannot be read can still be replaced.
    saved_again = make_cache("hybrid")
    fill(saved_again, prompt(22))
    saved_again.save(tmp_path / "p", prompt(22), replace=True)
    assert cache.load(tmp_path / "p") == 22


def test_every_part_of_a_composite_cache_is_restored(tmp_path: Path) -> None:
    """mlx-vlm pull request 1929 (2026): one kind of cache in a composite was not restored.

    https://github.com/Blaizzy/mlx-vlm/pull/1929
    """
    model = "hybrid with windows"
    saved(tmp_path / "p", model, 45)
    cache = make_cache(model)
    cache.load(tmp_path / "p")
    tokens = np.append(prompt(45), 5)
    with cache.open(tokens) as sequence:
        assert sequence.cached_tokens == 45
        for part in cache.plan.fixed:
            want = state(tokens[:45], part.layer, part.name)
            assert np.array_equal(sequence.state(part.layer, part.name), want)
    assert check(cache, tokens) == 45


@pytest.mark.parametrize("model", MODELS)
def test_the_structure_of_all_layers_survives(tmp_path: Path, model: str) -> None:
    """mlx-lm pull request 886 (2026): a list of caches in a list came back in another shape.

    https://github.com/ml-explore/mlx-lm/pull/886
    """
    saved(tmp_path / "p", model, 26)
    cache = make_cache(model)
    cache.load(tmp_path / "p")
    assert cache.save(tmp_path / "q", prompt(26)) == 26
    first, second = (
        [(file.name, file.read_bytes()) for file in files_of(generation(tmp_path / name))]
        for name in ("p", "q")
    )
    assert first == second
