// The rows of one verify and a slot for the state after each, from the start by strategy "steps"
// and once one is asked for by the others, see carry_stash.h. Live state is read here and written
// by adopt() alone. Step slots are items of the snapshot pool, so that they count against the one
// budget and evict like everything else. Thread safety: thread-compatible; "locked" means the
// sequence's lock and the cache's lock, "own" the sequence's lock alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "arena/pool_map.h"
#include "kvcache/state_plan.h"
#include "kvcache/token_tree.h"
#include "sequence/sequence_state.h"

namespace kvcache::speculate {

using arena::ItemId;

// The rows that a verdict keeps: the first `count`, or those of `path`.
struct KeptRows {
  std::uint64_t count = 0;
  std::span<const std::int32_t> path = {};  // as long as `count`; empty for the first rows

  std::uint64_t row(std::uint64_t i) const {
    return path.empty() ? i : static_cast<std::uint64_t>(path[i]);
  }
  std::uint64_t last() const { return row(count - 1); }
};

class VerifyState {
 public:
  // Own. kInvalidArgument: the sequence does not know exactly one token that has not run, or some
  // layer is already written past length().
  static Status check_begin(const sequence::SequenceState& state);
  // kInvalidArgument: not one node for each row. kUnsupported: a tree with more than one path, and
  // streams, whose records pool consecutive positions.
  static Status check_tree(const StatePlan& plan, const TokenTree& tree, std::uint64_t drafts);

  // Rows: the token that has not run, then `drafts`, one after the other or as `tree` says.
  // REQUIRES: check_begin() and check_tree() are ok.
  VerifyState(const StatePlan& plan, const arena::PoolMap& pools,
              const sequence::SequenceState& state, std::span<const std::int32_t> drafts,
              std::optional<TokenTree> tree = {}, VerifyStrategy strategy = VerifyStrategy::kSteps);
  // kUnsupported: the plan has no stash for `strategy`. kInvalidArgument: more rows than it holds.
  static Status check_strategy(const StatePlan& plan, VerifyStrategy strategy, std::uint64_t rows);

  // Own. The slots it needs, and room for them; then those slots. By another strategy than kSteps a
  // verify needs none, unless some tensor is not one that folds or want_slots() was called.
  std::uint64_t slots_needed() const { return wants_slots_ ? rows() : 0; }
  void want_slots() { wants_slots_ = pool_ != nullptr; }
  void reserve_slots() { slots_.reserve(slots_needed()); }
  void hold_slots(std::span<const ItemId> slots) { slots_.assign(slots.begin(), slots.end()); }
  // Own. Who runs the rows finds the slots by a table: they are filled without take().
  void fill_by_table() {
    by_table_ = true;
    want_slots();
  }
  // Locked. Gives the slots back; the object is spent.
  void release();

  bool is_tree() const { return tree_.has_value(); }
  bool has_slots() const { return !slots_.empty(); }
  std::uint64_t start() const { return start_; }  // position of row 0
  std::span<const ItemId> slots() const { return slots_; }
  std::uint64_t rows() const { return tokens_.size(); }
  const std::vector<std::int32_t>& tokens() const { return tokens_; }
  VerifyStrategy strategy() const { return strategy_; }
  // What row `row` stands at; its rows of attention state are stored at start() + row.
  std::uint64_t position(std::uint64_t row) const;
  // kInvalidArgument: `rows` are not the first ones, or a path of the tree.
  Status check_rows(const KeptRows& rows) const;

  // Own. The slot of `row`, with `component` filled as the start of an update when it is taken for
  // the first time. REQUIRES: row < rows(), slots were taken and have memory.
  ItemId take(std::uint64_t row, const FixedComponent& component, const std::byte* live);
  // Own. Whether that of any row was.
  bool is_taken(const FixedComponent& component) const;
  // Own. kInvalidArgument: a tensor of `row` was never taken, so that its bytes are not the state
  // after that row. Those of `stashed`, by StatePlan::fixed(), are not asked for.
  Status check_taken(std::uint64_t row, const std::vector<bool>& stashed) const;
  // Own. Copies the state after `row` to `live`, but for what is stashed. REQUIRES: check_taken()
  // is ok.
  void adopt(std::uint64_t row, const std::vector<bool>& stashed, std::byte* live) const;

 private:
  // The row that `row` follows. REQUIRES: row > 0.
  std::uint64_t parent(std::uint64_t row) const;

  const StatePlan* plan_;
  arena::Pool* pool_;  // null without fixed-size state
  std::uint64_t start_;
  std::vector<std::int32_t> tokens_;
  VerifyStrategy strategy_;
  std::optional<TokenTree> tree_;  // empty where each row follows the one before it
  std::vector<ItemId> slots_;      // by row
  // Empty before the first is taken.
  std::vector<bool> taken_;                 // by row, then by component in declared order
  std::vector<std::uint32_t> taken_count_;  // by row
  bool by_table_ = false;
  bool wants_slots_ = false;
};

}  // namespace kvcache::speculate
