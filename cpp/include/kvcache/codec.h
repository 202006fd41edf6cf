// Encodes and decodes rows of attention state: F16, and INT8 with one float32 scale per row.
// A row is one head's vector of one position; K and V never share a row.
// INT8 is the storage format int8-per-token-head-f32-scale-v1: h = f16(x); scale = max|h| / 127,
// or 1 when the row is all zero; code = round-half-even(h / scale). Both divisions are IEEE
// float32 divisions and every instruction set gives the same bytes.
// Thread safety: every function is pure and may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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

// codes: [tokens, heads, width] contiguous; scales: [tokens, heads] contiguous; neither overlaps
// the elements. `threads`: at most this many work on the call; small calls use one. kNonFinite
// names the first row that is not finite after F16 rounding; codes and scales are then unspecified.
// Also fails as check_isa() does.
Status encode_int8(const RowsView& in, std::int8_t* codes, float* scales, unsigned threads = 1,
                   std::size_t first_row = 0);

// Element = float32(code) * scale, rounded to out.dtype.
// REQUIRES, here and for F16: check_isa() is ok (else the scalar row does the work), and the dtype
// is kF32, kF16 or kBf16.
void decode_int8(const std::int8_t* codes, const float* scales, const MutableRowsView& out,
                 unsigned threads = 1);

// F16 storage: round to nearest even; no finite check, as the format defines none.
void encode_f16(const RowsView& in, std::uint16_t* out, unsigned threads = 1);
void decode_f16(const std::uint16_t* in, const MutableRowsView& out, unsigned threads = 1);

// Where one page keeps the rows of one component: [page_tokens, heads, width] and their scales.
struct Int8Page {
  std::int8_t* codes = nullptr;
  float* scales = nullptr;
};
struct ConstInt8Page {
  const std::int8_t* codes = nullptr;
  const float* scales = nullptr;
};

// Which positions of a list of pages a call is about: page 0 begins at position 0, and the call's
// first token is position `first`.
struct PageSpan {
  std::size_t page_tokens = 0;
  std::size_t first = 0;
};

// Encodes or decodes tokens that are scattered over pages, in one pass. kInvalidArgument: the pages
// are too few. Otherwise as the functions above; several pages are read side by side, so that a
// restore from memory is not slower than a contiguous one.
Status scatter_int8(const RowsView& in, std::span<const Int8Page> pages, PageSpan where,
                    unsigned threads = 1);
Status gather_int8(std::span<const ConstInt8Page> pages, PageSpan where, const MutableRowsView& out,
                   unsigned threads = 1);
Status scatter_f16(const RowsView& in, std::span<std::uint16_t* const> pages, PageSpan where,
                   unsigned threads = 1);
Status gather_f16(std::span<const std::uint16_t* const> pages, PageSpan where,
                  const MutableRowsView& out, unsigned threads = 1);

// The instruction set chosen at run time: "scalar", "avx2", "avx512" or "neon". The environment
// variable KVCACHE_ISA, read on first use, forces one. Empty when check_isa() fails.
std::string_view active_isa();

// kInvalidArgument: KVCACHE_ISA names no instruction set. kUnsupported: it names one that this
// build or this processor lacks.
Status check_isa();

}  // namespace kvcache::codec
