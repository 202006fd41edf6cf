"""Public bug reports on prompt caches of llama.cpp and llama-cpp-python, one test each."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.llama_states import Model, is_restored, state

from kvcache.errors import KVCacheWarning, UnsupportedError
from kvcache.integrations.llama_cpp import LlamaDiskCache, LlamaRAMCache

Make = Callable[..., Any]


@pytest.fixture(params=["ram", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def made(capacity: Any = "1MiB", **options: Any) -> Any:
        if request.param == "ram":
            return LlamaRAMCache(capacity, **options)
        return LlamaDiskCache(tmp_path / "states", capacity, **({"model": "m"} | options))

    return made


def test_the_same_prompt_is_a_hit_every_time(make: Make) -> None:
    """llama-cpp-python pull request 2025 (2025): a lookup on disk took the state out.

    https://github.com/abetlen/llama-cpp-python/pull/2025
    """
    cache = make()
    cache[[1, 2, 3]] = state([1, 2, 3])
    for _ in range(4):
        assert is_restored(cache[[1, 2, 3]], state([1, 2, 3]))
    assert cache.stats().hits == 4


def test_the_capacity_is_the_one_that_was_asked_for(tmp_path: Path) -> None:
    """llama-cpp-python issue 1402 (2024): the disk cache stopped at a limit of its library's.

    https://github.com/abetlen/llama-cpp-python/issues/1402
    """
    for capacity, expected in [(3_000_000, 2), (5_000_000, 4)]:
        cache = LlamaDiskCache(tmp_path / str(capacity), capacity, model="m")
        for first in range(6):
            cache[[first]] = state([first], size=1_200_000)
        assert cache.stats().states == expected
        assert cache.cache_size <= cache.capacity_bytes == capacity


def test_what_is_not_there_is_no_none(make: Make) -> None:
    """llama-cpp-python issue 348 (2023): a lookup gave None, whose tokens were then asked for.

    https://github.com/abetlen/llama-cpp-python/issues/348
    """
    cache = make()
    with pytest.raises(KeyError):
        cache[[1, 2]]
    cache[[1, 2]] = state([1, 2])
    cache.clear()
    with pytest.raises(KeyError):
        cache[[1, 2]]


def test_a_second_prompt_is_looked_up_like_the_first(make: Make) -> None:
    """JamePeng/llama-cpp-python issue 89 (2026): with a state stored, each lookup failed.

    https://github.com/JamePeng/llama-cpp-python/issues/89
    """
    cache = make()
    for turn in ([1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]):
        if turn != [1, 2]:
            assert cache[turn].n_tokens == len(turn) - 2
        cache[turn] = state(turn)


def test_one_state_above_the_limit_is_not_kept(make: Make) -> None:
    """ik_llama.cpp issue 2320, llama.cpp issue 21690 (2026): the last one was kept at any size.

    https://github.com/ikawrakow/ik_llama.cpp/issues/2320
    https://github.com/ggml-org/llama.cpp/issues/21690
    """
    cache = make(1_200_000)
    cache[[1]] = state([1], size=366_452)
    with pytest.warns(KVCacheWarning, match="exceeds"):
        cache[[2]] = state([2], size=2_460_007)
    assert cache.cache_size < 400_000
    assert [1] in cache


def test_room_is_made_before_and_not_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp pull request 25070 (2026): old states left only when the new one was stored.

    https://github.com/ggml-org/llama.cpp/pull/25070
    """
    cache = LlamaDiskCache(tmp_path, 2500, model="m")
    sizes = []
    real = os.write

    def watched(file: int, data: Any) -> int:
        sizes.append(cache.cache_size)
        return real(file, data)

    monkeypatch.setattr(os, "write", watched)
    for first in range(5):
        cache[[first]] = state([first])
    assert len(sizes) >= 15
    assert max(sizes) <= 2500


def test_a_prompt_is_there_after_a_restart(tmp_path: Path) -> None:
    """llama.cpp issue 17107 (2025): the prompt cache was gone with the server.

    https://github.com/ggml-org/llama.cpp/issues/17107
    """
    LlamaDiskCache(tmp_path, model="m")[range(40)] = state(range(40))
    assert is_restored(LlamaDiskCache(tmp_path, model="m")[range(50)], state(range(40)))


def test_a_damaged_state_never_reaches_the_context(tmp_path: Path) -> None:
    """llama.cpp issue 27068 (2026): one that was refused had half overwritten the context.

    https://github.com/ggml-org/llama.cpp/issues/27068
    """
    cache = LlamaDiskCache(tmp_path, model="m")
    cache[[1, 2]] = state([1, 2])
    (file,) = tmp_path.glob("*.state")
    data = bytearray(file.read_bytes())
    data[-500] ^= 1
    file.write_bytes(data)
    with pytest.warns(KVCacheWarning, match="damaged"), pytest.raises(KeyError):
        cache[[1, 2]]


def test_a_context_of_another_kind_finds_nothing(tmp_path: Path) -> None:
    """llama.cpp pull request 28498 (2026): rows of another form were restored, to garbage.

    https://github.com/ggml-org/llama.cpp/pull/28498
    """
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"GGUF" * 1000)
    LlamaDiskCache(tmp_path / "s", model=Model(weights, type_k=8))[[1]] = state([1])
    assert [1] not in LlamaDiskCache(tmp_path / "s", model=Model(weights, type_k=1))


@pytest.mark.parametrize("kind", ["_is_recurrent", "_is_hybrid"])
def test_a_rewind_that_is_refused_finds_the_state_before_it(
    make: Make, tmp_path: Path, kind: str
) -> None:
    """llama.cpp pull requests 20955 and 28007 (2026): recurrent state went back, or all went.

    https://github.com/ggml-org/llama.cpp/pull/20955
    https://github.com/ggml-org/llama.cpp/pull/28007
    """
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"GGUF" * 1000)
    model = Model(weights)
    setattr(model, kind, True)
    cache = make(model=model)
    for length in (10, 20):
        cache[range(length)] = state(range(length))
    assert cache[range(19)].n_tokens == 10
    assert cache[[*range(17), 40, 41, 42]].n_tokens == 10
    assert cache[range(21)].n_tokens == 20


def test_images_are_not_taken_for_the_tokens_that_stand_for_them(
    make: Make, tmp_path: Path
) -> None:
    """llama.cpp issue 22629 (2026): states of images filled the memory, and none was found again.

    https://github.com/ggml-org/llama.cpp/issues/22629
    """
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"GGUF" * 1000)
    model = Model(weights)
    model.chat_handler = type("MTMDChatHandler", (), {"clip_model_path": "mmproj.gguf"})()
    with pytest.raises(UnsupportedError, match="images"):
        make(model=model)
