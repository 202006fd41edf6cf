// What LRU would have stored with as many blocks: the meter's other side, and the price list's
// floor.
#include <algorithm>
#include <utility>

#include "evict/price_list.h"

namespace kvcache::evict {

void PriceList::set_stored(RecordId id, std::uint32_t blocks) {
  const std::uint32_t before = history_[id].owed();
  history_.store(id, blocks);
  const std::uint32_t after = history_[id].owed();
  if (after > before) history_[id].cheap = true;
  after > before ? debt_.lend(after - before) : debt_.repay(before - after);
}

// Of a listed record, which side of the drawers it is on may change.
void PriceList::set_shadow(RecordId id, std::uint32_t blocks) {
  Record& record = history_[id];
  const bool moves = record.listed && record.shadowed() != (blocks >= record.stored);
  if (moves) drawers_.remove(history_, id);
  const std::uint32_t before = record.owed();
  shadow_blocks_ += blocks;
  shadow_blocks_ -= record.shadow;
  record.shadow = blocks;
  if (record.owed() < before) debt_.repay(before - record.owed());
  if (moves) drawers_.insert(history_, id, false);
}

// Serves path_ from what LRU would have, and lets LRU have it.
void PriceList::meter_path() {
  for (const RecordId id : path_) {
    meter_.lru_hit_blocks += history_[id].shadow;
    if (history_[id].shadow < history_[id].blocks()) break;
  }
  std::uint64_t blocks = 0;
  for (auto id = path_.rbegin(); id != path_.rend(); ++id) {
    Record& record = history_[*id];
    if (std::exchange(record.cheap, false)) debt_.found(record.shadow);
    if (record.shadow > 0) recency_.remove(history_, *id);
    set_shadow(*id, record.blocks());
    recency_.push_back(history_, *id);
    blocks += record.blocks();
  }
  while (shadow_blocks_ > capacity_blocks_ && !recency_.empty()) {
    const RecordId oldest = recency_.front();
    const std::uint32_t have = history_[oldest].shadow;
    const auto excess = std::min<std::uint64_t>(have, shadow_blocks_ - capacity_blocks_);
    if (history_[oldest].cheap) debt_.expired(excess);
    set_shadow(oldest, have - static_cast<std::uint32_t>(excess));
    if (history_[oldest].shadow == 0) recency_.remove(history_, oldest);
  }
  debt_.request(blocks, meter_.hit_blocks - metered_.hit_blocks,
                meter_.lru_hit_blocks - metered_.lru_hit_blocks, shadow_blocks_);
  metered_ = meter_;
}

}  // namespace kvcache::evict
