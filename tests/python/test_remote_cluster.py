"""Caches that share a cluster, or a primary that sentinels guard, whatever happens to its nodes."""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.filled import MODELS, check, fill, make_cache, prompt
from support.valkey import ValkeyServer, missing_server
from support.valkey_cluster import ValkeyCluster, ValkeySentinel, slot_of, wait_until

from kvcache import ValkeyTier
from kvcache.cli import main
from kvcache.errors import KVCacheIOError, KVCacheWarning
from kvcache.tiers.doctor import Verdict, check_server


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ValkeyCluster]:
    if reason := missing_server():
        pytest.skip(reason)
    started = ValkeyCluster(tmp_path)
    yield started
    started.kill()


def sharing(url: str, model: str = "hybrid", **options: Any) -> Any:
    options = {"deadline_seconds": 30.0, **options}
    return make_cache(model, remote=ValkeyTier(url, **options))


def stored(cluster: ValkeyCluster, seeds: range, length: int = 40) -> Any:
    """A cache whose prompts of these seeds are in the cluster."""
    cache = sharing(cluster.url)
    for seed in seeds:
        fill(cache, prompt(length, seed))
    cache.remote.flush(60)
    return cache


# ---- A cluster --------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_another_cache_finds_what_was_published(cluster: ValkeyCluster, model: str) -> None:
    for length in (9, 90):
        tokens = prompt(length, length)
        cache = sharing(cluster.url, model)
        fill(cache, tokens)
        cache.remote.flush(60)
        fresh = sharing(cluster.url, model)
        hit = check(fresh, tokens)
        assert length - 1 - 4 <= hit <= length - 1
        assert check(fresh, np.append(tokens, 5)) >= hit
        stats = fresh.remote.stats()
        assert stats.damaged_records == stats.failures == stats.redirections == 0
        assert stats.servers == 3
        assert stats.last_error == ""


def test_every_node_has_a_part_and_any_node_leads_to_all(cluster: ValkeyCluster) -> None:
    stored(cluster, range(8))
    assert all(len(names) > 3 for names in cluster.names())
    places = [f"127.0.0.1:{node.port}" for node in cluster.nodes]
    for url in (
        f"valkey+cluster://{places[2]}",
        f"redis+cluster://127.0.0.1:1,localhost:{cluster.nodes[1].port}",
        f"valkey+cluster://127.0.0.1:1,{places[0]},no.such.host.invalid/0",
    ):
        cache = sharing(url)
        assert [check(cache, prompt(40, seed)) for seed in range(8)] == [39] * 8, url
        assert cache.remote.stats().servers == 3


def test_a_user_may_do_no_more_than_it_has_to(cluster: ValkeyCluster) -> None:
    commands = "+auth +select +get +getrange +strlen +set +pexpire +unlink +scan"
    more = "+watch +unwatch +multi +exec +cluster|slots +asking"
    for node in cluster.nodes:
        node.ask("ACL", "SETUSER", "kv", *f"on >secret ~kvcache:* {commands} {more}".split())
    url = cluster.url.replace("://", "://kv:secret@")
    fill(sharing(url), prompt(40))
    cache = sharing(url)
    assert check(cache, prompt(40)) == 39
    assert cache.remote.stats().last_error == ""
    cache.erase()
    assert cluster.names() == [[], [], []]


def test_what_is_erased_is_gone_from_every_node(cluster: ValkeyCluster) -> None:
    cache = sharing(cluster.url)
    fill(cache, prompt(90), namespace="a")
    fill(cache, prompt(90), namespace="b")
    cache.remote.flush(60)
    cache.erase(namespace="a")
    other = sharing(cluster.url)
    assert check(other, prompt(90), namespace="a") == 0
    assert check(other, prompt(90), namespace="b") == 89
    cache.erase()
    assert cluster.names() == [[], [], []]
    cluster.nodes[1].kill()
    with pytest.raises(KVCacheIOError):
        cache.erase()


def test_slots_move_while_caches_use_them(cluster: ValkeyCluster) -> None:
    seeds = range(6)
    cache = stored(cluster, seeds)
    reader = sharing(cluster.url)

    def check_all() -> None:
        for each in (reader, sharing(cluster.url)):
            each.clear()
            assert [check(each, prompt(40, seed)) for seed in seeds] == [39] * len(seeds)
            stats = each.remote.stats()
            assert stats.missing_records == stats.damaged_records == stats.failures == 0

    check_all()
    # All slots of a node that have keys, so that some prompt stands on each of them.
    slots = sorted({slot_of(name) for name in cluster.names()[0]})
    for slot in slots:
        cluster.begin_move(slot, 0, 1)
    check_all()
    for slot in slots:
        cluster.move_keys(slot, 0, 1, count=1)
    check_all()
    # What is new where a slot moves is written where it goes.
    fill(cache, prompt(40, 50))
    for slot in slots:
        cluster.move_keys(slot, 0, 1)
    check_all()
    for slot in slots:
        cluster.end_move(slot, 1)
    check_all()
    assert not {slot_of(name) for name in cluster.names()[0]} & set(slots)
    assert reader.remote.stats().redirections > 0
    fresh = sharing(cluster.url)
    assert [check(fresh, prompt(40, seed)) for seed in seeds] == [39] * len(seeds)
    assert fresh.remote.stats().redirections == 0


def test_slots_move_under_load(cluster: ValkeyCluster) -> None:
    stored(cluster, range(6))
    stop = threading.Event()
    wrong: list[BaseException] = []
    hits: list[int] = []

    def load(seed: int) -> None:
        own = sharing(cluster.url)
        try:
            while not stop.is_set():
                own.clear()
                hits.append(check(own, prompt(40, seed % 6)))
                fill(own, prompt(40, seed + 100))
                seed += 1
            assert own.remote.stats().damaged_records == 0
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=load, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for source, target in ((0, 1), (1, 2), (2, 0)):
        for slot in sorted({slot_of(name) for name in cluster.names()[source]})[:40]:
            cluster.begin_move(slot, source, target)
            cluster.move_keys(slot, source, target)
            cluster.end_move(slot, target)
    stop.set()
    for thread in threads:
        thread.join(120)
    assert wrong == []
    assert len(hits) > 3
    cache = sharing(cluster.url)
    assert [check(cache, prompt(40, seed)) for seed in range(6)] == [39] * 6


def test_a_node_killed_under_load_costs_what_it_had(cluster: ValkeyCluster) -> None:
    seeds = range(16)
    cache = sharing(cluster.url)
    lost: set[int] = set()
    for seed in seeds:
        before = set(cluster.nodes[1].names())
        fill(cache, prompt(9, seed))
        cache.remote.flush(60)
        if set(cluster.nodes[1].names()) != before:
            lost.add(seed)
    assert 0 < len(lost) < len(seeds)
    stop = threading.Event()
    wrong: list[BaseException] = []
    slowest = [0.0]

    def load(seed: int) -> None:
        own = sharing(cluster.url, deadline_seconds=2.0)
        try:
            while not stop.is_set():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", KVCacheWarning)
                    own.clear()
                    start = time.monotonic()
                    hit = check(own, prompt(9, seed))
                    slowest[0] = max(slowest[0], time.monotonic() - start)
                    assert hit == 8 or seed in lost
                    fill(own, prompt(9, seed + 1000))
                seed = (seed + 1) % len(seeds)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=load, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    cluster.nodes[1].kill()
    time.sleep(4.0)  # the other nodes notice after two seconds
    stop.set()
    for thread in threads:
        thread.join(120)
    assert wrong == []
    assert slowest[0] < 10.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KVCacheWarning)
        late = sharing(cluster.url, deadline_seconds=2.0)
        hits = [check(late, prompt(9, seed)) for seed in seeds]
        assert [seed for seed in seeds if hits[seed] < 8] == sorted(lost)
        assert late.remote.stats().is_suspended
        # It comes back empty, and is filled again.
        cluster.nodes[1].start()
        wait_until(cluster.is_whole)
        wait_until(lambda: refilled(late, seeds))
    assert not late.remote.stats().is_suspended
    other = sharing(cluster.url)
    assert [check(other, prompt(9, seed)) for seed in seeds] == [8] * len(seeds)


def refilled(cache: Any, seeds: range) -> bool:
    """Publish once more; whether all of it was taken."""
    before = cache.remote.stats().dropped_records
    for seed in seeds:
        cache.clear()
        fill(cache, prompt(9, seed))
    try:
        cache.remote.flush(60)
    except KVCacheIOError:
        return False
    stats = cache.remote.stats()
    return not stats.is_suspended and bool(stats.dropped_records == before)


def test_a_cluster_that_is_down_is_a_miss_and_is_used_again(cluster: ValkeyCluster) -> None:
    cache = stored(cluster, range(2))
    cluster.kill()
    cache.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KVCacheWarning)
        assert check(cache, prompt(40)) == 0
        assert check(sharing(cluster.url), prompt(40)) == 0
        for node in cluster.nodes:
            node.start()
        wait_until(cluster.is_whole)
        wait_until(lambda: refilled(cache, range(2)))
    assert check(sharing(cluster.url), prompt(9)) == 8


def test_a_node_that_is_named_alone_is_no_server_of_its_own(cluster: ValkeyCluster) -> None:
    stored(cluster, range(6))
    cache = sharing(cluster.nodes[0].url)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for seed in range(6):
            check(cache, prompt(40, seed))
            fill(cache, prompt(40, seed + 20))
            cache.clear()
    assert any("valkey+cluster://" in str(each.message) for each in told)
    found = {each.name: each for each in check_server(ValkeyTier(cluster.nodes[0].url))}
    assert "valkey+cluster://" in found["cluster"].advice


# ---- The commands -----------------------------------------------------------------------------


def test_replays_share_a_cluster(
    cluster: ValkeyCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["replay", "--json", "--requests", "12", "--remote", cluster.url]
    found = []
    for _ in range(2):
        assert main(command) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert [each["mismatches"] for each in found] == [0, 0]
    assert found[0]["remote"]["written_records"] > 0
    assert found[1]["remote"]["fetched_tokens"] > 0
    assert found[1]["remote"]["servers"] == 3
    assert found[1]["remote"]["last_error"] == ""


def test_the_doctor_looks_at_every_node(
    cluster: ValkeyCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for node in cluster.nodes:
        node.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    assert main(["doctor", "--remote", cluster.url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    shown = [each["value"] for each in found if each["name"] == "cluster"]
    assert shown == ["3 primaries, 0 replicas, 16,384 of 16,384 slots"]
    assert {each["server"] for each in found if each["name"] == "connection"} == {
        f"127.0.0.1:{node.port}" for node in cluster.nodes
    }
    assert cluster.names() == [[], [], []]
    cluster.nodes[2].ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    cluster.nodes[1].ask("CONFIG", "SET", "cluster-require-full-coverage", "yes")
    asked = ["ACL", "SETUSER", "kv", "on", ">pw", "~kvcache:*", "+@all", "-asking"]
    cluster.nodes[0].ask(*asked)
    for node in cluster.nodes[1:]:
        node.ask("ACL", "SETUSER", "kv", "on", ">pw", "~kvcache:*", "+@all")
    tier = ValkeyTier(cluster.url, user="kv", password="pw", deadline_seconds=30.0)
    wrong = {
        (each.server, each.name): each for each in check_server(tier) if each.verdict != Verdict.OK
    }
    places = [f"127.0.0.1:{node.port}" for node in cluster.nodes]
    assert wrong.keys() == {
        (places[0], "commands"),
        (places[1], "cluster-require-full-coverage"),
        (places[2], "maxmemory-policy"),
    }
    assert "+asking" in wrong[places[0], "commands"].advice


def test_the_doctor_misses_nodes_and_slots(
    cluster: ValkeyCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.nodes[2].kill()
    assert main(["doctor", "--remote", cluster.url, "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    lost = [each for each in findings if each["server"] == f"127.0.0.1:{cluster.nodes[2].port}"]
    assert [each["verdict"] for each in lost] == ["problem"]
    for node in cluster.nodes[:2]:
        node.ask("CLUSTER", "DELSLOTS", "7")
    [found] = [each for each in check_server(ValkeyTier(cluster.url)) if each.name == "cluster"]
    assert found.verdict is Verdict.PROBLEM
    assert "16,383 of 16,384" in found.value
    cluster.kill()
    found, *others = check_server(ValkeyTier(cluster.url))
    assert len(others) == 2
    assert {each.verdict for each in (found, *others)} == {Verdict.PROBLEM}


# ---- Sentinels --------------------------------------------------------------------------------


def test_a_failover_costs_misses_for_a_moment(tmp_path: Path) -> None:
    if reason := missing_server():
        pytest.skip(reason)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    primary = ValkeyServer(tmp_path / "one", "--repl-diskless-sync-delay", "0")
    replica = ValkeyServer(tmp_path / "two", "--replicaof", "127.0.0.1", str(primary.port))
    sentinel = ValkeySentinel(tmp_path / "s", primary, "requirepass guide")
    try:
        url = f"valkey+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/svc"
        wait_until(lambda: b"master_link_status:up" in replica.ask("INFO", "replication"))
        options: dict[str, Any] = {"sentinel_password": "guide", "deadline_seconds": 5.0}
        cache = sharing(url, **options)
        fill(cache, prompt(40))
        cache.remote.flush(60)
        assert check(sharing(url, **options), prompt(40)) == 39
        doctor(url, primary)
        wait_until(lambda: replica.names() == primary.names())
        time.sleep(1.5)  # in which the sentinel hears of the replica
        primary.kill()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KVCacheWarning)
            end = time.monotonic() + 60
            while True:
                cache.clear()
                hit = check(cache, prompt(40))
                assert hit in (0, 39)
                if hit:
                    break
                assert time.monotonic() < end, cache.remote.stats().last_error
                time.sleep(0.1)
            wait_until(lambda: refilled(cache, range(3)))
        assert replica.ask("ROLE")[0] == b"master"
        assert not cache.remote.stats().is_suspended
        assert check(sharing(url, **options), prompt(9, 2)) == 8
        wrong = sharing(url, sentinel_password="guess")
        check(wrong, prompt(40))
        with pytest.warns(KVCacheWarning, match="cannot be used"):
            check(wrong, prompt(40))
        assert "WRONGPASS" in wrong.remote.stats().last_error
    finally:
        for server in (sentinel, replica, primary):
            server.kill()


def doctor(url: str, primary: ValkeyServer) -> None:
    primary.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    found = check_server(ValkeyTier(url, sentinel_password="guide", deadline_seconds=30.0))
    names = [(each.name, each.verdict) for each in found]
    assert ("sentinel", Verdict.ADVICE) in names  # the one at port 1
    assert ("sentinel", Verdict.OK) in names
    assert ("service", Verdict.ADVICE) in names  # too few
    assert not [each for each in found if each.verdict is Verdict.PROBLEM]
    assert {each.server for each in found} == {"", f"127.0.0.1:{primary.port}"}
    [unknown] = check_server(
        ValkeyTier(url.replace("127.0.0.1:1,", "") + "x", sentinel_password="guide")
    )
    assert unknown.verdict is Verdict.PROBLEM
    assert "does not know svcx" in unknown.value
