"""Where snapshots are taken, and what that lets a later prompt reuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from model.driver import LINEAR, SHAPES, attention

from kvcache import Cache, InvalidArgumentError, Sequence, StatePlan

PROMPT_TOKENS, CHUNK_TOKENS, TAIL_TOKENS, BRANCH = 32_768, 2_048, 100, 20_000
PROMPT = np.random.default_rng(0).integers(0, 150_000, PROMPT_TOKENS).astype(np.int32)
CHANGED_TAIL = np.concatenate([PROMPT[:-TAIL_TOKENS], np.full(TAIL_TOKENS, 1, np.int32)])
DIVERGED = np.concatenate([PROMPT[:BRANCH], np.full(5_000, 7, np.int32)])


def ledger(shape: str = "hybrid", block_tokens: int = 16, **options: Any) -> Cache:
    plan = StatePlan(SHAPES[shape], memory="256MiB", block_tokens=block_tokens)
    return Cache(plan, backing=False, **options)


def prefill(sequence: Sequence, chunk_tokens: int = CHUNK_TOKENS) -> None:
    """What an engine does: chunks that end at the stops, a snapshot at each stop, one publish."""
    stops = sequence.prefill_stops()
    end = len(sequence.tokens)
    while sequence.length < end:
        until = min([sequence.length + chunk_tokens, end, *stops])
        sequence.advance(until - sequence.length)
        if stops and until == stops[0]:
            sequence.snapshot()
            stops.pop(0)
    sequence.publish()


def serve(cache: Cache, prompt: Any, marks: dict[int, Any] | None = None) -> int:
    """Runs one prompt; returns how much of it was cached."""
    with cache.open(prompt) as sequence:
        for position, kind in (marks or {}).items():
            sequence.mark(position, kind)
        prefill(sequence)
        return sequence.cached_tokens


@pytest.mark.parametrize("block_tokens", [16, 64])
def test_a_turn_hint_serves_the_first_repeat_to_the_token(block_tokens: int) -> None:
    """vLLM reuses 31,680 and 19,008 of these at best, SGLang 30,720 and 18,432."""
    cache = ledger(block_tokens=block_tokens)
    marks = {BRANCH: "turn", PROMPT_TOKENS - TAIL_TOKENS: "turn"}
    assert serve(cache, PROMPT, marks) == 0
    assert cache.explain(CHANGED_TAIL).cached_tokens == PROMPT_TOKENS - TAIL_TOKENS
    assert cache.explain(DIVERGED).cached_tokens == BRANCH
    assert cache.explain(PROMPT).cached_tokens == PROMPT_TOKENS - 1


def test_without_hints_a_first_divergence_loses_less_than_an_interval() -> None:
    cache = ledger()
    assert serve(cache, PROMPT) == 0
    assert cache.explain(CHANGED_TAIL).cached_tokens >= 31_680
    assert cache.explain(DIVERGED).cached_tokens >= 19_008


def test_the_second_visitor_of_a_branch_leaves_a_snapshot_for_the_third() -> None:
    cache = ledger(snapshot_interval=0)
    serve(cache, PROMPT)
    assert serve(cache, DIVERGED) == 0
    assert serve(cache, np.concatenate([PROMPT[:BRANCH], [9, 9, 9]])) == BRANCH


def test_every_branch_that_a_prompt_passes_is_a_stop() -> None:
    cache = ledger("hybrid", snapshot_interval=0)
    base = list(range(100))
    for cut in (20, 50):
        with cache.open([*base[:cut], 7, 7]) as sequence:
            sequence.advance(cut + 2)
            sequence.publish()  # no snapshot anywhere
    with cache.open(base) as sequence:
        assert sequence.prefill_stops() == [20, 50, 99]


def test_stops_are_marks_the_end_and_intervals_within_the_limit() -> None:
    cache = ledger(snapshot_interval=100, snapshots_per_path=8)
    with cache.open(range(1, 1001)) as sequence:
        sequence.mark(350, "turn")
        sequence.mark(10, "system")
        assert sequence.prefill_stops() == [10, 200, 350, 400, 600, 800, 999]
        sequence.mark(350, "tools")  # once more, of more worth
        sequence.advance(350)
        assert sequence.prefill_stops() == [400, 500, 600, 700, 800, 900, 999]
        sequence.mark(100, "turn")  # has run: no error, no stop
        assert 100 not in sequence.prefill_stops()
        sequence.extend([5] * 10)
        assert sequence.prefill_stops()[-1] == 1009
        sequence.mark(1010, "turn")
        assert sequence.prefill_stops()[-2:] == [1009, 1010]


def test_marks_beyond_the_limit_yield_by_worth_then_from_the_end() -> None:
    cache = ledger(snapshot_interval=0, snapshots_per_path=4)
    with cache.open(range(1, 101)) as sequence:
        for position in range(10, 90, 10):
            sequence.mark(position, "turn")
        sequence.mark(5, "system")
        sequence.mark(7, "other")
        assert sequence.prefill_stops() == [5, 70, 80, 99]


def test_a_full_path_gives_up_snapshots_of_least_worth() -> None:
    cache = ledger(snapshot_interval=10, snapshots_per_path=4)
    tokens = list(range(1, 42))
    with cache.open(tokens) as sequence:
        sequence.mark(5, "system")
        for stop in (5, 10, 20, 30, 33, 40):
            sequence.advance(stop - sequence.length)
            sequence.snapshot()
        sequence.publish()
    assert cache.stats().indexed_snapshots == 4
    assert cache.explain([*tokens[:6], 99]).cached_tokens == 5  # system
    assert cache.explain([*tokens[:34], 99]).cached_tokens == 33  # the caller's own
    assert cache.explain(tokens).cached_tokens == 40  # the end
    assert cache.explain([*tokens[:12], 99]).cached_tokens == 5  # an interval went


def test_no_limit_and_no_interval() -> None:
    cache = ledger(snapshot_interval=0, snapshots_per_path=0)
    with cache.open(PROMPT) as sequence:
        assert sequence.prefill_stops() == [PROMPT_TOKENS - 1]
        for position in range(1, 100):
            sequence.mark(position, "turn")
        assert len(sequence.prefill_stops()) == 100


def test_marks_follow_a_fork_and_leave_with_a_truncate() -> None:
    plan = StatePlan(SHAPES["full"], memory="1MiB", block_tokens=4)
    cache = Cache(plan, backing=False)
    with cache.open([1, 2, 3, 4, 5, 6]) as sequence:
        sequence.mark(3, "turn")
        sequence.mark(5, "turn")
        with sequence.fork() as child:
            assert child.prefill_stops() == [3, 5]
        sequence.advance(2)
        sequence.truncate(2)
        sequence.extend([9, 9, 9, 9, 9, 9])
        assert sequence.prefill_stops() == [7]


@pytest.mark.parametrize(
    ("position", "kind"),
    [(7, "turn"), (-1, "turn"), (2**70, "turn"), (1, "chapter"), (1, None), (1.5, "turn")],
)
def test_a_wrong_mark_is_refused(position: Any, kind: Any) -> None:
    with ledger().open([1, 2, 3, 4, 5, 6]) as sequence:
        with pytest.raises(InvalidArgumentError):
            sequence.mark(position, kind)
        assert sequence.prefill_stops() == [5]
    with pytest.raises(InvalidArgumentError, match="closed"):
        sequence.mark(1, "turn")
    with pytest.raises(InvalidArgumentError, match="closed"):
        sequence.prefill_stops()


@pytest.mark.parametrize("option", ["snapshot_interval", "snapshots_per_path"])
@pytest.mark.parametrize("value", [-1, 2**63, "x", None, True])
def test_a_wrong_placement_option_is_refused(option: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=option):
        ledger(**{option: value})


# ---- Windows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fixed", [False, True])
def test_a_snapshot_keeps_the_window_before_it(fixed: bool) -> None:
    """Published once, at the end: every stop can be resumed, not only the last window."""
    decls = [*attention(0, window=20), *attention(2), *(LINEAR if fixed else [])]
    cache = Cache(StatePlan(decls, memory="16MiB", block_tokens=4), backing=False)
    prompt = list(range(1, 401))
    assert serve(cache, prompt, {100: "system", 252: "turn"}) == 0
    assert cache.explain([*prompt[:100], 999]).cached_tokens == 100
    assert cache.explain([*prompt[:300], 999]).cached_tokens == 252
    assert cache.explain(prompt).cached_tokens == 399


def test_pages_between_windows_go_before_anything_else() -> None:
    """Publishing after each chunk leaves every page; pressure takes those that no hit needs."""
    plan = StatePlan(attention(0, window=20), memory="16MiB", block_tokens=4)
    cache = Cache(plan, backing=False, capacity_blocks=100)
    prompt = list(range(1, 401))  # 100 blocks: the cache is full
    with cache.open(prompt) as sequence:
        sequence.mark(200, "turn")
        for stop in [100, 200, 300, 399, 400]:
            sequence.advance(stop - sequence.length)
            if stop in (200, 399):
                sequence.snapshot()
            sequence.publish()
    assert cache.explain([*prompt[:150], 999]).cached_tokens == 150
    for first in range(1000, 9000, 1000):  # each leaves little more than its last window
        serve(cache, range(first, first + 320))
    assert cache.stats().evicted_blocks == 0
    assert cache.explain([*prompt[:200], 999]).cached_tokens == 200
    assert cache.explain(prompt).cached_tokens == 399
    assert cache.explain([*prompt, 999]).cached_tokens == 400
    said = cache.explain([*prompt[:150], 999])
    assert (said.cached_tokens, said.limited_by) == (0, "window")
