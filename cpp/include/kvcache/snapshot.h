// How a snapshot keeps the fixed-size state of a sequence, and what that loses.
// The exact format is a copy. The others keep what is small or integer as it is and store less of
// the rest; a state that was restored from one of them differs from the one it was taken of.
// Thread safety: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/types.h"

namespace kvcache {

// In order of precision: of two snapshots at one position the lower number is used.
enum class SnapshotFormat : std::uint8_t {
  kExact = 0,
  // f32 tensors as f16, rounded to nearest even. All others, of two bytes or integer, as they are.
  kF16 = 1,
  // Floating tensors as rows of signed bytes with one f32 scale each, by the INT8 codec of
  // kvcache/codec.h. A row is the last axis, so that a tensor of any rank has one scale for each
  // combination of its other axes, and a matrix [heads, k, v] one for each head and key channel.
  // As they are: integers; rows below kInt8RowMin elements, where a scale costs more than it
  // saves; and state of VerifyRule::kConvSteps, the few last inputs of a convolution, which are
  // small beside the matrices and whose error would reach every output of the next positions.
  kInt8 = 2,
};
inline constexpr std::size_t kSnapshotFormats = 3;
inline constexpr std::uint64_t kInt8RowMin = 16;

constexpr std::string_view snapshot_format_name(SnapshotFormat format) {
  switch (format) {
    case SnapshotFormat::kExact:
      return "exact";
    case SnapshotFormat::kF16:
      return "f16";
    case SnapshotFormat::kInt8:
      return "int8";
  }
  return "?";
}

// One fixed-size tensor inside a snapshot: rows of `width` stored elements.
struct SnapshotTensor {
  bool exact = true;  // stored bit for bit, in the tensor's own element
  DType stored = DType::kF32;
  std::uint64_t rows = 0;
  std::uint64_t width = 0;
  std::uint64_t offset = 0;         // bytes from the start of the snapshot
  std::uint64_t scales_offset = 0;  // of an INT8 tensor: f32 [rows]

  bool has_scales() const { return !exact && stored == DType::kI8; }
};

struct SnapshotLayout {
  std::vector<SnapshotTensor> tensors;  // in the order of StatePlan::fixed()
  std::uint64_t bytes = 0;
};

// What a snapshot lost of one tensor that it does not keep exactly.
struct SnapshotError {
  std::int32_t layer = -1;
  std::string name;
  DType stored = DType::kF32;
  double max_abs = 0;       // largest |x - y| of an element x and what it is restored as, y
  double relative_rms = 0;  // sqrt(sum (x - y)^2 / sum x^2); 0 for a tensor of zeros
};

}  // namespace kvcache
