"""Who shares a prefix with whom: namespaces, adapters, salts, media and weights; and erasing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model.driver import SHAPES

from kvcache import Cache, InvalidArgumentError, StatePlan, UnsupportedError

PAD = 7
#: Ten tokens of text, an image of six pads, then more text.
PROMPT = [*range(10, 20), *[PAD] * 6, *range(20, 30)]


def make_cache(shape: str = "full", **options: Any) -> Cache:
    options.setdefault("backing", False)
    plan = StatePlan(SHAPES[shape], memory="16MiB", block_tokens=4, sequences=8)
    return Cache(plan, **options)


def store(cache: Cache, tokens: list[int], **space: Any) -> None:
    with cache.open(tokens, **space) as sequence:
        for stop in [*sequence.prefill_stops(), len(tokens)]:
            sequence.advance(max(0, stop - sequence.length))
            sequence.snapshot()
        sequence.publish()


def reused(cache: Cache, tokens: list[int], **space: Any) -> tuple[int, int]:
    said = cache.explain(tokens, **space)
    return said.matched_tokens, said.cached_tokens


# ---- Media ------------------------------------------------------------------------------------

CAT, DOG = [(10, 6, b"cat")], [(10, 6, "dog")]


def test_images_of_equal_pads_do_not_meet() -> None:
    cache = make_cache()
    store(cache, PROMPT, media=CAT)
    assert reused(cache, PROMPT, media=CAT) == (26, 25)
    assert reused(cache, PROMPT, media=DOG) == (10, 10)
    assert reused(cache, PROMPT) == (10, 10)
    store(cache, PROMPT, media=DOG)
    store(cache, PROMPT)
    for media in (CAT, DOG, []):
        assert reused(cache, PROMPT, media=media) == (26, 25)
    cache.clear()
    assert cache.stats().used_bytes == 0


def test_the_same_image_elsewhere_or_of_another_size_is_another() -> None:
    cache = make_cache()
    store(cache, PROMPT, media=CAT)
    assert reused(cache, PROMPT, media=[(10, 5, b"cat")]) == (10, 10)
    assert reused(cache, PROMPT, media=[(11, 5, b"cat")]) == (10, 10)
    assert reused(cache, [PAD] * 6, media=[(0, 6, b"cat")]) == (0, 0)


def test_a_hit_never_ends_inside_an_image() -> None:
    cache = make_cache()
    store(cache, PROMPT, media=CAT)
    assert reused(cache, PROMPT[:16], media=CAT) == (16, 10)
    assert reused(cache, [*PROMPT[:16], 1], media=CAT) == (16, 16)


def test_an_image_that_comes_with_a_later_turn_counts() -> None:
    cache = make_cache("hybrid")
    with cache.open(PROMPT[:10]) as sequence:
        sequence.advance(10)
        sequence.publish()
        sequence.extend(PROMPT[10:], media=CAT)
        sequence.advance(16)
        sequence.snapshot()
        sequence.publish()
    assert reused(cache, [*PROMPT, 1], media=CAT) == (26, 26)
    assert reused(cache, [*PROMPT, 1])[0] == 10


def test_a_branch_inside_an_image_keeps_both_sides_apart() -> None:
    """Text that happens to begin like the pads, stored before and after the image."""
    cache = make_cache()
    store(cache, PROMPT[:13])
    store(cache, PROMPT, media=CAT)
    store(cache, [*PROMPT[:12], 99, 98], media=[])
    assert reused(cache, PROMPT, media=CAT) == (26, 25)
    assert reused(cache, [*PROMPT[:12], 99, 98, 1]) == (14, 14)
    assert reused(cache, [*PROMPT[:13], 1]) == (13, 13)


def test_eviction_of_media_leaves_nothing_behind() -> None:
    cache = make_cache("hybrid", capacity_blocks=30)
    for i in range(40):
        store(cache, PROMPT, media=[(10, 6, b"%d" % i)])
    assert cache.stats().evicted_blocks > 0
    cache.clear()
    stats = cache.stats()
    assert (stats.used_bytes, stats.indexed_blocks, stats.indexed_tokens) == (0, 0, 0)


@pytest.mark.parametrize(
    "media",
    [
        [(10, 17, b"x")],
        [(26, 1, b"x")],
        [(10, 0, b"x")],
        [(-1, 2, b"x")],
        [(0, 2, b"")],
        [(0, 2, b"x" * 65)],
        [(0, 4, b"x"), (3, 2, b"y")],
        [(4, 2, b"x"), (0, 2, b"y")],
        [(2**62, 2**62, b"x")],
        [(0, 1)],
        [None],
        5,
    ],
)
def test_wrong_media_are_refused(media: Any) -> None:
    cache = make_cache()
    for call in (cache.open, cache.explain, cache.erase):
        with pytest.raises(InvalidArgumentError, match="media"):
            call(PROMPT, media=media)
    with cache.open(PROMPT) as sequence, pytest.raises(InvalidArgumentError, match="media"):
        sequence.extend([1, 2], media=[(0, 2, b"x")])
    assert cache.stats().opens == 1


# ---- Weights ----------------------------------------------------------------------------------


def test_new_weights_find_nothing_and_old_sequences_store_nothing() -> None:
    cache = make_cache("hybrid")
    store(cache, PROMPT)
    old = cache.open([*PROMPT, 1, 2])
    cache.bump_epoch("v2")
    stats = cache.stats()
    assert (stats.epoch, stats.indexed_blocks, stats.indexed_snapshots) == (1, 0, 0)
    assert reused(cache, PROMPT) == (0, 0)
    old.advance(len(PROMPT) + 2 - old.length)  # goes on undisturbed
    old.snapshot()
    old.publish()
    assert reused(cache, PROMPT) == (0, 0)
    with old.fork() as child:
        child.publish()
    assert cache.stats().indexed_blocks == 0
    old.close()
    store(cache, PROMPT)
    assert reused(cache, PROMPT) == (26, 25)
    cache.clear()
    assert cache.stats().used_bytes == 0


def test_memory_of_old_weights_is_taken_first() -> None:
    cache = make_cache(capacity_blocks=40)
    for i in range(4):
        store(cache, [i] * 40, namespace=str(i))
    assert cache.stats().pages == 40
    cache.bump_epoch()
    store(cache, PROMPT)
    store(cache, [99] * 100)
    assert reused(cache, PROMPT) == (26, 25)
    assert cache.stats().evicted_blocks == 0


def test_a_prompt_cache_of_other_weights_or_media_is_refused(tmp_path: Path) -> None:
    cache = make_cache(backing=True, weights="v1")
    rows = np.ones((26, 2, 8), np.float16)
    with cache.open(PROMPT, media=CAT) as sequence:
        for layer in (0, 1):
            sequence.write(layer, 0, rows[..., :4], rows)
        sequence.advance(26)
        sequence.publish()
    assert cache.save(tmp_path / "one", PROMPT, media=CAT) == 26
    cache.bump_epoch("v2")
    with pytest.raises(UnsupportedError):
        cache.load(tmp_path / "one", media=CAT)
    cache.bump_epoch("v1")
    with pytest.raises(UnsupportedError):
        cache.load(tmp_path / "one", media=DOG)
    assert cache.load(tmp_path / "one", media=CAT) == 26
    assert reused(cache, PROMPT, media=CAT) == (26, 25)
    assert reused(cache, PROMPT, media=DOG) == (10, 10)


# ---- Erasing ----------------------------------------------------------------------------------

SPACES: list[dict[str, Any]] = [
    {"namespace": "a"},
    {"namespace": "b"},
    {"namespace": "a", "adapter": ("lora", "1")},
    {"namespace": "a", "adapter": ("lora", "2")},
    {"namespace": "a", "adapter": "lora2"},
    {"namespace": "a", "salt": b"s"},
]


@pytest.mark.parametrize(
    ("chosen", "gone"),
    [
        ({"namespace": "a"}, {0, 2, 3, 4, 5}),
        ({"namespace": "c"}, set()),
        ({"adapter": "lora"}, {2, 3}),
        ({"adapter": ("lora", "2")}, {3}),
        ({"adapter": ""}, {0, 1, 5}),
        ({"namespace": "a", "adapter": "", "salt": b""}, {0}),
        ({"salt": b"s"}, {5}),
        ({}, {0, 1, 2, 3, 4, 5}),
    ],
)
def test_erase_drops_the_spaces_that_agree(chosen: dict[str, Any], gone: set[int]) -> None:
    cache = make_cache("hybrid")
    for space in SPACES:
        store(cache, PROMPT, **space)
    assert cache.erase(**chosen) == 7 * len(gone)
    for i, space in enumerate(SPACES):
        assert reused(cache, PROMPT, **space)[0] == (0 if i in gone else 26)
    cache.clear()
    assert cache.stats().used_bytes == 0


def test_erase_of_a_prefix_leaves_what_parts_from_it_before() -> None:
    cache = make_cache()
    store(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    store(cache, [1, 2, 3, 4, 5, 6, 9, 9])
    store(cache, [1, 2, 3, 8, 8, 8])
    assert cache.erase([1, 2, 3, 4, 5]) > 0
    assert reused(cache, [1, 2, 3, 4, 5, 6, 7])[0] == 3
    assert reused(cache, [1, 2, 3, 8, 8, 8, 1])[0] == 6
    assert cache.erase([1, 2, 3, 7]) == 0
    assert cache.erase([1, 2]) > 0
    assert cache.stats().used_bytes == 0
    with pytest.raises(InvalidArgumentError, match="at least one"):
        cache.erase([])


def test_erase_does_not_disturb_an_open_sequence() -> None:
    cache = make_cache()
    store(cache, PROMPT)
    with cache.open([*PROMPT, 1]) as sequence:
        assert cache.erase() == 7
        assert sequence.length == 26
        sequence.advance(1)
        sequence.publish()
    assert reused(cache, [*PROMPT, 1, 2]) == (27, 27)


def test_one_item_over_different_pad_tokens() -> None:
    """The pads are tokens like others: a path is of an item and of them."""
    plan = StatePlan(SHAPES["full"], memory="4MiB", block_tokens=4)
    cache = Cache(plan, backing=False)
    for pad in (9, 8):
        with cache.open([1, 2, pad, pad, pad, pad, 3], media=[(2, 4, b"A")]) as sequence:
            assert sequence.cached_tokens == (0 if pad == 9 else 2)
            sequence.advance(7 - sequence.length)
            sequence.publish()
    for pad in (9, 8):
        prompt = [1, 2, pad, pad, pad, pad, 3, 4]
        assert cache.explain(prompt, media=[(2, 4, b"A")]).cached_tokens == 7
        assert cache.explain(prompt, media=[(2, 4, b"B")]).cached_tokens == 2
