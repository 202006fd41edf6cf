"""Public reports on the identity of a prefix."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model.driver import AMPLE, SHAPES, Driver, make_driver

from kvcache import Cache, InvalidArgumentError, StatePlan, UnsupportedError

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def stored(shape: str, *prompts: list[int], **space: Any) -> Cache:
    """A cache that has seen the prompts to their ends."""
    plan = StatePlan(SHAPES[shape], memory="4MiB", block_tokens=4, sequences=4)
    cache = Cache(plan, backing=False)
    for prompt in prompts:
        with cache.open(prompt, **space) as sequence:
            sequence.advance(len(prompt) - sequence.length)
            sequence.snapshot()
            sequence.publish()
    return cache


def test_none_and_empty_extra_keys_are_the_same() -> None:
    """LMCache/LMCache#1403: extra_keys=None and () gave different keys on two nodes."""
    cache = stored("full", PROMPT, adapter=None, salt=None)
    assert cache.explain(PROMPT, adapter="", salt=b"", namespace="").cached_tokens == 7


def test_identities_do_not_depend_on_the_process() -> None:
    """vllm-project/vllm#51875: a random root hash forced every node to pin PYTHONHASHSEED."""
    code = (
        "from model.driver import SHAPES\nfrom kvcache import StatePlan\n"
        "print(StatePlan(SHAPES['everything'], memory='4MiB').fingerprint)"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    seen = {
        subprocess.run(
            [sys.executable, "-P", "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ["0", "1", "random"]
    }
    assert len(seen) == 1


def test_an_adapter_and_a_salt_of_one_text_are_apart() -> None:
    """vllm-project/vllm#44701: lora_name and cache_salt shared one untagged tuple."""
    cache = stored("full", PROMPT, adapter="X")
    assert cache.explain(PROMPT, salt="X").matched_tokens == 0
    assert cache.explain(PROMPT, namespace="X").matched_tokens == 0
    assert cache.explain(PROMPT, adapter="X").cached_tokens == 7


def test_adapters_of_one_name_and_two_revisions_are_apart() -> None:
    """vllm-project/vllm#30931: two adapters of one name and other weights shared blocks."""
    cache = stored("full", PROMPT, adapter=("a", "1"))
    assert cache.explain(PROMPT, adapter=("a", "2")).matched_tokens == 0


@pytest.mark.parametrize("bit", [0, 15, 16, 31])
def test_a_token_that_differs_in_one_bit_is_another_token(bit: int) -> None:
    """LMCache/LMCache#4086: a 16-bit image hash gave the first image's state to the second."""
    cache = stored("full", PROMPT)
    other = list(PROMPT)
    other[2] = (other[2] ^ (1 << bit)) - (1 << 32 if bit == 31 else 0)
    assert cache.explain(other).matched_tokens == 2


def test_a_run_of_placeholders_is_known_by_every_position() -> None:
    """LMCache/LMCache#4783: one value over a placeholder span was all that told chunks apart."""
    cache = stored("full", [7] * 9 + [1], [7] * 6 + [2])
    assert cache.explain([7] * 9 + [1, 0]).cached_tokens == 10
    assert cache.explain([7] * 7 + [2, 0]).cached_tokens == 7
    assert cache.explain([7] * 20).cached_tokens == 9


def test_a_length_that_is_a_block_multiple_has_a_last_block_of_its_own() -> None:
    """Wenyueh/MinivLLM#87: token_ids[-0:] returned everything; the count of references went to -1.

    8 tokens in blocks of 4.
    """
    driver: Driver = make_driver("full", AMPLE)
    pair = driver.open(PROMPT)
    assert pair is not None
    driver.complete(pair, 8)
    driver.publish(pair)
    assert driver.cache.stats().pages == driver.cache.stats().indexed_blocks == 2
    driver.close(pair)
    again = driver.open([*PROMPT, 5])
    assert again is not None
    assert again.real.cached_tokens == 8
    driver.finish()


def test_a_prefix_and_its_extension_are_stored_once_and_both_found() -> None:
    """ml-explore/mlx-lm#1078: pruning the immediate prefix of an entry was off by one."""
    cache = stored("full", [1, 2], [1, 2, 3])
    assert cache.stats().indexed_tokens == 3
    assert cache.explain([1, 2, 3, 4]).cached_tokens == 3
    assert cache.explain([1, 2, 9]).cached_tokens == 2


def test_what_is_stored_outside_knows_its_whole_identity(tmp_path: Path) -> None:
    """vllm-project/vllm#54342: keys of an external store came from token ids alone."""
    spaces: list[dict[str, Any]] = [
        {},
        {"salt": b"tenant"},
        {"adapter": "lora"},
        {"adapter": ("lora", "2")},
        {"namespace": "tenant"},
    ]
    for number, space in enumerate(spaces):
        driver = make_driver("hybrid", AMPLE)
        with driver.cache.open(PROMPT, **space) as sequence:
            for layer in (0, 2):
                rows = np.zeros((8, 2, 4), np.float16), np.zeros((8, 2, 8), np.float16)
                sequence.write(layer, 0, *rows)
            sequence.advance(8)
            sequence.snapshot()
            sequence.publish()
        path = tmp_path / str(number)
        driver.cache.save(path, PROMPT, **space)
        for other in spaces:
            loader = Cache(driver.plan)
            if other == space:
                assert loader.load(path, **other) == 8
                continue
            with pytest.raises(UnsupportedError):
                loader.load(path, **other)
            assert loader.stats().used_bytes == 0


# ---- What else makes two prefixes one, or one two ---------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"namespace": "a", "salt": "b"}, {"namespace": "ab"}),
        ({"namespace": "a", "adapter": "b"}, {"namespace": "b", "adapter": "a"}),
        ({"adapter": ("a", "b")}, {"adapter": "ab"}),
        ({"adapter": ("a", "1:b")}, {"adapter": ("a1", ":b")}),
        ({"adapter": ("a", "")}, {"adapter": "a"}),
        ({"salt": b"a\0"}, {"salt": b"a"}),
        ({"salt": b"\0"}, {"salt": b""}),
        ({"salt": "\u00e9"}, {"salt": "e\u0301"}),
        ({"salt": "x" * 4096}, {"salt": "x" * 4095}),
        ({"namespace": "1:a"}, {"namespace": "a"}),
    ],
    ids=str,
)
def test_spaces_that_look_alike_are_apart(one: dict[str, Any], other: dict[str, Any]) -> None:
    cache = stored("full", PROMPT, **one)
    assert cache.explain(PROMPT, **one).cached_tokens == 7
    assert cache.explain(PROMPT, **other).matched_tokens == 0


def test_tokens_are_their_values_whatever_holds_them() -> None:
    cache = stored("full", PROMPT)
    for same in (tuple(PROMPT), np.array(PROMPT, np.int64), np.array(PROMPT, np.uint8)):
        assert cache.explain(same).cached_tokens == 7
    assert cache.explain(np.array([0, *PROMPT, 0], ">i4")[1:-1]).cached_tokens == 7
    assert cache.explain(np.array(PROMPT * 2)[::1][:8]).cached_tokens == 7
    assert cache.explain(np.repeat(PROMPT, 2)[::2]).cached_tokens == 7


@pytest.mark.parametrize("wrong", [2**31, 2**32 + 3, -(2**31) - 1, 2**64, 3.5, "3", None])
def test_a_token_that_is_no_int32_is_refused_and_never_wraps(wrong: Any) -> None:
    cache = stored("full", PROMPT)
    with pytest.raises(InvalidArgumentError):
        cache.explain([wrong, *PROMPT[1:]])
    with pytest.raises(InvalidArgumentError):
        cache.open([wrong, *PROMPT[1:]])


def test_ids_at_the_ends_of_int32_are_four_different_tokens() -> None:
    ends = [2**31 - 1, -(2**31), -1, 0]
    cache = stored("full", *([end, 5, 6] for end in ends))
    assert cache.stats().indexed_tokens == 12
    for end in ends:
        assert cache.explain([end, 5, 7]).matched_tokens == 2
