#include "arena/pool.h"

#include <algorithm>
#include <utility>

#include "arena/arena.h"
#include "base/check.h"

namespace kvcache::arena {

Pool::Pool(Arena& arena, std::string name, std::uint64_t item_bytes, std::uint64_t max_items,
           std::byte* base)
    : arena_(arena),
      name_(std::move(name)),
      item_bytes_(item_bytes),
      geometry_(span_geometry(item_bytes)),
      one_item_(geometry_.items == 1),
      max_spans_(arena.max_bytes() / geometry_.bytes),
      max_items_(max_items == 0 ? kMaxItems : max_items),
      base_(base) {}

// ---- Taking -----------------------------------------------------------------------------------

Result<ItemId> Pool::allocate() {
  if (free_items() == 0 || at_limit()) {
    if (Status status = provide(1); !status) return status;
  }
  const std::size_t id = *free_items_.first();
  free_items_.erase(id);
  claim(static_cast<ItemId>(id));
  return static_cast<ItemId>(id);
}

Status Pool::allocate_many(std::span<ItemId> ids) {
  if (Status status = provide(ids.size()); !status) return status;
  KVCACHE_CHECK(free_items_.take(ids) == ids.size());
  for (const ItemId id : ids) claim(id);
  return Status::ok();
}

void Pool::claim(ItemId id) {
  items_[id] = {1, 0};
  ++live_items_;
  if (!one_item_) {
    const std::size_t span = static_cast<std::uint32_t>(id) / geometry_.items;
    if (span_live_[span]++ > 0) return;
    idle_spans_.erase(span);
  }
  --idle_count_;
  arena_.idle_bytes_ -= geometry_.bytes;
}

Status Pool::provide(std::uint64_t count) {
  if (count > max_items_ - live_items_) {
    if (live_items_ == max_items_) {
      return Status::out_of_capacity(name_, ": all ", max_items_, " items are live");
    }
    return Status::out_of_capacity(name_, ": asked ", count, " items, ", max_items_ - live_items_,
                                   " of ", max_items_, " are free");
  }
  if (count <= free_items()) return Status::ok();
  const std::uint64_t spans = ceil_div(count - free_items(), geometry_.items);
  const std::uint64_t spans_left =
      std::min(max_spans_, kMaxItems / geometry_.items) - committed_spans_;
  const std::uint64_t room = arena_.room_for(*this);
  if (spans > spans_left || spans > room / geometry_.bytes) {
    return Status::out_of_capacity(name_, ": asked ", spans * geometry_.bytes, " bytes, ", room,
                                   " of ", arena_.budget_bytes(),
                                   " bytes are free; close sequences or raise the plan's memory");
  }
  for (std::uint64_t i = 0; i < spans; ++i) {
    if (Status status = commit_span(); !status) return status;
  }
  return Status::ok();
}

Status Pool::commit_span() {
  const auto reusable = free_spans_.first();
  const std::size_t span = reusable.value_or(known_spans_);
  if (!reusable) grow(span + 1);
  if (Status status = arena_.commit(*this, span * geometry_.bytes, geometry_.bytes); !status) {
    return status;
  }
  if (reusable) {
    free_spans_.erase(span);
  } else {
    ++known_spans_;
  }
  idle_spans().insert(span);
  for (std::size_t i = 0; i < geometry_.items; ++i) free_items_.insert(span * geometry_.items + i);
  ++committed_spans_;
  ++idle_count_;
  arena_.idle_bytes_ += geometry_.bytes;
  return Status::ok();
}

// Room to know `spans` of them. Where memory for that runs out, the next try goes on from there.
void Pool::grow(std::size_t spans) {
  const std::size_t items = spans * geometry_.items;
  if (items_.size() < items) items_.resize(items);
  free_items_.grow(items);
  free_spans_.grow(spans);
  if (one_item_) return;
  if (span_live_.size() < spans) span_live_.resize(spans);
  idle_spans_.grow(spans);
}

// ---- References -------------------------------------------------------------------------------

void Pool::retain(ItemId id) {
  KVCACHE_CHECK(items_[id].refs > 0);
  ++items_[id].refs;
}

void Pool::release(ItemId id) {
  KVCACHE_CHECK(items_[id].refs > items_[id].indexed);
  if (--items_[id].refs == 0) free_item(id);
}

void Pool::retain_many(std::span<const ItemId> ids) {
  for (const ItemId id : ids) {
    if (id != kNoItem) retain(id);
  }
}

void Pool::release_many(std::span<const ItemId> ids) {
  for (const ItemId id : ids) {
    if (id != kNoItem) release(id);
  }
}

std::size_t Pool::try_release(std::span<const ItemId> ids) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (is_live(ids[i]) && items_[ids[i]].refs > items_[ids[i]].indexed) {
      --items_[ids[i]].refs;
      continue;
    }
    for (std::size_t undone = 0; undone < i; ++undone) ++items_[ids[undone]].refs;
    return i;
  }
  for (const ItemId id : ids) {
    // An id that is in the list twice is freed once.
    if (items_[id].refs == 0 && !free_items_.contains(static_cast<std::size_t>(id))) free_item(id);
  }
  return ids.size();
}

void Pool::retain_indexed(ItemId id) {
  retain(id);
  if (items_[id].indexed++ == 0) ++indexed_items_;
}

void Pool::release_indexed(ItemId id) {
  KVCACHE_CHECK(items_[id].indexed > 0);
  if (--items_[id].indexed == 0) --indexed_items_;
  release(id);
}

void Pool::release_all_indexed() noexcept {
  for (std::size_t id = 0; indexed_items_ > 0 && id < items_.size(); ++id) {
    Item& item = items_[id];
    if (item.indexed == 0) continue;
    item.refs -= std::exchange(item.indexed, 0);
    --indexed_items_;
    if (item.refs == 0) free_item(static_cast<ItemId>(id));
  }
}

void Pool::free_item(ItemId id) {
  free_items_.insert(static_cast<std::size_t>(id));
  --live_items_;
  if (!one_item_) {
    const std::size_t span = static_cast<std::uint32_t>(id) / geometry_.items;
    if (--span_live_[span] > 0) return;
    idle_spans_.insert(span);
  }
  ++idle_count_;
  arena_.idle_bytes_ += geometry_.bytes;
}

// ---- Giving back ------------------------------------------------------------------------------

bool Pool::release_idle_span() {
  const auto span = idle_spans().last();
  if (!span) return false;
  if (!one_item_) idle_spans_.erase(*span);
  for (std::size_t i = 0; i < geometry_.items; ++i) free_items_.erase(*span * geometry_.items + i);
  free_spans_.insert(*span);
  --committed_spans_;
  --idle_count_;
  arena_.idle_bytes_ -= geometry_.bytes;
  arena_.give_back(*this, *span * geometry_.bytes, geometry_.bytes);
  return true;
}

std::uint64_t Pool::in_use_bytes() const {
  std::uint64_t spans = 0;
  for (std::size_t first = 0; first < items_.size(); first += geometry_.items) {
    const auto begin = items_.begin() + static_cast<std::ptrdiff_t>(first);
    spans += std::any_of(begin, begin + static_cast<std::ptrdiff_t>(geometry_.items),
                         [](const Item& item) { return item.refs > item.indexed; });
  }
  return spans * geometry_.bytes;
}

std::uint64_t Pool::metadata_bytes() const {
  return sizeof(*this) + items_.capacity() * sizeof(Item) +
         span_live_.capacity() * sizeof(std::uint32_t) + free_items_.memory_bytes() +
         free_spans_.memory_bytes() + idle_spans_.memory_bytes();
}

}  // namespace kvcache::arena
