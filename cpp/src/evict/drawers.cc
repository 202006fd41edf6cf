#include "evict/drawers.h"

#include <algorithm>

namespace kvcache::evict {

void Drawers::sort(const HazardTable& hazards) {
  const auto all = static_cast<std::size_t>(hazards.classes()) * kAgeBuckets;
  rank_.resize(all);
  group_end_.resize(all);
  while (order_.size() < all) order_.push_back(static_cast<std::uint32_t>(order_.size()));
  prices_.resize(all);
  for (std::uint32_t cell = 0; cell < all; ++cell) {
    prices_[cell] =
        hazards.price(static_cast<int>(cell) / kAgeBuckets, static_cast<int>(cell) % kAgeBuckets);
  }
  const auto price = [&](std::uint32_t cell) { return prices_[cell]; };
  // Stable, and from the order before: most prices have hardly moved.
  std::stable_sort(order_.begin(), order_.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return price(a) < price(b); });
  for (Side& each : sides_) {
    each.lists.resize(all, RecordList(&Record::drawer));
    each.filled.assign(all / 64 + 1, 0);
  }
  const auto cells = static_cast<std::uint32_t>(order_.size());
  for (std::uint32_t rank = cells; rank-- > 0;) {
    const std::uint32_t cell = order_[rank];
    rank_[cell] = rank;
    const bool same = rank + 1 < cells && price(order_[rank + 1]) == price(cell);
    group_end_[rank] = same ? group_end_[rank + 1] : rank + 1;
    for (Side& each : sides_) {
      if (!each.lists[cell].empty()) each.filled[rank / 64] |= bit(rank);
    }
  }
}

}  // namespace kvcache::evict
