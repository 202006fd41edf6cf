// The drivers that the vector rows share: blocks of 16 rows, the scale of each row, streaming
// stores, prefetch. An instruction set supplies the primitives as static functions of a struct:
//   Partial, magnitudes<In>, reduce<In> (whether a row overflows F16), quantise<In>,
//   quantise_by_division<In>,
//   decode<Out>, convert<From, To>, prefetch, stream_line, stream_fence.
// and the constant kDirectMin<In>.
// Included only by rows_<isa>.cc: all in an anonymous namespace, nothing from the standard library
// that could emit a shared symbol compiled with the file's flags.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/element_tags.h"
#include "codec/fold_pipeline.h"
#include "codec/kernels.h"
#include "codec/row_cursor.h"

namespace kvcache::codec {
namespace {

inline constexpr std::size_t kLine = 64;
inline constexpr std::size_t kBlockRows = 16;
inline constexpr std::size_t kGroupRows = 4;
inline constexpr std::size_t kGroups = kBlockRows / kGroupRows;
inline constexpr std::size_t kStreamWidthMax = 1024;
inline constexpr std::size_t kPrefetchBytes = 8192;  // this far ahead of the row in work

KVCACHE_INLINE float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }
KVCACHE_INLINE std::uint32_t bits_of(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}

// The largest magnitude of a row, rounded to F16, as a float. Rounding is monotone, so it may come
// after the maximum.
template <typename In>
KVCACHE_INLINE float rounded_magnitude(std::uint32_t magnitude) {
  if constexpr (kSame<In, F16>) {
    const float subnormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F;
    const float normal = float_of((magnitude << 13) + 0x38000000U);
    return magnitude < 0x400U ? subnormal : normal;
  } else {
    const std::uint32_t bits = kSame<In, Bf16> ? magnitude << 16 : magnitude;
    const float subnormal = (float_of(bits) + 0.5F) - 0.5F;  // steps of 2^-24
    const float normal = float_of((bits + 0xfffU + ((bits >> 13) & 1U)) & ~0x1fffU);
    return bits < 0x38800000U ? subnormal : normal;
  }
}

struct Scales {
  alignas(64) float scale[kBlockRows];
  alignas(64) float inverse[kBlockRows];
  alignas(64) std::int32_t divide[kBlockRows];  // nonzero: this row takes the true division
};

// Scales of 16 rows, and for each an inverse such that round(fma(x, inverse, 0)) is the code that
// the definition's true division gives. Elements and maxima have 11-bit significands, so a quotient
// is either an exact tie k + 1/2 or further from one than float32 can err. Ties need x = max / 2
// (k = 63) or a max divisible by 127 (the scale is then exact: such rows divide, unless it is a
// power of two). For the former the inverse moves by one ulp when fma and division disagree.
// Nonzero rows below kDirectMin divide as well: quantise<In> does not round elements as F16 does
// when they are too small for their codes to be anything but 0 in a row of that size.
template <typename In, std::uint32_t kDirectMin>
KVCACHE_INLINE void find_scales(const std::uint32_t* magnitude, Scales& out) {
  for (std::size_t i = 0; i < kBlockRows; ++i) {
    const float largest = rounded_magnitude<In>(magnitude[i]);
    const float scale = largest == 0 ? 1.0F : largest / 127.0F;
    const float inverse = 1.0F / scale;
    const float rest = __builtin_fmaf(-127.0F, scale, largest);
    const std::uint32_t division_up = rest >= scale * -0x1p-18F ? 1 : 0;
    const std::uint32_t fma_up = __builtin_fmaf(largest * 0.5F, inverse, -63.5F) >= 0 ? 1 : 0;
    out.scale[i] = scale;
    out.inverse[i] = float_of(bits_of(inverse) + division_up - fma_up);
    const std::int32_t exact = rest == 0 ? 1 : 0;
    std::int32_t divide = (bits_of(scale) & 0x7fffffU) != 0 ? exact : 0;
    if constexpr (kDirectMin != 0) divide = magnitude[i] - 1 < kDirectMin - 1 ? 1 : divide;
    out.divide[i] = divide;
  }
}

// Collects bytes in L1 and writes whole lines around the cache, whatever the target's alignment.
template <typename Isa, std::size_t kCapacity>
class StreamWriter {
 public:
  void start(char* target) {
    skip_ = reinterpret_cast<std::uintptr_t>(target) % kLine;
    fill_ = skip_;
    line_ = target - skip_;
  }

  char* reserve() { return stage_ + fill_; }

  KVCACHE_INLINE void commit(std::size_t bytes) {
    fill_ += bytes;
    std::size_t done = 0;
    if (skip_ != 0 && fill_ >= kLine) {
      __builtin_memcpy(line_ + skip_, stage_ + skip_, kLine - skip_);
      skip_ = 0;
      done = kLine;
    }
    for (; done + kLine <= fill_; done += kLine) Isa::stream_line(line_ + done, stage_ + done);
    line_ += done;
    fill_ -= done;
    if (done != 0 && fill_ != 0) __builtin_memcpy(stage_, stage_ + done, fill_);
  }

  void finish() {
    if (fill_ > skip_) __builtin_memcpy(line_ + skip_, stage_ + skip_, fill_ - skip_);
    Isa::stream_fence();
  }

 private:
  std::size_t skip_;  // bytes of the first line that are not ours
  std::size_t fill_;
  char* line_;
  alignas(kLine) char stage_[kCapacity + kLine];
};

template <typename Isa>
KVCACHE_INLINE void prefetch_row(const char* row, std::size_t bytes) {
  for (std::size_t offset = 0; offset < bytes; offset += kLine) Isa::prefetch(row + offset);
}

// Sixteen rows on their way: first their maxima are taken, then their scales, then their codes.
template <typename Isa, typename In>
struct Block {
  std::size_t count = 0;  // rows; spare lanes repeat the first one
  const char* rows[kBlockRows];
  typename Isa::Partial partial[kGroups];
  Scales scales;

  KVCACHE_INLINE void start(RowCursor<const char>& cursor, std::size_t rows_left) {
    count = rows_left < kBlockRows ? rows_left : kBlockRows;
    if (count == kBlockRows) return cursor.fill(rows, kBlockRows);
    cursor.fill(rows, count);
    for (std::size_t row = count; row < kBlockRows; ++row) rows[row] = rows[0];
  }

  KVCACHE_INLINE void take_maxima(std::size_t group, std::size_t width) {
    partial[group] = Isa::template magnitudes<In>(rows + group * kGroupRows, width);
  }

  // Writes the scales; returns the first row that is not finite, or `count`.
  KVCACHE_INLINE std::size_t finish_scales(float* out) {
    alignas(64) std::uint32_t magnitude[kBlockRows];
    if (Isa::template reduce<In>(partial, magnitude)) [[unlikely]] {
      std::size_t row = 0;
      while (magnitude[row] < In::kOverflow) ++row;
      return row;
    }
    find_scales<In, Isa::template kDirectMin<In>>(magnitude, scales);
    if (count == kBlockRows) [[likely]] {
      __builtin_memcpy(out, scales.scale, sizeof scales.scale);
    } else {
      __builtin_memcpy(out, scales.scale, count * sizeof(float));
    }
    return count;
  }

  KVCACHE_INLINE void write_codes(std::size_t group, std::size_t width, std::int8_t* codes) {
    const std::size_t first = group * kGroupRows;
    for (std::size_t i = first; i < first + kGroupRows; ++i) {
      if (i >= count) [[unlikely]]
        return;
      if (scales.divide[i] != 0) [[unlikely]] {
        Isa::template quantise_by_division<In>(rows[i], width, scales.scale[i], codes + i * width);
      } else {
        Isa::template quantise<In>(rows[i], width, scales.inverse[i], codes + i * width);
      }
    }
  }
};

// Encodes INT8 as a software pipeline: while block k is quantised, the maxima of block k + 2 are
// gathered, and the divisions of block k + 1 finish in the shadow of both.
template <typename Isa, typename In, std::size_t kWidth, bool kFar>
std::size_t encode_int8_blocks(const EncodeJob& job) {
  const std::size_t width = kWidth != 0 ? kWidth : job.width;
  const std::size_t row_bytes = width * In::kBytes;
  const std::size_t blocks = (job.rows + kBlockRows - 1) / kBlockRows;
  const std::size_t ahead_tokens = kPrefetchBytes / (row_bytes * job.heads) + 1;
  const std::ptrdiff_t ahead = static_cast<std::ptrdiff_t>(ahead_tokens) * job.token_stride;
  const bool stream = kFar && job.stream && width <= kStreamWidthMax;
  RowCursor<const char> cursor(job.elements, job.token_stride, job.head_stride, job.heads);
  StreamWriter<Isa, kFar ? kBlockRows * kStreamWidthMax : kLine> writer;
  writer.start(job.packed);
  auto* codes = reinterpret_cast<std::int8_t*>(job.packed);
  Block<Isa, In> ring[3];
  Block<Isa, In>* coming = &ring[0];
  Block<Isa, In>* between = &ring[1];
  Block<Isa, In>* due = &ring[2];
  for (std::size_t step = 0; step < blocks + 2; ++step) {
    std::int8_t* target = stream ? reinterpret_cast<std::int8_t*>(writer.reserve()) : codes;
    if (step < blocks) {
      coming->start(cursor, job.rows - step * kBlockRows);
      for (std::size_t group = 0; group < kGroups; ++group) {
        if constexpr (kFar) {
          for (std::size_t i = 0; i < kGroupRows; ++i) {
            prefetch_row<Isa>(coming->rows[group * kGroupRows + i] + ahead, row_bytes);
          }
        }
        coming->take_maxima(group, width);
        due->write_codes(group, width, target);
      }
    } else {
      for (std::size_t group = 0; group < kGroups; ++group) {
        due->write_codes(group, width, target);
      }
    }
    if (stream) {
      writer.commit(due->count * width);
    } else {
      codes += due->count * width;
    }
    if (step < blocks) {
      const std::size_t good = coming->finish_scales(job.scales + step * kBlockRows);
      if (good < coming->count) [[unlikely]]
        return step * kBlockRows + good;
    } else {
      coming->count = 0;
    }
    Block<Isa, In>* finished = due;
    due = between;
    between = coming;
    coming = finished;
  }
  if (stream) writer.finish();
  return job.rows;
}

// In cache, common widths pay as constants; others, and rows from memory, read it from the job.
template <typename Isa, typename In>
std::size_t encode_int8(const EncodeJob& job) {
  if (job.prefetch || job.stream) return encode_int8_blocks<Isa, In, 0, true>(job);
  switch (job.width) {
    case 64:
      return encode_int8_blocks<Isa, In, 64, false>(job);
    case 80:
      return encode_int8_blocks<Isa, In, 80, false>(job);
    case 128:
      return encode_int8_blocks<Isa, In, 128, false>(job);
    case 256:
      return encode_int8_blocks<Isa, In, 256, false>(job);
    default:
      return encode_int8_blocks<Isa, In, 0, false>(job);
  }
}

template <typename Isa, typename Stored, typename From>
void encode_plain(const EncodeJob& job) {
  const std::size_t row_bytes = job.width * Stored::kBytes;
  RowCursor<const char> cursor(job.elements, job.token_stride, job.head_stride, job.heads);
  StreamWriter<Isa, Stored::kBytes * kStreamWidthMax> writer;
  writer.start(job.packed);
  const bool stream = job.stream && job.width <= kStreamWidthMax;
  char* target = job.packed;
  for (std::size_t row = 0; row < job.rows; ++row) {
    const char* source = cursor.next();
    if (job.prefetch) prefetch_row<Isa>(source + kPrefetchBytes, job.width * From::kBytes);
    Isa::template convert<From, Stored>(source, job.width, stream ? writer.reserve() : target);
    if (stream) writer.commit(row_bytes);
    target += row_bytes;
  }
  if (stream) writer.finish();
}

// How the packed rows of a decode become elements.
template <typename Isa, typename Out>
struct FromInt8 {
  static constexpr std::size_t kPackedBytes = 1;
  KVCACHE_INLINE static void row(const DecodeRun& run, std::size_t row, std::size_t width,
                                 char* target) {
    const auto* codes = reinterpret_cast<const std::int8_t*>(run.packed) + row * width;
    const float scale = run.scales[row];
    if constexpr (kSame<Out, Bf16>) {
      const bool finite = (bits_of(scale) & 0x7f800000U) != 0x7f800000U;
      if (finite) return Isa::template decode<Bf16NoNan>(codes, width, scale, target);
    }
    Isa::template decode<Out>(codes, width, scale, target);
  }
};
template <typename Isa, typename Stored, typename Out>
struct FromPlain {
  static constexpr std::size_t kPackedBytes = Stored::kBytes;
  KVCACHE_INLINE static void row(const DecodeRun& run, std::size_t row, std::size_t width,
                                 char* target) {
    const char* source = run.packed + row * width * Stored::kBytes;
    Isa::template convert<Stored, Out>(source, width, target);
  }
};

template <typename Row, typename Out, std::size_t kWidth>
void decode_in_cache(const DecodeJob& job) {
  const std::size_t width = kWidth != 0 ? kWidth : job.width;
  for (std::size_t i = 0; i < job.run_count; ++i) {
    RowCursor<char> cursor(job.runs[i].elements, job.token_stride, job.head_stride, job.heads);
    for (std::size_t row = 0; row < job.rows; ++row) {
      Row::row(job.runs[i], row, width, cursor.next());
    }
  }
}

// Rows from far away: the runs take turns, a row or some 256 bytes each, so that the misses of
// several pages are in flight at once; dense output goes around the cache.
template <typename Isa, typename Row, typename Out>
void decode_from_memory(const DecodeJob& job) {
  constexpr std::size_t kStage = kStreamWidthMax * 4;
  const std::size_t out_bytes = job.width * Out::kBytes;
  const std::size_t in_bytes = job.width * Row::kPackedBytes;
  const std::size_t turn_bytes = job.run_count > 1 ? 256 : 2048;
  const std::size_t turn_rows = out_bytes < turn_bytes ? turn_bytes / out_bytes : 1;
  const std::size_t distance = job.run_count > 1 ? 512 : kPrefetchBytes;
  const bool stream = job.stream && job.width <= kStreamWidthMax;
  StreamWriter<Isa, kStage> writers[kDecodeRunsMax];
  RowCursor<char> cursors[kDecodeRunsMax];
  for (std::size_t i = 0; i < job.run_count; ++i) {
    writers[i].start(job.runs[i].elements);
    cursors[i] =
        RowCursor<char>(job.runs[i].elements, job.token_stride, job.head_stride, job.heads);
  }
  for (std::size_t first = 0; first < job.rows; first += turn_rows) {
    const std::size_t left = job.rows - first;
    const std::size_t rows = left < turn_rows ? left : turn_rows;
    for (std::size_t i = 0; i < job.run_count; ++i) {
      const DecodeRun& run = job.runs[i];
      prefetch_row<Isa>(run.packed + first * in_bytes + distance, rows * in_bytes);
      char* staged = writers[i].reserve();
      for (std::size_t row = 0; row < rows; ++row) {
        char* target = stream ? staged + row * out_bytes : cursors[i].next();
        Row::row(run, first + row, job.width, target);
      }
      if (stream) writers[i].commit(rows * out_bytes);
    }
  }
  for (std::size_t i = 0; i < job.run_count && stream; ++i) writers[i].finish();
}

template <typename Isa, typename Row, typename Out>
void decode_rows(const DecodeJob& job) {
  if (job.prefetch || job.stream) return decode_from_memory<Isa, Row, Out>(job);
  switch (job.width) {
    case 64:
      return decode_in_cache<Row, Out, 64>(job);
    case 128:
      return decode_in_cache<Row, Out, 128>(job);
    default:
      return decode_in_cache<Row, Out, 0>(job);
  }
}

template <typename Isa, typename Out>
void decode_int8(const DecodeJob& job) {
  decode_rows<Isa, FromInt8<Isa, Out>, Out>(job);
}
template <typename Isa, typename Stored, typename Out>
void decode_plain(const DecodeJob& job) {
  decode_rows<Isa, FromPlain<Isa, Stored, Out>, Out>(job);
}

// The table of an instruction set: every primitive in every element format.
template <typename Isa>
constexpr Kernels kernels(const char* name, bool (*supported)()) {
  return {
      .name = name,
      .supported = supported,
      .encode_int8 = {encode_int8<Isa, F32>, encode_int8<Isa, F16>, encode_int8<Isa, Bf16>},
      .decode_int8 = {decode_int8<Isa, F32>, decode_int8<Isa, F16>, decode_int8<Isa, Bf16>},
      .encode_plain = {{nullptr, encode_plain<Isa, F32, F16>, encode_plain<Isa, F32, Bf16>},
                       {encode_plain<Isa, F16, F32>, nullptr, encode_plain<Isa, F16, Bf16>},
                       {encode_plain<Isa, Bf16, F32>, encode_plain<Isa, Bf16, F16>, nullptr}},
      .decode_plain = {{nullptr, decode_plain<Isa, F32, F16>, decode_plain<Isa, F32, Bf16>},
                       {decode_plain<Isa, F16, F32>, nullptr, decode_plain<Isa, F16, Bf16>},
                       {decode_plain<Isa, Bf16, F32>, decode_plain<Isa, Bf16, F16>, nullptr}},
      .fold = {{{fold_head<Isa, F32>, fold_head<Isa, F32>},
                {fold_channel<Isa, F32>, fold_channel<Isa, F32>},
                {fold_element<Isa, F32>, fold_element<Isa, F32>}},
               {{fold_head<Isa, F16, true>, fold_head<Isa, F16>},
                {fold_channel<Isa, F16, true>, fold_channel<Isa, F16>},
                {fold_element<Isa, F16, true>, fold_element<Isa, F16>}},
               {{fold_head<Isa, Bf16, true>, fold_head<Isa, Bf16>},
                {fold_channel<Isa, Bf16, true>, fold_channel<Isa, Bf16>},
                {fold_element<Isa, Bf16, true>, fold_element<Isa, Bf16>}}},
  };
}

}  // namespace
}  // namespace kvcache::codec
