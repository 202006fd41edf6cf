"""Whatever is changed in a published prompt cache, it is refused by name or means the same."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.published_caches import Written, cache_for, check_hit, put_manifest, write

from kvcache import load_published
from kvcache.errors import KVCacheError

TOKENS = np.arange(11, dtype=np.int32) * 7 + 1
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-2, 30)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["keys", "values", "Float16", "Float32", "full", "../x", "no_state", "0" * 64]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)
SETTINGS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write(tmp_path_factory.mktemp("published") / "p", "hybrid", TOKENS, block=4)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of every value inside a JSON value."""
    steps = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for step in steps:
        yield (*path, step)
        yield from paths(value[step], (*path, step))


def refused_or_the_same(written: Written) -> None:
    cache = cache_for("hybrid")
    try:
        load_published(cache, written.path, TOKENS)
    except KVCacheError:
        assert cache.stats().pages == 0
        assert cache.stats().open_sequences == 0
    else:
        assert check_hit(cache, written, np.append(TOKENS, 5)) == len(TOKENS)


@SETTINGS
@given(data=st.data())
def test_a_changed_value(written: Written, data: st.DataObject) -> None:
    whole = written.manifest
    *parents, last = data.draw(st.sampled_from(list(paths(whole))))
    inner: Any = whole
    for step in parents:
        inner = inner[step]
    if data.draw(st.booleans()):
        inner[last] = data.draw(JSON)
    elif isinstance(inner, list) and data.draw(st.booleans()):
        inner.insert(data.draw(st.integers(0, len(inner))), inner[last])
    else:
        del inner[last]
    before = written.manifest
    put_manifest(written.generation, whole)
    try:
        refused_or_the_same(written)
    finally:
        put_manifest(written.generation, before)


@SETTINGS
@given(data=st.data())
def test_changed_bytes_of_any_file(written: Written, tmp_path: Path, data: st.DataObject) -> None:
    copy = Written(tmp_path / "copy", written.layout, TOKENS, written.rows, written.tensors)
    shutil.rmtree(copy.path, ignore_errors=True)
    shutil.copytree(written.path, copy.path)
    files = sorted(path for path in copy.path.rglob("*") if path.is_file())
    file = data.draw(st.sampled_from(files))
    raw = bytearray(file.read_bytes())
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, min(len(raw), start + 12)))
    raw[start:end] = data.draw(st.binary(max_size=12))
    file.write_bytes(raw)
    refused_or_the_same(copy)
