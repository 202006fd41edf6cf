// Finds the rows of one component of one layer in an engine's tensor.
// Thread safety: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvcache/engine_layout.h"
#include "kvcache/status.h"

namespace kvcache::sequence {

struct RowSize {
  std::uint64_t heads = 0;
  std::uint64_t width = 0;
};

// Where the rows lie: strides in bytes, and how many rows of a position the tensor has.
struct EngineRows {
  char* data = nullptr;
  DType dtype = DType::kF16;
  std::ptrdiff_t block_stride = 0;
  std::ptrdiff_t token_stride = 0;
  std::ptrdiff_t head_stride = 0;
  std::ptrdiff_t element_stride = 0;
  std::uint64_t block = 0;  // positions in a block; 0: the tensor has no blocks
  std::uint64_t tokens = 0;
};

// Which part of a tensor is meant: component `part` of those that share the tensor, and layer
// `layer` of the `layers` of the call.
struct EnginePart {
  std::span<const RowSize> parts;
  std::size_t part = 0;
  std::size_t layer = 0;
  std::size_t layers = 1;
};

// kInvalidArgument: the tensor has another number of axes than its layout, or one of another size.
Result<EngineRows> find_rows(const EngineTensor& tensor, const EnginePart& which);

// kInvalidArgument: elements of the tensor share memory with each other.
Status check_no_overlap(const EngineTensor& tensor);
// kInvalidArgument: the tensors share memory, or are woven into each other at different strides.
Status check_no_overlap(const EngineTensor& a, const EngineTensor& b);

// Finds stretches of positions that lie at one stride.
class EngineWalk {
 public:
  EngineWalk(const EngineRows& rows, const EnginePlaces& places, std::uint64_t start,
             std::uint64_t stop);

  // kInvalidArgument: the places are too few, too many or outside of the tensor, or are of another
  // kind than the layout needs; with `distinct`, two positions of the call meet.
  Status check(bool distinct) const;

  struct Stretch {
    char* elements = nullptr;
    std::uint64_t tokens = 0;
  };
  // From `position` on, at most `most` positions. REQUIRES: check() is ok.
  Stretch at(std::uint64_t position, std::uint64_t most) const;

 private:
  std::uint64_t slot(std::uint64_t position) const;
  char* address(std::uint64_t slot) const;

  const EngineRows& rows_;
  const EnginePlaces& places_;
  std::uint64_t start_;
  std::uint64_t stop_;
  bool joined_;  // blocks follow each other as positions do
};

}  // namespace kvcache::sequence
