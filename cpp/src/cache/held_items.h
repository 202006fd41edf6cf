// Pages and snapshots that stay while nobody holds the cache's lock.
// Thread safety: thread-compatible; takes the cache's lock when it goes.
#pragma once

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "cache/cache_core.h"

namespace kvcache {

// Not to be destroyed while the cache's lock is held.
struct HeldItems {
  explicit HeldItems(CacheCore& core_value)
      : core(core_value), pages(core_value.pools.pages.size()) {}
  HeldItems(const HeldItems&) = delete;
  HeldItems& operator=(const HeldItems&) = delete;
  ~HeldItems() {
    const std::lock_guard lock(core.mutex);
    for (std::size_t group = 0; group < pages.size(); ++group) {
      core.pools.pages[group]->release_many(pages[group]);
    }
    if (core.pools.snapshots != nullptr) core.pools.snapshots->release_many(snapshots);
  }

  // Locked. REQUIRES: nothing is held.
  void retain(prefix::BlockTables more_pages, std::vector<arena::ItemId> more_snapshots) noexcept {
    pages = std::move(more_pages);
    snapshots = std::move(more_snapshots);
    for (std::size_t group = 0; group < pages.size(); ++group) {
      core.pools.pages[group]->retain_many(pages[group]);
    }
    if (core.pools.snapshots != nullptr) core.pools.snapshots->retain_many(snapshots);
  }

  CacheCore& core;
  prefix::BlockTables pages;  // by group; kNoItem is none
  std::vector<arena::ItemId> snapshots;
};

}  // namespace kvcache
