// Hands out equal items by id, counted by references. Items live in spans that the pool takes from
// the arena's budget and that return to it when their last item is released.
// Thread safety: thread-compatible; the cache's lock guards it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "arena/free_bitmap.h"
#include "base/check.h"
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
  // `base` is null without backing.
  Pool(Arena& arena, std::string name, std::uint64_t item_bytes, std::uint64_t max_items,
       std::byte* base);

  // One item with one reference, contents unspecified. O(log64 n).
  // kOutOfCapacity: neither a free item nor room for a span; nothing was changed.
  Result<ItemId> allocate();
  // The same for ids.size() items, ascending; all of them or none.
  Status allocate_many(std::span<ItemId> ids);

  // References. An item with none is free again and its id may be handed out anew.
  // REQUIRES: `id` is live.
  void retain(ItemId id);
  void release(ItemId id);
  // Holes are passed over.
  void retain_many(std::span<const ItemId> ids);
  void release_many(std::span<const ItemId> ids);
  // release_many() of ids from outside, which may be of any value and repeat. Returns how many of
  // them are live, counted to the first that is not; less than all of them: nothing was released.
  std::size_t try_release(std::span<const ItemId> ids);

  // The prefix index counts its references apart, so that eviction can tell whether releasing
  // them would free anything. They are included in refs().
  void retain_indexed(ItemId id);
  void release_indexed(ItemId id);
  // All of them at once. O(items).
  void release_all_indexed() noexcept;
  std::uint32_t refs(ItemId id) const { return items_[id].refs; }
  std::uint32_t indexed(ItemId id) const { return items_[id].indexed; }
  // Items that the index holds.
  std::uint64_t indexed_items() const { return indexed_items_; }
  // True when somebody else than the index holds the item.
  bool in_use(ItemId id) const { return items_[id].refs > items_[id].indexed; }
  // Whether `id` may be passed to the calls above; any number is answered.
  bool is_live(ItemId id) const {
    return id >= 0 && static_cast<std::size_t>(id) < items_.size() && items_[id].refs > 0;
  }

  // First byte of an item; null without backing. Any thread, while the item is live.
  std::byte* data(ItemId id) const {
    if (base_ == nullptr) return nullptr;
    KVCACHE_CHECK(id != kNoItem);
    return base_ + static_cast<std::uint64_t>(id) * geometry_.item_stride;
  }

  // Bytes from one item to the next, the same for all; ids are below addressable_items().
  std::uint64_t item_stride() const { return geometry_.item_stride; }
  std::uint64_t addressable_items() const {
    return std::min(max_spans_ * geometry_.items, kMaxItems + 1);
  }

  const std::string& name() const { return name_; }
  // Ids that were ever handed out are below.
  ItemId known_items() const { return static_cast<ItemId>(items_.size()); }
  std::uint64_t item_bytes() const { return item_bytes_; }
  std::uint64_t live_items() const { return live_items_; }
  bool at_limit() const { return live_items_ >= max_items_; }
  std::uint64_t committed_bytes() const { return committed_spans_ * geometry_.bytes; }
  // Of committed spans without a live item: any pool may have them.
  std::uint64_t idle_bytes() const { return idle_count_ * geometry_.bytes; }
  // Of spans with an item that is in_use(). O(items).
  std::uint64_t in_use_bytes() const;
  std::uint64_t span_bytes() const { return geometry_.bytes; }
  // What the pool itself needs to know its items.
  std::uint64_t metadata_bytes() const;

 private:
  friend class Arena;

  struct Item {
    std::uint32_t refs = 0;
    std::uint32_t indexed = 0;
  };

  // Sees to it that `count` items are free, all or none.
  Status provide(std::uint64_t count);
  Status commit_span();
  void grow(std::size_t spans);
  // The highest idle span goes back to the arena. False: there is none.
  bool release_idle_span();
  void claim(ItemId id);
  void free_item(ItemId id);
  std::uint64_t free_items() const { return committed_spans_ * geometry_.items - live_items_; }
  // A span of one item is idle when the item is free.
  FreeBitmap& idle_spans() { return one_item_ ? free_items_ : idle_spans_; }

  Arena& arena_;
  const std::string name_;
  const std::uint64_t item_bytes_;
  const SpanGeometry geometry_;
  const bool one_item_;  // a span holds one item: no need to count per span
  const std::uint64_t max_spans_;
  const std::uint64_t max_items_;
  std::byte* const base_;

  std::vector<Item> items_;               // up to the highest span ever committed
  std::vector<std::uint32_t> span_live_;  // live items of each span; empty with one_item_
  FreeBitmap free_items_;                 // of committed spans
  FreeBitmap free_spans_;                 // seen before, not committed
  FreeBitmap idle_spans_;                 // committed, without a live item; unused with one_item_
  std::uint64_t indexed_items_ = 0;
  std::uint64_t live_items_ = 0;
  std::uint64_t known_spans_ = 0;  // ever committed; the tables are at least as long
  std::uint64_t committed_spans_ = 0;
  std::uint64_t idle_count_ = 0;
};

}  // namespace kvcache::arena
