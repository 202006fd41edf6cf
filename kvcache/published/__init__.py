"""Prompt caches of the published line (schema 8, the crates ``eredu-core`` and ``eredu-runtime``).

`load_published` makes one usable; ``kvcache inspect`` and ``verify`` look into one. They are read,
never written. The directory holds ``CURRENT`` and
``.generations/<name>/manifest.json``, a shard of two arrays for each block of a layer, and one of
the array ``state`` for each state tensor, all in safetensors.

Beyond what the published types say, it is assumed that

- ``logical_bytes`` counts all arrays of a shard, the zeros of key-only layers included;
- ``topology`` is spelled ``stage``, ``shard``, ``addressable``, each ``[world size, rank]`` or
  null, and ``addressable_state_replicated``;
- all rows of a batch belong to the one list of tokens that is hashed;
- what is pending in a pooling stream lies in the first rows of its tensor, the oldest first;
- a shard may carry ``__metadata__``, whose content does not matter.

Stricter than the published readers: no link is followed inside the directory, and ``policies`` with
fields that the schema does not have are refused, as they would mean other arrays.
"""

from __future__ import annotations

from kvcache.published.expect import Expected
from kvcache.published.load import load_published
from kvcache.published.manifest import architecture_fingerprint, prefix_sha256

__all__ = ["Expected", "architecture_fingerprint", "load_published", "prefix_sha256"]
