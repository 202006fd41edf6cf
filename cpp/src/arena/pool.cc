#include "arena/pool.h"

#include <sys/mman.h>

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
      max_spans_(arena.budget_bytes() / geometry_.bytes),
      max_items_(max_items == 0 ? kMaxItems : max_items),
      base_(base) {}

Result<ItemId> Pool::allocate() {
  if (at_limit()) {
    return Status::out_of_capacity(name_, ": all ", max_items_, " items are live");
  }
  auto id = free_items_.first();
  if (!id) {
    if (Status status = commit_span(); !status) return status;
    id = free_items_.first();
  }
  const auto item = static_cast<ItemId>(*id);
  const std::size_t span = *id / geometry_.items;
  free_items_.erase(*id);
  if (span_live_[span]++ == 0) idle_spans_.erase(span);
  items_[item] = {1, 0};
  ++live_items_;
  return item;
}

void Pool::retain(ItemId id) {
  KVCACHE_CHECK(items_[id].refs > 0);
  ++items_[id].refs;
}

void Pool::release(ItemId id) {
  KVCACHE_CHECK(items_[id].refs > items_[id].indexed);
  if (--items_[id].refs == 0) free_item(id);
}

void Pool::retain_indexed(ItemId id) {
  retain(id);
  ++items_[id].indexed;
}

void Pool::release_indexed(ItemId id) {
  KVCACHE_CHECK(items_[id].indexed > 0);
  --items_[id].indexed;
  release(id);
}

void Pool::free_item(ItemId id) {
  const std::size_t span = static_cast<std::size_t>(id) / geometry_.items;
  free_items_.insert(static_cast<std::size_t>(id));
  if (--span_live_[span] == 0) idle_spans_.insert(span);
  --live_items_;
}

Status Pool::commit_span() {
  const auto reusable = free_spans_.first();
  const std::size_t span = reusable ? *reusable : span_live_.size();
  const bool addressable = span < max_spans_ && (span + 1) * geometry_.items <= kMaxItems + 1;
  if (!addressable || !arena_.make_room(geometry_.bytes)) {
    return Status::out_of_capacity(name_, ": asked ", geometry_.bytes, " bytes, ",
                                   arena_.budget_bytes() - arena_.committed_bytes(), " of ",
                                   arena_.budget_bytes(),
                                   " bytes are free; close sequences or raise the plan's memory");
  }
  if (reusable) {
    free_spans_.erase(span);
  } else {
    items_.resize((span + 1) * geometry_.items);
    span_live_.push_back(0);
    free_items_.grow(items_.size());
    free_spans_.grow(span_live_.size());
    idle_spans_.grow(span_live_.size());
  }
  idle_spans_.insert(span);
  for (std::size_t i = 0; i < geometry_.items; ++i) free_items_.insert(span * geometry_.items + i);
  ++committed_spans_;
  arena_.committed_bytes_ += geometry_.bytes;
  arena_.peak_bytes_ = std::max(arena_.peak_bytes_, arena_.committed_bytes_);
  return Status::ok();
}

bool Pool::release_idle_span() {
  const auto span = idle_spans_.first();
  if (!span) return false;
  idle_spans_.erase(*span);
  for (std::size_t i = 0; i < geometry_.items; ++i) free_items_.erase(*span * geometry_.items + i);
  free_spans_.insert(*span);
  --committed_spans_;
  arena_.committed_bytes_ -= geometry_.bytes;
  if (base_ != nullptr) {
    // Cannot fail for a private mapping of ours; the bytes go back to the system at once.
    madvise(base_ + *span * geometry_.bytes, geometry_.bytes, MADV_DONTNEED);
  }
  return true;
}

}  // namespace kvcache::arena
