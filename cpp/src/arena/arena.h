// One byte budget and one reserved mapping for every pool of a cache. A pool owns a range of
// addresses as long as the whole budget; only the spans it has taken are backed by memory, so the
// budget moves between pages, slots and snapshots with the load and no item ever moves.
// Thread safety: thread-compatible; the cache's lock guards it. data() of a live item is free of
// that rule: addresses never change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arena/pool.h"
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
  // null: a ledger that counts but stores nothing.
  // kInvalidArgument: an item of 0 bytes, or more items than 2^31-1, the ids of a block table.
  // kOutOfCapacity: the address space is refused by the system.
  static Result<std::unique_ptr<Arena>> create(std::uint64_t budget_bytes,
                                               const std::vector<PoolSpec>& pools, bool backing);
  ~Arena();
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

 private:
  friend class Pool;

  Arena() = default;
  // Bytes that `taker` may commit: never committed ones, and idle spans of other pools.
  std::uint64_t room_for(const Pool& taker) const;
  // Gives back idle spans of other pools until `bytes` fit. REQUIRES: bytes <= room_for(taker).
  void make_room(std::uint64_t bytes, const Pool& taker);
  // The span at base + offset is no longer used.
  void drop(std::byte* base, std::uint64_t offset, std::uint64_t bytes);

  std::uint64_t budget_bytes_ = 0;
  std::uint64_t max_bytes_ = 0;
  std::uint64_t committed_bytes_ = 0;
  std::uint64_t idle_bytes_ = 0;
  std::uint64_t peak_bytes_ = 0;
  std::byte* base_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::vector<std::unique_ptr<Pool>> pools_;
};

}  // namespace kvcache::arena
