"""What both caches of llama.cpp states promise: they find, restore, refuse and count alike."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forked import in_child
from support.llama_states import CONTEXT, VOCABULARY, Model, is_restored, state

from kvcache.errors import InvalidArgumentError, KVCacheError, KVCacheIOError, UnsupportedError
from kvcache.integrations.llama_cpp import LlamaDiskCache, LlamaRAMCache, PrefixNotFoundError

Make = Callable[..., Any]


@pytest.fixture(params=["ram", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def made(capacity: Any = "1MiB", model: Any = "m", **options: Any) -> Any:
        if request.param == "ram":
            return LlamaRAMCache(capacity, model=model, **options)
        return LlamaDiskCache(tmp_path / "states", capacity, model=model, **options)

    return made


def test_what_is_found_restores_what_was_saved(make: Make) -> None:
    cache, saved = make(), state(range(20))
    cache[[*range(20), 5]] = saved  # the last token that was sampled has not run yet
    found = cache[[*range(20), 9, 9]]
    assert is_restored(found, saved)
    assert type(found) is type(saved)
    # Nothing behind the tokens counts as shared with a prompt.
    assert not np.isin(found.input_ids[20:], range(VOCABULARY)).any()
    model_scores = np.ones((16, VOCABULARY), np.float32)
    model_scores[: found.n_tokens, :] = found.scores.copy()  # what load_state does


def test_an_empty_cache_is_true_or_the_engine_would_not_use_it(make: Make) -> None:
    assert bool(make())


def test_scores_are_kept_where_the_model_writes_them(make: Make) -> None:
    saved = state(range(20), logits_all=True)
    for logits_all in (True, None):
        cache = make(model=f"m{logits_all}", logits_all=logits_all)
        cache[range(20)] = saved
        assert np.array_equal(cache[range(20)].scores, saved.scores)
    cache = make(logits_all=False)
    cache[range(20)] = saved
    assert not cache[range(20)].scores.any()
    batch = state(range(20))  # as many rows as a batch has, never written
    cache = make(model="no rows")
    cache[range(20)] = batch
    assert cache[range(20)].scores.nbytes < batch.scores.nbytes


def test_the_longest_prefix_wins_and_of_several_the_shortest_state(make: Make) -> None:
    cache = make()
    states = [[1], [1, 2, 3, 4, 5, 6], [1, 2, 3, 9], [2, 2]]
    for tokens in states:
        cache[tokens] = state(tokens)
    for query, expected in [
        ([1], [1]),
        ([1, 8], [1]),
        ([1, 2], [1, 2, 3, 9]),
        ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6]),
        ([1, 2, 3, 9, 9, 9], [1, 2, 3, 9]),
        ([2, 5], [2, 2]),
    ]:
        assert cache._find_longest_prefix_key(query) == tuple(expected)
        assert cache[query].input_ids[: len(expected)].tolist() == expected
        assert query in cache


def test_a_miss_is_the_key_error_that_the_engine_expects(make: Make) -> None:
    cache = make()
    cache[[1, 2]] = state([1, 2])
    assert [3] not in cache
    assert [] not in cache
    assert cache._find_longest_prefix_key([3]) is None
    with pytest.raises(KeyError) as raised:
        cache[[3, 4, 5]]
    assert isinstance(raised.value, PrefixNotFoundError)
    assert isinstance(raised.value, KVCacheError)
    assert str(raised.value) == "no stored state begins like these 3 tokens"


def test_a_state_that_cannot_be_cut_serves_only_what_goes_on_from_its_end(make: Make) -> None:
    cache = make(partial_hits=False)
    for count in (4, 8):
        cache[range(count)] = state(range(count))
    cache[[0, 1, 2, 3, 4, 5, 9]] = state([0, 1, 2, 3, 4, 5, 9])
    assert cache[range(7)].n_tokens == 4
    assert cache[range(8)].n_tokens == 4  # its last token has to run
    assert cache[range(9)].n_tokens == 8
    assert [0, 1, 2, 9] not in cache
    assert range(4) not in cache


def test_the_budget_holds_before_a_state_is_stored_and_the_oldest_use_goes_first(
    make: Make,
) -> None:
    cache = make(10_000 + 3 * 4096, model="m")
    seen = []
    for first in range(12):
        if first > 1:
            cache[[1, 9]]  # used: stays
        cache[[first, 2, 3]] = state([first, 2, 3], size=3000)
        seen.append(cache.cache_size)
        assert 3000 * min(first + 1, 3) < cache.cache_size <= cache.capacity_bytes
    assert [1, 2] in cache
    assert [2, 2] not in cache
    stats = cache.stats()
    assert stats.stored == 12
    assert stats.evicted == 12 - stats.states > 4
    assert stats.used_bytes == cache.cache_size == seen[-1]


def test_a_state_of_the_same_tokens_is_replaced(make: Make) -> None:
    cache = make()
    cache[[1, 2, 3]] = state([1, 2, 3])
    again = state([1, 2, 3], seed=5, llama_state=b"x" * 700, llama_state_size=700)
    cache[[1, 2, 3]] = again
    assert is_restored(cache[[1, 2, 3]], again)
    assert cache.stats().states == 1
    assert cache.stats().replaced == 1
    assert 700 < cache.cache_size < 1000 + 4096


def test_what_is_too_large_is_not_stored_and_costs_nothing_else(make: Make) -> None:
    cache = make(20_000)
    cache[[1, 2]] = state([1, 2])
    with pytest.warns(UserWarning, match=r"capacity_bytes=19\.5 KiB"):
        cache[[3, 4]] = state([3, 4], size=30_000)
    cache[[5, 6]] = state([5, 6], size=30_000)  # warned of once
    assert [3] not in cache
    assert [1] in cache
    assert cache.stats().refused == 2


def test_a_state_that_llama_cpp_could_not_save_is_not_stored(make: Make) -> None:
    cache = make()
    with pytest.warns(UserWarning, match="0 bytes"):
        cache[[1, 2]] = state([1, 2], size=0)
    assert [1, 2] not in cache
    assert cache.stats().refused == 1


def test_only_the_bytes_that_the_state_says_are_kept(make: Make) -> None:
    cache = make()
    cache[[1, 2]] = state([1, 2], llama_state=bytearray(b"abcdef"), llama_state_size=4)
    assert cache[[1, 2]].llama_state == b"abcd"


def test_the_bytes_that_count_are_those_that_memory_holds() -> None:
    long = np.random.default_rng(0).integers(0, 2, (200, 40)).tolist()
    tracemalloc.start()
    try:
        cache = LlamaRAMCache("400KiB")
        before = tracemalloc.get_traced_memory()[0]
        for tokens in long:
            cache[tokens] = state(tokens, size=5000)
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] - before <= cache.cache_size <= 400 << 10
    finally:
        tracemalloc.stop()
    assert cache.stats().evicted > 100


def test_counters_tell_lookups_and_tokens(make: Make) -> None:
    cache = make()
    cache[range(10)] = state(range(10))
    cache[[0, 1, 2, 9]]
    with pytest.raises(KeyError):
        cache[[9]]
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.asked_tokens, stats.hit_tokens) == (1, 1, 5, 3)
    assert (stats.states, stats.capacity_bytes) == (1, 1 << 20)
    cache.clear()
    assert cache.stats().states == cache.cache_size == 0
    assert range(10) not in cache


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"capacity": 0}, "capacity_bytes"),
        ({"capacity": "lots"}, "capacity_bytes"),
        ({"capacity": True}, "capacity_bytes"),
        ({"capacity": float("nan")}, "capacity_bytes"),
        ({"capacity": 2**64}, "capacity_bytes"),
        ({"model": 5}, "model: expected a llama_cpp.Llama"),
        ({"model": None}, "model: expected a llama_cpp.Llama"),
        ({"model": "\ud800"}, "model"),
        ({"logits_all": 1}, "logits_all"),
        ({"partial_hits": "no"}, "partial_hits"),
    ],
)
def test_wrong_options_are_named(make: Make, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        make(**options)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"input_ids": np.zeros((2, 2), np.intc)}, "state.input_ids"),
        ({"input_ids": None}, "state.input_ids"),
        ({"n_tokens": 0}, r"state.n_tokens: must be 1\.\.64, got 0"),
        ({"n_tokens": CONTEXT + 1}, "state.n_tokens"),
        ({"n_tokens": True}, "state.n_tokens"),
        ({"scores": None}, "state.scores: expected float32"),
        ({"scores": np.zeros((3, VOCABULARY))}, "state.scores: expected float32"),
        ({"scores": np.zeros(3, np.float32)}, "state.scores: expected float32"),
        ({"scores": np.zeros((3, 0), np.float32)}, "state.scores: columns"),
        ({"llama_state": "text"}, "state.llama_state: expected bytes"),
        ({"llama_state_size": 1001}, r"state.llama_state_size: must be 0\.\.1000, got 1001"),
        ({"llama_state_size": -1}, "state.llama_state_size"),
        ({"seed": 2**63}, "state.seed"),
        ({"seed": 1.5}, "state.seed"),
    ],
)
def test_what_is_no_state_is_refused_and_nothing_changes(
    make: Make, change: dict[str, Any], text: str
) -> None:
    cache = make()
    cache[[1, 2, 3]] = state([1, 2, 3])
    with pytest.raises(InvalidArgumentError, match=text):
        cache[[1, 2, 4]] = state([1, 2, 4], **change)
    assert cache.stats().states == cache.stats().stored == 1
    assert is_restored(cache[[1, 2, 4]], state([1, 2, 3]))


def test_a_state_of_other_tokens_than_its_key_is_refused(make: Make) -> None:
    cache = make()
    cache[[1, 2, 3, 4]] = state([1, 2, 3])
    cache[[1, 2, 3, 8]] = state([1, 2, 3, 9, 9])  # drafts that nobody compared
    with pytest.raises(InvalidArgumentError, match="other tokens than the key's from 1 on"):
        cache[[1, 9, 3]] = state([1, 2, 3])
    with pytest.raises(InvalidArgumentError, match="int has no input_ids"):
        cache[[1, 2]] = 5
    assert cache.stats().states == 2


@pytest.mark.parametrize("key", [5, "text", [1.5], [2**31], [[1]], None])
def test_what_are_no_tokens_is_refused(make: Make, key: Any) -> None:
    cache = make()
    for call in (
        cache.__getitem__,
        cache.__contains__,
        cache._find_longest_prefix_key,
        lambda key: cache.__setitem__(key, state([1])),
    ):
        with pytest.raises(InvalidArgumentError, match="key"):
            call(key)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork() beside threads
def test_a_child_of_fork_is_told_to_make_its_own(make: Make) -> None:
    cache = make()
    cache[[1]] = state([1])
    for call in (lambda: cache[[1]], lambda: [1] in cache, cache.stats, cache.clear):
        assert "made before fork()" in in_child(call)
    assert "made before fork()" in in_child(lambda: cache.__setitem__([1], state([1])))
    assert [1] in cache


def test_threads_find_only_what_was_stored(make: Make) -> None:
    cache = make(40_000)
    wrong: list[Any] = []

    def work(worker: int) -> None:
        random = np.random.default_rng(worker)
        for _ in range(40):
            tokens = random.integers(0, 3, random.integers(1, 7)).tolist()
            if random.random() < 0.5:
                cache[tokens] = state(tokens)
                continue
            try:
                found = cache[tokens]
            except KeyError:
                continue
            own = found.input_ids[: found.n_tokens].tolist()
            if not is_restored(found, state(own)) or own[0] != tokens[0]:
                wrong.append(own)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    stats = cache.stats()
    assert stats.hits
    assert stats.used_bytes <= stats.capacity_bytes
    assert not stats.read_errors + stats.write_errors + stats.damaged


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(np.random.default_rng(0).bytes(3 << 20))
    return path


def test_a_state_of_a_model_with_another_context_is_refused(make: Make, weights: Path) -> None:
    cache = make(model=Model(weights))
    cache[[1]] = state([1])
    for wrong in (
        {"input_ids": np.ones(CONTEXT + 1, np.intc)},
        {"scores": np.zeros((1, VOCABULARY + 1), np.float32)},
    ):
        with pytest.raises(InvalidArgumentError, match="is of another model"):
            cache[[1]] = state([1], **wrong)
    cache = make(model=Model(weights, logits_all=True))
    with pytest.raises(InvalidArgumentError, match="a row for each of 20 tokens, got 16"):
        cache[range(20)] = state(range(20))


def test_models_whose_state_cannot_be_cut_say_so(make: Make, weights: Path) -> None:
    recurrent, window = Model(weights), Model(weights, swa_full=False)
    recurrent._is_recurrent = True
    for model in (recurrent, window):
        cache = make(model=model)
        cache[[1, 2, 3]] = state([1, 2, 3])
        assert [1, 2, 9] not in cache
        assert [1, 2, 3, 9] in cache
        cache = make(model=model, partial_hits=True)
        cache[[1, 2, 3]] = state([1, 2, 3])
        assert [1, 2, 9] in cache


def test_a_model_with_images_is_refused(make: Make, weights: Path) -> None:
    model = Model(weights)
    model.chat_handler = type("Handler", (), {"clip_model_path": "clip.gguf"})()
    with pytest.raises(UnsupportedError, match="images"):
        make(model=model)


def test_a_model_without_its_file_is_told(make: Make, tmp_path: Path) -> None:
    with pytest.raises(KVCacheIOError, match=r"model_path: .*No such file"):
        make(model=Model(tmp_path / "gone.gguf"))


@pytest.mark.parametrize("attribute", ["model_path", "lora_path"])
def test_a_model_whose_file_is_none_is_told(
    make: Make, weights: Path, tmp_path: Path, attribute: str
) -> None:
    def made(path: Any) -> Any:
        model = Model(weights)
        setattr(model, attribute, path)
        return make(model=model)

    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):  # a pipe without a writer would block for ever
        with pytest.raises(KVCacheIOError, match=f"{attribute}: .*not a plain file"):
            made(str(path))
    with pytest.raises(KVCacheIOError, match=f"{attribute}: .*null byte"):
        made("a\0b")
    with pytest.raises(InvalidArgumentError, match=f"{attribute} is no path: 7"):
        made(7)
    made(os.fsencode(weights))


def test_a_model_without_parameters_is_refused(make: Make, weights: Path) -> None:
    model = Model(weights)
    model.context_params = None
    with pytest.raises(InvalidArgumentError, match=r"expected a llama_cpp\.Llama"):
        make(model=model)
