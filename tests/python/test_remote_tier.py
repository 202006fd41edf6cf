"""Caches that share a Valkey server: what one publishes another finds, whatever happens to it."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.filled import MODELS, check, fill, make_cache, prompt
from support.valkey import ValkeyServer, missing_server

import kvcache
from kvcache import DiskTier, RemoteTierStats, ValkeyTier
from kvcache.errors import (
    InvalidArgumentError,
    KVCacheIOError,
    KVCacheWarning,
    UnsupportedError,
)
from kvcache.metrics import _REMOTE_METRICS
from kvcache.tiers.url import Topology

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    if reason := missing_server():
        pytest.skip(reason)
    started = ValkeyServer(tmp_path)
    yield started
    started.kill()


def sharing(server: ValkeyServer, model: str = "hybrid", **options: Any) -> Any:
    options = {"deadline_seconds": 30.0, **options}
    return make_cache(model, remote=ValkeyTier(server.url, **options))


def stored(server: ValkeyServer, *seeds: int, length: int = 40) -> Any:
    """A cache whose prompts of these seeds are on the server."""
    cache = sharing(server)
    for seed in seeds:
        fill(cache, prompt(length, seed))
    cache.remote.flush(60)
    return cache


@pytest.mark.parametrize("model", MODELS)
def test_another_cache_finds_what_was_published(server: ValkeyServer, model: str) -> None:
    for length in (2, 9, 90):
        server.ask("FLUSHALL")
        tokens = prompt(length)
        cache = sharing(server, model)
        fill(cache, tokens)
        cache.remote.flush(60)
        fresh = sharing(server, model)
        hit = check(fresh, tokens)
        assert length - 1 - 4 <= hit <= length - 1
        assert check(fresh, np.append(tokens, 5)) >= hit
        if fresh.plan.fixed:
            assert hit == length - 1
        stats = fresh.remote.stats()
        assert stats.fetches >= (hit > 0)
        assert stats.damaged_records == stats.failures == 0
        assert stats.last_error == ""


def test_every_way_to_name_the_server(server: ValkeyServer) -> None:
    stored(server, 0)
    for url in (
        server.url,
        f"redis://127.0.0.1:{server.port}/0",
        f"localhost:{server.port}",
        str(server.socket),
        f"unix://{server.socket}?db=0",
    ):
        cache = make_cache("hybrid", remote=ValkeyTier(url, deadline_seconds=30.0))
        assert check(cache, prompt(40)) == 39, url
    other = make_cache("hybrid", remote=ValkeyTier(f"{server.url}/3", deadline_seconds=30.0))
    assert check(other, prompt(40)) == 0
    named = sharing(server, key_prefix="another:")
    assert check(named, prompt(40)) == 0


def test_users_log_in_and_may_do_no_more_than_they_have_to(server: ValkeyServer) -> None:
    commands = "+auth +select +get +getrange +strlen +set +pexpire +unlink +scan"
    transactions = "+watch +unwatch +multi +exec"
    rules = f"on >se/cret ~kvcache:* {commands} {transactions}".split()
    assert server.ask("ACL", "SETUSER", "reader", *rules) == "+OK"
    url = f"valkey://reader:se%2Fcret@127.0.0.1:{server.port}"
    tier = ValkeyTier(url, deadline_seconds=30.0)
    assert "cret" not in repr(tier)
    assert "cret" not in tier.url
    fill(make_cache("hybrid", remote=tier), prompt(40))
    cache = make_cache("hybrid", remote=tier)
    assert check(cache, prompt(40)) == 39
    assert cache.remote.stats().failures == 0
    wrong = make_cache("hybrid", remote=dataclasses.replace(tier, password="guess"))
    assert check(wrong, prompt(40)) == 0
    with pytest.warns(KVCacheWarning, match="WRONGPASS"):
        check(wrong, prompt(40))
    elsewhere = make_cache("hybrid", remote=dataclasses.replace(tier, key_prefix="else:"))
    assert check(elsewhere, prompt(40)) == 0
    assert "NOPERM" in elsewhere.remote.stats().last_error


def test_what_is_written_expires_and_lives_on_when_it_is_published_again(
    server: ValkeyServer,
) -> None:
    stored(server, 0)
    ttl = [server.ask("PTTL", key) for key in server.names()]
    assert all(86_000_000 < each <= 86_400_000 for each in ttl)
    for key in server.names():
        server.ask("PEXPIRE", key, "100000")
    again = sharing(server, ttl_seconds=5000.0, at_open=False)
    fill(again, prompt(40))
    again.remote.flush(60)
    assert again.remote.stats().written_records == 0
    assert again.remote.stats().present_records > 0
    assert all(server.ask("PTTL", key) > 4_000_000 for key in server.names())
    server.ask("FLUSHALL")
    for_ever = sharing(server, ttl_seconds=None)
    fill(for_ever, prompt(40))
    for_ever.remote.flush(60)
    assert {server.ask("PTTL", key) for key in server.names()} == {-1}


def test_prefetch_and_the_awaited_calls(server: ValkeyServer) -> None:
    cache = sharing(server)
    fill(cache, prompt(40), salt="s")
    cache.remote.flush()
    other = sharing(server, at_open=False)
    assert check(other, prompt(40), salt="s") == 0
    assert other.remote.prefetch(prompt(40)) == 0
    assert other.remote.prefetch(prompt(40), salt="s", ttl=math.inf) == 39
    assert check(other, prompt(40), salt="s") == 39
    other.clear()
    awaited = kvcache.AsyncCache(other)
    assert asyncio.run(awaited.prefetch_remote(prompt(40), salt="s")) == 39
    asyncio.run(awaited.flush_remote(60))


def test_a_disk_tier_is_asked_before_the_server(server: ValkeyServer, tmp_path: Path) -> None:
    def cache(name: str) -> Any:
        remote = ValkeyTier(server.url, deadline_seconds=30.0)
        return make_cache("hybrid", disk=DiskTier(tmp_path / name, "64MiB"), remote=remote)

    first = cache("one")
    fill(first, prompt(40))
    first.disk.flush()
    first.remote.flush()
    del first
    again = cache("one")
    assert check(again, prompt(40)) == 39
    assert again.disk.stats().fetches == 1
    assert again.remote.stats().fetches == 0
    elsewhere = cache("two")
    assert check(elsewhere, prompt(40)) == 39
    assert elsewhere.remote.stats().fetches == 1


# ---- What goes wrong --------------------------------------------------------------------------


def test_a_server_killed_under_load_is_a_miss_and_is_used_again(server: ValkeyServer) -> None:
    cache = stored(server, 0, 1, 2)
    stop = threading.Event()
    wrong: list[BaseException] = []

    def load(seed: int) -> None:
        own = sharing(server, deadline_seconds=2.0)
        try:
            while not stop.is_set():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", KVCacheWarning)
                    check(own, prompt(40, seed))
                    own.clear()
                    fill(own, prompt(40, seed + 10))
                seed = (seed + 1) % 3
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=load, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        time.sleep(0.15)
        server.kill()
        time.sleep(0.1)
        server.start()
    stop.set()
    for thread in threads:
        thread.join(120)
    assert wrong == []
    # It came back empty.
    server.ask("FLUSHALL")
    server.kill()
    cache.clear()
    assert check(cache, prompt(40)) == 0
    assert cache.remote.stats().failures > 0
    with pytest.warns(KVCacheWarning, match=r"remote tier valkey://.*cannot be used"):
        check(cache, prompt(40))
    server.start()
    wait_until(lambda: not refused(cache, 0))
    assert cache.remote.stats().is_suspended is False
    assert server.names() != []
    assert check(sharing(server), prompt(40)) == 39


def refused(cache: Any, seed: int) -> bool:
    """Publish once more; whether the server did not take all of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KVCacheWarning)
        before = cache.remote.stats().dropped_records
        cache.clear()
        fill(cache, prompt(40, seed))
        try:
            cache.remote.flush(60)
        except KVCacheIOError:
            return True
        stats = cache.remote.stats()
    return stats.is_suspended or stats.dropped_records > before


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_values_changed_in_place_are_misses_and_are_removed(server: ValkeyServer) -> None:
    stored(server, 0)
    for key in server.names():
        value = server.ask("GET", key)
        for at in (0, 50, 150, len(value) // 2, len(value) - 1):
            server.ask("SETRANGE", key, str(at), bytes([value[at] ^ 1]))
            cache = sharing(server)
            check(cache, prompt(40))
            found = server.ask("EXISTS", key) == 1
            assert found == (cache.remote.stats().damaged_records == 0)
            server.ask("SET", key, value)
    server.ask("DEL", server.names()[0])
    server.ask("LPUSH", server.names()[0], "a list")
    assert check(sharing(server), prompt(40)) <= 39


def test_a_full_server_says_so_once_and_serves_what_it_has(server: ValkeyServer) -> None:
    stored(server, 0)
    server.ask("CONFIG", "SET", "maxmemory", "1mb")
    server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    cache = sharing(server)
    assert check(cache, prompt(40)) == 39
    fill(cache, prompt(40, 1))
    with pytest.raises(KVCacheIOError, match="OOM"):
        cache.remote.flush(60)
    with pytest.warns(KVCacheWarning, match="some of it is not written") as told:
        assert check(cache, prompt(40, 1)) == 39
    assert [Path(each.filename).name for each in told] == ["filled.py"]
    assert check(cache, prompt(40, 1)) == 39
    assert cache.remote.stats().write_errors > 0


def test_a_server_that_drops_at_will_costs_misses_alone(server: ValkeyServer) -> None:
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    server.ask("CONFIG", "SET", "maxmemory", "3mb")
    cache = sharing(server)
    for seed in range(60):
        fill(cache, prompt(90, seed))
        cache.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KVCacheWarning)
        found = sum(check(sharing(server), prompt(90, seed)) > 0 for seed in range(0, 60, 6))
    assert found <= 10


class SlowProxy:
    """Passes bytes on, each way so much later."""

    def __init__(self, port: int, delay: float) -> None:
        self._target = port
        self._delay = delay
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with source, target:
            try:
                while data := source.recv(1 << 16):
                    time.sleep(self._delay)
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)
            except OSError:
                pass

    def close(self) -> None:
        self._listener.close()


def test_a_slow_server_is_used_or_left_as_the_deadline_says(server: ValkeyServer) -> None:
    stored(server, 0)
    proxy = SlowProxy(server.port, 0.1)  # each way
    try:
        patient = ValkeyTier(f"127.0.0.1:{proxy.port}", deadline_seconds=30.0)
        cache = make_cache("hybrid", remote=patient)
        assert check(cache, prompt(40)) == 39
        assert cache.remote.stats().timeouts == 0
        # A lookup, its boundary and one read, whatever the prompt's length.
        assert cache.remote.stats().round_trips <= 4
        hasty = ValkeyTier(f"127.0.0.1:{proxy.port}", deadline_seconds=0.05)
        left = make_cache("hybrid", remote=hasty)
        assert check(left, prompt(40)) == 0
        assert left.remote.stats().timeouts > 0
        assert left.remote.stats().is_suspended
    finally:
        proxy.close()


def test_where_nobody_listens_the_cache_goes_on_in_memory() -> None:
    cache = make_cache("hybrid", remote=ValkeyTier(NOWHERE))
    fill(cache, prompt(40))
    with pytest.warns(KVCacheWarning, match="the server cannot be used"):
        assert check(cache, prompt(40)) == 39
    assert check(cache, prompt(40)) == 39
    stats = cache.remote.stats()
    assert stats.failures > 0
    assert stats.refused_operations + stats.failures >= 2
    assert "127.0.0.1:1" in stats.last_error


def test_what_is_erased_is_gone_from_the_server(server: ValkeyServer) -> None:
    cache = sharing(server)
    fill(cache, prompt(40), namespace="a")
    fill(cache, prompt(40), namespace="b")
    cache.remote.flush()
    cache.erase(namespace="a")
    assert cache.remote.stats().erased_records > 0
    other = sharing(server)
    assert check(other, prompt(40), namespace="a") == 0
    assert check(other, prompt(40), namespace="b") == 39
    cache.erase()
    assert server.names() == []
    server.kill()
    with pytest.raises(KVCacheIOError):
        cache.erase()


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"url": "http://x"}, "valkey://, redis:// or unix://"),
        ({"url": "valkey://"}, "valkey://host:port or unix:///path"),
        ({"url": "unix://host/path"}, "unix:///path"),
        ({"url": "x:99999"}, "[Pp]ort"),
        ({"url": "x:0"}, "port"),
        ({"url": "x:6379/one"}, "number of a database"),
        ({"url": "unix:///s?user=x"}, "unknown options"),
        ({"url": "unix:///a%00b"}, "at most 107 bytes, none of them 0"),
        ({"url": "/" + "a" * 107}, "at most 107 bytes, none of them 0; got 108"),
        ({"url": 3}, "url"),
        ({"url": "[::1"}, "url"),
        ({"url": "a:1,b:2"}, r"one server, got 2; .*valkey\+cluster://, .*valkey\+sentinel://"),
        ({"url": "valkey+http://x"}, r"valkey\+cluster:// or valkey\+sentinel://"),
        ({"url": "valkey-cluster://x:1"}, r"valkey\+cluster:// or valkey\+sentinel://"),
        ({"url": "unix+cluster:///x"}, r"valkey\+cluster:// or valkey\+sentinel://"),
        ({"url": "valkey+cluster://"}, "no host in ''"),
        ({"url": "valkey+cluster://a,,b"}, "no host in ''"),
        ({"url": "valkey+cluster://a:1,b:0"}, "port"),
        ({"url": "valkey+cluster://a:1,b:x"}, "[Pp]ort"),
        ({"url": "valkey+cluster://a,[::1"}, "url"),
        ({"url": "valkey+cluster://a/x"}, "number of a database"),
        ({"url": "valkey+cluster://a?nodes=3"}, "unknown options"),
        ({"url": "valkey+cluster://" + ",".join("a" * 101)}, "at most 100 addresses, got 101"),
        ({"url": "valkey+sentinel://a:1"}, "the name that the sentinels know"),
        ({"url": "valkey+sentinel://a:1/svc/0"}, "as an option"),
        ({"url": "valkey+sentinel://a:1/svc?db=x"}, "number of a database"),
        ({"url": "valkey+sentinel:///svc"}, "no host in ''"),
        ({"sentinel_user": "x"}, "sentinels"),
        ({"sentinel_password": 7}, "sentinel_password"),
        ({"database": -1}, "database"),
        ({"key_prefix": "a{b"}, "key_prefix"),
        ({"ttl_seconds": 0}, "ttl_seconds"),
        ({"ttl_seconds": math.nan}, "ttl_seconds"),
        ({"deadline_seconds": 0}, "deadline_seconds"),
        ({"deadline_seconds": 1000}, "deadline_seconds"),
        ({"deadline_seconds": math.inf}, "deadline_seconds"),
        ({"queue_bytes": "much"}, "queue_bytes"),
        ({"wait_seconds": -1}, "wait_seconds"),
        ({"read_threads": 65}, "read_threads"),
        ({"at_open": 1}, "at_open"),
        ({"password": 7}, "password"),
    ],
)
def test_wrong_options_are_refused_and_say_why(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        make_cache("attention", remote=ValkeyTier(**{"url": NOWHERE, **wrong}))


def test_clusters_and_sentinels_are_named_by_urls() -> None:
    tier = ValkeyTier("redis+cluster://me:a%2Cb@10.0.0.1:7000,[fe80::1]:7001,node/2")
    assert (tier.user, tier.password, tier.database) == ("me", "a,b", 2)
    assert tier.url == "redis+cluster://10.0.0.1:7000,[fe80::1]:7001,node/2"
    place = tier.place()
    assert place.topology is Topology.CLUSTER
    assert [str(each) for each in place.addresses] == [
        "10.0.0.1:7000",
        "[fe80::1]:7001",
        "node:6379",
    ]
    guarded = ValkeyTier(
        "valkey+sentinel://me:x@s1,s2:5000/my%20svc?db=3", sentinel_user="s", sentinel_password="y"
    )
    assert (guarded.user, guarded.password, guarded.database) == ("me", "x", 3)
    place = guarded.place()
    assert place.topology is Topology.SENTINELS
    assert place.service == "my svc"
    assert [str(each) for each in place.addresses] == ["s1:26379", "s2:5000"]
    assert "'x'" not in repr(guarded)
    assert "'y'" not in repr(guarded)
    assert dataclasses.replace(guarded, database=4).place() == place
    assert make_cache("attention", remote=guarded).remote is not None


def test_what_is_not_built_in_is_said() -> None:
    with pytest.raises(InvalidArgumentError, match="remote: expected a ValkeyTier"):
        make_cache("attention", remote="127.0.0.1:1")
    with pytest.raises(UnsupportedError, match="ledger"):
        make_cache("attention", remote=ValkeyTier(NOWHERE), backing=False)
    cache = make_cache("attention")
    assert cache.remote is None
    with pytest.raises(UnsupportedError, match="no remote tier"):
        asyncio.run(kvcache.AsyncCache(cache).flush_remote())
    with pytest.raises(UnsupportedError, match="no remote tier"):
        asyncio.run(kvcache.AsyncCache(cache).prefetch_remote([1]))
    with_tier = make_cache("attention", remote=ValkeyTier(NOWHERE))
    with pytest.raises(InvalidArgumentError):
        with_tier.remote.prefetch([])
    with pytest.raises(InvalidArgumentError, match="timeout"):
        with_tier.remote.flush(-1)


def test_every_counter_is_shown_to_prometheus() -> None:
    cache = make_cache("hybrid", remote=ValkeyTier(NOWHERE))
    text = cache.prometheus({"model": "m"})
    shown = [name for metric in _REMOTE_METRICS for name in metric.names()]
    counters = {each.name for each in dataclasses.fields(RemoteTierStats)} - {"last_error"}
    assert sorted(shown) == sorted(counters)
    assert 'kvcache_remote_lookups_total{model="m"} 0' in text
    assert "kvcache_remote" not in make_cache("hybrid").prometheus()
