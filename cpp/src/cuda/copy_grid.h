// Copies of equally large items, such as pages and snapshots: some blocks for each pair, 16 bytes
// at a time for each thread. A function of the grid, a block and a thread, on host and device.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "cuda/elements.h"
#include "cuda/fault.h"
#include "kvcache/cuda.h"

namespace kvcache::cuda {

inline constexpr unsigned kCopyThreads = 256;
inline constexpr unsigned kCopyWord = 16;  // bytes
inline constexpr unsigned kCopySteps = 4;  // words of one thread
inline constexpr std::uint64_t kCopyBlockBytes =
    std::uint64_t{kCopyThreads} * kCopyWord * kCopySteps;

struct CopyGrid {
  const char* from = nullptr;
  char* to = nullptr;
  std::uint64_t from_count = 0;
  std::uint64_t to_count = 0;
  std::uint64_t from_stride = 0;
  std::uint64_t to_stride = 0;
  std::uint64_t bytes = 0;
  std::uint64_t blocks_of_pair = 0;
  std::uint64_t pairs_count = 0;
  const ItemPair* pairs = nullptr;
  bool whole = false;  // words are aligned on both sides
  std::uint64_t* faults = nullptr;
};

KVCACHE_HOST_DEVICE inline void copy_word(const CopyGrid& grid, const char* from, char* to,
                                          std::uint64_t at) {
  const std::uint64_t left = grid.bytes - at;
  if (grid.whole && left >= kCopyWord) {
    return store_as(to + at, load_as<Quad<std::uint32_t>>(from + at));
  }
  for (std::uint64_t i = 0; i < kCopyWord && i < left; ++i) to[at + i] = from[at + i];
}

KVCACHE_HOST_DEVICE inline void copy_thread(const CopyGrid& grid, std::uint64_t block,
                                            unsigned thread) {
  const std::uint64_t pair = block / grid.blocks_of_pair;
  if (pair >= grid.pairs_count) return;
  const std::uint64_t part = block - pair * grid.blocks_of_pair;
  const ItemPair ids = grid.pairs[pair];
  const bool good = ids.from >= 0 && static_cast<std::uint64_t>(ids.from) < grid.from_count &&
                    ids.to >= 0 && static_cast<std::uint64_t>(ids.to) < grid.to_count;
  if (!good) {
    if (part == 0 && thread == 0) raise_fault(grid.faults, pair, Fault::kNoItem);
    return;
  }
  const char* from = grid.from + static_cast<std::uint64_t>(ids.from) * grid.from_stride;
  char* to = grid.to + static_cast<std::uint64_t>(ids.to) * grid.to_stride;
  if (from == to) return;
  for (unsigned step = 0; step < kCopySteps; ++step) {
    const std::uint64_t word = std::uint64_t{step} * kCopyThreads + thread;
    const std::uint64_t at = part * kCopyBlockBytes + word * kCopyWord;
    if (at < grid.bytes) copy_word(grid, from, to, at);
  }
}

}  // namespace kvcache::cuda
