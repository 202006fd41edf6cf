"""A cluster, or a primary that sentinels guard, where every connection is in TLS."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.certificates import Authority
from support.filled import check, fill, make_cache, prompt
from support.valkey import ValkeyServer, missing_server, missing_tls
from support.valkey_cluster import ValkeyCluster, ValkeySentinel, slot_of, wait_until

from kvcache import ValkeyTier
from kvcache.errors import KVCacheWarning
from kvcache.tiers.doctor import Verdict, check_server

SEEDS = range(6)


@pytest.fixture(scope="module")
def secured(authority: Authority) -> list[str]:
    """The options of a server in TLS."""
    if reason := missing_server() or missing_tls():
        pytest.skip(reason)
    return authority.server_options(authority.issue("here"))


@pytest.fixture
def cluster(tmp_path: Path, secured: list[str]) -> Iterator[ValkeyCluster]:
    started = ValkeyCluster(tmp_path, *secured, "--tls-cluster", "yes")
    yield started
    started.kill()


def sharing(url: str, authority: Authority, **options: Any) -> Any:
    options = {"ca_file": authority.ca_file, "deadline_seconds": 30.0, **options}
    return make_cache("hybrid", remote=ValkeyTier(url, **options))


def test_caches_share_a_cluster_while_its_slots_move(
    cluster: ValkeyCluster, authority: Authority
) -> None:
    cache = sharing(cluster.tls_url, authority)
    for seed in SEEDS:
        fill(cache, prompt(40, seed))
    cache.remote.flush(60)
    assert all(len(names) > 3 for names in cluster.names())
    reader = sharing(cluster.tls_url, authority)

    def check_all() -> None:
        reader.clear()
        assert [check(reader, prompt(40, seed)) for seed in SEEDS] == [39] * len(SEEDS)
        stats = reader.remote.stats()
        assert (stats.servers, stats.damaged_records, stats.last_error) == (3, 0, "")

    check_all()
    slots = sorted({slot_of(name) for name in cluster.names()[0]})
    for slot in slots:
        cluster.begin_move(slot, 0, 1)
        cluster.move_keys(slot, 0, 1, count=1)
    check_all()
    for slot in slots:
        cluster.move_keys(slot, 0, 1)
        cluster.end_move(slot, 1)
    check_all()
    assert reader.remote.stats().redirections > 0


def test_a_killed_node_costs_what_it_had(cluster: ValkeyCluster, authority: Authority) -> None:
    cache = sharing(cluster.tls_url, authority)
    seeds = range(16)
    kept = set()
    for seed in seeds:
        before = cluster.nodes[1].names()
        fill(cache, prompt(9, seed))
        cache.remote.flush(60)
        if cluster.nodes[1].names() == before:
            kept.add(seed)
    assert 0 < len(kept) < len(seeds)
    cluster.nodes[1].kill()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KVCacheWarning)
        late = sharing(cluster.tls_url, authority, deadline_seconds=2.0)
        assert {seed for seed in seeds if check(late, prompt(9, seed)) == 8} == kept


def test_nodes_that_nobody_vouches_for_are_misses(
    cluster: ValkeyCluster, authority: Authority, tmp_path: Path
) -> None:
    fill(sharing(cluster.tls_url, authority), prompt(40))
    stranger = Authority(tmp_path / "stranger")
    cache = sharing(cluster.tls_url, stranger)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KVCacheWarning)
        assert check(cache, prompt(40)) == 0
    assert "certificate" in cache.remote.stats().last_error
    tier = ValkeyTier(cluster.tls_url, ca_file=stranger.ca_file)
    assert {each.verdict for each in check_server(tier)} == {Verdict.PROBLEM}


def test_the_doctor_looks_at_every_node(cluster: ValkeyCluster, authority: Authority) -> None:
    for node in cluster.nodes:
        node.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    tier = ValkeyTier(cluster.tls_url, ca_file=authority.ca_file, deadline_seconds=30.0)
    found = check_server(tier)
    assert {each.server for each in found if each.name == "connection"} == {
        f"127.0.0.1:{node.tls_port}" for node in cluster.nodes
    }
    assert not [each for each in found if each.verdict is Verdict.PROBLEM]


def test_a_failover_is_followed(tmp_path: Path, secured: list[str], authority: Authority) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    secured = [*secured, "--tls-replication", "yes"]
    servers: list[ValkeyServer] = []
    try:
        primary = ValkeyServer(tmp_path / "one", *secured, "--repl-diskless-sync-delay", "0")
        servers.append(primary)
        source = ["--replicaof", "127.0.0.1", str(primary.peer_port)]
        replica = ValkeyServer(tmp_path / "two", *secured, *source)
        servers.append(replica)
        sentinel = ValkeySentinel(tmp_path / "s", primary, secured=secured)
        servers.append(sentinel)
        url = f"valkeys+sentinel://127.0.0.1:{sentinel.tls_port}/svc"
        wait_until(lambda: b"master_link_status:up" in replica.ask("INFO", "replication"))
        cache = sharing(url, authority, deadline_seconds=5.0)
        fill(cache, prompt(40))
        cache.remote.flush(60)
        wait_until(lambda: replica.names() == primary.names())
        wait_until(lambda: b"slaves=1" in sentinel.ask("INFO", "sentinel"))
        primary.kill()

        def is_found() -> bool:
            cache.clear()
            return check(cache, prompt(40)) == 39

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KVCacheWarning)
            wait_until(is_found)
        assert replica.ask("ROLE")[0] == b"master"
    finally:
        for server in reversed(servers):
            server.kill()
