// Snapshots of the fixed-size state: taken into the pool of their format, restored from it.
#include <utility>

#include "base/on_throw.h"
#include "cache/cache_core.h"
#include "kvcache/sequence.h"
#include "sequence/snapshot_codec.h"

namespace kvcache {

void CacheCore::restore(const arena::SnapshotRef& snapshot, std::byte* slot) const {
  sequence::decode_snapshot(plan, snapshot.format, pools.of(snapshot).data(snapshot.item), slot);
}

Result<std::uint64_t> Sequence::snapshot(SnapshotFormat format,
                                         std::vector<SnapshotError>* errors) {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_idle("snapshot"); !status) return status;
  CacheCore& cache = *core_->cache;
  sequence::SequenceState& state = *core_->state;
  const auto kind = static_cast<std::uint8_t>(core_->snapshot_kind());
  std::vector<SnapshotError> lost;
  if (cache.plan.has_fixed_state() && state.length() > 0) {
    arena::Pool& pool = cache.pools.of(format);
    arena::ItemId item = arena::kNoItem;
    state.reserve_snapshot();
    {
      const std::lock_guard lock(cache.mutex);
      auto taken = cache.allocate(pool);
      if (!taken) return taken.status();
      item = *taken;
    }
    const base::OnThrow undo([&] {
      const std::lock_guard lock(cache.mutex);
      pool.release(item);
    });
    Status status;
    if (cache.backing) {
      status = sequence::encode_snapshot(cache.plan, format, core_->state_now(), pool.data(item),
                                         errors == nullptr ? nullptr : &lost);
    }
    const std::lock_guard lock(cache.mutex);
    if (!status) {
      pool.release(item);
      return status;
    }
    state.hold_snapshot({state.length(), item, format, kind});
  } else if (state.has_windows() && state.length() > 0) {
    state.reserve_snapshot();
    const std::lock_guard lock(cache.mutex);
    state.hold_snapshot({state.length(), arena::kNoItem, SnapshotFormat::kExact, kind});
  }
  if (errors != nullptr) *errors = std::move(lost);
  return state.length();
}

}  // namespace kvcache
