"""How the memory of a cache or of a page pool is taken from the system."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kvcache import _core
from kvcache._arguments import as_count
from kvcache.errors import InvalidArgumentError

__all__ = ["HugePages", "MemoryOptions"]


class HugePages(enum.StrEnum):
    """Whether the kernel may back the memory with huge pages (2 MiB on x86-64)."""

    OFF = "off"  #: never: least memory for state that is touched sparsely
    ADVISE = "advise"  #: asked for; advice alone, a kernel without them loses nothing
    SYSTEM = "system"  #: whatever the system does by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """Options of `Cache` and `PagePool`. What a system cannot do is refused when they are made.

    Raises:
        InvalidArgumentError: a value out of range.
    """

    huge_pages: HugePages | str = HugePages.ADVISE
    numa_node: int | None = None  #: memory comes from this node alone; None: where first touched
    #: Memory in use is never swapped out (mlock); needs RLIMIT_MEMLOCK for the whole budget. Memory
    #: that changes from pages to snapshots is then zeroed by the kernel.
    lock: bool = False
    #: Threads that touch the whole budget at creation, so that no later write waits for the kernel;
    #: 0: memory is taken when first written.
    prefault_threads: int = 0

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "huge_pages", HugePages(self.huge_pages))
        except ValueError:
            names = ", ".join(repr(mode.value) for mode in HugePages)
            raise InvalidArgumentError(
                f"huge_pages: expected one of {names}, got {self.huge_pages!r}"
            ) from None
        if self.numa_node is not None:
            as_count(self.numa_node, "numa_node", most=1023)
        if not isinstance(self.lock, bool):
            raise InvalidArgumentError(f"lock: expected True or False, got {self.lock!r}")
        as_count(self.prefault_threads, "prefault_threads", most=4096)


def memory_core(memory: MemoryOptions) -> _core.MemoryOptions:
    """The options as the compiled core takes them."""
    if not isinstance(memory, MemoryOptions):
        raise InvalidArgumentError(f"memory: expected MemoryOptions, got {memory!r}")
    return _core.MemoryOptions(
        huge_pages=_core.HugePages[HugePages(memory.huge_pages).name],
        numa_node=-1 if memory.numa_node is None else memory.numa_node,
        lock=memory.lock,
        prefault_threads=memory.prefault_threads,
    )
