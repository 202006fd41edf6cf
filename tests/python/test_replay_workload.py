import itertools

import numpy as np
import pytest

from kvcache.replay.workload import TILE_BYTES, FixedWorkload, PrefixKeys, RowWorkload

TOKENS = np.arange(5000, dtype=np.int32) * 7


def state(workload, key):
    raw = np.zeros(workload.size_bytes, np.uint8)
    for span, tile in workload.tiles(key):
        raw[span] = tile
    return raw


def test_keys_do_not_depend_on_how_the_tokens_arrive():
    whole = PrefixKeys().extend(TOKENS)
    prefix = PrefixKeys()
    cuts = [0, 1, 1, 17, 4096, 5000]
    pieces = [prefix.extend(TOKENS[a:b]) for a, b in itertools.pairwise(cuts)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    assert np.unique(whole).size == whole.size


@pytest.mark.parametrize("position", [0, 1234, 4999])
def test_one_changed_token_changes_every_key_from_there_on(position):
    changed = TOKENS.copy()
    changed[position] ^= 1
    same = PrefixKeys().extend(TOKENS) == PrefixKeys().extend(changed)
    assert same[:position].all()
    assert not same[position:].any()


def test_keys_tell_equal_tokens_at_different_positions_apart():
    keys = PrefixKeys().extend(np.zeros(10_000, np.int32))
    assert np.unique(keys).size == keys.size


@pytest.mark.parametrize(("heads", "width"), [(1, 8), (3, 5), (4, 256), (1, 1), (1, 40_000)])
def test_rows_are_finite_and_told_apart_by_position_head_and_word(heads, width):
    workload = RowWorkload(0, "attention.keys", heads, width)
    count = min(64, workload.tile_rows)
    rows = workload.rows(PrefixKeys().extend(TOKENS[:count])).copy()
    assert rows.shape == (count, heads, width)
    assert rows.dtype == np.float16
    assert np.isfinite(rows).all()
    assert len({row.tobytes() for row in rows}) == count or width == 1
    if width >= 5:
        assert len({row.tobytes() for row in rows[0]}) == heads


def test_rows_differ_between_layers_and_components():
    keys = PrefixKeys().extend(TOKENS[:4])
    seen = {
        RowWorkload(layer, component, 2, 8).rows(keys).tobytes()
        for layer in range(3)
        for component in ("attention.keys", "attention.values")
    }
    assert len(seen) == 6


@pytest.mark.parametrize("size", [4, 8, 36, 32_768, 3 * TILE_BYTES // 2 + 4, 4 * TILE_BYTES])
def test_fixed_state_fills_every_byte_finite_and_differs_by_position(size):
    workload = FixedWorkload(3, "state.recurrent", size)
    keys = PrefixKeys().extend(TOKENS[:2])
    first, second = state(workload, keys[0]), state(workload, keys[1])
    assert np.isfinite(first.view(np.float32)).all()
    assert (first != second).any()
    np.testing.assert_array_equal(first, state(workload, keys[0]))
    if size > 64:
        blocks = first[: size // 32 * 32].reshape(-1, 32)
        assert len({block.tobytes() for block in blocks}) == len(blocks)
