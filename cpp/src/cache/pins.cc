// Pins and leases: handles of what the index keeps.
#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "cache/cache_core.h"
#include "kvcache/cache.h"
#include "kvcache/lifetime.h"

namespace kvcache {
namespace {

std::uint64_t after(std::uint64_t now, std::uint64_t ms) {
  return now + std::min(ms, prefix::kNever - now);
}

// Locked. When a lease that begins now ends, by the index's time, and by the clock it was told.
std::uint64_t deadline_of(const CacheCore& core, const PinOptions& options) {
  return options.lease_ms ? after(core.index.now(), *options.lease_ms) : prefix::kNever;
}
std::optional<std::uint64_t> shown_end(const CacheCore& core, const PinOptions& options) {
  if (!options.lease_ms) return std::nullopt;
  return after(core.clock.shown(), *options.lease_ms);
}

}  // namespace

Status check_share(const MemoryShare& share, std::string_view name) {
  if (share.bytes || (share.fraction >= 0 && share.fraction <= 1)) return Status::ok();
  return Status::invalid_argument(name, ": a share of the budget is 0..1, got ", share.fraction);
}

std::uint64_t CacheCore::bytes_of(const MemoryShare& share) const {
  if (share.bytes) return *share.bytes;
  std::uint64_t budget = arena->budget_bytes() + reserved_bytes;
  if (capacity_blocks > 0 && plan.block_bytes() > 0) {
    const auto blocks = checked_mul(capacity_blocks, plan.block_bytes());
    budget = std::min(budget, blocks.value_or(budget));
  }
  return static_cast<std::uint64_t>(share.fraction * static_cast<double>(budget));
}

bool CacheCore::evict_one() {
  tell_time({});
  return index.evict_one();
}

Result<Pin> Cache::pin(std::span<const std::int32_t> tokens, const PrefixSpace& space,
                       const PinOptions& options) {
  if (Status status = check_process(); !status) return status;
  if (tokens.empty()) return Status::invalid_argument("pin: a prefix needs at least one token");
  if (Status status = check_media(space.media, 0, tokens.size()); !status) return status;
  const std::string key = space_key(space);
  Pin pin;
  const std::lock_guard lock(core_->mutex);
  core_->index.set_now(core_->clock.read(options.now_ms));
  const auto made =
      core_->index.pin(SpaceRef(key, space.media, SpaceRef::kAnyEpoch), tokens,
                       deadline_of(*core_, options), core_->bytes_of(core_->pin_limit));
  if (!made) return made.status();
  pin.cache_ = core_;
  pin.id_ = made->id;
  pin.tokens_ = made->tokens;
  pin.expires_ms_ = shown_end(*core_, options);
  return pin;
}

// ---- Pin --------------------------------------------------------------------------------------

Pin::Pin(Pin&& other) noexcept { *this = std::move(other); }

Pin& Pin::operator=(Pin&& other) noexcept {
  if (this == &other) return *this;
  release();
  cache_ = std::move(other.cache_);
  id_ = other.id_;
  tokens_ = other.tokens_;
  expires_ms_ = other.expires_ms_;
  return *this;
}

Pin::~Pin() { release(); }

Status Pin::check_process() const { return cache_ ? cache_->mutex.check_process() : Status::ok(); }

bool Pin::is_held() const {
  if (!cache_) return false;
  const std::lock_guard lock(cache_->mutex);
  if (!cache_->mutex.is_own_process()) return false;
  cache_->tell_time({});
  cache_->index.lapse();
  return cache_->index.is_pinned(id_);
}

Status Pin::renew(const PinOptions& options) {
  if (Status status = check_process(); !status) return status;
  const auto gone = [] {
    return Status::not_found("renew: the pin is released, has lapsed, or what it kept was dropped");
  };
  if (!cache_) return gone();
  const std::lock_guard lock(cache_->mutex);
  cache_->index.set_now(cache_->clock.read(options.now_ms));
  if (!cache_->index.renew_pin(id_, deadline_of(*cache_, options))) return gone();
  expires_ms_ = shown_end(*cache_, options);
  return Status::ok();
}

void Pin::release() {
  const std::shared_ptr<CacheCore> cache = std::move(cache_);
  if (!cache) return;
  const std::lock_guard lock(cache->mutex);
  if (cache->mutex.is_own_process()) cache->index.unpin(id_);
}

}  // namespace kvcache
