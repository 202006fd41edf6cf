"""Block tables and rows where they lie: what they show, how long, and what they refuse."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from support.declarations import paged, recurrent
from support.filled import MODELS, Array, fill, make_cache, paged_layers, prompt, run

import kvcache
from kvcache.errors import InvalidArgumentError, NotFoundError, UnsupportedError

PAGED = [name for name in MODELS if name != "recurrent only"]


def written(cache: Any, length: int = 21) -> kvcache.Sequence:
    sequence = cache.open(prompt(length))
    run(cache, sequence, [length])
    return sequence


def decoded(rows: Any, scales: Array | None) -> Array:
    """Stored rows as float16, the way `read` decodes them."""
    if scales is None:
        return rows
    return (rows * scales[..., None]).astype(np.float16)


def window_start(cache: Any, layer: int, length: int) -> int:
    [window] = {g.window for g in cache.plan.groups for p in g.components if p.layer == layer}
    return max(0, length - (window - 1)) if window else 0


@pytest.mark.parametrize("model", PAGED)
def test_views_hold_what_read_decodes(model: str) -> None:
    cache = make_cache(model)
    sequence = written(cache)
    for layer in paged_layers(cache):
        start = window_start(cache, layer, 21)
        expected = sequence.read(layer, start, 21)
        for views, want in zip(sequence.views(layer, start, 21), expected, strict=True):
            got = [decoded(view.rows, view.scales) for view in views]
            assert [view.start for view in views][:1] == [start] * bool(views)
            assert np.array_equal(np.concatenate([want[:0], *got]), want)


@pytest.mark.parametrize("model", PAGED)
def test_a_kernel_gathers_through_the_block_table(model: str) -> None:
    cache = make_cache(model)
    written(cache, 9)  # so that page numbers are not block numbers
    sequence = written(cache)
    for layer in paged_layers(cache):
        start = window_start(cache, layer, 21)
        positions = np.arange(start, 21)
        want = sequence.read(layer, start, 21)
        for part, rows in zip(cache.plan.paged_components(layer), want, strict=True):
            memory = cache.pages(layer, part.component)
            assert memory.rows.shape[1:] == (4, part.heads, part.width)
            table = sequence.block_table(memory.group)
            assert table.dtype == np.int32
            assert len(table) == 6
            pages, offsets = table[positions // 4], positions % 4
            scales = None if memory.scales is None else memory.scales[pages, offsets]
            assert np.array_equal(decoded(memory.rows[pages, offsets], scales), rows)


@pytest.mark.parametrize("width", [8, 72, 200, 1000, 1544])
def test_pages_of_any_size_have_one_stride(width: int) -> None:
    declaration = paged(0, "attention.keys", 1, width)
    cache = kvcache.Cache(kvcache.StatePlan([declaration], memory="4MiB", block_tokens=4))
    tokens = prompt(400)
    sequence = cache.open(tokens)
    keys = np.random.default_rng(0).standard_normal((400, 1, width)).astype(np.float16)
    sequence.write(0, 0, keys)
    pages = cache.pages(0, "attention.keys").rows
    gathered = pages[sequence.block_table(0)].reshape(400, 1, width)
    assert np.array_equal(gathered, keys)


def test_a_window_leaves_holes() -> None:
    cache = make_cache("sliding")
    with cache.open(prompt(40)) as sequence:
        run(cache, sequence, [20, 40])
        tables = {g.window: sequence.block_table(i) for i, g in enumerate(cache.plan.groups)}
        assert (tables[0] >= 0).all()
        assert (tables[7][:3] == -1).all()
        assert (tables[7][-2:] >= 0).all()
        with pytest.raises(NotFoundError, match="left its window of 7"):
            sequence.views(1, 0, 40)


def test_a_fork_shares_pages_until_it_writes() -> None:
    cache = make_cache("attention")
    parent = written(cache)
    child = parent.fork()
    assert np.array_equal(parent.block_table(0), child.block_table(0))
    child.extend([1])
    for layer in (0, 1):
        child.write(layer, 21, *(np.ones((1, 2, 8), np.float16),) * 2)
    assert np.array_equal(parent.block_table(0)[:5], child.block_table(0)[:5])
    assert parent.block_table(0)[5] != child.block_table(0)[5]


def test_arrays_are_read_only_for_good() -> None:
    cache = make_cache("int8")
    sequence = written(cache)
    [view, *_] = sequence.views(0, 0, 4)[0]
    memory = cache.pages(0, "attention.keys")
    for array in (view.rows, view.scales, memory.rows, memory.scales, sequence.block_table(0)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.setflags(write=True)


def test_a_view_pins_its_page_beyond_everything() -> None:
    cache = make_cache("attention")
    sequence = written(cache, 8)
    want = sequence.read(0, 4, 8)[0]
    view = sequence.views(0, 4, 8)[0][0]
    shown = view.rows
    del view
    sequence.close()
    cache.clear()
    assert cache.stats().pages == 1
    fill(cache, prompt(200, seed=3))  # would overwrite it
    cache.clear()
    assert np.array_equal(shown, want)
    assert cache.stats().pages == 1
    kept = shown[1:]
    del shown, sequence
    gc.collect()
    assert cache.stats().pages == 1
    del cache
    gc.collect()
    assert np.array_equal(kept, want[1:])


def test_the_last_view_frees_the_page() -> None:
    cache = make_cache("attention")
    with written(cache, 8) as sequence:
        views = sequence.views(0, 0, 8)
    cache.clear()
    assert cache.stats().pages == 2
    del views
    gc.collect()
    assert cache.stats().pages == 0


def test_complete_rows_never_change_under_a_view() -> None:
    cache = make_cache("attention")
    sequence = cache.open(prompt(6))
    old = np.full((6, 2, 8), 1, np.float16)
    for layer in (0, 1):
        sequence.write(layer, 0, old, old)
    sequence.advance(6)
    views = sequence.views(0, 0, 6)[0]
    pages = sequence.block_table(0)
    sequence.truncate(5)
    sequence.extend([7])
    sequence.write(0, 5, old[:1] * 2, old[:1] * 2)
    assert sequence.block_table(0)[1] != pages[1]  # the page was copied
    assert (views[1].rows == 1).all()
    assert (sequence.read(0, 0, 6)[0][5] == 2).all()


def test_rows_that_are_not_complete_are_live() -> None:
    cache = make_cache("attention")
    sequence = cache.open(prompt(6))
    rows = np.ones((6, 2, 8), np.float16)
    sequence.write(0, 0, rows, rows)
    [view, _] = sequence.views(0, 0, 6)[0]
    sequence.write(0, 0, rows * 3, rows)
    assert (view.rows == 3).all()


def test_a_pool_outlives_its_cache() -> None:
    cache = make_cache("attention")
    sequence = written(cache)
    want = sequence.read(0, 0, 4)[0]
    page = sequence.block_table(0)[0]
    rows = cache.pages(0, "attention.keys").rows
    sequence.publish()  # the page is not given back before the cache is gone
    del sequence, cache
    gc.collect()
    assert np.array_equal(rows[page], want)


def test_pages_leave_by_dlpack() -> None:
    cache = make_cache("attention")
    sequence = written(cache)
    rows = cache.pages(1, "attention.values").rows
    page = sequence.views(1, 0, 4)[1][0].rows
    for array in (rows, page):
        assert array.__dlpack_device__() == (1, 0)
        # A consumer that knows no read-only tensors must not get one.
        with pytest.raises(BufferError):
            array.__dlpack__()
    if tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1):
        shared = np.from_dlpack(rows)
        assert shared.strides == rows.strides
        assert not shared.flags.writeable
        assert np.array_equal(shared[page_of(sequence)], page)


def page_of(sequence: kvcache.Sequence) -> int:
    return int(sequence.block_table(0)[0])


def test_what_is_refused() -> None:
    cache = make_cache("attention")
    sequence = written(cache, 8)
    with pytest.raises(InvalidArgumentError, match="the plan has 1 groups"):
        sequence.block_table(1)
    with pytest.raises(InvalidArgumentError, match="group: must be 0"):
        sequence.block_table(-1)
    with pytest.raises(InvalidArgumentError, match=r"\[4, 9\) are not within the 8 written"):
        sequence.views(0, 4, 9)
    with pytest.raises(InvalidArgumentError, match=r"\[5, 4\)"):
        sequence.views(0, 5, 4)
    with pytest.raises(InvalidArgumentError, match="layer 7 keeps no pages"):
        sequence.views(7, 0, 1)
    with pytest.raises(InvalidArgumentError, match="layer 7 keeps no pages"):
        cache.pages(7, "attention.keys")
    with pytest.raises(NotFoundError, match=r"keeps: attention\.keys, attention\.values"):
        cache.pages(0, "attention.latent")
    sequence.close()
    for call in (lambda: sequence.block_table(0), lambda: sequence.views(0, 0, 1)):
        with pytest.raises(InvalidArgumentError, match="closed"):
            call()


def test_a_ledger_has_tables_but_no_bytes() -> None:
    cache = make_cache("attention", backing=False)
    sequence = cache.open(prompt(9))
    sequence.advance(9)
    assert len(sequence.block_table(0)) == 3
    with pytest.raises(UnsupportedError, match="ledger"):
        sequence.views(0, 0, 4)
    with pytest.raises(UnsupportedError, match="ledger"):
        cache.pages(0, "attention.keys")


def test_a_state_of_too_many_axes_is_refused_by_its_view() -> None:
    declaration = recurrent(0, "state.recurrent", *(1,) * 70)
    cache = kvcache.Cache(kvcache.StatePlan([declaration], memory="1MiB"))
    with (
        cache.open([1, 2]) as sequence,
        pytest.raises(UnsupportedError, match=r"'state.recurrent' of layer 0 has 70 axes"),
    ):
        sequence.state(0, "state.recurrent")
    assert cache.stats().slots == 0


def test_bfloat16_pages_leave_as_bits_and_by_dlpack() -> None:
    declaration = paged(0, "attention.keys", 2, 8, dtype=kvcache.DType.BF16)
    cache = kvcache.Cache(kvcache.StatePlan([declaration], memory="1MiB", block_tokens=4))
    bits = np.arange(96, dtype=np.uint16).reshape(6, 2, 8)
    with cache.open(prompt(6)) as sequence:
        sequence.write(0, 0, kvcache._core.Bfloat16Array(bits))
        [first, second] = sequence.views(0, 0, 6)[0]
        memory = cache.pages(0, "attention.keys")
        page = sequence.block_table(0)[1]
        assert np.array_equal(first.rows.bits, bits[:4])
        assert np.array_equal(second.rows.bits, bits[4:])
        assert np.array_equal(memory.rows.bits[page, :2], bits[4:])
        with pytest.raises(ValueError, match="read-only"):
            first.rows.bits[0] = 1
        assert memory.rows.__dlpack_device__() == (1, 0)
        shape, dtype = kvcache._core.describe_array(first.rows, "rows")
        assert (tuple(shape), dtype) == ((4, 2, 8), "bf16")
