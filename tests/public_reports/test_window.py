"""Public bug reports on sliding windows, one test each."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from support.tiny_model import HEADS, SLIDING, WIDTH, TinyModel

import kvcache
from kvcache import InvalidArgumentError, NotFoundError, UnsupportedError


def row_values(start: int, stop: int, seed: int = 0) -> NDArray[np.float32]:
    """Rows that tell their position and ``seed``; float16 holds the elements exactly."""
    rows = np.empty((stop - start, HEADS, WIDTH), np.float32)
    position = np.arange(start, stop)[:, None]
    rows[..., 0], rows[..., 1], rows[..., 2:] = position % 1024, position // 1024, seed
    return rows


def write(sequence: kvcache.Sequence, stop: int, chunk: int, seed: int = 0) -> None:
    """Known tokens up to ``stop``, in chunks."""
    missing = stop - len(sequence.tokens)
    if missing > 0:
        sequence.extend(np.zeros(missing, np.int32))
    while sequence.length < stop:
        start = sequence.length
        end = min(stop, start + chunk)
        rows = row_values(start, end, seed)
        sequence.write(SLIDING, start, rows, -rows)
        sequence.advance(end - start)


def check(sequence: kvcache.Sequence, start: int, stop: int, seed: int = 0) -> None:
    keys, values = sequence.read(SLIDING, start, stop, "float32")
    np.testing.assert_array_equal(keys, row_values(start, stop, seed))
    np.testing.assert_array_equal(values, -row_values(start, stop, seed))


def windowed(window: int, block_tokens: int = 16) -> kvcache.Cache:
    return TinyModel((SLIDING,), window=window).cache(memory="4MiB", block_tokens=block_tokens)


def test_a_block_behind_the_window_is_gone_and_not_somebody_elses() -> None:
    """vllm-project/vllm#42273: freed block ids stayed in the table and were read after reuse."""
    cache = windowed(1024)
    sequence = cache.open([1])
    write(sequence, 2500, 100)
    write(sequence, 2501, 1)
    sequence.truncate(2500)
    first = (2500 - 1023) // 16
    table = sequence.block_table(0)
    assert (table[:first] == -1).all()
    assert (table[first:] >= 0).all()
    with cache.open([2]) as other:
        write(other, 2000, 100, seed=1000)
        for start in (0, 600, 1200):
            with pytest.raises(NotFoundError, match="have left its window of 1024"):
                sequence.read(SLIDING, start, start + 200)
        check(sequence, 2500 - 1023, 2500)
        check(other, 2000 - 1023, 2000, seed=1000)
        assert not {*table[table >= 0].tolist()} & {*other.block_table(0).tolist()}


def test_a_rewind_past_the_window_is_refused() -> None:
    """waybarrios/vllm-mlx#678: a rewind past the window read another conversation's rows."""
    cache = windowed(1024)
    sequence = cache.open([1])
    write(sequence, 6000, 500)
    for position in (3000, 4976, 1):
        with pytest.raises(UnsupportedError, match="a window of 1024 has dropped positions from"):
            sequence.truncate(position)
        assert sequence.length == len(sequence.tokens) == 6000
    check(sequence, 6000 - 1023, 6000)
    sequence.truncate(5990)
    check(sequence, 5990 - 1023, 5990)


def test_a_refused_rewind_leaves_no_negative_index() -> None:
    """ml-explore/mlx-lm#1776: trim() after the wrap went through although it was not possible."""
    cache = windowed(8, block_tokens=4)
    sequence = cache.open([1])
    write(sequence, 20, 1)
    with pytest.raises(UnsupportedError, match="a window of 8"):
        sequence.truncate(17)
    assert sequence.length == 20
    check(sequence, 13, 20)
    write(sequence, 23, 1)
    check(sequence, 16, 23)


def test_a_negative_rewind_is_an_error() -> None:
    """ml-explore/mlx-lm#1868: trim(-5) increased the offset."""
    sequence = windowed(8).open([1])
    write(sequence, 10, 10)
    for position in (-5, 15):
        with pytest.raises(InvalidArgumentError):
            sequence.truncate(position)
        assert sequence.length == 10
    check(sequence, 3, 10)


def test_a_partial_chunk_keeps_the_order_of_the_window() -> None:
    """awslabs/keys_values#140: a partial write into a full ring mixed up the order of its rows."""
    sequence = windowed(128).open([1])
    write(sequence, 300, 128)  # the last chunk has 44 positions
    check(sequence, 300 - 127, 300)
    for length in range(301, 320):
        write(sequence, length, 1)
        check(sequence, length - 127, length)


def test_the_rows_of_the_current_chunk_are_all_there() -> None:
    """ml-explore/mlx-lm#1673: chunked attention lost valid rows while decoding over a boundary."""
    chunk = 16
    decls = [replace(d, chunked=True) for d in TinyModel((SLIDING,), window=chunk).declarations()]
    for block_tokens in (4, 5, 16, 64):
        plan = kvcache.StatePlan(decls, memory="1MiB", block_tokens=block_tokens)
        sequence = kvcache.Cache(plan).open([1])
        write(sequence, 13, 13)
        for length in range(14, 55):
            write(sequence, length, 1)
            # What the next token of the chunk attends to.
            check(sequence, length // chunk * chunk, length)


# ---- What else goes wrong at a window ---------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 7, 8, 9, 1000])
def test_a_prompt_longer_than_the_window_is_written_in_one_chunk(window: int) -> None:
    sequence = windowed(window, block_tokens=4).open([1])
    write(sequence, 101, 101)
    check(sequence, max(0, 101 - (window - 1)), 101)


@pytest.mark.parametrize(("window", "prompt"), [(8, 24), (9, 24), (8, 23), (7, 25), (8, 4)])
def test_a_hit_has_exactly_the_positions_that_the_next_token_sees(window: int, prompt: int) -> None:
    """Of a window of w the next token sees w - 1 earlier positions: no more are asked for."""
    cache = windowed(window, block_tokens=4)
    with cache.open(np.arange(prompt)) as first:
        write(first, prompt, 1)
        first.publish()
    with cache.open(np.arange(prompt + 1)) as second:
        assert second.cached_tokens == prompt
        check(second, max(0, prompt - (window - 1)), prompt)
        with pytest.raises(UnsupportedError) if prompt > window + 4 else nullcontext():
            second.truncate(max(0, prompt - 4 - window))


def test_a_child_keeps_its_window_when_its_parent_goes_on() -> None:
    cache = windowed(8, block_tokens=4)
    parent = cache.open([1])
    write(parent, 21, 3)
    child = parent.fork()
    write(parent, 90, 1, seed=5)
    parent.close()
    check(child, 14, 21)
    write(child, 33, 1)
    check(child, 26, 33)
    child.close()
    assert cache.stats().used_bytes == 0


def test_memory_of_a_window_does_not_grow_with_the_sequence() -> None:
    cache = windowed(8, block_tokens=4)
    sequence = cache.open([1])
    most = 0
    for length in range(1, 400):
        write(sequence, length, 1)
        most = max(most, cache.stats().pages)
    assert most == 3
