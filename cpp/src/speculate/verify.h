// The rows of one verify and a slot for the state after each: strategy "steps". Live state is read
// here and written by adopt() alone. Step slots are items of the snapshot pool, so that they count
// against the one budget and evict like everything else.
// Thread safety: thread-compatible; "locked" means the sequence's lock and the cache's lock, "own"
// the sequence's lock alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "arena/pool_map.h"
#include "kvcache/state_plan.h"
#include "sequence/sequence_state.h"

namespace kvcache::speculate {

using arena::ItemId;

class VerifyState {
 public:
  // Own. kInvalidArgument: the sequence does not know exactly one token that has not run, or some
  // layer is already written past length().
  static Status check_begin(const sequence::SequenceState& state);

  // Rows: the token that has not run, then `drafts`. REQUIRES: check_begin() is ok.
  VerifyState(const StatePlan& plan, const arena::PoolMap& pools,
              const sequence::SequenceState& state, std::span<const std::int32_t> drafts);

  // Locked. kOutOfCapacity: no slot is held.
  Status take_slots(arena::ItemSource& source);
  // Locked. Gives the slots back; the object is spent.
  void release();

  std::uint64_t start() const { return start_; }  // position of row 0
  std::uint64_t rows() const { return tokens_.size(); }
  const std::vector<std::int32_t>& tokens() const { return tokens_; }

  // Own. The slot of `row`, with `component` filled as the start of an update when it is taken for
  // the first time. REQUIRES: row < rows(), slots were taken and have memory.
  ItemId take(std::uint64_t row, const FixedComponent& component, const std::byte* live);
  // Own. kInvalidArgument: a tensor of `row` was never taken, so that its bytes are not the state
  // after that row.
  Status check_taken(std::uint64_t row) const;
  // Own. Copies the state after `row` to `live`. REQUIRES: check_taken(row) is ok.
  void adopt(std::uint64_t row, std::byte* live) const;

 private:
  const StatePlan* plan_;
  arena::Pool* pool_;  // null without fixed-size state
  std::uint64_t start_;
  std::vector<std::int32_t> tokens_;
  std::vector<ItemId> slots_;  // by row
  std::vector<bool> taken_;    // by row, then by component in declared order
};

}  // namespace kvcache::speculate
