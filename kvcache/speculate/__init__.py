"""Speculative decoding: verify sessions, tables for kernels, folds, rows kept aside, drafts.

Everything is a name of `kvcache`; `docs/speculation.md` and `docs/drafting.md` show its use.
"""

from __future__ import annotations

__all__: list[str] = []
