"""Public reports on prompts that are known to their last token."""

from __future__ import annotations

import pytest
from model.driver import AMPLE, SHAPES, make_driver

from kvcache import Cache, StatePlan


def ledger(shape: str, block_tokens: int) -> Cache:
    plan = StatePlan(SHAPES[shape], memory="16MiB", block_tokens=block_tokens, sequences=4)
    return Cache(plan, backing=False)


def run(cache: Cache, prompt: list[int]) -> int:
    """Serves a prompt as an engine does and returns the tokens it did not compute."""
    with cache.open(prompt) as sequence:
        for stop in [*sequence.prefill_stops(), len(prompt)]:
            sequence.advance(stop - sequence.length)
            sequence.snapshot()
        sequence.publish()
        return sequence.cached_tokens


def test_a_whole_number_of_known_blocks_leaves_one_token_to_run() -> None:
    """vllm-project/vllm#17999: all blocks cached, nothing left to compute. n=32, blocks of 16."""
    cache = ledger("full", 16)
    prompt = list(range(32))
    assert [run(cache, prompt) for _ in range(3)] == [0, 31, 31]


@pytest.mark.parametrize("shape", ["full", "int8", "hybrid"])
def test_the_chain_goes_on_behind_the_token_that_ran_again(shape: str) -> None:
    """vllm-project/vllm#11186: recomputing only the last token broke the chain of blocks."""
    driver = make_driver(shape, AMPLE)
    prompt = list(range(8))
    for length in [8, 8, 12, 12]:
        pair = driver.open(list(range(length)))
        assert pair is not None
        driver.turn(pair)
        driver.complete(pair, length)
        driver.snapshot(pair)
        driver.publish(pair)
        driver.close(pair)
    assert driver.cache.explain([*prompt, 8, 9, 10, 11, 12]).cached_tokens == 12
    assert driver.cache.stats().indexed_tokens == 12
    driver.finish()


@pytest.mark.parametrize("shape", ["full", "hybrid", "recurrent"])
def test_the_state_of_a_full_hit_has_not_seen_the_token_that_runs(shape: str) -> None:
    """lablup/mlxcel#1760: the last token ran again on a state that already contained it.

    The driver checks rows and state of the reopened prompt to the byte at n - 1.
    """
    driver = make_driver(shape, AMPLE)
    prompt = [5, 6, 7, 8, 9]
    for cached in [0, 4, 4]:
        pair = driver.open(prompt)
        assert pair is not None
        assert pair.real.length == pair.real.cached_tokens == cached
        driver.turn(pair)
        driver.complete(pair, 1)
        driver.close(pair)
    driver.finish()


@pytest.mark.parametrize("tokens", [512, 1024, 2048])
def test_only_the_last_token_caps_a_hit(tokens: int) -> None:
    """syv-ai/qwen38-27b-rtx3090#102: the final block was never reused. Blocks of 448."""
    cache = ledger("full", 448)
    run(cache, list(range(tokens)))
    assert run(cache, list(range(tokens))) == tokens - 1


@pytest.mark.parametrize("tokens", [480, 552, 979])
def test_a_hybrid_hits_below_its_block_size(tokens: int) -> None:
    """vllm-project/vllm#40696: a hybrid's blocks of 528 gave shorter prompts no hit at all."""
    cache = ledger("hybrid", 528)
    prompt = list(range(tokens))
    assert [run(cache, prompt) for _ in range(2)] == [0, tokens - 1]
    assert run(cache, [*prompt[:400], 7, 7]) == 0  # left the path at 400, where no state was kept
    assert run(cache, [*prompt[:400], 8, 8]) == 400  # and from now on there is one


# ---- What else goes wrong at the end of a known prompt ----------------------------------------


@pytest.mark.parametrize("block_tokens", [1, 2, 4, 16])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 15, 16, 17])
@pytest.mark.parametrize("shape", ["full", "hybrid", "sliding", "window 1"])
def test_a_known_prompt_runs_its_last_token_alone(
    shape: str, tokens: int, block_tokens: int
) -> None:
    cache = ledger(shape, block_tokens)
    assert [run(cache, list(range(tokens))) for _ in range(3)] == [0, tokens - 1, tokens - 1]


@pytest.mark.parametrize("cut", [1, 4, 5, 8, 15])
def test_a_prompt_that_ends_inside_a_known_one_runs_its_last_token(cut: int) -> None:
    cache = ledger("full", 4)
    run(cache, list(range(16)))
    assert run(cache, list(range(cut))) == cut - 1
    assert cache.stats().indexed_tokens == 16
