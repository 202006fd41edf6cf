#include "sequence/decode_ring.h"

#include <algorithm>

#include "base/check.h"

namespace kvcache::sequence {

Result<ItemId> DecodeRing::record(std::uint64_t position, arena::ItemSource& source) {
  KVCACHE_CHECK(depth_ > 0);
  entries_.reserve(depth_);
  const auto owner = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.slot == cursor_; });
  ItemId item = kNoItem;
  if (owner != entries_.end()) {
    item = owner->item;
    entries_.erase(owner);
  } else {
    auto fresh = source.allocate(*pool_);
    if (!fresh) return fresh.status();
    item = *fresh;
  }
  entries_.push_back({position, cursor_, item});
  cursor_ = (cursor_ + 1) % depth_;
  return item;
}

ItemId DecodeRing::item_at(std::uint64_t position) const {
  const auto found = std::find_if(entries_.rbegin(), entries_.rend(),
                                  [&](const Entry& entry) { return entry.position == position; });
  return found == entries_.rend() ? kNoItem : found->item;
}

void DecodeRing::truncate_after(std::uint64_t position) {
  if (depth_ == 0) return;
  std::erase_if(entries_, [&](const Entry& entry) {
    if (entry.position <= position) return false;
    pool_->release(entry.item);
    return true;
  });
  cursor_ = entries_.empty() ? 0 : (entries_.back().slot + 1) % depth_;
}

void DecodeRing::clear() {
  for (const Entry& entry : entries_) pool_->release(entry.item);
  entries_.clear();
  cursor_ = 0;
}

std::vector<std::uint64_t> DecodeRing::positions() const {
  std::vector<std::uint64_t> positions;
  for (const Entry& entry : entries_) positions.push_back(entry.position);
  return positions;
}

}  // namespace kvcache::sequence
