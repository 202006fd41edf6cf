"""A remote tier: Valkey or Redis servers with which several caches share what they publish.

What is published is written behind the caller's back by one thread; `Cache.open` looks on the
server for a longer prefix than memory and a disk tier have. Many caches read and write at once; the
first to write a record stays. Every record carries its tokens and checksums, which are compared
when it is read. A server that is down, slow, full, emptied or wrong is a miss by the deadline; it
is said once and counted. There may be one server, a cluster, or the one that sentinels name.
``cpp/FORMAT.md`` describes keys and values, ``docs/remote.md`` how to run the servers.

After `Cache.bump_epoch` the tier goes by the new name of the weights; without a new name it is not
used any more. `Cache.erase` with tokens takes all of their space from the server, whose records do
not say what leads to them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import stat
from dataclasses import dataclass, field, fields
from typing import Any

from kvcache import _core
from kvcache._arguments import as_count, as_path, as_text
from kvcache.errors import InvalidArgumentError
from kvcache.tiers.handle import CacheTierHandle, milliseconds
from kvcache.tiers.url import ServerURL, parse_url
from kvcache.units import parse_bytes

__all__ = ["CacheRemote", "RemoteTierStats", "ValkeyTier"]

# What a cache warns of once, and the counters that tell it.
_KINDS = {
    "the server cannot be used": ("failures",),
    "some of it is not written": ("write_errors",),
    "some of it is damaged and left out": ("damaged_records",),
}
_FILES = ("ca_file", "certificate", "key")
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class ValkeyTier:
    """Options of a cache's remote tier.

    >>> ValkeyTier("valkey://reader:secret@10.0.0.7:6379/2")  # doctest: +ELLIPSIS
    ValkeyTier(url='valkey://10.0.0.7:6379/2', user='reader', database=2, key_prefix='kvcache:', ...

    Raises:
        InvalidArgumentError: no such address, or a value out of range.
    """

    #: ``valkey://user:password@host:port/database`` or ``unix://user:password@/path?db=database``,
    #: in short ``host:port`` or ``/path``; of a cluster some nodes, ``valkey+cluster://host,host``;
    #: of a primary its sentinels, ``valkey+sentinel://host,host/service?db=database``. ``redis``
    #: may stand for ``valkey``, and ``valkeys`` or ``rediss`` for either in TLS, with the options
    #: below also as ``?ca_file=...&certificate=...&key=...&verify=false``. What it says of them and
    #: of user, password and database goes before the options, and is shown without all but the
    #: database.
    url: str
    user: str = ""  #: of the servers' access list
    password: str = field(default="", repr=False)
    database: int = 0
    key_prefix: str = "kvcache:"  #: of every key: letters, digits and ``:._-/``
    ttl_seconds: float | None = 86400.0  #: after which the server drops a record; None: never
    #: Within which a lookup, the reading of what it found, and the writing of a record each end.
    deadline_seconds: float = 2.0
    #: What may wait to be written; its pages stay in memory meanwhile, more is dropped and counted.
    queue_bytes: str | int = "256MiB"
    wait_seconds: float = 0.0  #: that `Sequence.publish` waits for room in the queue
    read_threads: int = 2  #: of one fetch, each with a connection of its own
    at_open: bool = True  #: `Cache.open` looks for a longer prefix here
    sentinel_user: str = ""  #: of the sentinels' access list
    sentinel_password: str = field(default="", repr=False)
    #: PEM with the authorities that may vouch for a server in TLS; None: those of the system.
    ca_file: str | os.PathLike[str] | None = None
    #: PEM with the certificate of this client and its chain, for a server that asks for one.
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None  #: PEM, not encrypted; None: in ``certificate``
    #: False: a server in TLS may be anybody, who then reads and changes all that passes.
    verify: bool = True

    def __post_init__(self) -> None:
        parts = parse_url(as_text(self.url, "url"))
        for name, value in (("user", parts.user), ("password", parts.password)):
            if value:
                object.__setattr__(self, name, value)
        for name, text in parts.options.items():
            object.__setattr__(self, name, _truth(text) if name == "verify" else text)
        if parts.database is not None:
            object.__setattr__(self, "database", parts.database)
        object.__setattr__(self, "url", parts.shown)
        if not isinstance(self.at_open, bool):
            raise InvalidArgumentError(f"at_open: expected True or False, got {self.at_open!r}")
        self.core()

    def place(self) -> ServerURL:
        """Where the servers are."""
        return parse_url(self.url)

    @property
    def is_secured(self) -> bool:
        """Whether the servers are talked to in TLS."""
        return self.place().is_secured

    def core(self) -> _core.RemoteTierOptions:
        """The options as the compiled core takes them."""
        place = self.place()
        ttl = 0 if self.ttl_seconds is None else milliseconds(self.ttl_seconds, "ttl_seconds")
        if self.ttl_seconds is not None and ttl == 0:
            raise InvalidArgumentError(f"ttl_seconds: must be above 0, got {self.ttl_seconds}")
        deadline = milliseconds(self.deadline_seconds, "deadline_seconds")
        if not 0 < deadline <= 600_000:
            raise InvalidArgumentError(
                f"deadline_seconds: must be 0.001..600, got {self.deadline_seconds}"
            )
        return _core.RemoteTierOptions(
            addresses=[(each.host, each.port, os.fsencode(each.path)) for each in place.addresses],
            topology=_core.RemoteTopology[place.topology.name],
            service=place.service,
            user=as_text(self.user, "user"),
            password=as_text(self.password, "password"),
            database=as_count(self.database, "database", most=2**31 - 1),
            key_prefix=as_text(self.key_prefix, "key_prefix"),
            ttl_ms=ttl,
            deadline_ms=deadline,
            queue_bytes=parse_bytes(self.queue_bytes, name="queue_bytes"),
            wait_ms=milliseconds(self.wait_seconds, "wait_seconds"),
            read_threads=as_count(self.read_threads, "read_threads", least=1, most=64),
            at_open=self.at_open,
            tls=self._tls(),
            sentinel_user=as_text(self.sentinel_user, "sentinel_user"),
            sentinel_password=as_text(self.sentinel_password, "sentinel_password"),
        )

    def _tls(self) -> _core.RemoteTlsOptions | None:
        if not isinstance(self.verify, bool):
            raise InvalidArgumentError(f"verify: expected True or False, got {self.verify!r}")
        given = [name for name in _FILES if getattr(self, name) is not None]
        given += [] if self.verify else ["verify"]
        if not self.is_secured:
            if given:
                raise InvalidArgumentError(
                    f"{given[0]}: is of TLS, which valkeys:// asks for; the url is {self.url}"
                )
            return None
        if self.key is not None and self.certificate is None:
            raise InvalidArgumentError("key: there is no certificate that it is of")
        files = {name: _readable(getattr(self, name), name) for name in _FILES}
        return _core.RemoteTlsOptions(**files, verify=self.verify)


def _readable(path: str | os.PathLike[str] | None, name: str) -> bytes:
    """A file that can be read, as the compiled core takes it."""
    if path is None:
        return b""
    try:
        raw = as_path(path)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{name}: {error}") from None
    try:
        # Before it is opened, which waits for ever at what is no file.
        if not stat.S_ISREG(os.stat(raw).st_mode):  # noqa: PTH116 - of bytes
            raise InvalidArgumentError(f"{name}: {os.fsdecode(raw)}: it is not a file")
        with open(raw, "rb"):  # noqa: PTH123
            return raw
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        text = getattr(error, "strerror", None) or error
        raise InvalidArgumentError(f"{name}: {os.fsdecode(raw)}: {text}") from None


def _truth(text: str) -> bool:
    if text not in _TRUTH:
        raise InvalidArgumentError(f"verify: expected true or false, got {text!r}")
    return _TRUTH[text]


def remote_core(remote: ValkeyTier | None) -> _core.RemoteTierOptions | None:
    """The tier of a cache as the compiled core takes it."""
    if remote is not None and not isinstance(remote, ValkeyTier):
        raise InvalidArgumentError(f"remote: expected a ValkeyTier, got {remote!r}")
    if remote is not None and remote.is_secured:
        # The interpreter's own OpenSSL comes first, and the core then takes the same: an older one
        # of the system, loaded before it, would be taken for it.
        with contextlib.suppress(ImportError):
            importlib.import_module("ssl")
    return None if remote is None else remote.core()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTierStats:
    """Counters of a cache's remote tier, since the cache was made.

    Attributes:
        is_suspended: after a failure of a server, until it is tried again.
        servers: primaries that are known now: one, or those of the cluster.
        connects: connections that were made, or tried.
        redirections: answers that another node of the cluster has the key.
        lookups: prompts that the servers were asked for.
        round_trips: of lookups and writes.
        queued_bytes: that wait to be written, now.
        written_records: by this cache.
        written_bytes: of them, with headers.
        present_records: not written, for another cache had written them already.
        dropped_records: the queue was full, writing rests after a failure, or the node of their key
            is lost.
        skipped_snapshots: not exact, or a page of their window was gone.
        erased_records: taken from the server by `Cache.erase`.
        fetches: lookups that brought something back.
        fetched_tokens: positions that they brought back.
        read_records: that fetches read.
        read_bytes: of them.
        missing_records: that the server dropped between a lookup and its read.
        damaged_records: whose checksums, tokens or lengths were wrong; they were removed.
        read_errors: fetches that the server did not finish.
        write_errors: records that the server refused; nothing is written for a while after each.
        failures: no connection, no answer in time, or an answer that is none.
        timeouts: of the failures, those for which time ran out.
        refused_operations: not tried, for the last failure was a moment ago.
        no_room: fetches that memory had no room for.
        last_error: the latest of what went wrong, or "".
    """

    is_suspended: bool
    servers: int
    connects: int
    redirections: int
    lookups: int
    round_trips: int
    queued_bytes: int
    written_records: int
    written_bytes: int
    present_records: int
    dropped_records: int
    skipped_snapshots: int
    erased_records: int
    fetches: int
    fetched_tokens: int
    read_records: int
    read_bytes: int
    missing_records: int
    damaged_records: int
    read_errors: int
    write_errors: int
    failures: int
    timeouts: int
    refused_operations: int
    no_room: int
    last_error: str


class CacheRemote(CacheTierHandle):
    """The remote tier of a cache, as `Cache.remote` gives it. Thread-safe."""

    __slots__ = ()

    def __init__(self, core: _core.Cache, tier: ValkeyTier) -> None:
        super().__init__(core, f"remote tier {tier.url}", _KINDS, _core.remote_stats)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until what was published is on the server.

        Args:
            timeout: seconds; None for as long as it takes, which deadlines bound.

        Raises:
            OutOfCapacityError: not within ``timeout``; writing goes on.
            KVCacheIOError: the server refused some of it, or does not answer.
        """
        wait = None if timeout is None else milliseconds(timeout, "timeout")
        _core.flush_remote(self._core, wait)

    def stats(self) -> RemoteTierStats:
        """Counters at this moment."""
        core: Any = _core.remote_stats(self._core)
        counted = {each.name: getattr(core, each.name) for each in fields(RemoteTierStats)}
        counted["last_error"] = os.fsdecode(core.last_error)
        return RemoteTierStats(**counted)
