// Encodes and decodes rows of attention state: plain elements, and INT8 with one float32 scale per
// row. A row is one head's vector of one position; K and V never share a row.
// Plain rows are kept bit for bit where the caller's element type is the stored one. Between f32,
// f16 and bf16 they are rounded to nearest even, to infinity beyond the range; a NaN stays a NaN
// (quiet, its payload cut). Integers are never converted.
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
// dtype: kF32, kF16 or kBf16, or the integer type that is stored. Strides are in bytes.
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
// REQUIRES, here and for plain rows: check_isa() is ok (else the scalar row does the work), and
// converts(stored, dtype); stored is kI8 for INT8.
void decode_int8(const std::int8_t* codes, const float* scales, const MutableRowsView& out,
                 unsigned threads = 1);

// Plain rows of `stored` elements: packed is [tokens, heads, width] contiguous. No finite check.
void encode_plain(const RowsView& in, DType stored, void* packed, unsigned threads = 1);
void decode_plain(const void* packed, DType stored, const MutableRowsView& out,
                  unsigned threads = 1);

// Whether rows of `stored` (kI8: INT8 with scales) can be written from and read as `element`.
bool converts(DType stored, DType element);

// The rows of one component, scattered over pages: each keeps [page_tokens, heads, width] at
// `rows_offset` and for INT8 (stored kI8) their scales at `scales_offset`, in bytes. The first page
// begins at position 0, and a call's first token is position `first`.
struct PagedRows {
  std::span<std::byte* const> pages;
  DType stored = DType::kF16;
  std::size_t rows_offset = 0;
  std::size_t scales_offset = 0;
  std::size_t page_tokens = 0;
  std::size_t first = 0;
};

// Encodes or decodes tokens into or out of pages, in one pass. kInvalidArgument: the pages are too
// few, or the rows cannot be converted. kNonFinite: as encode_int8(). Several pages are read side
// by side, so that a restore from memory is not slower than a contiguous one.
Status scatter(const RowsView& in, const PagedRows& to, unsigned threads = 1);
Status gather(const PagedRows& from, const MutableRowsView& out, unsigned threads = 1);

// The instruction set chosen at run time: "scalar", "avx2", "avx512" or "neon". The environment
// variable KVCACHE_ISA, read on first use, forces one. Empty when check_isa() fails.
std::string_view active_isa();

// kInvalidArgument: KVCACHE_ISA names no instruction set. kUnsupported: it names one that this
// build or this processor lacks.
Status check_isa();

}  // namespace kvcache::codec
