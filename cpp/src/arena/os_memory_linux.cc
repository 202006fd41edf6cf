#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "arena/os_memory.h"

namespace kvcache::arena::os {
namespace {

// Newer than the headers of the oldest supported C library.
constexpr int kMremapDontUnmap = 4;     // Linux 5.7
constexpr int kMadvPopulateWrite = 23;  // Linux 5.14
constexpr int kMpolBind = 2;
constexpr unsigned kMlockOnFault = 1;

}  // namespace

bool can_move() { return true; }

bool move(std::byte* from, std::byte* to, std::uint64_t bytes) {
  constexpr int kFlags = MREMAP_MAYMOVE | MREMAP_FIXED | kMremapDontUnmap;
  return mremap(from, bytes, bytes, kFlags, to) == to;
}

bool drop(std::byte* start, std::uint64_t bytes) {
  return madvise(start, bytes, MADV_DONTNEED) == 0;
}

void advise(std::byte* start, std::uint64_t bytes, HugePages huge_pages) {
  // A kernel without huge pages refuses it and loses nothing.
  if (huge_pages == HugePages::kAdvise) madvise(start, bytes, MADV_HUGEPAGE);
  if (huge_pages == HugePages::kOff) madvise(start, bytes, MADV_NOHUGEPAGE);
}

bool bind(std::byte* start, std::uint64_t bytes, std::uint32_t node) {
  constexpr std::uint32_t kWordBits = 8 * sizeof(unsigned long);
  unsigned long mask[kMaxNodes / kWordBits] = {};
  mask[node / kWordBits] |= 1UL << (node % kWordBits);
  // The kernel reads one bit less than it is told.
  return syscall(SYS_mbind, start, bytes, kMpolBind, mask, kMaxNodes + 1UL, 0U) == 0;
}

bool may_lock(std::byte* start, std::uint64_t bytes) {
  if (syscall(SYS_mlock2, start, bytes, kMlockOnFault) != 0) return false;
  munlock(start, bytes);
  return true;
}

bool populate(std::byte* start, std::uint64_t bytes) {
  if (madvise(start, bytes, kMadvPopulateWrite) == 0) return true;
  if (errno != EINVAL) return false;
  touch(start, bytes);  // an older kernel
  return true;
}

}  // namespace kvcache::arena::os
