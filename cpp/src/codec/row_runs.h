// Encodes and decodes stretches of rows that lie at one stride on the side of the elements and
// without gaps on the side of the page. The caller finds the stretches; a call takes many of them,
// so that pages far apart are read side by side.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvcache/types.h"

namespace kvcache::codec {

// What all runs of a transfer have in common. Strides are in bytes; `element_stride` is that of the
// innermost axis, the size of an element where rows have no gaps.
struct RunShape {
  DType stored = DType::kF16;    // kF32, kF16, kBf16, or kI8 with a float32 scale a row
  DType elements = DType::kF16;  // kF32, kF16 or kBf16; converts(stored, elements)
  std::size_t heads = 0;
  std::size_t width = 0;
  std::ptrdiff_t token_stride = 0;
  std::ptrdiff_t head_stride = 0;
  std::ptrdiff_t element_stride = 0;
  std::size_t total_bytes = 0;  // of elements in the whole transfer: whether caches are passed
};

struct RowRun {
  std::byte* packed = nullptr;
  float* scales = nullptr;  // nullptr unless INT8
  char* elements = nullptr;
  std::size_t tokens = 0;
};

// Returns how many rows, counted through the runs, are good before the first that is not finite
// after F16 rounding; F16 takes every row. REQUIRES, here and below: check_isa() is ok.
std::size_t encode_runs(const RunShape& shape, std::span<const RowRun> runs);
void decode_runs(const RunShape& shape, std::span<const RowRun> runs);

}  // namespace kvcache::codec
