#include "sequence/pages_ahead.h"

namespace kvcache::sequence {
namespace {

// Pages of one group that no table has yet; given back unless taken.
class FreshPages {
 public:
  explicit FreshPages(Pool& pool) : pool_(&pool) {}
  FreshPages(const FreshPages&) = delete;
  FreshPages& operator=(const FreshPages&) = delete;
  FreshPages(FreshPages&& other) noexcept = default;
  ~FreshPages() {
    for (; next_ < pages_.size(); ++next_) pool_->release(pages_[next_]);
  }

  Status allocate(std::size_t count, arena::ItemSource& source) {
    pages_.reserve(count);
    while (pages_.size() < count) {
      auto page = source.allocate(*pool_);
      if (!page) return page.status();
      pages_.push_back(*page);
    }
    return Status::ok();
  }
  std::span<const ItemId> take(std::size_t count) {
    next_ += count;
    return std::span(pages_).subspan(next_ - count, count);
  }

 private:
  Pool* pool_;
  std::vector<ItemId> pages_;
  std::size_t next_ = 0;
};

}  // namespace

bool pages_ready(std::span<const RowsAhead> rows, std::span<const std::size_t> groups) {
  for (const RowsAhead& ahead : rows) {
    for (const std::size_t group : groups) {
      if (ahead.state->missing_blocks(group, ahead.start, ahead.stop) > 0) return false;
    }
  }
  return true;
}

Status take_pages(std::span<const RowsAhead> rows, std::span<const std::size_t> groups,
                  const arena::PoolMap& pools, arena::ItemSource& source,
                  std::vector<PageCopy>& copies) {
  std::vector<FreshPages> fresh;
  fresh.reserve(groups.size());
  std::size_t total = 0;
  for (const std::size_t group : groups) {
    std::size_t missing = 0;
    for (const RowsAhead& ahead : rows) {
      missing += ahead.state->missing_blocks(group, ahead.start, ahead.stop);
      ahead.state->reserve_blocks(group, ahead.stop);
    }
    total += missing;
    fresh.emplace_back(*pools.pages[group]);
    if (Status status = fresh.back().allocate(missing, source); !status) return status;
  }
  copies.reserve(copies.size() + total);
  // Nothing fails from here on.
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (const RowsAhead& ahead : rows) {
      const std::size_t missing = ahead.state->missing_blocks(groups[i], ahead.start, ahead.stop);
      ahead.state->take_blocks(groups[i], ahead.start, ahead.stop, fresh[i].take(missing), copies);
    }
  }
  return Status::ok();
}

}  // namespace kvcache::sequence
