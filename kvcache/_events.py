"""Events of the core in the schema of routers."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from kvcache import _core
from kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, space_digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcache.plan import StatePlan


def published(
    events: Iterable[_core.CacheEvent], plan: StatePlan, medium: str | None
) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
    """All of them, in their order; ``medium`` names where the blocks are."""
    kinds = [_spec_kind(plan, group) for group in range(len(plan.groups))]
    return [_published(event, plan, kinds, medium) for event in events]


def _published(
    event: _core.CacheEvent, plan: StatePlan, kinds: list[str], medium: str | None
) -> BlockStored | BlockRemoved | AllBlocksCleared:
    if event.kind == _core.EventKind.CLEARED:
        return AllBlocksCleared()
    group = event.group
    if event.kind == _core.EventKind.REMOVED:
        return BlockRemoved(block_hashes=event.hashes, medium=medium, group_idx=group)
    paged = group < len(kinds)
    adapter = _adapter_name(event.adapter)
    salt = space_digest(event.name, event.salt)
    return BlockStored(
        block_hashes=event.hashes,
        parent_block_hash=event.parent,
        token_ids=event.tokens,
        block_size=event.block_tokens,
        lora_id=None,
        medium=medium,
        lora_name=adapter,
        extra_keys=_extra_keys(event, adapter, salt),
        group_idx=group,
        kv_cache_spec_kind=kinds[group] if paged else "mamba",
        kv_cache_spec_sliding_window=_sliding_window(plan, group) if paged else None,
        cache_salt=salt,
    )


def _spec_kind(plan: StatePlan, group: int) -> str:
    """A group's kind in the words of vLLM's ``KVCacheSpecKind``."""
    shape = plan.groups[group]
    latent = any(part.component == "attention.latent" for part in shape.components)
    if shape.chunked:
        return "chunked_local_attention"
    if shape.window:
        return "sliding_window_mla" if latent else "sliding_window"
    return "mla_attention" if latent else "full_attention"


def _sliding_window(plan: StatePlan, group: int) -> int | None:
    shape = plan.groups[group]
    return None if shape.chunked else shape.window or None


def _adapter_name(key: bytes) -> str | None:
    """``name``, or ``name@revision`` if there is one, of a key that `adapter_key` made."""
    parts = []
    while key:
        size, _, rest = key.partition(b":")
        parts.append(rest[: int(size)].decode())
        key = rest[int(size) :]
    return "@".join(parts) or None


def _extra_keys(
    event: _core.CacheEvent, adapter: str | None, salt: str | None
) -> list[tuple[Any, ...] | None] | None:
    if event.start != 0:
        salt = None
    media = event.media  # ascend and are apart
    if adapter is None and salt is None and not media:
        return None
    keys: list[tuple[Any, ...] | None] = []
    first = 0  # the first item that reaches into the block or beyond
    for block in range(len(event.hashes)):
        start = event.start + block * event.block_tokens
        while first < len(media) and media[first][0] + media[first][1] <= start:
            first += 1
        found: list[Any] = [] if adapter is None else [adapter]
        for at, _, digest in islice(media, first, None):
            if at >= start + event.block_tokens:
                break
            found.append((digest.hex(), at - start))
        if block == 0 and salt is not None:
            found.append(salt)
        keys.append(tuple(found) or None)
    return keys
