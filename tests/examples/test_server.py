"""The example server under load: every answer is the one that no cache gives; nothing crashes."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.native import CMAKE_CONFIG, ROOT, configure, find_tool, missing_toolchain, must
from support.native import package_folder as package

from kvcache.cli import main

SOURCE = ROOT / "examples/server"
# Of all loads together; CI takes its time.
SECONDS = float(os.environ.get("KVCACHE_LOAD_SECONDS", "20" if os.environ.get("CI") else "6"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built against the installed package."""
    if reason := missing_toolchain():
        pytest.skip(reason)
    build = tmp_path_factory.mktemp("server")
    configured = configure(SOURCE, build, f"-Dkvcache_ROOT={package(CMAKE_CONFIG)}")
    assert configured.returncode == 0, configured.stdout
    must(find_tool("cmake"), "--build", build)
    return build / "kvcache_server"


@contextmanager
def running(server: Path, *options: object) -> Iterator[int]:
    """The port of a server, which has to end well when it is told to."""
    command = [str(server), *map(str, options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline().rpartition(":")[2])
            process.terminate()
            assert process.wait(timeout=60) == 0
            assert json.loads(process.stdout.read())["open_sequences"] == 0
        finally:
            process.kill()


def ask(port: int, line: str) -> dict[str, Any]:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(line.encode() + b"\n")
        return json.loads(connection.makefile().readline())


def request(tokens: list[int], max_tokens: int = 8) -> str:
    return json.dumps({"id": 1, "tokens": tokens, "max_tokens": max_tokens})


def computed(server: Path, tokens: list[int], count: int) -> list[int]:
    """What follows, computed without a cache one token at a time."""
    tokens = list(tokens)
    for _ in range(count):
        done = subprocess.run(
            [server, "--check"], input=request(tokens), capture_output=True, text=True, check=True
        )
        tokens.append(json.loads(done.stdout)["tokens"][-1])
    return tokens[-count:]


def test_the_layout_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--format", "f32", "--tokens", "2048", "--batch", "64"]
    assert main(["plan", "--emit", "cpp", str(SOURCE / "toy.json"), *options]) == 0
    assert capsys.readouterr().out == (SOURCE / "toy_layout.h").read_text()


def test_64_clients_get_the_answers_that_no_cache_gives(server: Path) -> None:
    load = [sys.executable, SOURCE / "load.py", server, "--disk", "--seconds", SECONDS / 3]
    printed = must(*load, "--clients", 64)
    print(printed)
    assert len(re.findall(r" tokens checked, 0 answers wrong", printed)) == 3
    reused, plain, _ = re.findall(r"([\d.]+)% of prompts restored", printed)
    assert float(reused) > 0
    assert float(plain) == 0
    # Whether the third load preempted depends on how fast the machine is; a test below does.


def test_the_load_script_sees_a_wrong_answer(server: Path, tmp_path: Path) -> None:
    liar = tmp_path / "liar"
    # Other weights check the answers.
    liar.write_text(
        f'#!/bin/sh\n[ "$1" != --check ] || set -- --check --seed 5\nexec {server} "$@"\n'
    )
    liar.chmod(0o755)
    load = [sys.executable, SOURCE / "load.py", liar, "--clients", "2", "--seconds", "0.2"]
    done = subprocess.run(
        [str(part) for part in load], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1
    assert "the answer at positions" in done.stderr


def test_the_second_turn_and_a_restart_reuse_the_first(server: Path, tmp_path: Path) -> None:
    prompt = [i * 7 % 256 for i in range(100)]
    expected = computed(server, prompt, 8)
    disk = ["--disk", tmp_path / "tier"]
    with running(server, *disk) as port:
        first = ask(port, request(prompt))
        assert first == {"id": 1, "tokens": expected, "cached_tokens": 0}
        turn = [*prompt, *expected, 1, 2, 3]
        second = ask(port, request(turn))
        assert second["cached_tokens"] == len(prompt) + len(expected) - 1
        assert second["tokens"] == computed(server, turn, 8)
    with running(server, *disk) as port:
        again = ask(port, request(turn))
        assert again["tokens"] == second["tokens"]
        assert again["cached_tokens"] > 0


def test_a_repeating_prompt_is_sped_up_by_its_drafts(server: Path) -> None:
    prompt = [3, 1, 4, 1, 5] * 12
    with running(server) as port:
        drafted = ask(port, request(prompt, 64))["tokens"]
        stats = ask(port, '{"stats": 1}')
    assert stats["drafted_tokens"] > 0
    with running(server, "--drafts", 0, "--no-reuse", "--chunk", 1, "--threads", 1) as port:
        assert ask(port, request(prompt, 64))["tokens"] == drafted


def test_requests_that_are_preempted_are_answered_all_the_same(server: Path) -> None:
    prompts = [[(i * 31 + j * j) % 256 for j in range(150)] for i in range(12)]
    # Three of them fit, all are promised room.
    with running(server, "--memory", 700_000, "--overcommit", 10_000) as port:
        with ThreadPoolExecutor(len(prompts)) as pool:
            answers = list(pool.map(lambda tokens: ask(port, request(tokens, 40)), prompts))
        stats = ask(port, '{"stats": 1}')
    assert stats["preemptions"] > 0
    assert stats["failed"] == 0
    with running(server, "--no-reuse") as port:
        for prompt, answer in zip(prompts, answers, strict=True):
            assert ask(port, request(prompt, 40))["tokens"] == answer["tokens"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "expected '{' at column 1"),
        ("{}", "expected '\\\"' at column 2"),
        ('{"id": 1}', "tokens: expected at least one"),
        ('{"tokens": []}', "tokens: expected at least one"),
        ('{"tokens": [256]}', "tokens: expected a whole number of 0 to 255"),
        ('{"tokens": [1, -1]}', "tokens: expected a whole number of 0 to 255"),
        ('{"tokens": [1], "max_tokens": 0}', "max_tokens: expected a whole number of 1 to 65536"),
        ('{"tokens": [99999999999999999999]}', "tokens: expected"),
        ('{"tokens": [1.5]}', "expected ']'"),
        ('{"tokens": [1], "tokens": [1]}', "a key occurs twice"),
        ('{"tokens": [1], "prompt": "x"}', "expected one of the keys"),
        ('{"tokens": [1]} {}', "more than one object"),
        ('{"tokens": [1', "expected ']'"),
        ('{"tokens', "expected '\\\"'"),
    ],
)
def test_a_line_that_is_no_request_says_why(server: Path, line: str, message: str) -> None:
    with running(server) as port:
        answer = ask(port, line)
        assert answer["error"] == "invalid_argument"
        assert message.replace("\\", "") in answer["message"]
        assert ask(port, request([1, 2, 3]))["tokens"]  # it goes on


def test_what_can_never_fit_is_refused_with_the_numbers(server: Path) -> None:
    with running(server, "--memory", 400_000, "--waiting", 0) as port:
        answer = ask(port, request([1] * 100, 4000))
        assert answer["error"] == "out_of_capacity"
        assert "4100 tokens take" in answer["message"]
        assert "there are 400000; lower max_tokens, or raise --memory" in answer["message"]
        assert "requests wait already" in ask(port, request([1, 2]))["message"]


def test_a_client_that_leaves_and_a_server_that_ends_disturb_nobody(server: Path) -> None:
    with running(server) as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(request([1, 2, 3], 500).encode() + b"\n")  # and is gone
        assert ask(port, request([1, 2, 3], 4))["tokens"]
        waits = socket.create_connection(("127.0.0.1", port))
        waits.sendall(request([5] * 50, 20_000).encode() + b"\n")
        late = waits.makefile()
        assert ask(port, request([1, 2, 3], 4))["tokens"]
    assert json.loads(late.readline())["error"] in ("unsupported", "out_of_capacity")
    late.close()
    waits.close()


def test_wrong_options_are_a_line_of_usage(server: Path) -> None:
    for options in (["--memory"], ["--memory", "x"], ["--threads", "0"], ["--what", "1"]):
        done = subprocess.run([server, *options], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("usage:")
    done = subprocess.run([server, "--memory", "10"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("kvcache_server: ")
