"""What became of prompt positions, and its picture."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcache.errors import KVCacheIOError, UnsupportedError
from kvcache.replay.comparison import comparison_table, lost_table
from kvcache.replay.job import Outcome
from kvcache.replay.lost import LostTokens
from kvcache.replay.plot import check_plot, plot_comparison, position_shares

SERVED = Outcome(
    model="a",
    format="f16",
    policy="lru",
    memory=1 << 30,
    capacity_blocks=0,
    requests=3,
    rejected=1,
    rejected_tokens=10,
    blocks=(10, 20),
    hits=(1, 5),
    prompt_tokens=100,
    reused_tokens=40,
    lost=LostTokens(new=20, attention=15, window=5, snapshot=9, last_token=1),
    gap_closed=(-0.0001, 0.5, None),
)
BOUND = replace(SERVED, policy="infinite", reused_tokens=70, lost=None, gap_closed=None)


@pytest.mark.parametrize(
    ("length", "known", "matched", "cached", "limit", "lost"),
    [
        (10, 0, 0, 0, "", {"new": 10}),
        (10, 10, 10, 9, "", {"last_token": 1}),
        (10, 10, 10, 9, "snapshot", {"last_token": 1}),
        (10, 10, 10, 4, "snapshot", {"snapshot": 6}),
        (10, 8, 6, 2, "window", {"new": 2, "attention": 2, "window": 4}),
        (10, 8, 8, 7, "window", {"new": 2, "window": 1}),
        (10, 3, 5, 5, "", {"new": 5}),
    ],
)
def test_each_position_is_counted_once(length, known, matched, cached, limit, lost):
    counted = LostTokens()
    counted.count(length, known, matched, cached, limit)
    assert {name: count for name, count in counted.to_dict().items() if count} == lost
    assert cached + sum(counted.to_dict().values()) == length


def test_shares_of_all_positions_sum_to_one():
    shares = position_shares(SERVED)
    assert sum(shares.values()) == pytest.approx(1)
    assert (shares["reused"], shares["rejected"], shares["no snapshot"]) == (0.4, 0.1, 0.09)
    assert position_shares(BOUND) == {}


def test_a_gap_below_what_is_shown_has_no_sign_and_none_is_a_dash():
    cells = {
        str(column.header): list(map(str, column.cells))
        for column in comparison_table([SERVED]).columns
    }
    assert cells["gap closed"] == ["0.0%"]
    assert cells["by half"] == ["50.0% -"]
    assert cells["rejected"] == ["1"]


def test_the_table_leads_with_what_gaps_are_measured_in():
    def first_rate(outcome):
        heads = [str(column.header) for column in comparison_table([outcome]).columns]
        return next(head for head in heads if head.startswith("of "))

    assert first_rate(replace(SERVED, memory=0, capacity_blocks=7)) == "of blocks"
    assert first_rate(replace(SERVED, capacity_blocks=7)) == "of tokens"  # memory limits as well
    assert first_rate(SERVED) == "of tokens"


def test_what_was_lost_is_shown_where_more_than_evictions_lost_it():
    assert lost_table([replace(SERVED, lost=LostTokens(attention=60)), BOUND]) is None
    table = lost_table([SERVED, BOUND])
    assert table is not None
    assert table.row_count == 1


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_picture_is_written(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"rates.{suffix}"
    check_plot(path)
    other = replace(SERVED, memory=0, capacity_blocks=7)
    for outcomes in ([SERVED, BOUND], [other], [SERVED, replace(SERVED, model="b", memory=1)]):
        path.unlink(missing_ok=True)
        plot_comparison(outcomes, path)
        assert path.stat().st_size > 0


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(KVCacheIOError, match="--plot"):
        plot_comparison([SERVED], tmp_path / "none" / "rates.png")
    for name in ("rates.jpog", "rates", ".png", "rates.pgf", "rates.svgz"):
        with pytest.raises(UnsupportedError, match="--plot"):
            check_plot(tmp_path / name)
    with pytest.raises(UnsupportedError, match="101 pairs"):
        check_plot(tmp_path / "rates.png", 101)


def test_any_name_of_a_model_can_be_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "rates.svg"
    name = r"a$\frac{$"
    plot_comparison([replace(each, model=name) for each in (SERVED, BOUND)], path)
    assert path.stat().st_size > 0
