"""KV events: what a router is told of the blocks that a cache can reuse.

The wire form is that of vLLM 0.32 and SGLang 0.5.23: a batch is the msgpack array
``[ts, events, data_parallel_rank]``, an event a map whose ``type`` is its class's name and whose
fields are left out where they say nothing. Their subscribers, and routers such as Dynamo's, decode
it as it is::

    batch = KVEventBatch(ts=time.time(), events=cache.take_events())
    socket = zmq.Context.instance().socket(zmq.PUB)  # once; bound where routers expect it
    socket.send_multipart((b"", number.to_bytes(8, "big"), msgspec.msgpack.encode(batch)))

Source: vllm/distributed/kv_events.py and sglang/srt/disaggregation/kv_events.py.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from kvcache._arguments import as_bytes

__all__ = [
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "KVCacheEvent",
    "KVEventBatch",
    "space_digest",
]


class KVCacheEvent(msgspec.Struct, omit_defaults=True, frozen=True, tag=True):
    """What all events have in common: how they are encoded, and that they can be counted."""

    def __hash__(self) -> int:
        names = getattr(self, "block_hashes", ())
        return hash((type(self).__name__, tuple(names), getattr(self, "group_idx", None)))


class BlockStored(KVCacheEvent, frozen=True, kw_only=True):
    """Consecutive blocks of one prefix can be reused, in one group.

    Attributes:
        block_hashes: names of the blocks, 64 bits without a sign, the same in every process: the
            first bytes of chained SHA-256 digests of tokens, media, namespace, adapter and salt.
        parent_block_hash: of the block before the first; None at position 0.
        token_ids: of all blocks.
        block_size: tokens in each block. A snapshot inside a block has those since it began.
        lora_id: always None.
        medium: where the blocks are, as the caller calls it.
        lora_name: the adapter as ``name`` or ``name@revision``.
        extra_keys: for each block what its name depends on beside tokens, or None where no block
            has any: the adapter, ``(digest, offset)`` of each media item that reaches into the
            block (hex, and the item's start relative to the block), and in the first block of a
            prompt ``cache_salt``.
        group_idx: group of the plan; ``len(plan.groups)`` for snapshots of the fixed-size state.
        kv_cache_spec_kind: of the group, in vLLM's words; ``mamba`` for snapshots.
        kv_cache_spec_sliding_window: positions that a query of a sliding group sees.
        cache_salt: `space_digest` of namespace and salt; None where both are empty.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    cache_salt: str | None = None


class BlockRemoved(KVCacheEvent, frozen=True, kw_only=True):
    """Blocks can no longer be reused, in one group.

    Attributes:
        block_hashes: their names, of any prefixes.
        medium: as in `BlockStored`.
        group_idx: as in `BlockStored`.
    """

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(KVCacheEvent, frozen=True):
    """Nothing that was announced before can be reused."""


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    """What is sent at once.

    Attributes:
        ts: seconds since 1970, as of ``time.time()``.
        events: in the order in which they happened.
        data_parallel_rank: of the engine that publishes; None for the only one.
    """

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


def space_digest(namespace: str | bytes = "", salt: bytes | str = b"") -> str | None:
    """What events say of a namespace and a salt: a router's request carries the same.

    A salt that can be guessed can be found from it; it takes a long random one to stay a secret.

    Returns:
        16 hexadecimal digits; None when both are empty.
    """
    name, secret = as_bytes(namespace, "namespace"), as_bytes(salt, "salt")
    if not name and not secret:
        return None
    return hashlib.sha256(b"%d:%s%d:%s" % (len(name), name, len(secret), secret)).hexdigest()[:16]
