"""The native clients of an unpacked LMCache wheel, for benchmarks beside them.

``pip install --no-deps --target FOLDER lmcache==0.5.6`` fills the folder; the clients need PyTorch
beside it, and nothing else of what the wheel asks for.
"""

from __future__ import annotations

import importlib.util
import select
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def load(folder: Path, name: str) -> Any:
    """The compiled module ``lmcache_<name>``."""
    import torch  # noqa: F401  # its libraries

    [found] = (folder / "lmcache").glob(f"lmcache_{name}.*.so")
    spec = importlib.util.spec_from_file_location(f"lmcache_{name}", found)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wait(client: Any, task: int) -> None:
    """Until a batch that was submitted is done."""
    while True:
        select.select([client.event_fd()], [], [], 60)
        for done in client.drain_completions():
            if done[0] == task:
                if not done[1]:
                    raise RuntimeError(f"LMCache: {done[2]}")
                return
