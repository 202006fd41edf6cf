// How the memory of a cache or of a page pool is taken from the system.
#pragma once

#include <cstdint>

namespace kvcache {

// Whether the kernel may back the memory with huge pages (2 MiB on x86-64).
enum class HugePages : std::uint8_t {
  kOff = 0,     // never: least memory for state that is touched sparsely
  kAdvise = 1,  // asked for; advice alone, a kernel without them loses nothing
  kSystem = 2,  // whatever the system does by itself
};

struct MemoryOptions {
  HugePages huge_pages = HugePages::kAdvise;
  // Memory comes from this NUMA node alone (mbind, MPOL_BIND); -1: where it is first touched.
  std::int32_t numa_node = -1;
  // Memory that is in use is never swapped out (mlock). Needs RLIMIT_MEMLOCK, or CAP_IPC_LOCK, for
  // the whole budget. Memory that changes pools is then zeroed by the kernel.
  bool lock = false;
  // Threads that touch the whole budget at creation, so that no later write waits for the kernel;
  // 0: memory is taken when it is first written.
  std::uint32_t prefault_threads = 0;
};

}  // namespace kvcache
