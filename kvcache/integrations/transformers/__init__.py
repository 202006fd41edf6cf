"""Prefix reuse for models of Hugging Face `transformers`, hybrids included.

Install ``kvcache[transformers]``. docs/transformers.md says what is supported.
"""

from __future__ import annotations

try:
    from kvcache.integrations.transformers.generate import generate
    from kvcache.integrations.transformers.quantized import Int8Cache
    from kvcache.integrations.transformers.store import PrefixStore
except ImportError as error:
    error.add_note("kvcache.integrations.transformers needs `pip install 'kvcache[transformers]'`")
    raise

__all__ = ["Int8Cache", "PrefixStore", "generate"]
