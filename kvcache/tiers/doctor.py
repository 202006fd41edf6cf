"""Whether Valkey or Redis servers are set up for a remote tier, and what to change."""

from __future__ import annotations

import enum
import ipaddress
import secrets
import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvcache.errors import KVCacheIOError
from kvcache.tiers.resp import ServerConnection, ServerError
from kvcache.tiers.topology import SLOTS, Primary, key_of, named_primary, read_primaries
from kvcache.tiers.url import Topology
from kvcache.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcache.tiers.remote import ValkeyTier
    from kvcache.tiers.url import Address

__all__ = ["Finding", "Verdict", "check_server"]

_PART_BYTES = (1 << 20) - 64  # of a record on a server
_PARTS = 16
_PINGS = 32
_OLDEST = {"valkey": 7, "redis": 7}
_SENTINELS = 3
_SETTINGS = (
    "maxmemory",
    "maxmemory-policy",
    "save",
    "appendonly",
    "appendfsync",
    "io-threads",
    "lazyfree-lazy-eviction",
    "cluster-require-full-coverage",
)
# What a tier says beside its reads and writes.
_TOPOLOGY_COMMANDS: dict[Topology, tuple[tuple[str, ...], ...]] = {
    Topology.SERVER: (),
    Topology.CLUSTER: (("CLUSTER", "SLOTS"), ("ASKING",)),
    Topology.SENTINELS: (("ROLE",),),
}


class Verdict(enum.StrEnum):
    """What a finding asks for."""

    OK = "ok"
    ADVICE = "advice"  #: it works, and would work better
    PROBLEM = "problem"  #: it does not work, or will not for long


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what.
        value: how it is, as text.
        verdict: what that asks for.
        advice: what to change, or "".
        server: at which of several servers, or "".
    """

    name: str
    value: str
    verdict: Verdict = Verdict.OK
    advice: str = ""
    server: str = ""


def check_server(tier: ValkeyTier) -> list[Finding]:
    """Look at the settings of all servers and measure them; takes a second for each.

    Args:
        tier: where the servers are, and as whom to log in.

    Returns:
        What was found, of each server the connection first. One that does not answer is a finding.
        Nothing is left behind.
    """
    place = tier.place()
    if place.topology is Topology.CLUSTER:
        return _check_cluster(tier, place.addresses)
    if place.topology is Topology.SENTINELS:
        return _check_sentinels(tier, place.addresses, place.service)
    return _check_one(tier, Primary(place.addresses[0]))


def _check_one(tier: ValkeyTier, primary: Primary) -> list[Finding]:
    alone = tier.place().topology is Topology.SERVER
    try:
        with ServerConnection(tier, None if alone else primary.address) as server:
            findings = [Finding("connection", tier.url if alone else str(primary.address))]
            findings += _encryption(server, tier, primary.address)
            findings += _facts(server, tier, primary)
            findings += [*_commands(server, tier, primary), _latency(server, tier, primary)]
            findings += _bandwidth(server, tier, primary)
    except KVCacheIOError as error:
        advice = "start the server, or correct the address, the user or the password"
        if tier.is_secured:
            advice += "; or ca_file, certificate and key"
        findings = [Finding("connection", str(error), Verdict.PROBLEM, advice)]
    name = "" if alone else str(primary.address)
    return [replace(each, server=name) for each in findings]


def _check_cluster(tier: ValkeyTier, addresses: tuple[Address, ...]) -> list[Finding]:
    """Every primary, as the first node tells of them that answers."""
    findings = []
    for address in addresses:
        try:
            with ServerConnection(tier, address) as server:
                primaries = read_primaries(server, address)
        except KVCacheIOError as error:
            advice = "start it, correct the user or the password, or name another node of a cluster"
            findings.append(Finding("cluster", str(error), Verdict.ADVICE, advice))
            continue
        findings.append(_coverage(primaries))
        for primary in primaries:
            findings += _check_one(tier, primary)
        return findings
    return [replace(each, verdict=Verdict.PROBLEM) for each in findings]


def _coverage(primaries: list[Primary]) -> Finding:
    slots = sum(len(each) for primary in primaries for each in primary.slots)
    replicas = sum(primary.replicas for primary in primaries)
    shown = f"{len(primaries)} primaries, {replicas} replicas, {slots:,} of {SLOTS:,} slots"
    if slots == SLOTS:
        return Finding("cluster", shown)
    advice = "give the other slots to nodes: what belongs there is not kept"
    return Finding("cluster", shown, Verdict.PROBLEM, advice)


def _check_sentinels(
    tier: ValkeyTier, addresses: tuple[Address, ...], service: str
) -> list[Finding]:
    """Every sentinel, and the primary that they name."""
    findings = []
    named = []
    for address in addresses:
        try:
            with ServerConnection(tier, address, sentinel=True) as sentinel:
                primary = named_primary(sentinel, service, address)
        except KVCacheIOError as error:
            advice = "start it, or correct its address or sentinel_password"
            findings.append(Finding("sentinel", str(error), Verdict.ADVICE, advice))
            continue
        if primary is None:
            advice = f"let it monitor {service}, or correct the name"
            shown = f"{address} does not know {service}"
            findings.append(Finding("sentinel", shown, Verdict.PROBLEM, advice))
            continue
        named.append(primary)
        findings.append(Finding("sentinel", f"{address} names {primary}"))
    if not named:
        return [replace(each, verdict=Verdict.PROBLEM) for each in findings]
    if len(set(named)) > 1:
        advice = "wait until they agree; if they do not, they do not reach each other"
        findings.append(Finding("service", "several primaries", Verdict.PROBLEM, advice))
    elif len(addresses) < _SENTINELS:
        advice = "name three sentinels or more, on machines of their own"
        findings.append(Finding("service", f"{len(addresses)} sentinels", Verdict.ADVICE, advice))
    for primary in dict.fromkeys(named):
        findings += _check_one(tier, Primary(primary))
    return findings


# ---- Settings ---------------------------------------------------------------------------------


def _info(server: ServerConnection) -> dict[str, str]:
    try:
        text = _text(server.ask("INFO"))
    except ServerError:
        return {}
    lines = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, colon, value in lines if colon}


def _text(answer: Any) -> str:
    """What a server tells as text; "" where it tells anything else."""
    return answer.decode(errors="replace") if isinstance(answer, bytes) else ""


def _number(text: str) -> int | None:
    """A number of 64 bits or less, or None."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _settings(server: ServerConnection) -> dict[str, str]:
    """What the server tells of its settings; those of managed ones may be hidden."""
    found = {}
    for name in _SETTINGS:
        try:
            answer = server.ask("CONFIG", "GET", name)
        except ServerError:
            continue
        if isinstance(answer, list) and len(answer) == 2:
            found[name] = _text(answer[1])
    return found


def _facts(server: ServerConnection, tier: ValkeyTier, primary: Primary) -> list[Finding]:
    info = _info(server)
    settings = _settings(server)
    settings.setdefault("maxmemory", info.get("maxmemory", ""))
    settings.setdefault("maxmemory-policy", info.get("maxmemory_policy", ""))
    findings = [_version(info), _memory(info, settings), _policy(settings, tier)]
    findings += _persistence(settings)
    findings += _threads(settings)
    findings += _access(tier, primary.address)
    findings += _membership(info, settings, tier)
    if (role := info.get("role", "master")) != "master":
        advice = "name the primary: a replica refuses to write"
        findings.append(Finding("role", role, Verdict.PROBLEM, advice))
    return findings


def _version(info: Mapping[str, str]) -> Finding:
    kind = "valkey" if "valkey_version" in info else "redis"
    text = info.get(f"{kind}_version", "")
    if not text:
        return Finding("version", "not told", Verdict.ADVICE, "let the user call INFO")
    old = (_number(text.partition(".")[0]) or 0) < _OLDEST[kind]
    verdict = Verdict.ADVICE if old else Verdict.OK
    return Finding("version", f"{kind} {text}", verdict, "use Valkey 8 or later" if old else "")


def _memory(info: Mapping[str, str], settings: Mapping[str, str]) -> Finding:
    most = _number(settings["maxmemory"])
    if most is None:
        return Finding("maxmemory", "not told", Verdict.ADVICE, "see that it has one")
    if most == 0:
        advice = (
            "set maxmemory to what the machine can spare: without it the system kills the server"
        )
        return Finding("maxmemory", "none", Verdict.PROBLEM, advice)
    used = _number(info.get("used_memory", ""))
    shown = format_bytes(most)
    return Finding("maxmemory", shown if used is None else f"{shown}, {format_bytes(used)} used")


def _policy(settings: Mapping[str, str], tier: ValkeyTier) -> Finding:
    policy = settings["maxmemory-policy"]
    name = "maxmemory-policy"
    if not policy:
        return Finding(name, "not told", Verdict.ADVICE, "see that it is allkeys-lru")
    if policy.startswith("allkeys-"):
        return Finding(name, policy)
    if policy.startswith("volatile-") and tier.ttl_seconds is not None:
        return Finding(name, policy)
    advice = "set maxmemory-policy allkeys-lru: a full server refuses what is written"
    return Finding(name, policy, Verdict.PROBLEM, advice)


def _persistence(settings: Mapping[str, str]) -> list[Finding]:
    findings = []
    if "save" in settings:
        save = settings["save"]
        advice = 'set save "": a snapshot forks the server and may double its memory'
        verdict = Verdict.ADVICE if save else Verdict.OK
        findings.append(Finding("save", save or "never", verdict, advice if save else ""))
    if "appendonly" in settings:
        mode = settings["appendonly"]
        sync = settings.get("appendfsync", "")
        slow = mode == "yes" and sync == "always"
        advice = "set appendfsync everysec: always makes writing several times slower"
        shown = f"yes, {sync}" if mode == "yes" else mode
        verdict = Verdict.ADVICE if slow else Verdict.OK
        findings.append(Finding("appendonly", shown, verdict, advice if slow else ""))
    return findings


def _threads(settings: Mapping[str, str]) -> list[Finding]:
    threads = settings.get("io-threads")
    if threads is None:
        return []
    few = threads == "1"
    advice = "on a machine with four cores and more, set io-threads to one less than it has"
    return [Finding("io-threads", threads, Verdict.OK, advice if few else "")]


def _membership(
    info: Mapping[str, str], settings: Mapping[str, str], tier: ValkeyTier
) -> list[Finding]:
    """Whether it belongs to a cluster as it should."""
    is_node = info.get("cluster_enabled") == "1"
    if is_node and tier.place().topology is not Topology.CLUSTER:
        advice = "name it as a cluster, valkey+cluster://: a node answers for its part of the keys"
        return [Finding("cluster", "yes", Verdict.PROBLEM, advice)]
    coverage = settings.get("cluster-require-full-coverage")
    if not is_node or coverage is None:
        return []
    advice = "" if coverage == "no" else "set it to no: with yes all refuse once one node is lost"
    verdict = Verdict.ADVICE if advice else Verdict.OK
    return [Finding("cluster-require-full-coverage", coverage, verdict, advice)]


def _access(tier: ValkeyTier, address: Address) -> list[Finding]:
    if tier.password or tier.certificate is not None or _is_here(address):
        return []
    advice = "give the server a user with a password for these keys: whoever reaches it reads all"
    return [Finding("login", "none", Verdict.ADVICE, advice)]


def _encryption(server: ServerConnection, tier: ValkeyTier, address: Address) -> list[Finding]:
    if tier.is_secured:
        version = server.tls_version()
        if tier.verify:
            return [Finding("encryption", version)]
        advice = "do not say verify=False: whoever answers is taken for the server"
        return [Finding("encryption", f"{version}, with anybody", Verdict.ADVICE, advice)]
    if _is_here(address):
        return []
    advice = "use valkeys://, unless whoever reaches the network may read and change all state"
    return [Finding("encryption", "none", Verdict.ADVICE, advice)]


def _is_here(address: Address) -> bool:
    """Whether nothing that passes leaves the machine."""
    if address.path or address.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return False


# ---- Measurements -----------------------------------------------------------------------------


def _commands(server: ServerConnection, tier: ValkeyTier, primary: Primary) -> list[Finding]:
    """Whether everything that a tier says is allowed."""
    key = key_of(tier.key_prefix, primary.slots)
    refused = []
    for words in (
        *_TOPOLOGY_COMMANDS[tier.place().topology],
        ("SET", key, "x", "NX", "PX", "10000"),
        ("GETRANGE", key, "0", "0"),
        ("GET", key),
        ("STRLEN", key),
        ("PEXPIRE", key, "10000"),
        ("WATCH", key),
        ("UNWATCH",),
        ("MULTI",),
        ("EXEC",),
        ("SCAN", "0", "MATCH", key, "COUNT", "1"),
        ("UNLINK", key),
    ):
        try:
            server.ask(*words)
        except ServerError as error:
            refused.append("|".join(words) if words[0] == "CLUSTER" else words[0])
            if "OOM" in str(error):
                advice = "it is full: raise maxmemory, or set maxmemory-policy allkeys-lru"
                return [Finding("commands", "no room", Verdict.PROBLEM, advice)]
    if not refused:
        return [Finding("commands", "all allowed")]
    allowed = " ".join(f"+{name.lower()}" for name in refused)
    advice = f"allow them: ACL SETUSER {tier.user or 'default'} {allowed} ~{tier.key_prefix}*"
    return [Finding("commands", f"refused: {', '.join(refused)}", Verdict.PROBLEM, advice)]


def _latency(server: ServerConnection, tier: ValkeyTier, primary: Primary) -> Finding:
    key = key_of(tier.key_prefix, primary.slots)
    times = []
    for _ in range(_PINGS):
        start = time.perf_counter()
        try:
            server.ask("STRLEN", key)
        except ServerError:
            break
        times.append(time.perf_counter() - start)
    if not times:
        return Finding("latency", "not measured")
    median, worst = statistics.median(times), max(times)
    shown = f"{median * 1e6:,.0f} us, at most {worst * 1e6:,.0f}"
    if 20 * median < tier.deadline_seconds:
        return Finding("latency", shown)
    advice = (
        "raise deadline_seconds, or take a server that is nearer: an opening asks several times"
    )
    return Finding("latency", shown, Verdict.ADVICE, advice)


def _bandwidth(server: ServerConnection, tier: ValkeyTier, primary: Primary) -> list[Finding]:
    """Of values as large as those of records, one after another over one connection."""
    value = secrets.token_bytes(_PART_BYTES)
    names = [key_of(tier.key_prefix, primary.slots) for _ in range(_PARTS)]
    try:
        start = time.perf_counter()
        for name in names:
            server.ask("SET", name, value, "NX", "PX", "60000")
        written = time.perf_counter() - start
        start = time.perf_counter()
        whole = sum(server.ask("GET", name) == value for name in names)
        read = time.perf_counter() - start
        for name in names:
            server.ask("UNLINK", name)
    except ServerError as error:
        return [Finding("bandwidth", "not measured", Verdict.ADVICE, str(error))]
    if whole < len(names):
        advice = "raise maxmemory: values go as soon as they come"
        shown = f"{len(names) - whole} of {len(names)} values were lost"
        return [Finding("bandwidth", shown, Verdict.PROBLEM, advice)]
    size = _PARTS * _PART_BYTES
    return [
        Finding("bandwidth, writing", f"{size / written / 1e9:.2f} GB/s"),
        Finding("bandwidth, reading", f"{size / read / 1e9:.2f} GB/s"),
    ]
