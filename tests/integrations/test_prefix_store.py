"""State restored from a `PrefixStore` is that of the run that stored it, to the last bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from support.tiny_transformers import CONFIGS, ROUNDING, WINDOW, prompt, tiny_model  # noqa: E402
from support.transformers_runs import (  # noqa: E402
    answer,
    go_on,
    insert,
    next_turn,
    run,
    stored_answer,
)

from kvcache.integrations.transformers import PrefixStore  # noqa: E402

# Around the edges of blocks of 16 positions and of windows.
LENGTHS = [1, 15, 16, 17, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 3]
MODELS = sorted(CONFIGS)
# One of each way of keeping state, for what does not depend on the family.
KINDS = [
    "llama",
    "gemma3_text",
    "qwen3_next",
    "mamba2",
    "falcon_h1",
    "gemma3n_text",
    "deepseek_v32",
    "inkling2_text",
]
RECURRENT = ("qwen3_next", "mamba2", "falcon_h1", "inkling2_text")


def store_of(model: Any, **options: Any) -> PrefixStore:
    return PrefixStore(model, **{"memory": "64MiB", **options})


@pytest.mark.parametrize("name", MODELS)
def test_going_on_from_a_restored_prefix_equals_never_having_stopped(name: str) -> None:
    model = tiny_model(name)
    for length in LENGTHS:
        store = store_of(model)
        ids = prompt(length + 9, seed=length)
        live, found = store.lookup(ids, one_by_one=True)
        assert found == 0
        run(model, ids[:, :length], live)
        assert insert(store, ids[:, :length], live) == length
        restored, found = store.lookup(ids, one_by_one=True)
        assert found == length
        got, expected = (go_on(model, ids, length, cache) for cache in (restored, live))
        assert torch.equal(got, expected), length


@pytest.mark.parametrize("name", MODELS)
def test_turns_of_two_conversations_equal_plain_generation(name: str) -> None:
    model = tiny_model(name, **ROUNDING.get(name, {}))
    store = store_of(model)
    said = [prompt(length, seed=length) for length in (2 * WINDOW - 1, 33)]
    for turn in range(3):
        for which, ids in enumerate(said):
            before = store.cache.stats().cached_tokens
            got = stored_answer(model, store, ids)
            assert torch.equal(got, answer(model, ids))
            cached = store.cache.stats().cached_tokens - before
            assert cached == (0 if turn == 0 else ids.shape[1] - 11 - 1)
            said[which] = next_turn(got, seed=10 * turn + which)


@pytest.mark.parametrize("name", KINDS)
def test_what_was_evicted_is_computed_again(name: str) -> None:
    model = tiny_model(name, **ROUNDING.get(name, {}))
    store = store_of(model)
    conversations = 2.5 if store.has_fixed else 1.1
    store.cache.resize(int(conversations * store.cache.plan.sequence_bytes(96, 96)))
    said = [prompt(60, seed=seed) for seed in range(6)]
    for turn in range(2):
        for which, ids in enumerate(said):
            got = stored_answer(model, store, ids)
            assert torch.equal(got, answer(model, ids))
            said[which] = next_turn(got, seed=10 * turn + which)
    stats = store.cache.stats()
    assert stats.evicted_blocks + stats.evicted_snapshots > 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", KINDS[:-1])  # Inkling 2 mixes elements, and does not run
def test_models_of_half_precision_are_restored_exactly(name: str, dtype: str) -> None:
    model = tiny_model(name, getattr(torch, dtype))
    store = store_of(model)
    ids = prompt(50, seed=3)
    live, _ = store.lookup(ids)
    run(model, ids[:, :41], live)
    assert insert(store, ids[:, :41], live) == 41
    restored, found = store.lookup(ids)
    assert found == 41
    assert torch.equal(go_on(model, ids, 41, restored), go_on(model, ids, 41, live))


@pytest.mark.parametrize("name", [each for each in KINDS if each not in RECURRENT])
def test_a_prefix_of_what_was_stored_is_found(name: str) -> None:
    model = tiny_model(name, **ROUNDING.get(name, {}))
    store = store_of(model)
    ids = prompt(80, seed=5)
    live, _ = store.lookup(ids)
    insert(store, ids, _run_all(model, ids, live))
    other = torch.cat([ids[:, :70], prompt(20, seed=6)], dim=1)
    restored, found = store.lookup(other)
    assert found == 70
    plain, _ = store_of(model).lookup(other)
    run(model, other[:, :70], plain)
    got, expected = (go_on(model, other, 70, cache) for cache in (restored, plain))
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
    assert torch.equal(got.argmax(-1), expected.argmax(-1))


def _run_all(model: Any, ids: Any, cache: Any) -> Any:
    run(model, ids, cache)
    return cache


@pytest.mark.parametrize("name", KINDS)
def test_a_marked_system_prompt_is_reused_by_the_first_prompt_that_shares_it(name: str) -> None:
    model = tiny_model(name, **ROUNDING.get(name, {}))
    store = store_of(model)
    system = prompt(70, seed=7)
    for seed in (1, 2, 3):
        ids = torch.cat([system, prompt(9, seed)], dim=1)
        before = store.cache.stats().cached_tokens
        got = stored_answer(model, store, ids, marks=[70])
        assert torch.equal(got, answer(model, ids))
        assert store.cache.stats().cached_tokens - before == (0 if seed == 1 else 70)


@pytest.mark.parametrize("name", KINDS)
def test_a_cache_that_was_not_changed_by_its_storing(name: str) -> None:
    model = tiny_model(name, **ROUNDING.get(name, {}))
    store = store_of(model)
    ids = prompt(60, seed=8)
    live, _ = store.lookup(ids)
    run(model, ids[:, :40], live)
    untouched = copy.deepcopy(live)
    insert(store, ids[:, :40], live)
    again = insert(store, ids[:, :40], live)
    assert again == 40
    assert torch.equal(go_on(model, ids, 40, live), go_on(model, ids, 40, untouched))
