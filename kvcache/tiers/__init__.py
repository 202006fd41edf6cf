"""Tiers of a cache beyond this machine: `kvcache.tiers.remote`."""

from __future__ import annotations

__all__: list[str] = []
