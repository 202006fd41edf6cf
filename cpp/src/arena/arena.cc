#include "arena/arena.h"

#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "base/checked.h"

namespace kvcache::arena {
namespace {

constexpr std::uint64_t kHugePageBytes = 2 << 20;
constexpr std::uint64_t kMaxAddresses = std::uint64_t{1} << 46;

struct Ranges {
  std::vector<std::uint64_t> offsets;  // of each pool
  std::uint64_t total = 0;
};

// Where the pools lie when the budget may become `max_bytes`.
Result<Ranges> lay_out(std::uint64_t max_bytes, const std::vector<PoolSpec>& pools, bool backing) {
  Ranges ranges;
  for (const PoolSpec& spec : pools) {
    const SpanGeometry geometry = span_geometry(spec.item_bytes);
    if (geometry.bytes == 0) {
      return Status::invalid_argument(spec.name, ": an item of ", spec.item_bytes,
                                      " bytes cannot be stored");
    }
    const std::uint64_t spans = max_bytes / geometry.bytes;
    if (spec.max_items == 0 && spans > kMaxItems / geometry.items) {
      return Status::invalid_argument(
          spec.name, ": ", max_bytes, " bytes hold more than ", kMaxItems,
          " items, the most that 32-bit block tables address; raise block_tokens or lower memory");
    }
    ranges.offsets.push_back(ranges.total);
    const auto next = checked_add(ranges.total, round_up(spans * geometry.bytes, kHugePageBytes));
    if (!next || (backing && *next > kMaxAddresses)) {
      return Status::invalid_argument("memory of ", max_bytes, " bytes for ", pools.size(),
                                      " pools exceeds the address space; lower memory");
    }
    ranges.total = *next;
  }
  return ranges;
}

std::uint64_t machine_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGESIZE);
  return pages <= 0 || page_bytes <= 0
             ? 0
             : static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes);
}

}  // namespace

Result<std::unique_ptr<Arena>> Arena::create(std::uint64_t budget_bytes,
                                             const std::vector<PoolSpec>& pools, bool backing,
                                             const MemoryOptions& memory, std::uint64_t max_bytes) {
  if (max_bytes != 0 && max_bytes < budget_bytes) {
    return Status::invalid_argument("max_memory of ", max_bytes,
                                    " bytes is less than the memory of ", budget_bytes);
  }
  auto ranges = lay_out(std::max(max_bytes, budget_bytes), pools, backing);
  if (!ranges) return ranges.status();
  std::unique_ptr<Arena> arena(new Arena());
  arena->budget_bytes_ = budget_bytes;
  arena->max_bytes_ = std::max(max_bytes, budget_bytes);
  // Room to grow that nobody asked for must not be what creation fails for.
  const std::uint64_t roomy = max_bytes != 0 ? 0 : machine_bytes();
  auto roomy_ranges = lay_out(std::max(roomy, budget_bytes), pools, backing);
  if (roomy > budget_bytes && roomy_ranges) {
    if (backing && roomy_ranges->total > 0) {
      auto made = Backing::create(roomy_ranges->total, budget_bytes, memory);
      if (made) arena->backing_ = std::move(made).value();
    }
    if (!backing || arena->backing_ != nullptr) {
      arena->max_bytes_ = roomy;
      ranges = std::move(roomy_ranges);
    }
  }
  if (backing && ranges->total > 0 && arena->backing_ == nullptr) {
    auto made = Backing::create(ranges->total, budget_bytes, memory);
    if (!made) return made.status();
    arena->backing_ = std::move(made).value();
  }
  for (std::size_t i = 0; i < pools.size(); ++i) {
    std::byte* base = arena->backing_ == nullptr ? nullptr : arena->backing_->base();
    if (base != nullptr) base += ranges->offsets[i];
    arena->pools_.push_back(std::make_unique<Pool>(*arena, pools[i].name, pools[i].item_bytes,
                                                   pools[i].max_items, base));
  }
  if (arena->backing_ != nullptr && memory.prefault_threads > 0) {
    // Under the first pool, the pages of the first group; what others need is moved to them.
    const Pool& first = arena->pool(0);
    const std::uint64_t bytes = budget_bytes / first.span_bytes() * first.span_bytes();
    Status status = arena->backing_->prefault(0, bytes, memory.prefault_threads);
    if (!status) return status;
  }
  return arena;
}

std::uint64_t Arena::used_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& pool : pools_) bytes += pool->live_items() * pool->item_bytes();
  return bytes;
}

std::uint64_t Arena::in_use_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& pool : pools_) bytes += pool->in_use_bytes();
  return bytes;
}

std::uint64_t Arena::room_for(const Pool& taker) const {
  return budget_bytes_ - committed_bytes_ + idle_bytes_ - taker.idle_bytes();
}

void Arena::release_idle(std::uint64_t limit, const Pool* taker) {
  while (committed_bytes_ > limit) {
    // The smallest span that is enough, or else the largest: the fewest bytes in the fewest spans.
    const std::uint64_t lacking = committed_bytes_ - limit;
    Pool* giver = nullptr;
    for (const auto& pool : pools_) {
      if (pool.get() == taker || pool->idle_bytes() == 0) continue;
      const std::uint64_t now = giver == nullptr ? 0 : giver->span_bytes();
      const bool both_enough = pool->span_bytes() >= lacking && now >= lacking;
      const bool better = both_enough ? pool->span_bytes() < now : pool->span_bytes() > now;
      if (giver == nullptr || better) giver = pool.get();
    }
    KVCACHE_CHECK(giver != nullptr && giver->release_idle_span());
  }
}

Status Arena::commit(const Pool& taker, std::uint64_t offset, std::uint64_t bytes) {
  release_idle(budget_bytes_ - bytes, &taker);
  if (backing_ != nullptr) {
    const auto base = static_cast<std::uint64_t>(taker.base_ - backing_->base());
    if (Status status = backing_->take(base + offset, bytes); !status) return status;
  }
  committed_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, committed_bytes_);
  // What could not be moved was taken fresh: both together must not pass the budget.
  if (backing_ != nullptr) backing_->trim(budget_bytes_ - committed_bytes_);
  return Status::ok();
}

void Arena::give_back(const Pool& giver, std::uint64_t offset, std::uint64_t bytes) {
  committed_bytes_ -= bytes;
  if (backing_ == nullptr) return;
  backing_->give_back(static_cast<std::uint64_t>(giver.base_ - backing_->base()) + offset, bytes);
}

void Arena::resize(std::uint64_t budget_bytes) {
  KVCACHE_CHECK(budget_bytes <= max_bytes_);
  release_idle(budget_bytes, nullptr);
  budget_bytes_ = budget_bytes;
  if (backing_ != nullptr) backing_->trim(budget_bytes_ - committed_bytes_);
}

}  // namespace kvcache::arena
