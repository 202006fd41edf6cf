// One byte budget and one reserved mapping for every pool of a cache. A pool owns a range of
// addresses as long as the largest budget; only the spans it has taken are backed by memory, so the
// budget moves between pages, slots and snapshots with the load and no item ever moves.
//
// What the budget loses to fragmentation is bounded. Committed bytes are used bytes, idle spans,
// which any pool takes before an allocation is refused, and the rest, in spans with a live item:
//   - rounding of an item: less than 64 bytes up to 1 KiB, an eighth up to 32 KiB, then 4 KiB;
//   - free items beside live ones: none where an item is a span of its own (over 32 KiB); else a
//     pool never has more live spans than its most live items ever filled, 64 KiB each at most,
//     because free items are handed out lowest first and a fresh span is taken only when there is
//     none.
// Thread safety: thread-compatible; the cache's lock guards it. data() of a live item is free of
// that rule: addresses never change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arena/backing.h"
#include "arena/pool.h"
#include "kvcache/memory_options.h"
#include "kvcache/status.h"

namespace kvcache::arena {

struct PoolSpec {
  std::string name;  // for messages: "pages of group 0", "slots", "snapshots"
  std::uint64_t item_bytes = 0;
  std::uint64_t max_items = 0;  // 0: as many as the budget holds
};

class Arena {
 public:
  // Reserves addresses, takes no memory. With backing == false nothing is mapped and data() is
  // null: a ledger that counts but stores nothing. `max_bytes` is what resize() can reach; 0: the
  // machine's memory, as far as addresses and ids go.
  // kInvalidArgument: an item of 0 bytes, more items than 2^31-1, the ids of a block table, or a
  // maximum below the budget. kOutOfCapacity: the address space is refused by the system.
  // What memory_options.h says for options that the system cannot meet.
  static Result<std::unique_ptr<Arena>> create(std::uint64_t budget_bytes,
                                               const std::vector<PoolSpec>& pools, bool backing,
                                               const MemoryOptions& memory = {},
                                               std::uint64_t max_bytes = 0);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  Pool& pool(std::size_t index) { return *pools_[index]; }
  const Pool& pool(std::size_t index) const { return *pools_[index]; }

  std::uint64_t budget_bytes() const { return budget_bytes_; }
  // The most the budget could become: what every pool has addresses for.
  std::uint64_t max_bytes() const { return max_bytes_; }
  // Bytes of all spans taken, and the most they ever were. Never above the budget.
  std::uint64_t committed_bytes() const { return committed_bytes_; }
  std::uint64_t peak_bytes() const { return peak_bytes_; }
  // Exact bytes of live items: what the plan says they take.
  std::uint64_t used_bytes() const;
  // Of committed spans without a live item: any pool may have them.
  std::uint64_t idle_bytes() const { return idle_bytes_; }
  // Of spans with an item that somebody else than the index holds. O(items).
  std::uint64_t in_use_bytes() const;
  // Memory that changed pools without the kernel zeroing it, in all.
  std::uint64_t moved_bytes() const { return backing_ == nullptr ? 0 : backing_->moved_bytes(); }

  // Another budget; what is over it goes back to the system. REQUIRES: budget_bytes is at most
  // max_bytes() and at least committed_bytes() - idle_bytes().
  void resize(std::uint64_t budget_bytes);

 private:
  friend class Pool;

  Arena() = default;
  // Bytes that `taker` may commit: never committed ones, and idle spans of other pools.
  std::uint64_t room_for(const Pool& taker) const;
  // Gives back idle spans, but none of `taker`, until `limit` bytes are committed.
  void release_idle(std::uint64_t limit, const Pool* taker);
  // Makes room for a span of the taker and puts memory behind it. REQUIRES: there is room_for() it.
  Status commit(const Pool& taker, std::uint64_t offset, std::uint64_t bytes);
  // Committed bytes of the pool at `offset` are no longer used.
  void give_back(const Pool& giver, std::uint64_t offset, std::uint64_t bytes);

  std::uint64_t budget_bytes_ = 0;
  std::uint64_t max_bytes_ = 0;
  std::uint64_t committed_bytes_ = 0;
  std::uint64_t idle_bytes_ = 0;
  std::uint64_t peak_bytes_ = 0;
  std::unique_ptr<Backing> backing_;  // null for a ledger
  std::vector<std::unique_ptr<Pool>> pools_;
};

}  // namespace kvcache::arena
