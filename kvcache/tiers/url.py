"""Where the servers of a remote tier are, as a URL says it.

A server is ``valkey://user:password@host:port/database`` or ``unix://user:password@/path?db=2``, in
short ``host:port`` or ``/path``; the nodes of a cluster are
``valkey+cluster://user:password@host:port,host:port/database``; sentinels and the service whose
primary they name are ``valkey+sentinel://user:password@host:26379,host:26379/service?db=2``.
``redis`` may stand for ``valkey``; ``valkeys`` and ``rediss`` do so for servers that are talked to
in TLS, with ``?ca_file=...&certificate=...&key=...&verify=false`` where wanted. An address of IPv6
is in brackets, a port may be left out, and what is special in a URL is escaped as in any other
(``%2F``).
"""

from __future__ import annotations

import enum
import os
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from kvcache._arguments import as_count
from kvcache.errors import InvalidArgumentError

__all__ = ["TLS_OPTIONS", "Address", "ServerURL", "Topology", "parse_url"]

TLS_OPTIONS = ("ca_file", "certificate", "key", "verify")

_PORT = 6379
_SENTINEL_PORT = 26379
_SOCKET_BYTES = 107
_MOST_ADDRESSES = 100
_TLS = ("valkeys", "rediss")  # beside valkey and redis, which are in the clear
_PARTS = re.compile(r"([^/?#]*)([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.DOTALL)


class Topology(enum.StrEnum):
    """How the servers of a tier belong together."""

    SERVER = "server"  #: there is one
    CLUSTER = "cluster"  #: a cluster, whose primaries share the keys
    SENTINELS = "sentinel"  #: one at a time, which sentinels name


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where somebody listens: at host and port, or at the path of a Unix socket."""

    host: str = ""
    port: int = _PORT
    path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.path or f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerURL:
    """The parts of a URL.

    Attributes:
        topology: how the servers belong together.
        addresses: the server; or some nodes of the cluster, or the sentinels.
        service: what the sentinels call the primary, or "".
        user, password: of the servers, or "".
        database: None where it is not said.
        is_secured: they are talked to in TLS.
        options: of TLS that are given, as text.
        shown: the URL without user, password and these options.
    """

    topology: Topology
    addresses: tuple[Address, ...]
    service: str
    user: str
    password: str
    database: int | None
    is_secured: bool
    options: dict[str, str]
    shown: str


def parse_url(url: str) -> ServerURL:
    """The parts of a URL, whichever way it is written.

    Raises:
        InvalidArgumentError: it names no server, or too many.
    """
    if url.startswith("/"):
        url = f"unix://{url}"
    elif "://" not in url:
        url = f"valkey://{url}"
    scheme, _, rest = url.partition("://")
    topology = _topology(scheme)
    parts = _PARTS.fullmatch(rest)
    netloc, path, query, fragment = parts.groups("") if parts else ("", "", "", "")
    login, _, places = netloc.rpartition("@")
    user, _, password = login.partition(":")
    # A plus in a path is one.
    options = dict(parse_qsl(query.replace("+", "%2B"), keep_blank_values=True))
    of_tls = {name: options.pop(name) for name in TLS_OPTIONS if name in options}
    rest = f"?{urlencode(options, quote_via=quote)}" if options else ""
    service = ""
    if topology is Topology.SENTINELS:
        service = _service(path)
    elif not scheme.startswith("unix"):
        options.setdefault("db", path.strip("/"))
    database = _database(options.pop("db", ""))
    if options or fragment:
        raise InvalidArgumentError(f"url: unknown options {sorted(options) or fragment}")
    return ServerURL(
        topology=topology,
        addresses=_addresses(scheme, topology, places, path),
        service=service,
        user=unquote(user),
        password=unquote(password),
        database=database,
        is_secured=scheme.partition("+")[0] in _TLS,
        options=of_tls,
        shown=f"{scheme}://{places}{path}{rest}",
    )


def _topology(scheme: str) -> Topology:
    kind, plus, name = scheme.partition("+")
    names = {each.value: each for each in (Topology.CLUSTER, Topology.SENTINELS)}
    if kind in ("valkey", "redis", *_TLS) and (not plus or name in names):
        return names[name] if plus else Topology.SERVER
    if scheme == "unix":
        return Topology.SERVER
    raise InvalidArgumentError(
        "url: expected valkey://, redis:// or unix://, valkey+cluster:// or valkey+sentinel://, or "
        f"valkeys:// or rediss:// in their place for TLS, got {scheme}://"
    )


def _addresses(scheme: str, topology: Topology, places: str, path: str) -> tuple[Address, ...]:
    if scheme == "unix":
        if places or not path:
            raise InvalidArgumentError("url: expected valkey://host:port or unix:///path")
        return (Address(path=_socket_path(path)),)
    found = tuple(_address(topology, place) for place in places.split(","))
    if topology is Topology.SERVER and len(found) > 1:
        raise InvalidArgumentError(
            f"url: expected the address of one server, got {len(found)}; name the nodes of a "
            "cluster as valkey+cluster://, sentinels as valkey+sentinel://"
        )
    if len(found) > _MOST_ADDRESSES:
        raise InvalidArgumentError(
            f"url: expected at most {_MOST_ADDRESSES} addresses, got {len(found)}; some nodes will "
            "do, which tell of the others"
        )
    return found


def _address(topology: Topology, place: str) -> Address:
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidArgumentError(f"url: {error}") from None
    if not host:
        raise InvalidArgumentError(
            "url: expected valkey://host:port or unix:///path"
            if topology is Topology.SERVER
            else f"url: expected valkey+{topology}://host:port,host:port, got no host in {place!r}"
        )
    if port is None:
        port = _SENTINEL_PORT if topology is Topology.SENTINELS else _PORT
    return Address(host=host, port=as_count(port, "url: port", least=1, most=65535))


def _socket_path(path: str) -> str:
    path = unquote(path)
    size = len(os.fsencode(path))
    if "\0" in path or size > _SOCKET_BYTES:
        raise InvalidArgumentError(
            f"url: a socket's path has at most {_SOCKET_BYTES} bytes, none of them 0; got {size}"
        )
    return path


def _service(path: str) -> str:
    service = path.removeprefix("/")
    if not service or "/" in service:
        raise InvalidArgumentError(
            "url: expected the name that the sentinels know the primary by, and the database as an "
            f"option: valkey+sentinel://host:26379/service?db=0, got {path!r}"
        )
    return unquote(service)


def _database(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InvalidArgumentError(f"url: expected the number of a database, got {text!r}")
    return int(text)
