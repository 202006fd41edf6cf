"""A cache under asyncio."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model.driver import SHAPES

from kvcache import AsyncCache, Cache, InvalidArgumentError, NotFoundError, StatePlan

PROMPT = list(range(1, 11))


def make_cache() -> Cache:
    return Cache(StatePlan(SHAPES["full"], memory="1MiB", block_tokens=4, sequences=4))


async def fill(cache: AsyncCache) -> None:
    sequence = await cache.open(PROMPT)
    rows = np.ones((10, 2, 8), np.float16)
    for layer in (0, 1):
        await cache.run(sequence.write, layer, 0, rows[..., :4], rows)
    sequence.advance(10)
    await cache.run(sequence.publish)
    sequence.close()


def test_calls_run_and_fail_as_they_do_without_it(tmp_path: Path) -> None:
    async def main() -> None:
        cache = AsyncCache(make_cache())
        await fill(cache)
        assert (await cache.explain([*PROMPT, 1])).cached_tokens == 10
        assert await cache.save(tmp_path / "one", PROMPT) == 10
        cache.cache.clear()
        assert await cache.prefetch(tmp_path / "one") == 10
        assert (await cache.explain(PROMPT)).cached_tokens == 9
        with pytest.raises(NotFoundError):
            await cache.save(tmp_path / "two", [99])
        with pytest.raises(InvalidArgumentError):
            await cache.run("no call")  # type: ignore[arg-type]

    asyncio.run(main())


def test_a_cancelled_open_leaves_no_sequence_open() -> None:
    async def main() -> None:
        gate = threading.Event()
        real = make_cache()
        with ThreadPoolExecutor(1) as executor:
            cache = AsyncCache(real, executor)
            blocker = asyncio.ensure_future(cache.run(gate.wait))
            opening = asyncio.ensure_future(cache.open(PROMPT))
            await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            gate.set()
            await blocker
            await cache.run(lambda: None)  # behind the open
            await asyncio.sleep(0)
        assert real.stats().open_sequences == 0

    asyncio.run(main())


def test_the_event_loop_goes_on_meanwhile() -> None:
    async def main() -> list[str]:
        gate = threading.Event()
        order: list[str] = []

        def blocking() -> None:
            gate.wait()
            order.append("call")

        cache = AsyncCache(make_cache())
        task: asyncio.Future[Any] = asyncio.ensure_future(cache.run(blocking))
        await asyncio.sleep(0)
        order.append("loop")
        gate.set()
        await task
        return order

    assert asyncio.run(main()) == ["loop", "call"]
