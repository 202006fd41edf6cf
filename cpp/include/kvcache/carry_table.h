// Where kernels find the state and the carry stash of a batched verify: arrays that never move, so
// that a captured graph or a compiled kernel keeps them.
//
// For each layer that folds, of each sequence of the batch: the addresses of its live tensors and
// of its stash, where kvcache/stash.h says what lies at which offset, the number of rows that wait
// included; and a flag that the kernel sets to 1 once it has stored the inputs of the sequence's
// rows behind those that wait, instead of the state after each row. What is not flagged by commit()
// is as without a table: handed over by stash(), or filled by states. Entries past the batch are 0,
// and so is everything while nothing is staged. Batch::begin_verify() stages a table, the end of
// the session zeroes it.
// Thread safety: thread-safe. One session at a time; who reads the entries must not outlive it. In
// a child of fork() no session can use it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "kvcache/state_plan.h"
#include "kvcache/status.h"

namespace kvcache {

struct CarryTableCore;

// Of one layer, [batch_rows] each; the memory stays where it is as long as `owner` lives.
struct CarryLayer {
  const std::uint64_t* stashes = nullptr;
  std::uint32_t* engaged = nullptr;  // the kernel's
  std::uint64_t batch_rows = 0;
  std::shared_ptr<const void> owner;
};

class CarryTable {
 public:
  // For sequences of caches of this plan. kInvalidArgument: the plan has no carry stash, or
  // batch_rows is not 1..2^20. kOutOfCapacity: the system has not so much memory.
  static Result<CarryTable> create(const StatePlan& plan, std::uint64_t batch_rows = 128);

  // kInvalidArgument: in a child of fork(); see Sequence::check_process().
  Status check_process() const;
  std::uint64_t batch_rows() const;
  // Of all its entries: a pointer for each tensor that folds and one for the stash, and a flag, of
  // each layer and batch row. What the state kind carry_table says of one matrix and one window.
  std::uint64_t bytes() const;
  bool is_staged() const;
  // kNotFound: nothing of the layer folds.
  Result<CarryLayer> layer(std::int32_t layer) const;
  // The addresses of one live tensor, [batch_rows]. kNotFound: the layer has no such tensor, or
  // nothing folds it.
  Result<const std::uint64_t*> live(std::int32_t layer, std::string_view name) const;

 private:
  friend class BatchVerifySession;

  explicit CarryTable(std::shared_ptr<CarryTableCore> core) : core_(std::move(core)) {}
  std::shared_ptr<CarryTableCore> core_;
};

}  // namespace kvcache
