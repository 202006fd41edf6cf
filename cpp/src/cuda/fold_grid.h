// Folds of rows of inputs into recurrent state: a thread for each element, which it keeps in a
// register while all rows are applied. A function of the grid, a block and a thread, on host and
// device; the same operations in the same order as the scalar fold of codec/rows_scalar.cc.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "cuda/elements.h"
#include "cuda/fault.h"
#include "kvcache/types.h"

namespace kvcache::cuda {

inline constexpr unsigned kFoldThreads = 256;

// Blocks are counted along the elements of one state and, apart, by sequence.
struct FoldGrid {
  char* state = nullptr;
  std::uint64_t stride = 0;
  std::uint64_t items = 1;
  const std::int32_t* ids = nullptr;
  std::uint64_t sequences = 1;
  std::uint64_t lines = 0;  // of one head
  std::uint64_t columns = 0;
  std::uint64_t elements = 0;  // of one state
  std::uint64_t rows = 0;
  const std::int32_t* rows_of = nullptr;
  // Steps in floats, from one row and from one sequence to the next.
  const float* gate = nullptr;
  std::uint64_t gate_stride = 0;
  std::uint64_t gate_step = 0;
  const float* left = nullptr;
  std::uint64_t left_stride = 0;
  std::uint64_t left_step = 0;
  std::uint64_t left_group = 1;  // heads that share a row
  const float* right = nullptr;
  std::uint64_t right_stride = 0;
  std::uint64_t right_step = 0;
  std::uint64_t right_group = 1;
  std::uint64_t* faults = nullptr;
};

KVCACHE_HOST_DEVICE inline std::uint64_t fold_rows(const FoldGrid& grid, std::uint64_t sequence) {
  if (grid.rows_of == nullptr) return grid.rows;
  const std::int32_t rows = grid.rows_of[sequence];
  if (rows <= 0) return 0;
  return static_cast<std::uint64_t>(rows) < grid.rows ? static_cast<std::uint64_t>(rows)
                                                      : grid.rows;
}

template <DType kStored, Gate kGate, bool kOnce>
KVCACHE_HOST_DEVICE void fold_thread(const FoldGrid& grid, std::uint64_t block,
                                     std::uint64_t sequence, unsigned thread) {
  const std::uint64_t element = block * kFoldThreads + thread;
  if (element >= grid.elements || sequence >= grid.sequences) return;
  std::uint64_t item = sequence;
  if (grid.ids != nullptr) {
    const std::int32_t id = grid.ids[sequence];
    if (id < 0 || static_cast<std::uint64_t>(id) >= grid.items) {
      if (element == 0) raise_fault(grid.faults, sequence, Fault::kNoState);
      return;
    }
    item = static_cast<std::uint64_t>(id);
  }
  const std::uint64_t line = element / grid.columns;
  const std::uint64_t column = element - line * grid.columns;
  const std::uint64_t head = line / grid.lines;
  const std::uint64_t in_head = line - head * grid.lines;
  const std::uint64_t gate_at = kGate == Gate::kHead      ? head
                                : kGate == Gate::kChannel ? line
                                                          : element;
  const float* gate = grid.gate + sequence * grid.gate_step + gate_at;
  const float* left =
      grid.left + sequence * grid.left_step + head / grid.left_group * grid.lines + in_head;
  const float* right =
      grid.right + sequence * grid.right_step + head / grid.right_group * grid.columns + column;
  using T = Raw<kStored>;
  char* const target = grid.state + item * grid.stride + element * sizeof(T);
  float value = widened<kStored>(load_as<T>(target));
  const std::uint64_t rows = fold_rows(grid, sequence);
  if (rows == 0) return;  // a NaN keeps its bits
  for (std::uint64_t row = 0; row < rows; ++row) {
    const float added = product(left[row * grid.left_stride], right[row * grid.right_stride]);
    value = sum(product(gate[row * grid.gate_stride], value), added);
    if constexpr (!kOnce) value = widened<kStored>(narrowed<kStored>(value));
  }
  store_as(target, narrowed<kStored>(value));
}

}  // namespace kvcache::cuda
