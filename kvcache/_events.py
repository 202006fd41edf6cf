"""Events of the core in the schema of routers."""

from __future__ import annotations

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
    adapter = _adapter_parts(event.adapter)
    return BlockStored(
        block_hashes=event.hashes,
        parent_block_hash=event.parent,
        token_ids=event.tokens,
        block_size=event.block_tokens,
        lora_id=None,
        medium=medium,
        lora_name=adapter[0] if adapter else None,
        extra_keys=_extra_keys(event, adapter),
        group_idx=group,
        kv_cache_spec_kind=kinds[group] if paged else "mamba",
        kv_cache_spec_sliding_window=(plan.groups[group].window or None) if paged else None,
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


def _adapter_parts(key: bytes) -> list[str]:
    """Name, and revision if there is one, of a key that `adapter_key` made."""
    parts = []
    while key:
        size, _, rest = key.partition(b":")
        parts.append(rest[: int(size)].decode())
        key = rest[int(size) :]
    return parts


def _extra_keys(event: _core.CacheEvent, adapter: list[str]) -> list[tuple[Any, ...] | None] | None:
    space = space_digest(event.name, event.salt) if event.start == 0 else None
    media = event.media
    if not adapter and not media and space is None:
        return None
    keys: list[tuple[Any, ...] | None] = []
    for block in range(len(event.hashes)):
        start = event.start + block * event.block_tokens
        found: list[Any] = ["@".join(adapter)] if adapter else []
        found += [
            (digest.hex(), at - start)
            for at, length, digest in media
            if at < start + event.block_tokens and at + length > start
        ]
        if block == 0 and space is not None:
            found.append(space)
        keys.append(tuple(found) or None)
    return keys
