// The carry stash of a sequence: inputs of its latest rows, kept in place of the fixed-size state
// after each of them, and folded into that state (kvcache/fold.h) when it is read. Small: a row of
// a matrix [heads, k, v] is heads * (1 + k + v) numbers instead of heads * k * v. Thread safety:
// values and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "kvcache/state_decl.h"
#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache {

// What one row gives one fixed-size tensor.
struct StashRow {
  enum class Kind : std::uint8_t {
    kNone,    // nothing folds it: a tensor that is neither of the others
    kMatrix,  // a floating recurrent state of up to three axes: gate, left and right, as float32
    kWindow,  // the history of a convolution, [width, ...]: one row of its own elements
  };
  Kind kind = Kind::kNone;
  // The tensor as [heads, lines, columns]; a window as [1, width, elements of a row].
  std::uint64_t heads = 1;
  std::uint64_t lines = 1;
  std::uint64_t columns = 1;
  Gate gate_of = Gate::kHead;
  std::uint64_t gates = 0;  // of one row

  std::uint64_t lefts() const { return kind == Kind::kMatrix ? heads * lines : 0; }
  std::uint64_t rights() const { return kind == Kind::kMatrix ? heads * columns : columns; }
  std::uint64_t elements() const { return kind == Kind::kNone ? 0 : gates + lefts() + rights(); }
};

// kInvalidArgument: the declaration has no size, see unit_bytes(). Declarations that are not of
// recurrent state give kNone.
Result<StashRow> stash_row(const StateDecl& decl);

// One tensor's rows: [rows, gates], [rows, lefts] and [rows, rights] of its elements, each
// contiguous; a window has the last alone. Offsets are in bytes, from the start of the stash.
struct StashComponent {
  std::uint32_t fixed = 0;  // index into StatePlan::fixed()
  StashRow row;
  std::uint64_t gate_offset = 0;
  std::uint64_t left_offset = 0;
  std::uint64_t right_offset = 0;
};

struct StashLayer {
  std::int32_t layer = -1;
  std::vector<StashComponent> components;  // those that fold, in declared order
  std::uint64_t pending_offset = 0;        // u32: rows that wait to be folded
};

struct StashLayout {
  std::uint32_t rows = 0;
  std::vector<StashLayer> layers;  // those that fold anything, by first declaration
  std::uint64_t bytes = 0;         // of one sequence; 0: nothing folds, or no rows
};

}  // namespace kvcache
