// What one instruction set must provide: a table of functions over plain structs. Files built with
// special flags include this header, so it holds nothing that could emit a shared symbol.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvcache::codec {

// Index into the tables below.
enum Element : std::uint8_t { kElementF32 = 0, kElementF16 = 1, kElementBf16 = 2 };
inline constexpr std::size_t kElementCount = 3;

// A job is to prefetch where it reads more than the L2 cache holds, and to write around the caches
// where nobody will find so much in them.
inline constexpr std::size_t kPrefetchJobBytes = std::size_t{1} << 20;
inline constexpr std::size_t kStreamJobBytes = std::size_t{8} << 20;

// Rows [tokens, heads, width] at two strides (bytes) into packed rows, and scales for INT8.
struct EncodeJob {
  const char* elements;
  std::ptrdiff_t token_stride;
  std::ptrdiff_t head_stride;
  std::size_t heads;
  std::size_t rows;  // tokens * heads
  std::size_t width;
  char* packed;
  float* scales;  // one per row; unused for plain rows
  bool prefetch;  // the source is not in cache
  bool stream;    // write around the cache
};

// One run of packed rows and the place of its decoded rows.
struct DecodeRun {
  const char* packed;
  const float* scales;
  char* elements;
};

// Runs of equal length, decoded side by side so that their cache misses overlap.
struct DecodeJob {
  const DecodeRun* runs;
  std::size_t run_count;  // 1..kDecodeRunsMax
  std::ptrdiff_t token_stride;
  std::ptrdiff_t head_stride;
  std::size_t heads;
  std::size_t rows;  // of each run
  std::size_t width;
  bool prefetch;
  bool stream;
};
inline constexpr std::size_t kDecodeRunsMax = 8;

// Returns the first row that is not finite after F16 rounding, or job.rows.
using EncodeInt8 = std::size_t (*)(const EncodeJob& job);
using EncodePlain = void (*)(const EncodeJob& job);
using Decode = void (*)(const DecodeJob& job);

struct Kernels {
  const char* name;
  bool (*supported)();
  EncodeInt8 encode_int8[kElementCount];
  Decode decode_int8[kElementCount];
  // By stored element, then by the caller's. Null where the two agree: see row_copy.h.
  EncodePlain encode_plain[kElementCount][kElementCount];
  Decode decode_plain[kElementCount][kElementCount];
};

}  // namespace kvcache::codec
