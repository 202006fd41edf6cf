"""A cluster of a test's own, and a primary with a replica and a sentinel; all on loopback ports."""

from __future__ import annotations

import binascii
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from support.valkey import ValkeyServer, free_port

SLOTS = 16384


def slot_of(key: bytes) -> int:
    """The slot of a key that has braces."""
    tag = key.partition(b"{")[2].partition(b"}")[0]
    return binascii.crc_hqx(tag, 0) % SLOTS


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


class ValkeyCluster:
    """Three primaries that share the slots. Nodes can be killed and started like any server."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.nodes: list[ValkeyServer] = []
        try:
            self._start(folder, *options)
        except BaseException:
            self.kill()
            raise

    def _start(self, folder: Path, *options: str) -> None:
        buses = []
        for number in range(3):
            buses.append(free_port())
            place = folder / f"n{number}"
            place.mkdir()
            own = ["--cluster-enabled", "yes", "--cluster-port", str(buses[-1])]
            own += ["--cluster-require-full-coverage", "no", "--cluster-node-timeout", "2000"]
            self.nodes.append(ValkeyServer(place, *own, *options))
        step = SLOTS // 3 + 1
        for number, node in enumerate(self.nodes):
            last = min((number + 1) * step, SLOTS) - 1
            assert node.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1)) == "+OK"
            assert node.ask("CLUSTER", "ADDSLOTSRANGE", str(number * step), str(last)) == "+OK"
        for node, bus in zip(self.nodes[1:], buses[1:], strict=True):
            words = ("CLUSTER", "MEET", "127.0.0.1", str(node.peer_port), str(bus))
            assert self.nodes[0].ask(*words) == "+OK"
        wait_until(self.is_whole)

    def is_whole(self) -> bool:
        """Whether every node knows who has which slots."""
        told = [node.ask("CLUSTER", "INFO") for node in self.nodes]
        wanted = (b"cluster_state:ok", b"cluster_slots_ok:16384", b"cluster_known_nodes:3")
        return all(line in info for info in told for line in wanted)

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"valkey+cluster://{places}"

    @property
    def tls_url(self) -> str:
        places = ",".join(f"127.0.0.1:{node.tls_port}" for node in self.nodes)
        return f"valkeys+cluster://{places}"

    def names(self) -> list[list[bytes]]:
        """The keys of each node."""
        return [node.names() for node in self.nodes]

    def begin_move(self, slot: int, source: int, target: int) -> None:
        ids = [node.ask("CLUSTER", "MYID").decode() for node in self.nodes]
        old, new = self.nodes[source], self.nodes[target]
        assert new.ask("CLUSTER", "SETSLOT", str(slot), "IMPORTING", ids[source]) == "+OK"
        assert old.ask("CLUSTER", "SETSLOT", str(slot), "MIGRATING", ids[target]) == "+OK"

    def move_keys(self, slot: int, source: int, target: int, count: int = 1000) -> None:
        keys = self.nodes[source].ask("CLUSTER", "GETKEYSINSLOT", str(slot), str(count))
        if not keys:
            return
        place = ("127.0.0.1", str(self.nodes[target].peer_port))
        done = self.nodes[source].ask("MIGRATE", *place, "", "0", "10000", "KEYS", *keys)
        assert done in ("+OK", "+NOKEY"), done

    def end_move(self, slot: int, target: int) -> None:
        owner = self.nodes[target].ask("CLUSTER", "MYID")
        for node in (self.nodes[target], *self.nodes):
            node.ask("CLUSTER", "SETSLOT", str(slot), "NODE", owner)

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()


class ValkeySentinel(ValkeyServer):
    """One sentinel, which needs no other to agree, and fails over after half a second."""

    def __init__(
        self, folder: Path, primary: ValkeyServer, *lines: str, secured: Sequence[str] = ()
    ) -> None:
        folder.mkdir()
        self._config = folder / "sentinel.conf"
        self._lines = [
            f"sentinel monitor svc 127.0.0.1 {primary.peer_port} 1",
            "sentinel down-after-milliseconds svc 500",
            "sentinel failover-timeout svc 3000",
            *lines,
        ]
        super().__init__(folder, *secured)

    def command(self) -> list[str]:
        lines = ["bind 127.0.0.1", f"port {self.port}", f"dir {self.folder}", *self._lines]
        self._config.write_text("\n".join(lines) + "\n")
        return [str(self._config), *self.tls_options(), *self._options, "--sentinel"]
