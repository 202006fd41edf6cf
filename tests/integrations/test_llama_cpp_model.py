"""llama-cpp-python with real weights goes on from a state as if it had never stopped."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from support.llama_weights import llama, weights  # noqa: E402
from support.native import ROOT  # noqa: E402

from kvcache.errors import InvalidArgumentError  # noqa: E402
from kvcache.integrations.llama_cpp import LlamaDiskCache, LlamaRAMCache  # noqa: E402

FIRST = "Once upon a time there was a lighthouse keeper who lived alone on a small island. " * 3
OTHER = "The chemical elements are ordered by their atomic number. " * 3
QUESTION = " One evening a storm"


@pytest.fixture(scope="module")
def model() -> Any:
    return llama()


@pytest.fixture(params=["ram", "disk"])
def cache(request: pytest.FixtureRequest, model: Any, tmp_path: Path) -> Any:
    model.reset()
    if request.param == "ram":
        return LlamaRAMCache("64MiB", model=model)
    return LlamaDiskCache(tmp_path / "states", "64MiB", model=model)


def logits(model: Any) -> np.ndarray:
    return np.ctypeslib.as_array(model._ctx.get_logits(), shape=(model.n_vocab(),)).copy()


def go_on(model: Any, tokens: list[int], count: int = 12) -> tuple[list[int], list[np.ndarray]]:
    """Greedy tokens and the logits that each was taken from."""
    said, seen = [], []
    for token in model.generate(tokens, temp=0.0):
        said.append(token)
        seen.append(logits(model))
        if len(said) == count:
            break
    return said, seen


def complete(model: Any, text: str, tokens: int = 12, **options: Any) -> str:
    done = model.create_completion(text, max_tokens=tokens, temperature=0.0, **options)
    return str(done["choices"][0]["text"])


def test_greedy_tokens_and_logits_after_a_restore_are_those_of_no_interruption(
    model: Any, cache: Any
) -> None:
    first = model.tokenize(FIRST.encode())
    model.eval(first)
    cache[first] = model.save_state()
    turn = [*first, *model.tokenize(QUESTION.encode(), add_bos=False)]
    said, seen = go_on(model, turn)
    state = model.save_state()
    later = [*turn, *said, *model.tokenize(b" and then", add_bos=False)]
    uninterrupted = go_on(model, later)

    def check(tokens: list[int], known: int, expected: tuple[list[int], list[np.ndarray]]) -> None:
        model.reset()
        go_on(model, model.tokenize(OTHER.encode()), 3)
        model.load_state(cache[tokens])
        assert model.n_tokens == known
        restored = go_on(model, tokens)
        assert restored[0] == expected[0]
        assert len(expected[1]) == len(restored[1]) == 12
        for one, other in zip(restored[1], expected[1], strict=True):
            assert np.array_equal(one, other)

    check(turn, len(first), (said, seen))
    cache[[*turn, *said]] = state
    check(later, len(turn) + len(said) - 1, uninterrupted)


def test_completions_with_a_cache_say_what_they_say_without(model: Any, cache: Any) -> None:
    turns = [FIRST + QUESTION, OTHER, FIRST + QUESTION, FIRST + " Later", OTHER + "Gold"]
    model.set_cache(None)
    expected = []
    for text in turns:
        model.reset()
        expected.append(complete(model, text))
    model.set_cache(cache)
    model.reset()
    said = [complete(model, text) for text in turns]
    model.set_cache(None)
    assert said == expected
    stats = cache.stats()
    assert stats.hits == 3
    assert stats.misses == 2
    assert stats.stored == 5
    assert stats.hit_tokens > 120


def test_a_stream_is_stored_as_well(model: Any, cache: Any) -> None:
    model.set_cache(cache)
    for _ in model.create_completion(FIRST, max_tokens=4, temperature=0.0, stream=True):
        pass
    model.set_cache(None)
    assert cache.stats().stored == 1
    assert model.tokenize(FIRST.encode()) in cache


def test_drafts_that_are_stored_along_do_no_harm(tmp_path: Path) -> None:
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    plain, drafting = llama(), llama(draft_model=LlamaPromptLookupDecoding(num_pred_tokens=4))
    expected = [complete(plain, text, 8) for text in (FIRST, FIRST + OTHER)]
    cache = LlamaRAMCache("1GiB", model=drafting)
    drafting.set_cache(cache)
    said = [complete(drafting, text, 8) for text in (FIRST, OTHER, FIRST, FIRST + OTHER)]
    assert [said[0], said[2], said[3]] == [expected[0], *expected]
    assert cache.stats().hits >= 2


def test_scores_of_a_prompt_come_back_with_logits_all(tmp_path: Path) -> None:
    model = llama(logits_all=True, n_ctx=128)
    cache = LlamaDiskCache(tmp_path, "64MiB", model=model)
    short = FIRST[:80]
    options = {"logprobs": 2, "echo": True}
    model.set_cache(cache)
    first = model.create_completion(short, max_tokens=1, temperature=0.0, **options)
    model.reset()
    model.eval(model.tokenize(OTHER.encode())[:40])
    again = model.create_completion(short, max_tokens=1, temperature=0.0, **options)
    assert cache.stats().hits == 1
    one, other = (each["choices"][0]["logprobs"]["token_logprobs"] for each in (first, again))
    assert one[0] is None
    assert len(one) > 15
    # The last tokens ran again, alone: equal but for rounding.
    assert one[1:-2] == other[1:-2]
    assert np.allclose(one[-2:], other[-2:], atol=1e-3)


SECOND = """
import sys
sys.path.insert(0, sys.argv[1])
import json
from support.llama_weights import llama
from kvcache.integrations.llama_cpp import LlamaDiskCache

model = llama()
cache = LlamaDiskCache(sys.argv[2], "64MiB", model=model)
tokens = json.loads(sys.argv[3])
state = cache[tokens]
model.load_state(state)
said = []
for token in model.generate(tokens, temp=0.0):
    said.append(token)
    if len(said) == 12:
        break
print(json.dumps([state.n_tokens, said]))
"""


def test_a_new_process_goes_on_as_if_it_had_never_stopped(model: Any, tmp_path: Path) -> None:
    cache = LlamaDiskCache(tmp_path, "64MiB", model=model)
    model.reset()
    first = model.tokenize(FIRST.encode())
    model.eval(first)
    cache[first] = model.save_state()
    turn = [*first, *model.tokenize(QUESTION.encode(), add_bos=False)]
    expected, _ = go_on(model, turn)
    command = [sys.executable, "-c", SECOND, str(ROOT / "tests"), str(tmp_path), json.dumps(turn)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [len(first), expected]


def test_another_context_does_not_find_the_state(model: Any, tmp_path: Path) -> None:
    cache = LlamaDiskCache(tmp_path, model=model)
    model.reset()
    tokens = model.tokenize(OTHER.encode())
    model.eval(tokens)
    cache[tokens] = model.save_state()
    for options in ({"n_ctx": 256}, {"type_k": 8, "type_v": 8, "flash_attn": True}):
        other = llama(**options)
        assert tokens not in LlamaDiskCache(tmp_path, model=other)
    with pytest.raises(InvalidArgumentError, match="is of another model"):
        LlamaDiskCache(tmp_path, model=llama(n_ctx=256))[tokens] = model.save_state()
    assert tokens in LlamaDiskCache(tmp_path, model=llama(n_batch=256, n_ubatch=128, n_threads=2))


def test_a_class_derived_from_the_engines_is_the_same_model(model: Any, tmp_path: Path) -> None:
    class Derived(llama_cpp.Llama):
        pass

    model.reset()
    tokens = model.tokenize(OTHER.encode())
    model.eval(tokens)
    LlamaDiskCache(tmp_path, model=model)[tokens] = model.save_state()
    derived = Derived(str(weights()), n_ctx=512, n_batch=128, verbose=False)
    assert tokens in LlamaDiskCache(tmp_path, model=derived)
    full = llama(swa_full=False)  # no layer of it has a window
    LlamaDiskCache(tmp_path, model=full)[tokens] = model.save_state()
    assert tokens[:-2] in LlamaDiskCache(tmp_path, model=full)


def test_the_page_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = doctest.testfile(
        str(ROOT / "docs" / "llama_cpp.md"),
        module_relative=False,
        globs={"weights": str(weights())},
    )
    assert done.failed == 0
    assert done.attempted > 10
