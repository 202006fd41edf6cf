"""The blocking calls of a cache for `asyncio`: each runs in a thread, none in the event loop.

The core keeps no threads of its own, and its calls release the GIL, so a thread for a call is all
that is needed. Calls on one sequence run one at a time, in whatever order their threads get to it.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, TypeVar

from kvcache.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from concurrent.futures import Executor

    from numpy.typing import ArrayLike

    from kvcache.cache import Cache
    from kvcache.explanation import Explanation
    from kvcache.sequence import Sequence
    from kvcache.tiers.disk import CacheDisk
    from kvcache.tiers.remote import CacheRemote

__all__ = ["AsyncCache"]

T = TypeVar("T")


class AsyncCache:
    """A `Cache` whose calls are awaited.

    Args:
        cache: the cache; it may be used directly at the same time.
        executor: where calls run; None for the event loop's own threads.

    What is cancelled stops being awaited at once; its thread finishes alone. A cancelled `open`
    closes the sequence it gets, a cancelled `prefetch` leaves a prefix that is whole or not there.
    """

    __slots__ = ("_executor", "cache")

    def __init__(self, cache: Cache, executor: Executor | None = None) -> None:
        self.cache = cache
        self._executor = executor

    async def run(self, call: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Any blocking call, a sequence's `write` or `read` for instance, in a thread.

        Raises:
            InvalidArgumentError: ``call`` cannot be called.
        """
        if not callable(call):
            raise InvalidArgumentError(f"call: expected a function, got {call!r}")
        loop = asyncio.get_running_loop()
        bound = functools.partial(call, *arguments, **options)
        return await loop.run_in_executor(self._executor, bound)

    async def open(self, tokens: ArrayLike, **space: Any) -> Sequence:
        """`Cache.open`. A sequence that comes too late for a cancelled call is closed."""
        loop = asyncio.get_running_loop()
        bound = functools.partial(self.cache.open, tokens, **space)
        future = loop.run_in_executor(self._executor, bound)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(_close_result)
            raise

    async def explain(self, tokens: ArrayLike, **space: Any) -> Explanation:
        """`Cache.explain`."""
        return await self.run(self.cache.explain, tokens, **space)

    async def save(self, path: str | os.PathLike[str], tokens: ArrayLike, **options: Any) -> int:
        """`Cache.save`."""
        return await self.run(self.cache.save, path, tokens, **options)

    async def prefetch(self, path: str | os.PathLike[str], **space: Any) -> int:
        """`Cache.load` ahead of the request that needs it; cancel the task to stop waiting for it.

        A prefix becomes usable in one step at the end, so cancelling never leaves half of one.
        """
        return await self.run(self.cache.load, path, **space)

    async def prefetch_disk(self, tokens: ArrayLike, **space: Any) -> int:
        """`CacheDisk.prefetch` ahead of the request that needs it; cancelling leaves nothing half.

        Raises:
            UnsupportedError: the cache has no disk tier.
        """
        return await self.run(self._disk().prefetch, tokens, **space)

    async def flush_disk(self, timeout: float | None = None) -> None:
        """`CacheDisk.flush`.

        Raises:
            UnsupportedError: the cache has no disk tier.
        """
        await self.run(self._disk().flush, timeout)

    async def prefetch_remote(self, tokens: ArrayLike, **space: Any) -> int:
        """`CacheRemote.prefetch` ahead of the request that needs it, as `prefetch_disk`.

        Raises:
            UnsupportedError: the cache has no remote tier.
        """
        return await self.run(self._remote().prefetch, tokens, **space)

    async def flush_remote(self, timeout: float | None = None) -> None:
        """`CacheRemote.flush`.

        Raises:
            UnsupportedError: the cache has no remote tier.
        """
        await self.run(self._remote().flush, timeout)

    def _remote(self) -> CacheRemote:
        if self.cache.remote is None:
            raise UnsupportedError("this cache has no remote tier; make it with one")
        return self.cache.remote

    def _disk(self) -> CacheDisk:
        if self.cache.disk is None:
            raise UnsupportedError("this cache has no disk tier; make it with one")
        return self.cache.disk


def _close_result(future: asyncio.Future[Sequence]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().close()
