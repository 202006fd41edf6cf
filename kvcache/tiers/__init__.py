"""Tiers of a cache beyond its memory: `kvcache.tiers.disk`, `kvcache.tiers.remote`."""

from __future__ import annotations

__all__: list[str] = []
