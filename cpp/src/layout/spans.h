// How a pool of equal items is cut: a span is the unit in which memory is taken and given back.
// Items fill their span exactly, so that item i lies at i * item_stride: a freed span is whole, any
// pool can use its bytes, and a kernel finds a page by its number alone.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>

#include "base/checked.h"

namespace kvcache {

struct SpanGeometry {
  std::uint64_t item_stride = 0;  // bytes from one item to the next
  std::uint64_t items = 0;        // items in one span
  std::uint64_t bytes = 0;        // of one span: items * item_stride, a multiple of the OS page
};

inline constexpr std::uint64_t kItemAlignment = 64;         // a cache line, and a ZMM register
inline constexpr std::uint64_t kSmallSpanBytes = 64 << 10;  // most for a span of small items
inline constexpr std::uint64_t kOsPageBytes = 4 << 10;

// Items up to half a small span share one; a larger item is a span of its own. Strides have few
// significant bits, at the price of an eighth at most: then few items end where an OS page does.
// Returns zeros when the rounded size does not fit 64 bits, or for an item of 0 bytes.
constexpr SpanGeometry span_geometry(std::uint64_t item_bytes) {
  if (item_bytes == 0 || item_bytes > ~std::uint64_t{0} - kOsPageBytes) return {};
  if (item_bytes <= kSmallSpanBytes / 2) {
    const std::uint64_t granule = std::max(std::bit_ceil(item_bytes) / 16, kItemAlignment);
    const std::uint64_t stride = round_up(item_bytes, granule);
    const std::uint64_t least = std::lcm(stride, kOsPageBytes);
    const std::uint64_t bytes = kSmallSpanBytes / least * least;
    return {stride, bytes / stride, bytes};
  }
  const std::uint64_t bytes = round_up(item_bytes, kOsPageBytes);
  return {bytes, 1, bytes};
}

// Bytes that `items` items cost a budget when nothing else shares their spans.
constexpr std::uint64_t span_bytes(const SpanGeometry& geometry, std::uint64_t items) {
  return geometry.items == 0 ? 0 : ceil_div(items, geometry.items) * geometry.bytes;
}

}  // namespace kvcache
