// Pages for rows that are about to come, of several sequences: for all of them or for none.
// Thread safety: "own" and "locked" as in sequence_state.h, for every sequence named.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "arena/pool_map.h"
#include "sequence/sequence_state.h"

namespace kvcache::sequence {

struct RowsAhead {
  SequenceState* state = nullptr;
  std::uint64_t start = 0;
  std::uint64_t stop = 0;
};

// Own. True when the blocks of all rows are their sequence's own already.
bool pages_ready(std::span<const RowsAhead> rows, std::span<const std::size_t> groups);

// Locked. Makes the blocks of all rows writable in `groups` and adds the copies that this needs.
// kOutOfCapacity: no block table is changed.
Status take_pages(std::span<const RowsAhead> rows, std::span<const std::size_t> groups,
                  const arena::PoolMap& pools, arena::ItemSource& source,
                  std::vector<PageCopy>& copies);

}  // namespace kvcache::sequence
