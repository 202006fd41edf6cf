#include "sequence/block_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvcache::sequence {

void BlockTable::adopt(std::vector<ItemId> pages) {
  KVCACHE_CHECK(pages_.empty());
  pages_ = std::move(pages);
  owned_.assign(pages_.size(), false);
  ++version_;
}

std::size_t BlockTable::missing(std::size_t first, std::size_t last) const {
  KVCACHE_CHECK(first <= pages_.size());
  std::size_t count = last + 1 - std::min(std::max(first, pages_.size()), last + 1);
  for (std::size_t block = first; block < std::min(last + 1, pages_.size()); ++block) {
    count += owned_[block] ? 0 : 1;
  }
  return count;
}

void BlockTable::reserve(std::size_t blocks) {
  if (blocks <= pages_.capacity() && blocks <= owned_.capacity()) return;
  const std::size_t room = std::max(blocks, 2 * pages_.size());
  pages_.reserve(room);
  owned_.reserve(room);
}

void BlockTable::take(std::size_t first, std::size_t last, std::span<const ItemId> fresh,
                      std::vector<PageCopy>& copies) {
  auto next = fresh.begin();
  for (std::size_t block = first; block <= last; ++block) {
    if (block == pages_.size()) {
      pages_.push_back(*next++);
      owned_.push_back(true);
      continue;
    }
    if (owned_[block]) continue;
    // A hole holds nothing to copy: behind a window of 1 a block may be entered half way.
    if (pages_[block] != kNoItem) {
      copies.push_back({.group = 0, .from = pages_[block], .to = *next, .rows = 0});
    }
    pages_[block] = *next++;
    owned_[block] = true;
    trimmed_ = std::min(trimmed_, block);
    ++version_;
  }
  KVCACHE_CHECK(next == fresh.end());
}

void BlockTable::trim(std::size_t first, std::size_t last, std::span<const BlockRange> keep) {
  auto range = keep.begin();
  for (trimmed_ = std::max(trimmed_, first); trimmed_ < std::min(last, pages_.size()); ++trimmed_) {
    if (pages_[trimmed_] == kNoItem) continue;
    while (range != keep.end() && range->last <= trimmed_) ++range;
    if (range != keep.end() && range->first <= trimmed_) {
      kept_.push_back(trimmed_);
      continue;
    }
    pool_->release(pages_[trimmed_]);
    pages_[trimmed_] = kNoItem;
    owned_[trimmed_] = false;
    ++version_;
  }
}

void BlockTable::drop_kept() {
  if (!kept_.empty()) ++version_;
  for (const std::size_t block : kept_) {
    pool_->release(pages_[block]);
    pages_[block] = kNoItem;
    owned_[block] = false;
  }
  kept_.clear();
}

void BlockTable::expose_kept() {
  if (!kept_.empty()) trimmed_ = std::min(trimmed_, kept_.front());
  kept_.clear();
}

void BlockTable::cut(std::size_t blocks) {
  if (pages_.size() > blocks) ++version_;
  while (pages_.size() > blocks) {
    if (pages_.back() != kNoItem) pool_->release(pages_.back());
    pages_.pop_back();
    owned_.pop_back();
  }
  trimmed_ = std::min(trimmed_, pages_.size());
  while (!kept_.empty() && kept_.back() >= blocks) kept_.pop_back();
}

void BlockTable::mark_shared(std::size_t block) {
  if (block < owned_.size()) owned_[block] = false;
}

void BlockTable::rearrange(std::vector<ItemId> pages, std::vector<bool> owned) {
  KVCACHE_CHECK(pages.size() == owned.size());
  cut(0);
  pages_ = std::move(pages);
  owned_ = std::move(owned);
}

BlockTable BlockTable::fork() const {
  BlockTable copy(*pool_);
  copy.pages_ = pages_;
  copy.owned_.assign(pages_.size(), false);
  copy.trimmed_ = trimmed_;
  copy.kept_ = kept_;
  pool_->retain_many(pages_);
  return copy;
}

bool BlockTable::resident(std::size_t first, std::size_t last) const {
  for (std::size_t block = first; block < last; ++block) {
    if (block >= pages_.size() || pages_[block] == kNoItem) return false;
  }
  return true;
}

}  // namespace kvcache::sequence
