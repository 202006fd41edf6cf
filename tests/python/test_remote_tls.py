"""A remote tier in TLS: shared like one in the clear, and a miss where nobody is to be trusted."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import socket
import ssl
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.certificates import Authority, Certificate
from support.filled import check, fill, make_cache, prompt
from support.forked import in_child
from support.tls_front import TlsFront
from support.valkey import ValkeyServer, missing_server, missing_tls

from kvcache import ValkeyTier
from kvcache.cli import main
from kvcache.errors import InvalidArgumentError, KVCacheWarning, UnsupportedError
from kvcache.tiers.doctor import Verdict, check_server


@pytest.fixture(scope="module")
def here(authority: Authority) -> Certificate:
    return authority.issue("here")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    if reason := missing_server():
        pytest.skip(reason)
    started = ValkeyServer(tmp_path)
    yield started
    started.kill()


@pytest.fixture(params=["front", "own"])
def secured(
    request: pytest.FixtureRequest, tmp_path: Path, authority: Authority, here: Certificate
) -> Iterator[str]:
    """The address of a server in TLS, its own or before it."""
    if reason := missing_server() or (request.param == "own" and missing_tls()):
        pytest.skip(str(reason))
    own = request.param == "own"
    started = ValkeyServer(tmp_path, *(authority.server_options(here) if own else ()))
    with contextlib.ExitStack() as stack:
        stack.callback(started.kill)
        port = started.tls_port if own else stack.enter_context(TlsFront(started.port, here)).port
        yield f"valkeys://localhost:{port}?ca_file={authority.ca_file}"


def tier(url: str, **options: Any) -> ValkeyTier:
    return ValkeyTier(url, **{"deadline_seconds": 30.0, **options})


def test_caches_share_what_they_publish(secured: str) -> None:
    for url in (
        secured,
        secured.replace("valkeys", "rediss"),
        secured.replace("localhost", "127.0.0.1"),
    ):
        first = make_cache("hybrid", remote=tier(url))
        fill(first, prompt(90))
        first.remote.flush(60)
        second = make_cache("hybrid", remote=tier(url))
        assert check(second, prompt(90)) == 89
        for cache in (first, second):
            stats = cache.remote.stats()
            assert stats.failures == stats.damaged_records == 0
            assert stats.last_error == ""


def replay(url: str) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "kvcache", "replay", "--json", "--requests", "12"]
    done = subprocess.run(
        [*command, "--remote", url], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_two_processes_replay_without_a_wrong_byte(secured: str) -> None:
    found: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: found.append(replay(secured))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.append(replay(secured))
    assert [each["mismatches"] for each in found] == [0, 0, 0]
    assert found[-1]["remote"]["fetched_tokens"] > 0
    assert found[-1]["verified_bytes"] == found[-1]["restored_bytes"] > 0
    for each in found:
        assert each["remote"]["failures"] == each["remote"]["damaged_records"] == 0


def test_a_client_shows_its_certificate(
    server: ValkeyServer, authority: Authority, here: Certificate
) -> None:
    client = authority.issue("client", names="DNS:client")
    both = client.certificate.with_name("both.pem")
    both.write_bytes(client.certificate.read_bytes() + client.key.read_bytes())
    with TlsFront(server.port, here, client_ca=authority.ca_file) as front:
        url = f"valkeys://localhost:{front.port}"
        options = {"ca_file": authority.ca_file, "certificate": client.certificate}
        for chosen in ({**options, "key": client.key}, {**options, "certificate": str(both)}):
            cache = make_cache("hybrid", remote=tier(url, **chosen))
            fill(cache, prompt(40))
            cache.remote.flush(60)
            assert check(make_cache("hybrid", remote=tier(url, **chosen)), prompt(40)) == 39
            assert check_server(tier(url, **chosen))[0].value == url


def test_anybody_is_talked_to_where_that_is_asked_for(
    server: ValkeyServer, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other").issue("elsewhere", names="DNS:elsewhere.test")
    with TlsFront(server.port, other) as front:
        url = f"valkeys://localhost:{front.port}?verify=false"
        cache = make_cache("hybrid", remote=tier(url))
        fill(cache, prompt(40))
        cache.remote.flush(60)
        assert check(make_cache("hybrid", remote=tier(url)), prompt(40)) == 39
        [found] = [each for each in check_server(tier(url)) if each.name == "encryption"]
        assert found.verdict is Verdict.ADVICE
        assert "verify" in found.advice


# ---- Who is not to be trusted, or not there -----------------------------------------------------


@contextlib.contextmanager
def saying(*words: bytes, closes: bool) -> Iterator[int]:
    """The port of who says something to everybody, and then nothing, or goes away."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        listener.settimeout(0.05)

        def serve() -> None:
            while not ended.is_set():
                with contextlib.suppress(OSError):
                    connection = stack.enter_context(listener.accept()[0])
                    for each in words:
                        connection.sendall(each)
                    if closes:
                        connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        ended.set()
        thread.join()


@dataclasses.dataclass
class Setting:
    """What a hostile server may be made of."""

    authority: Authority
    here: Certificate
    folder: Path


def with_certificate(name: str, **options: str) -> Callable[[Setting], TlsFront]:
    return lambda it: TlsFront(1, it.authority.issue(name, **options))


def vouching_for_itself(it: Setting) -> TlsFront:
    own = Authority(it.folder / "own").ca_file
    return TlsFront(1, Certificate(own, own.with_name("ca.key")))


def wanting_a_certificate(version: ssl.TLSVersion) -> Callable[[Setting], TlsFront]:
    return lambda it: TlsFront(1, it.here, client_ca=it.authority.ca_file, version=version)


HALF = b"\x16\x03\x03\x00\x7a\x02\x00"  # of a record, in the handshake
FAILED, LATE = "no TLS handshake", "no TLS handshake: nothing within 400 ms"

HOSTILE: dict[str, tuple[Callable[[Setting], contextlib.AbstractContextManager[Any]], str]] = {
    "another host": (
        with_certificate("elsewhere", names="DNS:elsewhere.test,DNS:*.localhost"),
        "ostname mismatch",
    ),
    "expired": (with_certificate("expired", years="20200101 20200201"), "expired"),
    "not yet valid": (with_certificate("early", years="20900101 20910101"), "not yet valid"),
    "an unknown authority": (
        lambda it: TlsFront(1, Authority(it.folder / "unknown").issue("here")),
        "ca_file",
    ),
    "self-signed": (vouching_for_itself, "self.signed"),
    "in the clear": (lambda _: saying(b"-ERR Protocol error\r\n", closes=True), FAILED),
    "silent": (lambda _: saying(closes=False), LATE),
    "gone": (lambda _: saying(closes=True), FAILED),
    "half a record": (lambda _: saying(HALF, closes=False), LATE),
    "cut off": (lambda _: saying(HALF, closes=True), FAILED),
    "TLS 1.1": (lambda it: TlsFront(1, it.here, version=ssl.TLSVersion.TLSv1_1), FAILED),
    "wants a certificate, 1.3": (wanting_a_certificate(ssl.TLSVersion.TLSv1_3), "alert"),
    "wants a certificate, 1.2": (wanting_a_certificate(ssl.TLSVersion.TLSv1_2), "alert"),
    "nobody behind it": (lambda it: TlsFront(1, it.here), "closed the connection"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_whoever_is_not_to_be_trusted_is_a_miss(
    name: str, authority: Authority, here: Certificate, tmp_path: Path
) -> None:
    make, match = HOSTILE[name]
    with make(Setting(authority, here, tmp_path)) as found:
        port = found if isinstance(found, int) else found.port
        remote = ValkeyTier(
            f"valkeys://localhost:{port}", ca_file=authority.ca_file, deadline_seconds=0.4
        )
        cache = make_cache("hybrid", remote=remote)
        start = time.monotonic()
        fill(cache, prompt(40))
        assert time.monotonic() - start < 20
        with contextlib.suppress(OSError):
            cache.remote.flush(30)
        stats = cache.remote.stats()
        assert stats.failures > 0
        assert stats.written_records == stats.fetches == 0
        with pytest.warns(KVCacheWarning, match=match):
            assert check(cache, prompt(40)) == 39
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert check(cache, prompt(40)) == 39, "and it is said once"
        [told] = check_server(remote)[:1]
        assert told.verdict is Verdict.PROBLEM
        assert "ca_file" in told.advice


def test_who_speaks_tls_is_no_server_in_the_clear(here: Certificate) -> None:
    with TlsFront(1, here) as front:
        cache = make_cache(
            "hybrid", remote=ValkeyTier(f"localhost:{front.port}", deadline_seconds=0.4)
        )
        fill(cache, prompt(40))
        with pytest.warns(KVCacheWarning):
            assert check(cache, prompt(40)) == 39


# ---- Options ------------------------------------------------------------------------------------


def test_an_address_may_say_all_of_it_and_shows_no_secret(
    authority: Authority, here: Certificate
) -> None:
    query = f"ca_file={authority.ca_file}&certificate={here.certificate}&key={here.key}&verify=true"
    found = ValkeyTier(f"rediss://reader:se%2Fcret@[::1]:6380/2?{query}")
    assert found == ValkeyTier(
        "rediss://[::1]:6380/2",
        user="reader",
        password="se/cret",
        database=2,
        ca_file=str(authority.ca_file),
        certificate=str(here.certificate),
        key=str(here.key),
    )
    assert found.url == "rediss://[::1]:6380/2"
    assert "cret" not in repr(found)
    assert found.is_secured
    assert not ValkeyTier("redis://[::1]:6380/2").is_secured
    assert pickle.loads(pickle.dumps(found)) == found
    assert dataclasses.replace(found, verify=False).ca_file == found.ca_file
    plus = authority.ca_file.with_name("a+b c.pem")
    plus.write_bytes(authority.ca_file.read_bytes())
    for text in (str(plus).replace(" ", "%20"), str(plus)):
        assert ValkeyTier(f"valkeys://x?ca_file={text}").ca_file == str(plus)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"ca_file": "/nowhere/ca.pem"}, "ca_file: /nowhere/ca.pem: No such file"),
        ({"ca_file": "/"}, "ca_file: /: it is not a file"),
        ({"ca_file": "/dev/null"}, "ca_file: /dev/null: it is not a file"),
        ({"ca_file": ""}, "ca_file"),
        ({"ca_file": "a\0b"}, "ca_file"),
        ({"ca_file": 3}, "ca_file"),
        ({"certificate": "/nowhere"}, "certificate: /nowhere"),
        ({"certificate": __file__, "key": "/nowhere"}, "key: /nowhere"),
        ({"key": __file__}, "key: there is no certificate"),
        ({"verify": 0}, "verify"),
        ({"url": "valkeys://x?verify=no"}, "verify: expected true or false"),
        ({"url": "valkeys://x?cafile=y"}, r"unknown options \['cafile'\]"),
        ({"url": "valkey://x?verify=false"}, "verify: is of TLS"),
        ({"url": "valkey://x", "ca_file": __file__}, "ca_file: is of TLS"),
        ({"url": "unix:///x", "certificate": __file__}, "certificate: is of TLS"),
        ({"url": "unixs:///x"}, "valkeys://"),
    ],
)
def test_wrong_options_are_refused_and_say_why(options: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        ValkeyTier(**{"url": "valkeys://x", **options})


def test_files_that_hold_something_else_are_refused_by_the_cache(
    authority: Authority, here: Certificate
) -> None:
    another = authority.issue("another")
    for options, match in (
        ({"ca_file": __file__}, "ca_file: .*PEM"),
        ({"certificate": __file__}, "certificate: .*PEM"),
        ({"certificate": here.certificate}, "key: "),
        ({"certificate": here.certificate, "key": another.key}, "key: .*mismatch"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            make_cache("hybrid", remote=ValkeyTier("valkeys://x", **options))


def test_a_doctor_looks_at_a_server_in_tls(
    secured: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["doctor", "--remote", secured, "--json"])
    shown = json.loads(capsys.readouterr().out)
    found = {each["name"]: each for each in shown["findings"]}
    assert found["encryption"]["value"].startswith("TLSv1.")
    assert found["encryption"]["verdict"] == "ok"
    assert found["commands"]["value"] == "all allowed"
    assert main(["doctor", "--remote", secured.partition("?")[0]]) == 1
    assert "ca_file" in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "ssl", None)
    with pytest.raises(UnsupportedError, match="ssl"):
        check_server(ValkeyTier(secured))


def test_a_doctor_says_what_goes_in_the_clear(server: ValkeyServer) -> None:
    found = {each.name: each for each in check_server(ValkeyTier(server.url))}
    assert "encryption" not in found, "nothing leaves the machine"
    elsewhere = server.url.replace("127.0.0.1", "0.0.0.0")
    found = {each.name: each for each in check_server(ValkeyTier(elsewhere))}
    assert found["encryption"].verdict is Verdict.ADVICE
    assert "valkeys://" in found["encryption"].advice


# ---- The process --------------------------------------------------------------------------------


def test_a_child_of_fork_has_connections_of_its_own(secured: str) -> None:
    cache = make_cache("hybrid", remote=tier(secured))
    fill(cache, prompt(40))
    cache.remote.flush(60)

    def child() -> None:
        with pytest.raises(InvalidArgumentError, match="fork"):
            cache.open(prompt(40))
        own = make_cache("hybrid", remote=tier(secured))
        assert check(own, prompt(40)) == 39
        assert own.remote.stats().failures == 0

    assert in_child(child) == ""
    other = make_cache("hybrid", remote=tier(secured))
    assert check(other, prompt(40)) == 39
    fill(cache, prompt(40, 1))
    cache.remote.flush(60)
    assert cache.remote.stats().failures == 0


def run_python(code: str) -> None:
    folders = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_server_that_goes_away_ends_no_program(secured: str) -> None:
    """Writing to it raises no SIGPIPE, which Python ignores and others do not."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = secured.replace(f":{secured.partition('?')[0].rpartition(':')[2]}?", f":{port}?")
    run_python(f"""
import signal, socket, threading, warnings
from support.filled import fill, make_cache, prompt
from kvcache import ValkeyTier
warnings.simplefilter("ignore")  # that the server cannot be used
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
target = {secured.partition("?")[0].rpartition(":")[2]}
listener = socket.create_server(("127.0.0.1", {port}))
def cut():
    while True:
        client = listener.accept()[0]
        server = socket.create_connection(("127.0.0.1", target))
        def pump(source, sink, most):
            try:
                while most > 0 and (data := source.recv(4096)):
                    sink.sendall(data)
                    most -= len(data)
            except OSError:
                pass
            client.close()
            server.close()
        # The handshake passes, and not much of what follows.
        for ends in ((client, server, 6000), (server, client, 1 << 30)):
            threading.Thread(target=pump, args=ends, daemon=True).start()
threading.Thread(target=cut, daemon=True).start()
cache = make_cache("hybrid", remote=ValkeyTier({url!r}, deadline_seconds=5.0))
for seed in range(5):
    fill(cache, prompt(400, seed))
try:
    cache.remote.flush(20)
except OSError:
    pass
assert cache.remote.stats().failures > 0
""")


def test_the_interpreter_may_exit_while_threads_are_in_tls(secured: str) -> None:
    run_python(f"""
import threading, time
from support.filled import fill, make_cache, prompt
from kvcache import ValkeyTier
kept = []
def serve(seed):
    cache = make_cache("hybrid", remote=ValkeyTier({secured!r}, deadline_seconds=5.0))
    kept.append((cache, kept))
    while True:
        seed += 4
        fill(cache, prompt(200, seed))
for seed in range(4):
    threading.Thread(target=serve, args=(seed,), daemon=True).start()
time.sleep(2)
""")
