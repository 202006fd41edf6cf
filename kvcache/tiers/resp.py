"""Questions to a Valkey or Redis server, one connection, each answered by a deadline.

For looking at a server's settings; state is moved by the compiled core.
Source: the published description of RESP2, https://valkey.io/topics/protocol/.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING, Any

from kvcache.errors import KVCacheIOError, UnsupportedError

if TYPE_CHECKING:
    import ssl
    from types import TracebackType
    from typing import Self

    from kvcache.tiers.remote import ValkeyTier
    from kvcache.tiers.url import Address

__all__ = ["ServerConnection", "ServerError"]

_MOST_BYTES = 16 << 20
_MOST_ITEMS = 4096
_MOST_DEPTH = 4


def _connect(address: Address, seconds: float) -> socket.socket:
    if not address.path:
        connected = socket.create_connection((address.host, address.port), seconds)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected
    with contextlib.ExitStack() as stack:
        connected = stack.enter_context(socket.socket(socket.AF_UNIX))
        connected.settimeout(seconds)
        connected.connect(address.path)
        stack.pop_all()
    return connected


def _secure(connected: socket.socket, tier: ValkeyTier, host: str) -> ssl.SSLSocket:
    """TLS over a connection, which is closed where that fails."""
    with contextlib.ExitStack() as stack:
        stack.callback(connected.close)
        try:
            import ssl
        except ImportError:
            raise UnsupportedError("TLS: this Python is built without its module ssl") from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if not tier.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if tier.ca_file is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(os.fspath(tier.ca_file))
        if tier.certificate is not None:
            # Without a password OpenSSL would ask the terminal for one.
            context.load_cert_chain(tier.certificate, tier.key, password=lambda: "")
        name = host.partition("%")[0].removesuffix(".")
        secured = context.wrap_socket(connected, server_hostname=name)
        stack.pop_all()
    return secured


class ServerError(KVCacheIOError):
    """The server understood, and says no."""


class ServerConnection:
    """A connection that has logged in. Not thread-safe.

    Args:
        tier: as whom to log in, and how long to wait.
        address: where; None: the first address of the tier.
        sentinel: it is a sentinel's, whose login is another one.

    Raises:
        KVCacheIOError: nobody answers there, not in time, or not in this protocol.
        ServerError: the login is refused.
        UnsupportedError: TLS is asked for, and this Python has none.
    """

    def __init__(
        self, tier: ValkeyTier, address: Address | None = None, *, sentinel: bool = False
    ) -> None:
        self._seconds = tier.deadline_seconds
        self._name = tier.url if address is None else str(address)
        self._pending = bytearray()
        try:
            address = address or tier.place().addresses[0]
            self._socket = _connect(address, self._seconds)
            if tier.is_secured:
                self._socket = _secure(self._socket, tier, address.host)
        except (OSError, ValueError) as error:  # ValueError: what is no name of a host
            text = getattr(error, "strerror", None) or error
            raise KVCacheIOError(f"{self._name}: {text}") from error
        with contextlib.ExitStack() as stack:
            stack.callback(self._socket.close)
            user, password = tier.user, tier.password
            if sentinel:
                user, password = tier.sentinel_user, tier.sentinel_password
            if password:
                self.ask("AUTH", *([user] if user else []), password)
            if tier.database and not sentinel:
                self.ask("SELECT", str(tier.database))
            stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def tls_version(self) -> str:
        """The version of TLS that was agreed on, or "" in the clear."""
        version = getattr(self._socket, "version", None)
        return "" if version is None else version() or ""

    def ask(self, *words: str | bytes) -> Any:
        """The answer to one command: text of a status, an integer, bytes, None or a list.

        Raises:
            ServerError: the server says no.
            KVCacheIOError: no answer in time, or none in this protocol.
        """
        end = time.monotonic() + self._seconds
        raw = [word.encode() if isinstance(word, str) else word for word in words]
        sent = [b"*%d\r\n" % len(raw)]
        for word in raw:
            sent += [b"$%d\r\n" % len(word), word, b"\r\n"]
        try:
            self._socket.settimeout(self._seconds)
            self._socket.sendall(b"".join(sent))
            return self._reply(end, 0)
        except (OSError, ValueError) as error:
            if isinstance(error, KVCacheIOError):
                raise
            raise KVCacheIOError(f"{self._name}: {error}") from error

    def _reply(self, end: float, depth: int) -> Any:
        line = self._take_line(end)
        kind, rest = bytes(line[:1]), line[1:]
        if kind == b"+":
            return rest.decode(errors="replace")
        if kind == b"-":
            raise ServerError(f"{self._name}: {rest.decode(errors='replace')}")
        if kind == b":":
            return int(rest)
        size = int(rest) if kind in (b"$", b"*") else -2
        if size == -1:
            return None
        if kind == b"$" and 0 <= size <= _MOST_BYTES:
            text = self._take(size + 2, end)
            del text[-2:]
            return bytes(text)
        if kind == b"*" and 0 <= size <= _MOST_ITEMS and depth < _MOST_DEPTH:
            return [self._reply(end, depth + 1) for _ in range(size)]
        raise KVCacheIOError(f"{self._name}: no answer of a Valkey server: {line[:40]!r}")

    def _receive(self, target: memoryview, end: float) -> int:
        """Bytes that have come, at least one."""
        left = end - time.monotonic()
        if left <= 0:
            raise KVCacheIOError(f"{self._name}: no answer within {self._seconds} s")
        self._socket.settimeout(left)
        size = self._socket.recv_into(target)
        if size == 0:
            raise KVCacheIOError(f"{self._name}: the server has closed the connection")
        return size

    def _take_line(self, end: float) -> bytearray:
        while (at := self._pending.find(b"\r\n")) < 0:
            if len(self._pending) > 1 << 16:
                raise KVCacheIOError(f"{self._name}: no answer of a Valkey server")
            chunk = bytearray(1 << 12)
            self._pending += chunk[: self._receive(memoryview(chunk), end)]
        return self._take(at + 2, end)[:-2]

    def _take(self, size: int, end: float) -> bytearray:
        taken = self._pending[:size]
        del self._pending[:size]
        if (have := len(taken)) < size:
            taken += bytes(size - have)
            with memoryview(taken) as rest:
                while have < size:
                    have += self._receive(rest[have:], end)
        return taken
