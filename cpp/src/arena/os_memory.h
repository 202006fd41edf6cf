// What the operating system offers for the memory of an arena. os_memory_linux.cc has all of it,
// os_memory_posix.cc what every POSIX system can do; the build chooses one (KVCACHE_PORTABLE).
// Calls that answer false leave the reason in errno.
// Thread safety: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvcache/memory_options.h"

namespace kvcache::arena::os {

std::uint64_t page_bytes();  // of memory; ranges are mapped, moved and given back in whole pages

// Empty memory, taken at the first touch, where the system likes. nullptr: it refuses.
std::byte* reserve(std::uint64_t bytes);
// Empty memory at these addresses, whatever was there before, which may be gone at a failure too.
bool map_anew(std::byte* start, std::uint64_t bytes);

// False: the system can never move memory to other addresses.
bool can_move();
// Moves the memory of one mapping, and leaves empty memory behind. EINVAL: it never will; at any
// failure the target may be unmapped.
bool move(std::byte* from, std::byte* to, std::uint64_t bytes);
// Gives memory back at once and leaves empty memory. ENOSYS: only by mapping the range anew.
bool drop(std::byte* start, std::uint64_t bytes);

void advise(std::byte* start, std::uint64_t bytes, HugePages huge_pages);
bool bind(std::byte* start, std::uint64_t bytes, std::uint32_t node);  // node < kMaxNodes
inline constexpr std::uint32_t kMaxNodes = 1024;  // CONFIG_NODES_SHIFT is 10 at most

// Whether this process may lock so many bytes, without touching them.
bool may_lock(std::byte* start, std::uint64_t bytes);
// Takes the memory of a range, of which nothing is needed yet.
bool populate(std::byte* start, std::uint64_t bytes);
// The same by writing to each page of the system.
void touch(std::byte* start, std::uint64_t bytes);

}  // namespace kvcache::arena::os
