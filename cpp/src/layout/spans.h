// How a pool of equal items is cut: a span is the unit in which memory is taken and given back.
// An item never straddles two spans, so a freed span is whole and any pool can use its bytes.
#pragma once

#include <cstdint>

#include "base/checked.h"

namespace kvcache {

struct SpanGeometry {
  std::uint64_t item_stride = 0;  // bytes from one item to the next
  std::uint64_t items = 0;        // items in one span
  std::uint64_t bytes = 0;        // of one span, a multiple of the OS page
};

inline constexpr std::uint64_t kItemAlignment = 64;         // a cache line, and a ZMM register
inline constexpr std::uint64_t kSmallSpanBytes = 64 << 10;  // spans of small items
inline constexpr std::uint64_t kOsPageBytes = 4 << 10;

// Items up to half a small span share one; a larger item is a span of its own.
// Returns zeros when the rounded size does not fit 64 bits, or for an item of 0 bytes.
constexpr SpanGeometry span_geometry(std::uint64_t item_bytes) {
  if (item_bytes == 0 || item_bytes > ~std::uint64_t{0} - kOsPageBytes) return {};
  const std::uint64_t stride = round_up(item_bytes, kItemAlignment);
  if (stride <= kSmallSpanBytes / 2) return {stride, kSmallSpanBytes / stride, kSmallSpanBytes};
  const std::uint64_t bytes = round_up(item_bytes, kOsPageBytes);
  return {bytes, 1, bytes};
}

// Bytes that `items` items cost a budget when nothing else shares their spans.
constexpr std::uint64_t span_bytes(const SpanGeometry& geometry, std::uint64_t items) {
  return geometry.items == 0 ? 0 : ceil_div(items, geometry.items) * geometry.bytes;
}

}  // namespace kvcache
