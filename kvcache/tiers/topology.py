"""Who belongs to a remote tier's cluster, or is named by its sentinels: for looking at them.

State finds its way in the compiled core. Source: the published descriptions of clusters and of
clients of sentinels, https://valkey.io/topics/cluster-spec/ and
https://valkey.io/topics/sentinel-clients/.
"""

from __future__ import annotations

import binascii
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvcache.errors import KVCacheIOError
from kvcache.tiers.url import Address

if TYPE_CHECKING:
    from kvcache.tiers.resp import ServerConnection

__all__ = ["SLOTS", "Primary", "key_of", "named_primary", "read_primaries"]

SLOTS = 16384


@dataclass(slots=True)
class Primary:
    """A primary of a cluster.

    Attributes:
        address: where.
        slots: that it has, as ranges.
        replicas: how many.
    """

    address: Address
    slots: list[range] = field(default_factory=list)
    replicas: int = 0


def read_primaries(connection: ServerConnection, asked: Address) -> list[Primary]:
    """The primaries of a cluster, as the node at ``asked`` tells them.

    Raises:
        KVCacheIOError: it does not, or contradicts itself.
    """
    answer = connection.ask("CLUSTER", "SLOTS")
    found: dict[str, Primary] = {}
    told: set[int] = set()
    for each in answer if isinstance(answer, list) else [None]:
        match each:
            case [int(first), int(last), [host, int(port), *_], *replicas]:
                address = _address(host, port, asked)
                slots = range(first, last + 1)
                if address is None or not 0 <= first <= last < SLOTS or told & set(slots):
                    break
            case _:
                break
        told |= set(slots)
        primary = found.setdefault(str(address), Primary(address))
        primary.slots.append(slots)
        primary.replicas = max(primary.replicas, len(replicas))
    else:
        return list(found.values())
    raise KVCacheIOError(f"{asked}: no answer to CLUSTER SLOTS: {str(each)[:80]}")


def named_primary(connection: ServerConnection, service: str, asked: Address) -> Address | None:
    """The primary that a sentinel names; None: it does not know the service.

    Raises:
        KVCacheIOError: its answer is none.
    """
    answer = connection.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
    if answer is None:
        return None
    match answer:
        case [bytes(host), bytes(port)] if port.isdigit() and len(port) < 6:
            if (address := _address(host, int(port), asked)) is not None:
                return address
    raise KVCacheIOError(f"{asked}: no answer of a sentinel: {str(answer)[:80]}")


def _address(host: Any, port: int, asked: Address) -> Address | None:
    """What names no host is who was asked; None: no address."""
    if not isinstance(host, bytes | None) or not 0 < port < 65536:
        return None
    text = (host or b"").decode(errors="replace")
    if text == "?" or len(text) > 255 or not text.isprintable():
        return None
    return Address(host=text or asked.host, port=port)


def key_of(prefix: str, slots: list[range]) -> str:
    """A new key that one of ``slots`` has; without any, any."""
    while True:
        tag = secrets.token_hex(8)
        slot = binascii.crc_hqx(tag.encode(), 0) % SLOTS
        if not slots or any(slot in each for each in slots):
            return f"{prefix}doctor:{{{tag}}}"
