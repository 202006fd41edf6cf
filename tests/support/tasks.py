"""What processes of their own are given to do; they import it by name."""

from __future__ import annotations

import os
import time

from kvcache.errors import OutOfCapacityError


def double(shared, task, tell):
    tell(task)
    time.sleep(0.01 * (5 - task))  # the first ends last
    return shared + 2 * task


def fail(shared, task, tell):
    if task == 0 and shared == "full":
        raise OutOfCapacityError("too little")
    if task == 0 and shared == "wrong":
        raise KeyError("what is this")
    if task == 0 and shared == "missing":
        raise FileNotFoundError(2, "no such file", "trace.jsonl")
    if task == 0 and shared == "dead":
        os._exit(7)
    time.sleep(60)


def unpicklable(shared, task, tell):
    return lambda: None
