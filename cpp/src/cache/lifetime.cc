// Times to live: what is stored under them, and dropping what has outlived them.
#include "cache/cache_core.h"
#include "kvcache/cache.h"

namespace kvcache {

Status check_ttl(std::uint64_t ttl_ms) {
  if (ttl_ms > 0) return Status::ok();
  return Status::invalid_argument("ttl_ms: must be above 0; without one the cache's counts");
}

std::uint64_t CacheCore::insert(const SpaceRef& space, std::span<const std::int32_t> tokens,
                                const prefix::BlockTables& tables,
                                std::span<const arena::SnapshotRef> snapshots,
                                const prefix::PathNames& names, std::uint64_t ttl,
                                const std::string& tenant, bool whole) {
  if (ttl != kForever || index.is_timed()) index.set_now(clock.read({}));
  return index.insert(space, tokens, tables, snapshots, names, ttl, tenant, whole);
}

std::uint64_t Cache::drop_expired() {
  const std::lock_guard lock(core_->mutex);
  if (!core_->mutex.is_own_process()) return 0;
  core_->tell_time({});
  return core_->index.drop_expired();
}

}  // namespace kvcache
