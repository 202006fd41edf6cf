// Prefixes that end by themselves: they are not found any more, and go before anything else does.
#include "prefix/radix_index.h"

namespace kvcache::prefix {

// Drops a run whose time is over. None lies below it that may stay. False: there is none.
bool RadixIndex::expire_one() {
  while (const auto next = lives_.next(now_)) {
    NodeId id = *next;
    if (pins_.covers(id)) {
      lives_.pause(id);
      continue;
    }
    while (nodes_[id].first_child != kNoNode) id = nodes_[id].first_child;
    const NodeId above = nodes_[id].parent;
    counts_.expired_blocks += blocks_to(nodes_[id].end()) - block_of(nodes_[id].start);
    leaving_ = MissReason::kExpired;
    remove_leaf(id);
    leaving_ = MissReason::kEvicted;
    settle(above);
    return true;
  }
  return false;
}

std::uint64_t RadixIndex::drop_expired() {
  const auto change = begin_change();
  reap(SIZE_MAX);
  lapse();
  const std::uint64_t before = counts_.expired_blocks;
  while (expire_one()) {
  }
  return counts_.expired_blocks - before;
}

}  // namespace kvcache::prefix
