// Sizes as the checks of a launch compute them: products and sums stay at the largest number where
// they would overflow, which no limit allows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/checked.h"

namespace kvcache::cuda {

// What a pointer difference can say.
inline constexpr std::uint64_t kMostBytes = PTRDIFF_MAX;
// Blocks along the first axis of a launch, and ids of a block table.
inline constexpr std::uint64_t kMostBlocks = INT32_MAX;

template <typename... More>
std::uint64_t times(std::uint64_t first, More... more) {
  ((first = checked_mul(first, static_cast<std::uint64_t>(more)).value_or(UINT64_MAX)), ...);
  return first;
}

template <typename... More>
std::uint64_t plus(std::uint64_t first, More... more) {
  ((first = checked_add(first, static_cast<std::uint64_t>(more)).value_or(UINT64_MAX)), ...);
  return first;
}

inline std::uint64_t magnitude(std::ptrdiff_t stride) {
  const auto bits = static_cast<std::uint64_t>(stride);
  return stride < 0 ? 0 - bits : bits;
}

inline bool aligned(const void* at, std::uint64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}

}  // namespace kvcache::cuda
