"""`kvcache doctor` before servers that answer every command, and nothing as a server does."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest

from kvcache import ValkeyTier
from kvcache.cli import main
from kvcache.tiers.doctor import Verdict, check_server

Answer = Callable[[list[bytes]], bytes]


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text)


def told(info: bytes) -> Answer:
    """A server that tells ``info``, and for every setting 1."""

    def answer(words: list[bytes]) -> bytes:
        if words[0] == b"INFO":
            return bulk(info)
        return b"*2\r\n" + bulk(words[2]) + bulk(b"1") if words[0] == b"CONFIG" else b"+OK\r\n"

    return answer


@contextlib.contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """The address of a server that gives one connection ``answer(words)`` to each command."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines, contextlib.suppress(OSError):
                while line := lines.readline():
                    words = []
                    for _ in range(int(line[1:])):
                        words.append(lines.read(int(lines.readline()[1:])))
                        lines.readline()
                    connection.sendall(answer(words))

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


ANSWERS: dict[str, Answer] = {
    "a status": lambda _: b"+OK\r\n",
    "a number": lambda _: b":1\r\n",
    "nothing": lambda _: b"$-1\r\n",
    "an empty list": lambda _: b"*0\r\n",
    "two numbers": lambda _: b"*2\r\n:1\r\n:2\r\n",
    "two nothings": lambda _: b"*2\r\n$-1\r\n$-1\r\n",
    "no number": told(b"used_memory:abc\r\nmaxmemory:x\r\n"),
    "a number without end": told(b"valkey_version:" + b"9" * 5000 + b".1\r\n"),
    "a size beyond any": told(b"used_memory:" + b"9" * 400 + b"\r\n"),
    "brackets": told(b"valkey_version:[/x]\r\nrole:[bold]\r\n"),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_whatever_a_server_answers_is_a_finding(
    answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(answer) as address:
        assert main(["doctor", "--remote", address]) in (0, 1)
    assert address in capsys.readouterr().out


def node(host: bytes, port: bytes) -> bytes:
    return b"*2\r\n" + bulk(host) + b":" + port + b"\r\n"


def one_range(first: bytes, last: bytes, owner: bytes) -> bytes:
    return b"*3\r\n:%s\r\n:%s\r\n%s" % (first, last, owner)


# To CLUSTER SLOTS, or to the question for a service's primary.
MISLEADING: dict[str, Answer] = {
    **ANSWERS,
    "an error": lambda _: b"-ERR This instance has cluster support disabled\r\n",
    "no node": lambda _: b"*1\r\n*2\r\n:0\r\n:5\r\n",
    "slots out of range": lambda _: b"*1\r\n" + one_range(b"0", b"16384", node(b"h", b"1")),
    "slots backwards": lambda _: b"*1\r\n" + one_range(b"9", b"0", node(b"h", b"1")),
    "slots without end": lambda _: b"*1\r\n" + one_range(b"0", b"9" * 18, node(b"h", b"1")),
    "slots twice": lambda _: b"*2\r\n" + 2 * one_range(b"0", b"1", node(b"h", b"1")),
    "no port": lambda _: b"*1\r\n" + one_range(b"0", b"1", node(b"h", b"0")),
    "no host": lambda _: b"*1\r\n" + one_range(b"0", b"1", node(b"?", b"1")),
    "a port without end": lambda _: b"*2\r\n" + bulk(b"h") + bulk(b"9" * 5000),
    "no primary's port": lambda _: b"*2\r\n" + bulk(b"h") + bulk(b"0"),
}


@pytest.mark.parametrize("url", ["valkey+cluster://{}", "valkey+sentinel://{}/svc"])
@pytest.mark.parametrize("answer", MISLEADING.values(), ids=MISLEADING)
def test_whatever_is_told_of_other_servers_is_a_finding(
    answer: Answer, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(answer) as address:
        assert main(["doctor", "--remote", url.format(address)]) == 1
    assert capsys.readouterr().out.startswith(url[7:].split(":", maxsplit=1)[0])


def test_a_node_without_a_name_is_who_was_asked() -> None:
    def answer(words: list[bytes]) -> bytes:
        return b"*1\r\n" + one_range(b"0", b"16383", node(b"", b"1"))

    with answering(answer) as address:
        cluster, lost = check_server(ValkeyTier(f"valkey+cluster://{address}"))
    assert cluster.verdict is Verdict.OK
    assert lost.verdict is Verdict.PROBLEM
    assert lost.server == "127.0.0.1:1"


def test_what_a_server_says_tells_the_terminal_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(told(b"valkey_version:9.\x1b[31m[/x]\r\n")) as address:
        main(["doctor", "--remote", address])
    assert r"9.\x1b[31m[/x]" in capsys.readouterr().out


@pytest.mark.parametrize("host", ["a" * 70, "a..b", "a" * 300])
def test_what_is_no_host_is_a_finding(host: str) -> None:
    [found] = check_server(ValkeyTier(f"valkey://{host}:1"))
    assert found.verdict is Verdict.PROBLEM
    assert host in found.value


def test_a_refused_login_leaves_no_connection_behind() -> None:
    with warnings.catch_warnings(), answering(lambda _: b"-WRONGPASS\r\n") as address:
        warnings.simplefilter("error")
        [found] = check_server(ValkeyTier(address, password="x"))
        gc.collect()
    assert "WRONGPASS" in found.value
