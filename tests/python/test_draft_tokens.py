"""Pending drafts: put, taken, put back, cleared, and ended by whatever moves their sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.forked import in_child
from support.tiny_model import DELTA, FULL, TinyModel, feed, verify

import kvcache
from kvcache import DraftTokens, InvalidArgumentError, OutOfCapacityError

MODEL = TinyModel((DELTA, FULL))
PROMPT = [4, 2, 7, 1, 9]


def opened(cache: kvcache.Cache) -> kvcache.Sequence:
    sequence = cache.open(PROMPT)
    sequence.extend([feed(MODEL, sequence, [])])
    return sequence


def test_drafts_are_taken_once() -> None:
    sequence = opened(MODEL.cache())
    drafts = DraftTokens(slots=2, positions=4)
    assert drafts.take(sequence).size == 0
    drafts.put(sequence, [5, 6, 7])
    assert drafts.pending(sequence) == 3
    drafts.put(sequence, [1, 2], [0.5, 0.25])
    tokens, confidences = drafts.take_with_confidences(sequence)
    assert tokens.tolist() == [1, 2]
    assert tokens.dtype == np.int32
    assert confidences.tolist() == [0.5, 0.25]
    assert drafts.pending(sequence) == 0
    assert drafts.take(sequence).size == 0


def test_drafts_without_confidences_have_none_after_others_had() -> None:
    sequence = opened(MODEL.cache())
    drafts = DraftTokens(1, 2)
    drafts.put(sequence, [1, 2], [0.5, 0.5])
    drafts.put(sequence, [3, 4])
    tokens, confidences = drafts.take_with_confidences(sequence)
    assert (tokens.tolist(), confidences.size) == ([3, 4], 0)


def test_drafts_come_back_after_a_forward_that_advanced_nothing() -> None:
    sequence = opened(MODEL.cache())
    drafts = DraftTokens(1, 4)
    drafts.put(sequence, [5, 6], [1, 0])
    session = sequence.begin_verify(drafts.take(sequence))
    with pytest.raises(InvalidArgumentError, match="the verify of its sequence is open"):
        drafts.put_back(sequence)
    session.rollback()
    drafts.put_back(sequence)
    assert drafts.pending(sequence) == 2
    tokens, confidences = drafts.take_with_confidences(sequence)
    assert tokens.tolist() == [5, 6]
    assert confidences.tolist() == [1, 0]
    verify(MODEL, sequence, tokens.tolist())
    with pytest.raises(InvalidArgumentError, match="went from position 5 to "):
        drafts.put_back(sequence)


def test_what_was_not_taken_is_not_put_back() -> None:
    sequence = opened(MODEL.cache())
    drafts = DraftTokens(1, 4)
    with pytest.raises(InvalidArgumentError, match="no drafts of the sequence were taken"):
        drafts.put_back(sequence)
    drafts.put(sequence, [1])
    drafts.take(sequence)
    drafts.put(sequence, [2])
    with pytest.raises(InvalidArgumentError, match="put back already, or others were put since"):
        drafts.put_back(sequence)
    assert drafts.take(sequence).tolist() == [2]


def test_a_preempted_sequence_has_no_drafts() -> None:
    sequence = opened(MODEL.cache())
    drafts = DraftTokens(1, 4)
    drafts.put(sequence, [1])
    assert drafts.clear(sequence)
    assert not drafts.clear(sequence)
    drafts.put(sequence, [1])
    drafts.take(sequence)
    assert not drafts.clear(sequence)
    with pytest.raises(InvalidArgumentError, match="no drafts of the sequence were taken"):
        drafts.put_back(sequence)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (lambda s: s.begin_verify([1]).rollback(), "when the next verify of its sequence began"),
        (lambda s: feed(MODEL, s, []), "went from position 5 to 6"),
        (lambda s: s.truncate(5), "when its sequence went back"),
    ],
)
def test_drafts_end_when_their_sequence_moves(end: Any, why: str) -> None:
    sequence = opened(MODEL.cache())
    sequence.snapshot()
    drafts = DraftTokens(1, 4)
    drafts.put(sequence, [1, 2])
    end(sequence)
    assert drafts.pending(sequence) == 0
    with pytest.raises(InvalidArgumentError, match=f"take: the drafts ended .*{why}"):
        drafts.take(sequence)
    assert drafts.take(sequence).size == 0


def test_places_of_closed_and_moved_sequences_are_free() -> None:
    cache = MODEL.cache()
    drafts = DraftTokens(2, 4)
    first, second, third = (opened(cache) for _ in range(3))
    drafts.put(first, [1])
    drafts.put(second, [2])
    with pytest.raises(OutOfCapacityError, match="all 2 slots have drafts"):
        drafts.put(third, [3])
    first.close()
    drafts.put(third, [3])
    feed(MODEL, second, [])
    fourth = opened(cache)
    drafts.put(fourth, [4])
    assert drafts.take(third).tolist() == [3]
    assert drafts.take(fourth).tolist() == [4]
    assert drafts.take(second).size == 0
    for call in (drafts.take, drafts.put_back, drafts.clear, drafts.pending):
        with pytest.raises(InvalidArgumentError, match="the sequence is closed"):
            call(first)


def test_wrong_drafts_are_refused_and_nothing_changes() -> None:
    sequence = opened(MODEL.cache())
    drafts = DraftTokens(1, 3)
    drafts.put(sequence, [7])
    wrong: list[tuple[Any, Any, str]] = [
        ([], None, r"expected 1\.\.3 drafts, got 0"),
        ([1, 2, 3, 4], None, "got 4"),
        ([1.5], None, "integers"),
        ([2**31], None, "int32"),
        ([1, 2], [0.5], "2 drafts need as many confidences, got 1"),
        ([1], [1.5], r"confidences are 0\.\.1"),
        ([1], [float("nan")], r"confidences are 0\.\.1"),
        ([1], ["sure"], "axis of numbers"),
        ([1], [[0.5]], "axis of numbers"),
    ]
    for tokens, confidences, why in wrong:
        with pytest.raises(InvalidArgumentError, match=why):
            drafts.put(sequence, tokens, confidences)
    other: Any = "sequence"
    with pytest.raises(InvalidArgumentError, match="expected a Sequence, got str"):
        drafts.put(other, [1])
    session = sequence.begin_verify([1])
    with pytest.raises(InvalidArgumentError, match="a verify of the sequence is open"):
        drafts.put(sequence, [1])
    session.rollback()
    for slots, positions in ((0, 1), (1, 0), (2**25, 1), (2**63 - 1, 2**63 - 1), (-1, 1)):
        with pytest.raises(InvalidArgumentError):
            DraftTokens(slots, positions)


def test_a_child_process_is_refused() -> None:
    sequence = opened(MODEL.cache())
    drafts = DraftTokens(1, 3)
    drafts.put(sequence, [7])

    def child() -> None:
        for call in (drafts.take, drafts.put_back, drafts.clear, drafts.pending):
            with pytest.raises(InvalidArgumentError, match="made before fork"):
                call(sequence)
        with pytest.raises(InvalidArgumentError, match="made before fork"):
            drafts.put(sequence, [1])
        with pytest.raises(InvalidArgumentError, match="made before fork"):
            _ = drafts.bytes

    assert in_child(child) == ""
    assert drafts.take(sequence).tolist() == [7]
