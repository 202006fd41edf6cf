// The pages of one sequence in one group, by block. An entry is kNoItem where the window has
// passed. A page is owned when this sequence may write its unshared rows; any other page is shared
// and is copied before the first write.
// Thread safety: thread-compatible; the sequence's and the cache's locks guard it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "arena/pool_map.h"
#include "kvcache/retention.h"
#include "kvcache/status.h"

namespace kvcache::sequence {

using arena::ItemId;
using arena::kNoItem;
using arena::Pool;

// A shared page to be copied before it is written. `from` stays referenced until then.
struct PageCopy {
  std::size_t group = 0;
  ItemId from = kNoItem;
  ItemId to = kNoItem;
  std::uint32_t rows = 0;  // leading positions that hold state
};

class BlockTable {
 public:
  explicit BlockTable(Pool& pool) : pool_(&pool) {}

  const std::vector<ItemId>& pages() const { return pages_; }
  std::size_t blocks() const { return pages_.size(); }
  // Changes when an entry does; adding entries at the end does not count.
  std::uint64_t version() const { return version_; }

  // Takes over shared pages that the caller retains. REQUIRES: the table is empty.
  void adopt(std::vector<ItemId> pages);
  // One more reference of each page.
  void retain() const { pool_->retain_many(pages_); }

  // Makes every block of [first, last] an owned page and adds the copies this needs, in two steps:
  // how many pages it needs, then those pages. With room for the blocks reserved, and for the
  // copies, the second cannot fail.
  std::size_t missing(std::size_t first, std::size_t last) const;
  void reserve(std::size_t blocks);
  void take(std::size_t first, std::size_t last, std::span<const ItemId> fresh,
            std::vector<PageCopy>& copies);

  // Lets go of blocks [first, last) that lie in none of `keep`, ranges that ascend; their entries
  // become kNoItem. What was kept stays until drop_kept(). REQUIRES: `first` is the same in every
  // call.
  void trim(std::size_t first, std::size_t last, std::span<const BlockRange> keep = {});
  void drop_kept();
  // What was kept is part of the window again, after the sequence went back to it.
  void expose_kept();
  // Lets go of blocks from `blocks` on.
  void cut(std::size_t blocks);
  // The page of `block` is visible to others from now on.
  void mark_shared(std::size_t block);
  // The whole table anew; lets go of the references it had, takes over those of `pages`.
  void rearrange(std::vector<ItemId> pages, std::vector<bool> owned);
  bool owned(std::size_t block) const { return owned_[block]; }
  // A table that shares every page of this one.
  BlockTable fork() const;
  // True when none of [first, last) is missing.
  bool resident(std::size_t first, std::size_t last) const;

 private:
  Pool* pool_;
  std::vector<ItemId> pages_;
  std::vector<bool> owned_;
  std::uint64_t version_ = 0;
  std::size_t trimmed_ = 0;        // entries below, from trim()'s first on, are kNoItem or in kept_
  std::vector<std::size_t> kept_;  // ascending
};

}  // namespace kvcache::sequence
