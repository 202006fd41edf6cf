// Sequence::shift().
#include <algorithm>
#include <utility>

#include "cache/cache_core.h"
#include "kvcache/sequence.h"

namespace kvcache {

Status Sequence::shift(std::uint64_t keep, std::uint64_t drop) {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_idle("shift"); !status) return status;
  CacheCore& cache = *core_->cache;
  sequence::SequenceState& state = *core_->state;
  if (Status status = state.check_shift(keep, drop); !status) return status;
  if (drop == 0) return Status::ok();
  const sequence::ShiftSpan span = {keep, drop};
  auto shifts = [&] {
    const std::lock_guard lock(cache.mutex);
    return state.prepare_shift(span, cache);
  }();
  if (!shifts) return shifts.status();
  if (cache.backing) state.move_rows(*shifts);
  {
    const std::lock_guard lock(cache.mutex);
    state.finish_shift(span, std::move(shifts).value());
  }
  core_->forget_after(keep);
  core_->cached_tokens = std::min(core_->cached_tokens, keep);
  core_->matched_tokens = std::min(core_->matched_tokens, keep);
  return Status::ok();
}

}  // namespace kvcache
