"""State between tensor-parallel ranks: split over them, merged from them, moved to another number.

A rank keeps some heads of each layer, or one that other ranks keep as well when there are fewer
heads than ranks; latents are on every rank. Recurrent state is divided by heads and convolutions by
channels, each of their streams by itself. This is what `kvcache.models.from_config` counts with
``tp``.

`reshard` moves live sequences; `load` moves prompt caches that each rank saved, by the name that
`rank_directory` gives it.
"""

from __future__ import annotations

from kvcache.shards.files import rank_directory
from kvcache.shards.loading import load
from kvcache.shards.moves import reshard

__all__ = ["load", "rank_directory", "reshard"]
