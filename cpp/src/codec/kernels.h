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

// What a gate of a fold is for: see Gate in kvcache/types.h.
enum FoldGate : std::uint8_t { kGateHead = 0, kGateChannel = 1, kGateElement = 2 };
inline constexpr std::size_t kFoldGateCount = 3;

// Rows folded one after the other into lines [first, first + count) of a state
// [heads, lines, columns]. Strides are in floats, from one row to the next.
struct FoldJob {
  char* state;  // of all lines
  std::size_t first;
  std::size_t count;
  std::size_t lines;  // of one head
  std::size_t columns;
  std::size_t rows;
  const float* gate;  // [rows, heads], [rows, heads, lines] or [rows, heads, lines, columns]
  std::size_t gate_stride;
  const float* left;  // [rows, heads / left_group, lines]
  std::size_t left_stride;
  std::size_t left_group;  // heads that share a row
  const float* right;      // [rows, heads / right_group, columns]
  std::size_t right_stride;
  std::size_t right_group;
};
using Fold = void (*)(const FoldJob& job);

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
  // By stored element, by FoldGate, and by whether the state is rounded to its element once, after
  // all rows, instead of after each.
  Fold fold[kElementCount][kFoldGateCount][2];
};

}  // namespace kvcache::codec
