"""The identity of one block of one layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from kvcache.serde import U64, OrderedStrEnum, Value

__all__ = ["CacheBlockId", "CacheRankIdentity", "CacheRepresentation"]

I64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class CacheRepresentation(OrderedStrEnum):
    """The two arrays that a block of a layer holds."""

    KEY_VALUE = "key_value"
    COMPRESSED_LATENT_ROTARY = "compressed_latent_rotary"

    @property
    def array_names(self) -> tuple[str, str]:
        """Names of its arrays in a file."""
        if self is CacheRepresentation.KEY_VALUE:
            return ("keys", "values")
        return ("latent", "rotary_key")


@dataclass(frozen=True, slots=True)
class CacheRankIdentity(Value):
    """The rank that owns a block; an axis that is not sharded is None."""

    stage_rank: U64 | None = None
    shard_rank: U64 | None = None
    addressable_rank: U64 | None = None


@dataclass(frozen=True, slots=True)
class CacheBlockId(Value):
    """A block; ids sort by their fields in order, which breaks every tie."""

    session_id: U64  # counts live caches of a process
    global_layer: U64
    representation: CacheRepresentation
    start: I64  # first position
    end: I64  # position after the last
    rank: CacheRankIdentity | None = None
