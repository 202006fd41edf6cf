#include "sequence/block_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvcache::sequence {

void BlockTable::adopt(std::vector<ItemId> pages) {
  KVCACHE_CHECK(pages_.empty());
  pages_ = std::move(pages);
  owned_.assign(pages_.size(), false);
}

Status BlockTable::make_writable(std::size_t first, std::size_t last, arena::ItemSource& source,
                                 std::vector<PageCopy>& copies) {
  KVCACHE_CHECK(first <= pages_.size());
  std::vector<std::pair<std::size_t, ItemId>> fresh;
  for (std::size_t block = first; block <= last; ++block) {
    if (block < pages_.size() && owned_[block]) continue;
    auto page = source.allocate(*pool_);
    if (!page) {
      for (const auto& [unused, id] : fresh) pool_->release(id);
      return page.status();
    }
    fresh.emplace_back(block, *page);
  }
  for (const auto& [block, id] : fresh) {
    if (block == pages_.size()) {
      pages_.push_back(id);
      owned_.push_back(true);
      continue;
    }
    // A hole holds nothing to copy: behind a window of 1 a block may be entered half way.
    if (pages_[block] != kNoItem) {
      copies.push_back({.group = 0, .from = pages_[block], .to = id, .rows = 0});
    }
    pages_[block] = id;
    owned_[block] = true;
    trimmed_ = std::min(trimmed_, block);
  }
  return Status::ok();
}

void BlockTable::trim(std::size_t first, std::size_t last) {
  for (trimmed_ = std::max(trimmed_, first); trimmed_ < std::min(last, pages_.size()); ++trimmed_) {
    if (pages_[trimmed_] == kNoItem) continue;
    pool_->release(pages_[trimmed_]);
    pages_[trimmed_] = kNoItem;
    owned_[trimmed_] = false;
  }
}

void BlockTable::cut(std::size_t blocks) {
  while (pages_.size() > blocks) {
    if (pages_.back() != kNoItem) pool_->release(pages_.back());
    pages_.pop_back();
    owned_.pop_back();
  }
  trimmed_ = std::min(trimmed_, pages_.size());
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
