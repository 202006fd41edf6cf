"""What `Cache.erase` drops, as the compiled core takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcache._arguments import adapter_key, as_bytes, as_media, as_tokens
from kvcache.errors import InvalidArgumentError
from kvcache.tenants import tenant_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray

    from kvcache._arguments import Media

_Erasure = tuple[
    bytes | None,
    bytes | None,
    bytes | None,
    list[tuple[int, int, bytes]],
    "NDArray[np.int32]",
    str | None,
]


def as_erasure(
    tokens: ArrayLike | None,
    namespace: str | bytes | None,
    adapter: str | tuple[str, str] | None,
    salt: bytes | str | None,
    media: Iterable[Media],
    tenant: str | None,
) -> _Erasure:
    """Namespace, adapter, salt, media, tokens and tenant; tokens need a whole space."""
    whose = None if tenant is None else tenant_name(tenant)
    name = None if namespace is None else as_bytes(namespace, "namespace")
    by = None if adapter is None else adapter_key(adapter)
    secret = None if salt is None else as_bytes(salt, "salt")
    path = np.empty(0, np.int32)
    if tokens is not None:
        path = as_tokens(tokens)
        if path.size == 0:
            raise InvalidArgumentError("tokens: expected at least one; None for whole spaces")
        name, by, secret = name or b"", by or b"", secret or b""
    return name, by, secret, as_media(media), path, whose
