"""`Cache.erase` with a disk tier: what is erased is not found after a restart, the rest is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.filled import MODELS, check, fill, make_cache, prompt, run

from kvcache import DiskTier, RequestHints
from kvcache.errors import UnsupportedError
from kvcache.stored import check_stored

SYSTEM = prompt(37, seed=7)


def open_tier(path: Path, model: str = "hybrid", **options: Any) -> Any:
    access = options.pop("access", "write")
    return make_cache(model, disk=DiskTier(path / "tier", "64MiB", access=access), **options)


def bytes_of(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((path / "tier").glob("segment-*")))


@pytest.mark.parametrize("model", MODELS)
def test_a_prompt_is_erased_and_its_beginning_stays_for_others(tmp_path: Path, model: str) -> None:
    first, second, third = (np.append(SYSTEM, prompt(30, seed)) for seed in (1, 2, 3))
    cache = open_tier(tmp_path, model)
    for tokens in (first, second, third):
        fill(cache, tokens, [len(SYSTEM), len(tokens) - 1, len(tokens)])
    cache.disk.flush()
    assert first[40:60].tobytes() in bytes_of(tmp_path)
    assert cache.erase(first[:50]) > 0
    assert first[40:60].tobytes() not in bytes_of(tmp_path)
    before = check(cache, second)
    assert check(cache, first) < len(SYSTEM) + 4
    del cache
    fresh = open_tier(tmp_path, model)
    assert check(fresh, first) < len(SYSTEM) + 4
    fresh.clear()
    for tokens in (second, third):
        assert len(tokens) - 1 - 4 <= check(fresh, tokens) <= before
    assert fresh.disk.stats().damaged_records == 0
    # It may be stored again.
    fill(fresh, first)
    del fresh
    assert check(open_tier(tmp_path, model), first) >= len(first) - 1 - 4


def test_a_prompt_of_nobody_else_goes_to_its_first_token(tmp_path: Path) -> None:
    cache = open_tier(tmp_path)
    fill(cache, prompt(60))
    cache.erase(prompt(60))
    assert cache.disk.stats().records == 0
    assert prompt(60)[4:8].tobytes() not in bytes_of(tmp_path)
    del cache
    assert check(open_tier(tmp_path), prompt(60)) == 0
    report = check_stored(tmp_path / "tier", deep=True)
    assert report.details["records"] == 0
    assert report.problems == []


SPACES: list[dict[str, Any]] = [
    {},
    {"namespace": "n"},
    {"namespace": "n", "salt": "s"},
    {"adapter": "a"},
    {"adapter": ("a", "1")},
    {"adapter": ("a", "2"), "salt": "s"},
    {"adapter": "ab"},
]


@pytest.mark.parametrize(
    ("wanted", "gone"),
    [
        ({}, {0, 1, 2, 3, 4, 5, 6}),
        ({"namespace": "n"}, {1, 2}),
        ({"namespace": ""}, {0, 3, 4, 5, 6}),
        ({"adapter": "a"}, {3, 4, 5}),
        ({"adapter": ("a", "1")}, {4}),
        ({"adapter": ""}, {0, 1, 2}),
        ({"salt": "s"}, {2, 5}),
        ({"salt": ""}, {0, 1, 3, 4, 6}),
        ({"tokens": prompt(30)[:5]}, {0}),
        ({"tokens": prompt(30)[:5], "namespace": "n", "salt": "s"}, {2}),
    ],
)
def test_spaces_are_erased_by_any_part_of_their_name(
    tmp_path: Path, wanted: dict[str, Any], gone: set[int]
) -> None:
    cache = open_tier(tmp_path, memory="16MiB")
    for space in SPACES:
        fill(cache, prompt(30), **space)
    assert b"1:s" not in bytes_of(tmp_path)  # a salt is a secret
    cache.erase(**wanted)
    for restart in (False, True):
        if restart:
            del cache
            cache = open_tier(tmp_path, memory="16MiB")
        for number, space in enumerate(SPACES):
            assert check(cache, prompt(30), **space) == (0 if number in gone else 29), space


def test_what_a_tenant_wrote_is_erased(tmp_path: Path) -> None:
    cache = open_tier(tmp_path)
    for seed, tenant in enumerate(("x", "y", "")):
        with cache.open(prompt(30, seed), hints=RequestHints(tenant=tenant)) as sequence:
            run(cache, sequence, [29, 30])
    cache.erase(tenant="x")
    del cache, sequence
    fresh = open_tier(tmp_path)
    assert [check(fresh, prompt(30, seed)) for seed in range(3)] == [0, 29, 29]


def test_other_weights_and_models_in_the_directory_are_erased_too(tmp_path: Path) -> None:
    for model, weights in (("hybrid", "1"), ("hybrid", "2"), ("mla", "1")):
        cache = open_tier(tmp_path, model, weights=weights)
        fill(cache, prompt(30))
        del cache
    cache = open_tier(tmp_path, weights="3")
    cache.erase(prompt(30)[:10])
    assert cache.disk.stats().erased_records >= 3
    assert cache.disk.stats().records == 0


def test_what_waits_to_be_written_is_erased(tmp_path: Path) -> None:
    cache = open_tier(tmp_path)
    for seed in range(20):
        fill(cache, prompt(60, seed), namespace="n")
    cache.erase(namespace="n")
    cache.disk.flush()
    assert cache.disk.stats().records == 0


def test_clear_keeps_the_tier_and_a_reader_may_not_erase_it(tmp_path: Path) -> None:
    cache = open_tier(tmp_path)
    fill(cache, prompt(30))
    cache.disk.flush()
    cache.clear()
    assert check(cache, prompt(30)) == 29
    reader = open_tier(tmp_path, access="read")
    assert check(reader, prompt(30)) == 29
    with pytest.raises(UnsupportedError, match="written by another process"):
        reader.erase(prompt(30)[:20])
    assert reader.stats().pages == 0  # memory has been erased
    cache.erase(prompt(30))
    assert check(reader, prompt(30)) == 0
    assert reader.disk.stats().damaged_records == 0
