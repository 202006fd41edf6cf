// Encodes and decodes rows of attention state: F16, and INT8 with one float32 scale per row.
// A row is one head's vector of one position; K and V never share a row.
// INT8 is the storage format int8-per-token-head-f32-scale-v1: h = f16(x); scale = max|h| / 127,
// or 1 when the row is all zero; code = round-half-even(h / scale). Both divisions are IEEE
// float32 divisions and every instruction set gives the same bytes.
// Thread safety: every function is pure and may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache::codec {

// Read-only view of elements [tokens, heads, width]; the innermost axis is contiguous.
// dtype: kF32, kF16 or kBf16. Strides are in bytes.
struct RowsView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::size_t tokens = 0;
  std::size_t heads = 0;
  std::size_t width = 0;
  std::ptrdiff_t token_stride = 0;
  std::ptrdiff_t head_stride = 0;
};

// The same, writable: where decoded elements go.
struct MutableRowsView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::size_t tokens = 0;
  std::size_t heads = 0;
  std::size_t width = 0;
  std::ptrdiff_t token_stride = 0;
  std::ptrdiff_t head_stride = 0;
};

// codes: [tokens, heads, width] contiguous; scales: [tokens, heads] contiguous.
// kNonFinite names the first row that is not finite after F16 rounding; codes and scales are then
// unspecified.
Status encode_int8(const RowsView& in, std::int8_t* codes, float* scales);
void decode_int8(const std::int8_t* codes, const float* scales, const MutableRowsView& out);

// F16 storage: round to nearest even; no finite check, as the format defines none.
void encode_f16(const RowsView& in, std::uint16_t* out);
void decode_f16(const std::uint16_t* in, const MutableRowsView& out);

// The instruction set chosen at run time: "scalar", "avx2", "avx512" or "neon".
std::string_view active_isa();

}  // namespace kvcache::codec
