"""Prompt lookup as Python sees it: arguments, memory, threads, processes, shared scopes."""

from __future__ import annotations

import doctest
import threading
from array import array
from typing import Any

import numpy as np
import pytest
from support.forked import in_child

import kvcache
import kvcache.speculate.prompt_lookup
from kvcache import (
    CacheInputs,
    InvalidArgumentError,
    LookupInputs,
    PromptLookupCache,
    PromptLookupIndex,
    PromptLookupScope,
)

HISTORY = [5, 6, 7, 8, 9, 1, 5, 6, 7]
KEY: dict[str, Any] = {"model": "m", "tokenizer": "t", "tenant": "a"}


def test_the_examples_are_true() -> None:
    done = doctest.testmod(kvcache.speculate.prompt_lookup)
    assert done.attempted > 5
    assert done.failed == 0


@pytest.mark.parametrize(
    "history",
    [
        HISTORY,
        tuple(HISTORY),
        array("q", HISTORY),
        np.array(HISTORY, np.uint16),
        np.repeat(np.array(HISTORY, np.int64), 2)[::2],
        memoryview(np.array(HISTORY, np.int32)),
    ],
)
def test_any_axis_of_integers_is_a_history(history: Any) -> None:
    index = PromptLookupIndex()
    index.observe(history)
    drafts = index.find(4)
    assert drafts.dtype == np.int32
    assert drafts.tolist() == [8, 9, 1, 5]
    index = PromptLookupIndex()
    index.extend(history)
    assert index.find(4).tolist() == [8, 9, 1, 5]


def test_bytes_are_the_plans_to_the_byte() -> None:
    decls = kvcache.declare_caches([], hidden_size=8)
    rng = np.random.default_rng(0)
    history = rng.integers(0, 2**31 - 1, 40_000).astype(np.int32)
    for tokens in (1, 3, 7, 14, 15, 1000, 32_768):
        inputs = CacheInputs(lookup=LookupInputs(sequences=1, history_tokens=tokens))
        [term] = [t for t in kvcache.cache_terms(decls, inputs) if t.bytes]
        grown = PromptLookupIndex(min_match=3, max_match=3)
        grown.observe(history[:tokens])
        capped = PromptLookupIndex(min_match=3, max_match=3, history_tokens=tokens)
        capped.observe(history)
        reserved = PromptLookupIndex(min_match=3, max_match=3, history_tokens=tokens, reserve=True)
        assert term.bytes == kvcache.hash_table_bytes(tokens, 16)
        assert grown.bytes == capped.bytes == reserved.bytes == term.bytes
        several = PromptLookupIndex(min_match=2, max_match=4, history_tokens=tokens, reserve=True)
        assert several.bytes == kvcache.hash_table_bytes(3 * tokens, 16)


def test_the_window_adapts_and_pauses() -> None:
    index = PromptLookupIndex(max_drafts=4, max_pause=2)
    index.extend([*range(10), *range(3)])
    for expected in (2, 4, 4):
        assert len(index.propose()) == expected == index.in_flight
        index.settle(expected)
    assert len(index.propose(3)) == 3
    index.settle(0)
    assert (index.window, index.pause, index.in_flight) == (2, 1, 0)
    assert index.propose().size == 0
    assert index.propose().size == 2
    index.settle(0)
    assert (index.window, index.pause) == (1, 2)
    for _ in range(2):
        assert index.propose().size == 0
    assert index.propose().size == 1
    index.abandon()
    assert index.window == 1
    assert index.pause == 0


def test_drafts_in_flight_are_settled_once() -> None:
    index = PromptLookupIndex()
    index.extend(HISTORY)
    with pytest.raises(InvalidArgumentError, match="0 accepted of 0 drafts in flight"):
        index.settle(0)
    index.abandon()
    index.propose()
    with pytest.raises(InvalidArgumentError, match="2 drafts are in flight"):
        index.propose()
    for wrong in (3, -1, 2**63, None, 1.0, True):
        with pytest.raises(InvalidArgumentError):
            index.settle(wrong)
    index.settle(2)
    with pytest.raises(InvalidArgumentError):
        index.settle(2)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"min_match": 0}, "min_match"),
        ({"min_match": 5, "max_match": 4}, "got 5 and 4"),
        ({"max_match": 65, "min_match": 60}, "max_match <= 64"),
        ({"min_match": 1, "max_match": 17}, "at most 16 lengths"),
        ({"max_drafts": 0}, "max_drafts must be 1..65536"),
        ({"max_drafts": 2**16 + 1}, "max_drafts"),
        ({"max_pause": 2**32}, "max_pause"),
        ({"history_tokens": 0}, "history_tokens"),
        ({"history_tokens": 2**64}, "history_tokens"),
        ({"history_tokens": "many"}, "history_tokens"),
        ({"occurrence": "first"}, "'latest', 'earliest' or"),
        ({"occurrence": None}, "'latest', 'earliest' or"),
        ({"min_match": -1}, "min_match"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        PromptLookupIndex(**options)


@pytest.mark.parametrize("history", [[1.5], [[1]], [2**31], ["a"], 7, None, [True], [-(2**31) - 1]])
def test_what_is_no_history_is_refused_and_changes_nothing(history: Any) -> None:
    index = PromptLookupIndex()
    index.extend(HISTORY)
    with pytest.raises(InvalidArgumentError):
        index.extend(history)
    assert index.find().tolist() == [8, 9, 1, 5, 6, 7]
    observing = PromptLookupIndex()
    observing.observe(HISTORY)
    with pytest.raises(InvalidArgumentError):
        observing.observe(history)
    assert observing.find().tolist() == [8, 9, 1, 5, 6, 7]


def test_a_history_is_given_whole_or_in_parts_not_both() -> None:
    index = PromptLookupIndex()
    index.observe(HISTORY)
    with pytest.raises(InvalidArgumentError, match="by observe"):
        index.extend([1])
    index = PromptLookupIndex()
    index.extend(HISTORY)
    with pytest.raises(InvalidArgumentError, match="by extend"):
        index.observe([1])


def test_truncated_tokens_are_gone() -> None:
    index = PromptLookupIndex()
    index.extend([1, 2, 3, 4, 1, 2])
    assert index.find().tolist() == [3, 4, 1, 2]
    index.truncate(2)
    assert index.find().size == 0
    index.extend([9, 9, 1, 2])
    assert index.find().tolist() == [9, 9, 1, 2]
    index.truncate(99)
    assert index.length == 6
    with pytest.raises(InvalidArgumentError):
        index.truncate(-1)


def test_drafts_stay_when_the_history_goes_on() -> None:
    index = PromptLookupIndex()
    index.extend(HISTORY)
    drafts = index.find()
    index.truncate(3)
    index.extend([0] * 6)
    assert drafts.tolist() == [8, 9, 1, 5, 6, 7]


def test_a_batch_proposes_what_each_would() -> None:
    rng = np.random.default_rng(0)
    batch = [PromptLookupIndex(min_match=1, max_pause=2) for _ in range(8)]
    alone = [PromptLookupIndex(min_match=1, max_pause=2) for _ in range(8)]
    for _ in range(60):
        most = rng.integers(0, 6, 8)
        for index, twin in zip(batch, alone, strict=True):
            tokens = rng.integers(0, 4, int(rng.integers(1, 4)))
            index.extend(tokens)
            twin.extend(tokens)
        drafts, counts = kvcache.propose_batch(batch, most)
        expected = [twin.propose(int(limit)) for twin, limit in zip(alone, most, strict=True)]
        assert drafts.tolist() == np.concatenate(expected).tolist()
        assert counts.tolist() == [each.size for each in expected]
        accepted = [int(rng.integers(0, each.size + 1)) for each in expected]
        kvcache.settle_batch(batch, accepted)
        for twin, count in zip(alone, accepted, strict=True):
            if twin.in_flight:
                twin.settle(count)
        assert [index.window for index in batch] == [twin.window for twin in alone]
        assert [index.pause for index in batch] == [twin.pause for twin in alone]


def test_a_batch_that_is_refused_leaves_nothing_in_flight() -> None:
    indexes = [PromptLookupIndex() for _ in range(3)]
    for index in indexes:
        index.extend(HISTORY)
    assert kvcache.propose_batch([])[0].size == 0
    kvcache.settle_batch([], [])
    indexes[2].propose()
    with pytest.raises(InvalidArgumentError, match="index 2: propose: 2 drafts are in flight"):
        kvcache.propose_batch(indexes)
    assert [index.in_flight for index in indexes] == [0, 0, 2]
    for call in (kvcache.propose_batch, lambda each: kvcache.settle_batch(each, [0, 0])):
        with pytest.raises(InvalidArgumentError, match="indexes 0 and 1 are the same"):
            call([indexes[0], indexes[0]])
    assert indexes[0].in_flight == 0
    for wrong in ([1, 2], [-1, 0, 0], [0.5] * 3, "many", -1, [[1] * 3], True, np.float64(2)):
        with pytest.raises(InvalidArgumentError):
            kvcache.propose_batch(indexes, wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"index 0: settle: 1 accepted of 0"):
        kvcache.settle_batch(indexes, [1, 0, 2])
    assert indexes[2].in_flight == 2
    for wrong in ([0, 0], None, [0, 0, -1]):
        with pytest.raises(InvalidArgumentError):
            kvcache.settle_batch(indexes, wrong)  # type: ignore[arg-type]
    other: Any = [7]
    with pytest.raises(InvalidArgumentError, match=r"indexes\[0\]"):
        kvcache.propose_batch(other)


@pytest.mark.parametrize("most", [1, np.int64(1), np.uint8(1), np.array(1), [1, 1]])
def test_a_limit_of_all_is_a_number_of_any_kind(most: Any) -> None:
    indexes = [PromptLookupIndex() for _ in range(2)]
    for index in indexes:
        index.extend(HISTORY)
    assert kvcache.propose_batch(indexes, most)[1].tolist() == [1, 1]


def test_threads_share_an_index_and_a_scope() -> None:
    cache = PromptLookupCache(memory="64KiB", scope="8KiB")
    index = PromptLookupIndex()
    rng = np.random.default_rng(0)
    history = rng.integers(0, 4, 20_000).astype(np.int32)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        own = np.random.default_rng(seed)
        try:
            scope = cache.scope(model="m", tokenizer="t", tenant=str(seed % 10))
            for _ in range(100):
                index.observe(history[: own.integers(1, history.size)])
                index.find()
                index.abandon()
                scope.insert(own.integers(0, 9, 200))
                scope.find(history[:10])
                assert cache.bytes <= 64 << 10
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_child_process_is_refused() -> None:
    index = PromptLookupIndex()
    index.extend(HISTORY)
    cache = PromptLookupCache()
    scope = cache.scope(**KEY)
    scope.insert(HISTORY)

    def child() -> None:
        for call in (
            lambda: index.extend([1]),
            lambda: index.find(),
            lambda: index.propose(),
            lambda: index.settle(1),
            lambda: index.abandon(),
            lambda: index.truncate(1),
            lambda: scope.insert([1, 2, 3, 4]),
            lambda: scope.find([1, 2, 3, 4]),
            lambda: cache.drop(**KEY),
        ):
            with pytest.raises(InvalidArgumentError, match="made before fork"):
                call()
        for read in (
            lambda: index.length,
            lambda: index.window,
            lambda: index.pause,
            lambda: index.in_flight,
            lambda: index.entries,
            lambda: index.bytes,
            lambda: cache.scopes,
            lambda: cache.bytes,
            lambda: scope.tokens,
        ):
            with pytest.raises(InvalidArgumentError, match="made before fork"):
                read()
        assert {repr(index), repr(cache), repr(scope)} == {
            f"<PromptLookup{kind} of another process>" for kind in ("Index", "Cache", "Scope")
        }

    assert in_child(child) == ""
    assert index.find().size == 6


def test_a_scope_is_asked_when_the_history_has_no_match() -> None:
    cache = PromptLookupCache(match=2)
    scope = cache.scope(**KEY)
    scope.insert([1, 2, 3, 4, 5, 6])
    index = PromptLookupIndex()
    index.extend([9, 1, 2])
    assert index.propose(shared=scope).tolist() == [3, 4]
    index.settle(2)
    assert index.propose(shared=cache.scope(**{**KEY, "tenant": "b"})).size == 0
    assert index.in_flight == 0
    index.extend([0, 9, 1, 2])
    assert index.propose(shared=scope).tolist() == [0, 9, 1, 2]
    wrong: Any = cache
    with pytest.raises(InvalidArgumentError, match="expected a PromptLookupScope"):
        index.propose(shared=wrong)


def test_each_part_of_the_key_parts_scopes() -> None:
    cache = PromptLookupCache(memory="1MiB", scope="8KiB", match=2)
    keys: list[dict[str, Any]] = [
        KEY,
        {**KEY, "model": "m2"},
        {**KEY, "tokenizer": "t2"},
        {**KEY, "tenant": b"a2"},
        {**KEY, "adapter": "lora"},
        {**KEY, "adapter": ("lora", "r2")},
        {"model": "mt", "tokenizer": "", "tenant": "a"},
    ]
    for number, key in enumerate(keys):
        assert cache.scope(**key).find([1, 2]).size == 0
        cache.scope(**key).insert([1, 2, number])
    for number, key in enumerate(keys):
        assert cache.scope(**key).find([1, 2]).tolist() == [number]
    assert cache.scopes == len(keys)
    assert cache.bytes == len(keys) * 8192
    assert cache.drop(**keys[1])
    assert not cache.drop(**keys[1])
    assert cache.scope(**keys[1]).tokens == 0
    assert cache.scope(**keys[0]).tokens > 0


@pytest.mark.parametrize("part", ["model", "tokenizer", "tenant"])
def test_a_part_of_the_key_is_never_left_out(part: str) -> None:
    for wrong in (None, 7):
        key = {**KEY, part: wrong}
        with pytest.raises(InvalidArgumentError, match=part):
            PromptLookupCache().scope(**key)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"scope": "8191"}, "scope_bytes must be 8192"),
        ({"memory": "1MiB", "scope": "2MiB"}, "hold no scope"),
        ({"memory": "1EiB"}, "memory"),
        ({"memory": 2**64 - 1, "scope": 2**33 + 1}, "scope_bytes"),
        ({"match": 0}, "match must be 1..64"),
        ({"match": 65}, "match"),
        ({"memory": -1}, "memory"),
    ],
)
def test_impossible_caches_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        PromptLookupCache(**options)


def test_wrong_tokens_of_a_scope_are_refused() -> None:
    scope = PromptLookupCache().scope(**KEY)
    for wrong in ([-1, 2, 3, 4], [2**31], [1.5], None):
        with pytest.raises(InvalidArgumentError):
            scope.insert(wrong)
    with pytest.raises(InvalidArgumentError):
        scope.find([1, 2, 3], max_drafts=2**16 + 1)
    assert scope.tokens == 0
    assert isinstance(scope, PromptLookupScope)
    assert repr(scope) == "<PromptLookupScope 0 tokens>"
