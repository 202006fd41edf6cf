"""Tasks in processes of their own: results in order, errors in the parent, nobody left behind."""

from __future__ import annotations

import errno
import multiprocessing
import os

import pytest
from support.tasks import double, fail, unpicklable

from kvcache.errors import InternalError, InvalidArgumentError, OutOfCapacityError
from kvcache.replay.workers import run_tasks


def test_results_are_in_the_order_of_the_tasks():
    told = []
    found = run_tasks(
        double, 100, range(5), processes=2, on_progress=lambda *seen: told.append(seen)
    )
    assert found == [100, 102, 104, 106, 108]
    assert sorted(told) == [(n, n) for n in range(5)]
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        ("full", OutOfCapacityError, "too little"),
        ("wrong", InternalError, "KeyError: 'what is this'"),
        ("missing", InternalError, r"FileNotFoundError: .*no such file: 'trace.jsonl'"),
        ("dead", InternalError, r"died \(exit code 7\)"),
    ],
)
def test_an_error_ends_the_others(bad, error, text):
    with pytest.raises(error, match=text):
        run_tasks(fail, bad, range(3), processes=2)
    assert multiprocessing.active_children() == []


def test_a_result_that_cannot_be_sent_is_an_error():
    with pytest.raises(InternalError):
        run_tasks(unpicklable, None, [1], processes=1)


def test_processes_that_the_system_does_not_give_are_an_error(monkeypatch):
    def refuse(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("multiprocessing.context.SpawnProcess._Popen", staticmethod(refuse))
    with pytest.raises(OutOfCapacityError, match=r"2 processes: Too many .*--processes"):
        run_tasks(double, 0, range(2), processes=2)


@pytest.mark.parametrize("count", [0, -3])
def test_fewer_than_one_process_is_refused_and_no_task_needs_none(count):
    with pytest.raises(InvalidArgumentError, match=f"processes: expected at least 1, got {count}"):
        run_tasks(double, 0, range(2), processes=count)
    assert run_tasks(double, 0, [], processes=2) == []
