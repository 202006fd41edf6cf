// What a model keeps between tokens, one declaration per component. This list is the only input
// of every size in the library: the planner, the arena, the prefix index and the files all read it.
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/retention.h"
#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache {

struct StateDecl {
  std::string id;           // unique in a model, e.g. "l3.attention.keys"
  std::int32_t layer = -1;  // global decoder layer; -1 for state of no layer
  std::string component;  // stable name: "attention.keys", "state.recurrent", "state.convolution.0"
  StateKind kind = StateKind::kPagedKv;
  Section section = Section::kMain;
  DType dtype = DType::kF16;  // stored element
  // Elements of one unit. Paged kinds: one position, [heads, width]. Recurrent: one sequence.
  std::vector<std::uint64_t> shape;
  std::uint32_t row_scale_bytes = 0;  // paged kinds: bytes of scale beside each row; 4 for INT8
  // Paged kinds: positions a query sees, itself included; 0 means all of them.
  std::uint32_t window = 0;
  VerifyRule verify = VerifyRule::kNone;  // recurrent kinds
  // Paged kinds: positions that one unit stands for; more than 1 for state pooled over positions.
  std::uint32_t record_tokens = 1;
  // Paged kinds with a window: it starts anew at each multiple of its length instead of sliding.
  bool chunked = false;
  // Paged kinds with a sliding window: the first positions, which every query sees as well.
  std::uint32_t sinks = 0;
  Gate gate = Gate::kHead;  // recurrent kinds of VerifyRule::kHSteps

  Retention retention() const { return {window, chunked, sinks, record_tokens}; }
};

// kInvalidArgument: fields of paged state on another kind, a chunked window with sinks, either
// without a window, records of no position, or a window on state pooled over positions.
Status check_retention(const StateDecl& decl);

// Product of the shape. kInvalidArgument: an empty shape, a zero axis, or more than 2^64-1.
Result<std::uint64_t> unit_elements(const StateDecl& decl);

// Bytes of one unit: elements * dtype bytes, plus a scale per row for paged kinds.
Result<std::uint64_t> unit_bytes(const StateDecl& decl);

}  // namespace kvcache
