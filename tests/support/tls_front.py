"""Ends TLS before a server in the clear, which then serves clients in TLS."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import warnings
from pathlib import Path
from types import TracebackType
from typing import Self

from support.certificates import Certificate

_CHUNK = 1 << 16
_SECONDS = 60.0


class TlsFront:
    """A loopback port; closed by ``with``. ``port``: where the server in the clear is."""

    def __init__(
        self,
        port: int,
        certificate: Certificate,
        *,
        client_ca: Path | None = None,
        version: ssl.TLSVersion | None = None,
    ) -> None:
        self._behind = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate.certificate, certificate.key)
        if client_ca is not None:
            self._context.load_verify_locations(client_ca)
            self._context.verify_mode = ssl.CERT_REQUIRED
        if version is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of old versions
                self._context.set_ciphers("ALL:@SECLEVEL=0")
                self._context.minimum_version = self._context.maximum_version = version
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.05)
        self.port: int = self._listener.getsockname()[1]
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        for thread in self._threads:  # the first adds no more once it has ended
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(client,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            client.settimeout(_SECONDS)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with (
                self._context.wrap_socket(client, server_side=True) as secured,
                socket.create_connection(("127.0.0.1", self._behind), _SECONDS) as server,
            ):
                while not self._ended.is_set() and self._pass_on(secured, server):
                    pass

    def _pass_on(self, secured: ssl.SSLSocket, server: socket.socket) -> bool:
        """What has come from either. False: one has closed the connection."""
        waiting = secured.pending() > 0
        ready, _, _ = select.select([secured, server], [], [], 0 if waiting else 0.05)
        if waiting or secured in ready:
            secured.setblocking(False)
            try:
                data = secured.recv(_CHUNK)
            except ssl.SSLWantReadError:
                data = None
            finally:
                secured.settimeout(_SECONDS)
            if data is not None:
                server.sendall(data)
            if data == b"":
                return False
        if server in ready:
            data = server.recv(_CHUNK)
            secured.sendall(data)
            return data != b""
        return True
