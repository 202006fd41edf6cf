// What all systems do alike.
#include "arena/os_memory.h"

#include <sys/mman.h>
#include <unistd.h>

namespace kvcache::arena::os {
namespace {

constexpr int kEmpty = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

}  // namespace

std::uint64_t page_bytes() { return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)); }

std::byte* reserve(std::uint64_t bytes) {
  void* const start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kEmpty, -1, 0);
  return start == MAP_FAILED ? nullptr : static_cast<std::byte*>(start);
}

bool map_anew(std::byte* start, std::uint64_t bytes) {
  return mmap(start, bytes, PROT_READ | PROT_WRITE, kEmpty | MAP_FIXED, -1, 0) == start;
}

void touch(std::byte* start, std::uint64_t bytes) {
  constexpr std::uint64_t kLeastPage = 4096;
  for (std::uint64_t at = 0; at < bytes; at += kLeastPage) {
    *reinterpret_cast<volatile unsigned char*>(start + at) = 0;
  }
}

}  // namespace kvcache::arena::os
