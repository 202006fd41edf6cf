"""What happens to calls when the interpreter exits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_the_interpreter_may_exit_while_daemon_threads_call() -> None:
    code = """
import sys, threading, time
from model.driver import SHAPES
from kvcache import Cache, StatePlan
cache = Cache(StatePlan(SHAPES["full"], memory="4MiB", block_tokens=4, sequences=8))
def serve():
    while True:
        cache.open([1, 2, 3]).close()
for _ in range(4):
    threading.Thread(target=serve, daemon=True).start()
time.sleep(0.2)
"""
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": tests},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
