#include "arena/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/checked.h"

namespace kvcache::arena {
namespace {

constexpr std::uint64_t kHugePageBytes = 2 << 20;

}  // namespace

Result<std::unique_ptr<Arena>> Arena::create(std::uint64_t budget_bytes,
                                             const std::vector<PoolSpec>& pools, bool backing) {
  std::uint64_t total = 0;
  std::vector<std::uint64_t> offsets;
  for (const PoolSpec& spec : pools) {
    const SpanGeometry geometry = span_geometry(spec.item_bytes);
    if (geometry.bytes == 0) {
      return Status::invalid_argument(spec.name, ": an item of ", spec.item_bytes,
                                      " bytes cannot be stored");
    }
    const std::uint64_t spans = budget_bytes / geometry.bytes;
    if (spec.max_items == 0 && spans > kMaxItems / geometry.items) {
      return Status::invalid_argument(
          spec.name, ": ", budget_bytes, " bytes hold more than ", kMaxItems,
          " items, the most that 32-bit block tables address; raise block_tokens or lower memory");
    }
    offsets.push_back(total);
    const auto next = checked_add(total, round_up(spans * geometry.bytes, kHugePageBytes));
    if (!next || (backing && *next > (std::uint64_t{1} << 46))) {
      return Status::invalid_argument("memory of ", budget_bytes, " bytes for ", pools.size(),
                                      " pools exceeds the address space; lower memory");
    }
    total = *next;
  }

  std::unique_ptr<Arena> arena(new Arena());
  arena->budget_bytes_ = budget_bytes;
  arena->max_bytes_ = budget_bytes;
  if (backing && total > 0) {
    void* base = mmap(nullptr, total, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
      return Status::out_of_capacity("cannot reserve ", total,
                                     " bytes of addresses: ", std::strerror(errno));
    }
    madvise(base, total, MADV_HUGEPAGE);  // advice only; a kernel without it loses nothing
    arena->base_ = static_cast<std::byte*>(base);
    arena->mapped_bytes_ = total;
  }
  for (std::size_t i = 0; i < pools.size(); ++i) {
    std::byte* base = arena->base_ == nullptr ? nullptr : arena->base_ + offsets[i];
    arena->pools_.push_back(std::make_unique<Pool>(*arena, pools[i].name, pools[i].item_bytes,
                                                   pools[i].max_items, base));
  }
  return arena;
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, mapped_bytes_);
}

std::uint64_t Arena::used_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& pool : pools_) bytes += pool->live_items() * pool->item_bytes();
  return bytes;
}

std::uint64_t Arena::room_for(const Pool& taker) const {
  return budget_bytes_ - committed_bytes_ + idle_bytes_ - taker.idle_bytes();
}

void Arena::make_room(std::uint64_t bytes, const Pool& taker) {
  while (committed_bytes_ > budget_bytes_ - bytes) {
    // The smallest span that is enough, or else the largest: the fewest bytes in the fewest spans.
    const std::uint64_t lacking = committed_bytes_ - (budget_bytes_ - bytes);
    Pool* giver = nullptr;
    for (const auto& pool : pools_) {
      if (pool.get() == &taker || pool->idle_bytes() == 0) continue;
      const std::uint64_t now = giver == nullptr ? 0 : giver->span_bytes();
      const bool enough = pool->span_bytes() >= lacking;
      const bool better =
          enough && now >= lacking ? pool->span_bytes() < now : pool->span_bytes() > now;
      if (giver == nullptr || better) giver = pool.get();
    }
    KVCACHE_CHECK(giver != nullptr && giver->release_idle_span());
  }
}

void Arena::drop(std::byte* base, std::uint64_t offset, std::uint64_t bytes) {
  // Cannot fail for a private mapping of ours; the bytes go back to the system at once.
  if (base != nullptr) madvise(base + offset, bytes, MADV_DONTNEED);
}

}  // namespace kvcache::arena
