// Which pool of the arena holds what: a page pool for each group of the plan, then slots, snapshots
// of each format, the decode ring and the carry stashes when the model has fixed-size state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "arena/arena.h"
#include "kvcache/snapshot.h"
#include "kvcache/state_plan.h"

namespace kvcache::arena {

// The state after `position` positions, an item in the pool of its format.
struct SnapshotRef {
  std::uint64_t position = 0;
  ItemId item = kNoItem;
  SnapshotFormat format = SnapshotFormat::kExact;
  std::uint8_t kind = 1;  // why it was taken, for the index: other than at an interval
};

struct PoolMap {
  std::vector<Pool*> pages;   // by group
  Pool* slots = nullptr;      // null without fixed-size state
  Pool* snapshots = nullptr;  // likewise; exact ones, and the copies of verify sessions
  std::array<Pool*, kSnapshotFormats> by_format = {};  // likewise; the first is `snapshots`
  Pool* ring = nullptr;                                // likewise, or without a decode ring
  Pool* stashes = nullptr;                             // likewise, or without a carry stash

  Pool& of(SnapshotFormat format) const { return *by_format[static_cast<std::size_t>(format)]; }
  Pool& of(const SnapshotRef& ref) const { return of(ref.format); }
  // Of a snapshot that may hold no state.
  void retain(const SnapshotRef& ref) const {
    if (ref.item != kNoItem) of(ref).retain(ref.item);
  }
  void release(const SnapshotRef& ref) const {
    if (ref.item != kNoItem) of(ref).release(ref.item);
  }
};

// The pools a plan asks for, in the order that map_pools() reads them back.
std::vector<PoolSpec> pool_specs(const StatePlan& plan, std::uint64_t max_blocks);
PoolMap map_pools(const StatePlan& plan, Arena& arena);

// Where items come from when a pool is full: the owner of the prefix index evicts and tries again.
class ItemSource {
 public:
  virtual ~ItemSource() = default;
  // kOutOfCapacity: nothing is left to evict; nothing was changed but what was evicted.
  virtual Result<ItemId> allocate(Pool& pool) = 0;
  // As many as `items` takes, ascending; all of them or none.
  virtual Status allocate_many(Pool& pool, std::span<ItemId> items) = 0;
};

}  // namespace kvcache::arena
