"""The text that Prometheus scrapes, read by a parser as strict as the format's description."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import pytest
from model.driver import SHAPES
from support.prometheus_text import parse

from kvcache import Cache, CacheStats, InvalidArgumentError, StatePlan, prometheus_text
from kvcache.metrics import _METRICS

#: Shown as the sum of others.
SUMS = {
    "pages": "live_pages",
    "opens": "opens_total",
}


def make_cache(shape: str = "hybrid") -> Cache:
    plan = StatePlan(SHAPES[shape], memory="1MiB", block_tokens=4)
    return Cache(plan, backing=False, event_capacity=100)


def busy_cache() -> Cache:
    cache = make_cache("everything")
    for tokens in ([1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 9]):
        with cache.open(tokens) as sequence:
            sequence.advance(len(tokens) - sequence.length)
            sequence.publish()
    cache.erase(adapter="")
    cache.bump_epoch()
    return cache


def numbered_stats() -> CacheStats:
    """Every number another one."""
    fields = dataclasses.fields(CacheStats)
    values = {
        field.name: (1000 + i, 2000 + i) if "tuple" in str(field.type) else i
        for i, field in enumerate(fields)
    }
    return CacheStats(**values)


def test_every_counter_is_shown_once_with_its_value() -> None:
    stats = numbered_stats()
    metrics = parse(prometheus_text(stats))
    shown = sorted(value for _, _, samples in metrics.values() for value in samples.values())
    numbers: list[int] = []
    for field in dataclasses.fields(CacheStats):
        if field.name not in SUMS:
            value = getattr(stats, field.name)
            numbers += value if isinstance(value, tuple) else [value]
    assert shown == sorted(numbers)


def test_what_is_shown_as_a_sum_adds_up() -> None:
    cache = busy_cache()
    stats, metrics = cache.stats(), parse(cache.prometheus())
    for field, name in SUMS.items():
        assert sum(metrics[f"kvcache_{name}"][2].values()) == getattr(stats, field)
    assert stats.opens == 3


def test_counters_and_gauges_are_what_their_names_say() -> None:
    metrics = parse(busy_cache().prometheus())
    assert len(metrics) == len(_METRICS)
    for name, (kind, summary, samples) in metrics.items():
        assert name.startswith("kvcache_")
        assert kind == ("counter" if name.endswith("_total") else "gauge")
        assert summary.endswith(".")
        assert samples
        assert "bytes" not in name or name.endswith("bytes")


def test_reasons_limits_and_groups_are_labels() -> None:
    metrics = parse(busy_cache().prometheus())
    removed = metrics["kvcache_removed_blocks_total"][2]
    assert {labels[0] for labels in removed} == {
        ("reason", "evicted"),
        ("reason", "expired"),
        ("reason", "erased"),
        ("reason", "dropped"),
    }
    assert removed[(("reason", "erased"),)] > 0
    limits = [labels[0][1] for labels in metrics["kvcache_opens_total"][2]]
    assert limits == ["last token", "tokens", "snapshot", "window"]
    assert list(metrics["kvcache_live_pages"][2]) == [(("group", "0"),), (("group", "1"),)]


def test_labels_are_escaped_and_come_before_those_of_the_metric() -> None:
    odd = 'a"b\\c\nd'
    metrics = parse(make_cache().prometheus({"model": odd, "rank": "0"}))
    assert metrics["kvcache_hits_total"][2] == {(("model", odd), ("rank", "0")): 0}
    assert (("model", odd), ("rank", "0"), ("group", "0")) in metrics["kvcache_live_pages"][2]


@pytest.mark.parametrize(
    "labels",
    [{"": "x"}, {"a-b": "x"}, {"__x": "x"}, {"a": 1}, {1: "x"}, {"group": "x"}, {"reason": "x"}],
)
def test_a_label_that_prometheus_refuses_is_refused(labels: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="labels"):
        make_cache().prometheus(labels)


@pytest.mark.parametrize("text", ["a 1", "# HELP a b\n# TYPE a gauge\na{x=1} 1\n"])
def test_the_parser_refuses_what_is_no_such_text(text: str) -> None:
    with pytest.raises(AssertionError):
        parse(text)


def test_every_attribute_is_documented() -> None:
    documented = re.findall(r"^    (\w+): ", inspect.getdoc(CacheStats) or "", re.MULTILINE)
    assert documented == [field.name for field in dataclasses.fields(CacheStats)]
