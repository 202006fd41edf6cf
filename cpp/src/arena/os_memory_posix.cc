#include <sys/resource.h>

#include <cerrno>

#include "arena/os_memory.h"

namespace kvcache::arena::os {
namespace {

bool cannot(int error) {
  errno = error;
  return false;
}

}  // namespace

bool can_move() { return false; }
bool move(std::byte* from, std::byte* to, std::uint64_t bytes) { return cannot(EINVAL); }

// What MADV_DONTNEED does differs between systems; empty memory in its place does not.
bool drop(std::byte* start, std::uint64_t bytes) { return cannot(ENOSYS); }

void advise(std::byte* start, std::uint64_t bytes, HugePages huge_pages) {}
bool bind(std::byte* start, std::uint64_t bytes, std::uint32_t node) { return cannot(ENOSYS); }

// mlock() alone would take all the memory now: the limit has to do.
bool may_lock(std::byte* start, std::uint64_t bytes) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return false;
  return bytes <= limit.rlim_cur || cannot(ENOMEM);
}

bool populate(std::byte* start, std::uint64_t bytes) {
  touch(start, bytes);
  return true;
}

}  // namespace kvcache::arena::os
