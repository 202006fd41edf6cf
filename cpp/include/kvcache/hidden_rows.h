// Rows of hidden state, [rows, width] of one element type, as callers give and get them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kvcache/types.h"

namespace kvcache {

class Cache;

struct HiddenView {
  const void* data = nullptr;
  DType dtype = DType::kBf16;
  std::uint64_t rows = 0;
  std::uint64_t width = 0;
  std::ptrdiff_t row_stride = 0;      // bytes from one row to the next; elements are adjacent
  std::shared_ptr<const void> owner;  // what keeps the memory, of views that the library gives
};

struct HiddenRowsOptions {
  std::uint64_t rows = 0;
  std::uint64_t width = 0;
  DType dtype = DType::kBf16;  // or kF16, kF32
  // Whose budget the memory counts against; null for none. Need not outlive the rows.
  Cache* cache = nullptr;
};

}  // namespace kvcache
