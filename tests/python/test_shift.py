"""Context shift: rows move, nothing else does, and what they have seen is never passed on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.declarations import paged, recurrent

import kvcache
from kvcache import InvalidArgumentError, UnsupportedError

NAMES = ("attention.keys", "attention.values")


def cache_of(*, window: int = 0, int8: bool = False, **options: Any) -> kvcache.Cache:
    plan = kvcache.StatePlan(
        [
            *(paged(0, name, 2, 4, int8=int8) for name in NAMES),
            *(paged(1, name, 1, 6, window=window, int8=int8) for name in NAMES),
        ],
        memory="4MiB",
        block_tokens=options.pop("block_tokens", 4),
        rotated_keys=options.pop("rotated_keys", False),
    )
    return kvcache.Cache(plan, **options)


def see(seen: list[int], *tokens: int) -> None:
    """Adds the rows of these tokens; one is a number that depends on all that was seen before."""
    for token in tokens:
        seen.append(hash((seen[-1] if seen else 0, token)) % 2039)


def run(sequence: kvcache.Sequence, seen: list[int]) -> None:
    """Run what waits."""
    while sequence.length < len(sequence.tokens):
        position = sequence.length
        see(seen, int(sequence.tokens[position]))
        for layer, (heads, width) in enumerate(((2, 4), (1, 6))):
            rows = np.full((1, heads, width), seen[-1], np.float16)
            sequence.write(layer, position, rows, rows)
        sequence.advance(1)


def check(sequence: kvcache.Sequence, seen: list[int], window: int = 0) -> None:
    length = sequence.length
    assert length == len(seen)
    for layer in range(2):
        first = max(0, length - window + 1) if layer == 1 and window else 0
        keys, values = sequence.read(layer, first, length)
        for position in range(first, length):
            for rows in (keys, values):
                assert (rows[position - first] == seen[position]).all(), (layer, position)


@pytest.mark.parametrize("block", [1, 3, 4, 16])
@pytest.mark.parametrize(
    ("keep", "drop"), [(0, 4), (4, 8), (3, 5), (5, 1), (0, 30), (26, 4), (2, 28)]
)
@pytest.mark.parametrize("shared", ["own", "published", "forked", "viewed"])
def test_rows_and_tokens_move_and_others_keep_theirs(
    block: int, keep: int, drop: int, shared: str
) -> None:
    cache = cache_of(block_tokens=block)
    with cache.open(np.arange(30)) as sequence:
        seen: list[int] = []
        run(sequence, seen)
        before = list(seen)
        other = sequence.fork() if shared == "forked" else None
        views = list(sequence.views(0, 0, 30)[0]) if shared == "viewed" else []
        if shared == "published":
            sequence.publish()
        old = [np.array(view) for view in views]
        sequence.shift(keep, drop)
        del seen[keep : keep + drop]
        check(sequence, seen)
        assert sequence.tokens.tolist() == [*range(keep), *range(keep + drop, 30)]
        sequence.extend([7, 8, 9])
        run(sequence, seen)
        check(sequence, seen)
        while views:
            np.testing.assert_array_equal(views.pop(), old.pop())
        if other is not None:
            check(other, before)
            other.close()
        if shared == "published":
            with cache.open(np.arange(31)) as again:
                assert again.cached_tokens == 30
                check(again, before)
    cache.clear()
    assert cache.stats().pages == 0


def test_int8_rows_move_bit_for_bit() -> None:
    with cache_of(int8=True).open(np.arange(20)) as sequence:
        rows = np.random.default_rng(0).standard_normal((20, 2, 4)).astype(np.float32)
        for layer, part in enumerate((rows, rows.reshape(20, 1, 8)[..., :6])):
            sequence.write(layer, 0, part, -part)
        sequence.advance(20)
        old = [sequence.read(layer, 0, 20, "float32") for layer in range(2)]
        sequence.shift(3, 6)
        for layer, parts in enumerate(old):
            for mine, was in zip(sequence.read(layer, 0, 14, "float32"), parts, strict=True):
                np.testing.assert_array_equal(mine, np.delete(was, slice(3, 9), axis=0))


def test_only_what_was_before_the_shift_is_published() -> None:
    cache = cache_of()
    with cache.open(np.arange(30)) as sequence:
        seen: list[int] = []
        run(sequence, seen)
        sequence.shift(6, 9)
        sequence.publish()
        tokens = sequence.tokens
        with cache.open([*tokens, 1]) as again:
            assert again.cached_tokens == 6
            check(again, seen[:6])
        with sequence.fork() as child:
            child.publish()
        assert cache.explain([*tokens, 1]).cached_tokens == 6
        sequence.truncate(6)  # what has seen dropped positions is gone
        sequence.extend([50, 51])
        seen = seen[:6]
        run(sequence, seen)
        sequence.publish()
    with cache.open([*range(6), 50, 51, 52]) as again:
        assert again.cached_tokens == 8
        check(again, seen)


def test_refusals_say_why_and_change_nothing() -> None:
    with cache_of(rotated_keys=True).open(np.arange(9)) as sequence:
        run(sequence, [])
        with pytest.raises(UnsupportedError, match="keys are stored after rotation"):
            sequence.shift(1, 2)
    plan = kvcache.StatePlan(
        [paged(0, "attention.keys", 1, 4), recurrent(1, "state.recurrent", 2, 2)],
        memory="4MiB",
        rotated_keys=False,
    )
    with (
        kvcache.Cache(plan).open([1, 2]) as hybrid,
        pytest.raises(UnsupportedError, match="fixed-size state"),
    ):
        hybrid.shift(0, 0)
    with cache_of().open(np.arange(9)) as sequence:
        seen: list[int] = []
        run(sequence, seen)
        for keep, drop in ((10, 0), (4, 6), (0, 10), (9, 1), (2**63 - 1, 2**63 - 1)):
            with pytest.raises(InvalidArgumentError, match="are not within the 9 complete ones"):
                sequence.shift(keep, drop)
        with pytest.raises(InvalidArgumentError, match="keep: must be"):
            sequence.shift(-1, 1)
        sequence.extend([1])
        sequence.write(0, 9, np.zeros((1, 2, 4), np.float16), np.zeros((1, 2, 4), np.float16))
        with pytest.raises(InvalidArgumentError, match=r"written up to 10, .* advance\(\) first"):
            sequence.shift(0, 1)
        sequence.truncate(9)
        sequence.shift(3, 0)
        check(sequence, seen)
    with pytest.raises(InvalidArgumentError, match="closed"):
        sequence.shift(0, 1)


def test_without_room_nothing_changes() -> None:
    cache = cache_of(capacity_blocks=8)
    with cache.open(np.arange(30)) as sequence:
        seen: list[int] = []
        run(sequence, seen)
        with sequence.fork() as child:
            with pytest.raises(kvcache.OutOfCapacityError):
                child.shift(1, 2)
            check(child, seen)
        assert cache.stats().pages == 8
        sequence.shift(4, 8)
        assert cache.stats().pages == 6


def test_a_window_may_pass_over_the_dropped_positions_but_not_see_them() -> None:
    with cache_of(window=5).open(np.arange(40)) as sequence:
        seen: list[int] = []
        run(sequence, seen)
        with pytest.raises(UnsupportedError, match="a window of 5 sees position"):
            sequence.shift(4, 34)
        check(sequence, seen, 5)
        sequence.shift(4, 20)
        del seen[4:24]
        check(sequence, seen, 5)
        sequence.extend(range(10))
        run(sequence, seen)
        check(sequence, seen, 5)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_later_sequence_gets_rows_that_saw_dropped_positions(data: st.DataObject) -> None:
    draw = data.draw
    window = draw(st.sampled_from([0, 1, 3, 6]))
    cache = cache_of(window=window, block_tokens=draw(st.integers(1, 5)))
    prompts = [[0]]
    for _ in range(draw(st.integers(1, 3))):
        tokens = draw(st.sampled_from(prompts)) + draw(st.lists(st.integers(0, 2), max_size=12))
        with cache.open(tokens) as sequence:
            seen: list[int] = []
            see(seen, *tokens[: sequence.length])
            run(sequence, seen)
            check(sequence, seen, window)
            for step in draw(
                st.lists(st.sampled_from(["shift", "extend", "cut", "publish", "fork"]), max_size=8)
            ):
                length = sequence.length
                if step == "shift":
                    keep = draw(st.integers(0, length))
                    drop = draw(st.integers(0, length - keep))
                    try:
                        sequence.shift(keep, drop)
                    except UnsupportedError:
                        check(sequence, seen, window)
                        continue
                    del seen[keep : keep + drop]
                elif step == "extend":
                    sequence.extend(draw(st.lists(st.integers(0, 2), min_size=1, max_size=6)))
                    run(sequence, seen)
                elif step == "cut":
                    try:
                        sequence.truncate(at := draw(st.integers(0, length)))
                    except UnsupportedError:
                        continue
                    del seen[at:]
                elif step == "publish":
                    sequence.publish()
                else:
                    child = sequence.fork()
                    sequence.close()
                    sequence = child
                check(sequence, seen, window)
                prompts.append(sequence.tokens.tolist() or [0])
            sequence.close()
    for prompt in prompts:
        with cache.open([*prompt, 9]) as again:
            true: list[int] = []
            see(true, *prompt[: again.cached_tokens])
            check(again, true, window)
    cache.clear()
    assert cache.stats().pages == 0


@pytest.mark.parametrize(
    ("keep", "drop"),
    [(keep, drop) for keep in (0, 1, 5) for drop in (1, 2, 3, 4, 6) if (keep, drop) != (5, 6)],
)
def test_a_window_never_goes_back_to_rows_that_were_not_moved(keep: int, drop: int) -> None:
    for position in range(16 - drop):
        cache = cache_of(window=8)
        with cache.open(list(range(300, 400))) as other:
            run(other, [])  # so that a page of the pool is full of another's rows
        seen: list[int] = []
        with cache.open(list(range(16))) as sequence:
            run(sequence, seen)
            sequence.shift(keep, drop)
            del seen[keep : keep + drop]
            try:
                sequence.truncate(position)
            except UnsupportedError:
                pass
            else:
                del seen[position:]
            check(sequence, seen, 8)


def test_a_window_that_began_before_the_dropped_positions_is_refused() -> None:
    with cache_of(window=8).open(list(range(16))) as sequence:
        seen: list[int] = []
        run(sequence, seen)
        with pytest.raises(UnsupportedError, match="a window of 8 sees position"):
            sequence.shift(5, 6)
        check(sequence, seen, 8)


def test_a_media_item_is_cut_by_nothing() -> None:
    cache = cache_of()
    prompt, media = [1, 2, 3, 4, *[9] * 8, *[5] * 8], [(4, 8, b"image")]
    with cache.open(prompt, media=media) as sequence:
        seen: list[int] = []
        run(sequence, seen)
        for call in (
            lambda: sequence.truncate(5),
            lambda: sequence.rollback(11),
            lambda: sequence.shift(8, 8),
            lambda: sequence.shift(2, 3),
        ):
            with pytest.raises(UnsupportedError, match=r"inside the media item of \[4, 12\)"):
                call()
        check(sequence, seen)
        sequence.shift(4, 8)
        sequence.publish()
    assert cache.explain([1, 2, 3, 4, *[9] * 8]).cached_tokens == 4
    with cache.open(prompt, media=media) as sequence:
        run(sequence, [*seen[: sequence.length]])
        sequence.truncate(12)
        sequence.truncate(4)
