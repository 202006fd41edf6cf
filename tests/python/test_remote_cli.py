"""`kvcache replay --remote` and `kvcache doctor --remote`, against a server of the test's own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.valkey import ValkeyServer, missing_server

from kvcache import ValkeyTier
from kvcache.cli import main
from kvcache.errors import KVCacheIOError
from kvcache.tiers.doctor import Verdict, check_server
from kvcache.tiers.resp import ServerConnection, ServerError


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    if reason := missing_server():
        pytest.skip(reason)
    started = ValkeyServer(tmp_path)
    yield started
    started.kill()


def replay(server: ValkeyServer, *options: str) -> dict[str, Any]:
    """In a process of its own."""
    command = [sys.executable, "-P", "-m", "kvcache", "replay", "--json", "--requests", "12"]
    command += ["--remote", server.url, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_two_replays_share_what_the_first_has_computed(server: ValkeyServer) -> None:
    first = replay(server)
    assert first["mismatches"] == 0
    assert first["remote"]["written_records"] > 0
    assert first["remote"]["fetches"] == 0
    second = replay(server)
    assert second["mismatches"] == 0
    assert second["verified_bytes"] == second["restored_bytes"] > first["restored_bytes"]
    assert second["remote"]["fetched_tokens"] > 0
    assert second["remote"]["last_error"] == ""
    assert second["token_hit_rate"] > first["token_hit_rate"]


def test_replays_at_once_share_and_nothing_is_wrong(server: ValkeyServer) -> None:
    found: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: found.append(replay(server))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each["mismatches"] for each in found] == [0, 0]
    assert sum(each["remote"]["damaged_records"] for each in found) == 0


def test_a_replay_without_its_server_serves_from_memory(server: ValkeyServer) -> None:
    server.kill()
    alone = replay(server)
    assert alone["mismatches"] == 0
    assert alone["remote"]["failures"] > 0
    assert alone["remote"]["last_error"] != ""


def test_a_comparison_takes_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--remote", "127.0.0.1:1", "--policy", "all"]) == 2
    assert "--remote needs one replay" in capsys.readouterr().err
    assert main(["replay", "--remote", "http://x"]) == 2
    assert "valkey://" in capsys.readouterr().err


# ---- doctor -----------------------------------------------------------------------------------


def advised(server: ValkeyServer, **options: Any) -> dict[str, tuple[Verdict, str]]:
    tier = ValkeyTier(server.url, deadline_seconds=30.0, **options)
    return {each.name: (each.verdict, each.advice) for each in check_server(tier)}


def test_a_server_that_is_set_up_is_healthy(
    server: ValkeyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    assert main(["doctor", "--remote", server.url]) == 0
    shown = capsys.readouterr().out
    for word in ("maxmemory", "256 MiB", "allkeys-lru", "latency", "bandwidth", "GB/s"):
        assert word in shown
    assert main(["doctor", "--remote", f"unix://{server.socket}", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["healthy"] is True
    assert {each["verdict"] for each in document["findings"]} <= {"ok", "advice"}
    assert server.names() == []


def test_what_is_wrong_with_a_server_is_said(server: ValkeyServer) -> None:
    for name, value in (
        ("maxmemory", "0"),
        ("maxmemory-policy", "noeviction"),
        ("save", "60 1"),
        ("appendonly", "yes"),
        ("appendfsync", "always"),
    ):
        assert server.ask("CONFIG", "SET", name, value) == "+OK"
    found = advised(server)
    assert found["maxmemory"][0] is Verdict.PROBLEM
    assert found["maxmemory-policy"][0] is Verdict.PROBLEM
    assert "allkeys-lru" in found["maxmemory-policy"][1]
    assert found["save"][0] is Verdict.ADVICE
    assert found["appendonly"][0] is Verdict.ADVICE
    server.ask("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
    assert advised(server)["maxmemory-policy"][0] is Verdict.OK
    assert advised(server, ttl_seconds=None)["maxmemory-policy"][0] is Verdict.PROBLEM
    server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    server.ask("CONFIG", "SET", "maxmemory", "1")
    assert "full" in advised(server)["commands"][1]


def test_commands_that_a_user_may_not_call_are_named(server: ValkeyServer) -> None:
    server.ask("ACL", "SETUSER", "reader", "on", ">pw", "~kvcache:*", "+@all", "-unlink", "-scan")
    found = advised(server, user="reader", password="pw")
    assert found["commands"] == (
        Verdict.PROBLEM,
        "allow them: ACL SETUSER reader +scan +unlink ~kvcache:*",
    )
    hidden = ["ACL", "SETUSER", "blind", "on", ">pw", "~kvcache:*", "+@all", "-config", "-info"]
    server.ask(*hidden)
    blind = advised(server, user="blind", password="pw")
    assert blind["version"][1] == "let the user call INFO"
    assert blind["maxmemory"][0] is Verdict.ADVICE


def test_where_nobody_answers_the_doctor_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--remote", "127.0.0.1:1"]) == 1
    assert "start the server" in capsys.readouterr().out
    assert main(["doctor", "--remote", "valkeys://x?ca_file=/nowhere"]) == 2
    assert "ca_file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"$1152921504606846976\r\n",
        b"*99999999\r\n",
        b"*1\r\n" * 9,
        b"$x\r\n",
        b"$5\r\nab",
        b"x" * (1 << 17),
        b"",
    ],
)
def test_an_answer_that_is_none_is_an_error(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        tier = ValkeyTier(f"127.0.0.1:{listener.getsockname()[1]}", deadline_seconds=5.0)
        with ServerConnection(tier) as connection, pytest.raises(KVCacheIOError):
            connection.ask("PING")
        thread.join()


def test_a_server_that_says_no_is_another_error(server: ValkeyServer) -> None:
    with ServerConnection(ValkeyTier(server.url)) as connection:
        with pytest.raises(ServerError, match="unknown command"):
            connection.ask("NOSUCH")
        assert connection.ask("PING") == "PONG"
