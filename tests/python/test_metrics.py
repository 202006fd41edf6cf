"""The text that Prometheus scrapes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from model.driver import SHAPES

from kvcache import Cache, CacheStats, InvalidArgumentError, StatePlan
from kvcache.metrics import _METRICS

SAMPLE = re.compile(r'([a-z_]+)(\{[a-z_]+="(?:[^"\\]|\\.)*"(?:,[a-z_]+="[^"]*")*\})? (\d+)')


def make_cache() -> Cache:
    return Cache(StatePlan(SHAPES["hybrid"], memory="1MiB", block_tokens=4), backing=False)


def test_every_counter_is_one_sample_after_its_help_and_type() -> None:
    cache = make_cache()
    with cache.open([1, 2, 3]) as sequence:
        sequence.advance(3)
        sequence.publish()
    lines = cache.prometheus().splitlines()
    stats = cache.stats()
    assert len(lines) == 3 * len(CacheStats.__slots__)
    for field, *block in zip(
        CacheStats.__slots__, lines[::3], lines[1::3], lines[2::3], strict=True
    ):
        help_line, type_line, sample = block
        found = SAMPLE.fullmatch(sample)
        assert found is not None
        assert help_line.startswith(f"# HELP {found[1]} ")
        kind = "counter" if found[1].endswith("_total") else "gauge"
        assert type_line == f"# TYPE {found[1]} {kind}"
        assert int(found[3]) == getattr(stats, field)


def test_names_are_apart_and_bytes_are_the_last_word() -> None:
    names = [name for name, _, _ in _METRICS.values()]
    assert len(set(names)) == len(names)
    assert all(name.endswith("bytes") for name in names if "bytes" in name)


def test_labels_are_escaped() -> None:
    text = make_cache().prometheus({"model": 'a"b\\c\nd', "rank": "0"})
    assert 'kvcache_opens_total{model="a\\"b\\\\c\\nd",rank="0"} 0' in text.splitlines()


@pytest.mark.parametrize("labels", [{"": "x"}, {"a-b": "x"}, {"__x": "x"}, {"a": 1}, {1: "x"}])
def test_a_label_that_prometheus_refuses_is_refused(labels: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="labels"):
        make_cache().prometheus(labels)
