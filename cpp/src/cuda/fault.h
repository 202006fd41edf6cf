// The fault word of kvcache/cuda.h from a kernel's side: the first row or item that it skipped, and
// why.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace kvcache::cuda {

// In the low bits of a word; above them is the index, so that the first of all is the smallest.
enum class Fault : std::uint8_t { kNonFinite = 0, kNoPage = 1, kNoItem = 2, kNoState = 3 };
inline constexpr unsigned kFaultBits = 2;

KVCACHE_HOST_DEVICE inline void raise_fault(std::uint64_t* word, std::uint64_t index, Fault fault) {
  const std::uint64_t value = index << kFaultBits | static_cast<std::uint64_t>(fault);
#if defined(__CUDA_ARCH__)
  atomicMin(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
#else
  if (value < *word) *word = value;
#endif
}

}  // namespace kvcache::cuda
