// Hands out equal items by id, counted by references. Items live in spans that the pool takes from
// the arena's budget and that return to it when their last item is released.
// Thread safety: thread-compatible; the cache's lock guards it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "arena/free_bitmap.h"
#include "kvcache/status.h"
#include "layout/spans.h"

namespace kvcache::arena {

class Arena;

// Index of an item in its pool; what a block table holds. kNoItem marks a hole.
using ItemId = std::int32_t;
inline constexpr ItemId kNoItem = -1;
inline constexpr std::uint64_t kMaxItems = INT32_MAX;

class Pool {
 public:
  Pool(Arena& arena, std::string name, std::uint64_t item_bytes, std::uint64_t max_items,
       std::byte* base);

  // One item with one reference, contents unspecified. O(log64 n).
  // kOutOfCapacity: neither a free item nor room for a span; nothing was changed.
  Result<ItemId> allocate();

  // References. An item with none is free again and its id may be handed out anew.
  // REQUIRES: `id` is live.
  void retain(ItemId id);
  void release(ItemId id);

  // The prefix index counts its references apart, so that eviction can tell whether releasing
  // them would free anything. They are included in refs().
  void retain_indexed(ItemId id);
  void release_indexed(ItemId id);
  std::uint32_t refs(ItemId id) const { return items_[id].refs; }
  // True when somebody else than the index holds the item.
  bool in_use(ItemId id) const { return items_[id].refs > items_[id].indexed; }

  // First byte of an item; null without backing. Any thread, while the item is live.
  std::byte* data(ItemId id) const {
    if (base_ == nullptr) return nullptr;
    return base_ + static_cast<std::uint64_t>(id) * geometry_.item_stride;
  }

  // Bytes from one item to the next, the same for all; ids are below addressable_items().
  std::uint64_t item_stride() const { return geometry_.item_stride; }
  std::uint64_t addressable_items() const {
    return std::min(max_spans_ * geometry_.items, kMaxItems + 1);
  }

  std::uint64_t item_bytes() const { return item_bytes_; }
  std::uint64_t live_items() const { return live_items_; }
  bool at_limit() const { return live_items_ >= max_items_; }
  std::uint64_t committed_bytes() const { return committed_spans_ * geometry_.bytes; }

 private:
  friend class Arena;

  struct Item {
    std::uint32_t refs = 0;
    std::uint32_t indexed = 0;
  };

  Status commit_span();
  bool release_idle_span();
  void free_item(ItemId id);

  Arena& arena_;
  const std::string name_;
  const std::uint64_t item_bytes_;
  const SpanGeometry geometry_;
  const std::uint64_t max_spans_;
  const std::uint64_t max_items_;
  std::byte* const base_;

  std::vector<Item> items_;               // up to the highest span ever committed
  std::vector<std::uint32_t> span_live_;  // live items of each span
  FreeBitmap free_items_;                 // of committed spans
  FreeBitmap free_spans_;                 // below span_live_.size(), not committed
  FreeBitmap idle_spans_;                 // committed, without a live item
  std::uint64_t live_items_ = 0;
  std::uint64_t committed_spans_ = 0;
};

}  // namespace kvcache::arena
