// The inputs of one sequence's latest rows, kept instead of its fixed-size state after each of them
// (strategies "replay" and "carry"). Accepted rows that wait here belong to the sequence: whoever
// reads its live state has them folded first. The stash stays where it is until the sequence ends,
// so that kernels may keep its address.
// Thread safety: thread-compatible; "locked" means the sequence's lock and the cache's lock, "own"
// the sequence's lock alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "arena/pool_map.h"
#include "kvcache/state_plan.h"
#include "kvcache/verify.h"
#include "speculate/verify.h"

namespace kvcache::speculate {

class CarryStash {
 public:
  // `pool` is null without a stash.
  CarryStash(const StatePlan& plan, arena::Pool* pool);

  // Locked. Takes its place for the first time; no row waits there.
  Status take(arena::ItemSource& source);
  void release();  // locked: what waits is lost
  arena::Pool* pool() const { return pool_; }
  ItemId item() const { return item_; }

  // Own. Accepted rows that wait to be folded: the most of any layer, and those of one tensor.
  std::uint64_t pending() const;
  std::uint64_t pending(const FixedComponent& component) const;

  // ---- Readers of the live state (own) ----
  void flush(std::byte* live);  // folds what waits
  // The same for the layer of one tensor.
  void flush_layer(const FixedComponent& component, std::byte* live);
  void drop();  // forgets what waits, for a state that is about to be overwritten

  // ---- A verify (own) ----
  // Makes room for `rows` rows after those that wait, which are folded where they do not fit or
  // where the verify does not `carry`. REQUIRES: rows <= StatePlan's stash_rows, the stash is
  // taken.
  void begin(std::uint64_t rows, bool carry, std::byte* live);
  // Keeps the inputs of all rows for one tensor. kInvalidArgument: inputs that do not fit it.
  // kUnsupported: nothing folds it.
  Status put(const FixedComponent& component, const StashInputs& inputs);
  // Whose inputs are there, by StatePlan::fixed(), so that commit() needs no state of them.
  const std::vector<bool>& put() const { return put_; }
  bool is_put(const FixedComponent& component) const { return put_[index_of(component)]; }
  // The same for a layer of StashLayout, whose inputs a kernel has stored behind what waits.
  void engage(std::size_t layer);
  // kInvalidArgument: some tensors of a layer are stashed and others are not.
  Status check_whole(std::string_view call) const;
  // The rows that were kept follow those that wait, in layers whose inputs are there; without
  // `carry` they are folded. REQUIRES: check_whole() is ok.
  void commit(const KeptRows& kept, bool carry, std::byte* live);
  // Locked. The inputs of a verify that has ended are nobody's. One that has not `begun` gives the
  // place back that it took.
  void end(bool begun);

  // Where a tensor's rows lie; null where nothing folds it.
  const StashComponent* find(const FixedComponent& component) const;
  // Null until it is taken, which a verify by steps alone never does.
  std::byte* data() const { return item_ == arena::kNoItem ? nullptr : pool_->data(item_); }

 private:
  struct Layer {
    std::uint64_t pending = 0;
    std::uint64_t first = 0;  // where the rows of this verify begin
  };

  std::size_t index_of(const FixedComponent& component) const {
    return static_cast<std::size_t>(&component - plan_->fixed().data());
  }
  void set_pending(std::size_t layer, std::uint64_t rows);
  void flush_layer(std::size_t layer, std::byte* live);
  void fold(const StashComponent& part, std::uint64_t first, std::uint64_t rows, std::byte* live);
  void move_row(const StashComponent& part, std::uint64_t from, std::uint64_t to);

  const StatePlan* plan_;
  arena::Pool* pool_;
  ItemId item_ = arena::kNoItem;
  bool is_new_ = false;                                     // by a verify that has not ended
  std::uint64_t rows_ = 0;                                  // of the verify
  std::vector<Layer> layers_;                               // by StashLayout::layers
  std::vector<bool> put_;                                   // by StatePlan::fixed()
  std::vector<std::pair<std::size_t, std::size_t>> place_;  // by StatePlan::fixed(): layer, part
};

}  // namespace kvcache::speculate
