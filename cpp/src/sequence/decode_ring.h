// The decode ring of one sequence: the last few copies of its fixed-size state, each at a position
// to which decoding may be rolled back. Slots are used in turn; an entry is dropped when its slot
// is used again, and not for its age.
// Thread safety: thread-compatible; "locked" means the sequence's lock and the cache's lock, "own"
// the sequence's lock alone.
#pragma once

#include <cstdint>
#include <vector>

#include "arena/pool_map.h"
#include "kvcache/status.h"

namespace kvcache::sequence {

using arena::ItemId;
using arena::kNoItem;
using arena::Pool;

class DecodeRing {
 public:
  // `pool` may be null where `depth` is 0.
  DecodeRing(Pool* pool, std::uint32_t depth) : pool_(pool), depth_(depth) {}

  // Locked. Makes the next slot hold `position` and returns its item, whose bytes the caller
  // overwrites. REQUIRES: depth > 0. kOutOfCapacity: no entry was dropped.
  Result<ItemId> record(std::uint64_t position, arena::ItemSource& source);
  // Own. The item recorded last at exactly `position`, or kNoItem.
  ItemId item_at(std::uint64_t position) const;
  // Locked. Drops entries beyond `position`; the slot after the newest that stays is next, or the
  // first one when none stays.
  void truncate_after(std::uint64_t position);
  // Locked. Drops all entries.
  void clear();

  std::vector<std::uint64_t> positions() const;  // own; oldest record first

 private:
  struct Entry {
    std::uint64_t position = 0;
    std::uint32_t slot = 0;
    ItemId item = kNoItem;
  };

  Pool* pool_;
  std::uint32_t depth_;
  std::uint32_t cursor_ = 0;    // slot of the next record
  std::vector<Entry> entries_;  // by time of recording
};

}  // namespace kvcache::sequence
