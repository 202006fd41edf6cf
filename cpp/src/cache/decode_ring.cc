// record() and rollback() of a sequence: the state of a position that decoding may return to.
#include <cstring>
#include <string>

#include "cache/cache_core.h"
#include "kvcache/sequence.h"

namespace kvcache {

using arena::ItemId;
using arena::kNoItem;

namespace {

Status check_ring(const StatePlan& plan, std::string_view call) {
  if (plan.options().ring_depth > 0) return Status::ok();
  return Status::unsupported(call, ": the plan has no decode ring; raise its ring_depth above 0");
}

std::string listed(const std::vector<std::uint64_t>& positions) {
  std::string text;
  for (const std::uint64_t position : positions) {
    text += (text.empty() ? "" : ", ") + std::to_string(position);
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace

Result<std::uint64_t> Sequence::record() {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_idle("record"); !status) return status;
  CacheCore& cache = *core_->cache;
  sequence::SequenceState& state = *core_->state;
  if (!cache.plan.has_fixed_state()) return state.length();
  if (Status status = check_ring(cache.plan, "record"); !status) return status;
  ItemId item = kNoItem;
  {
    const std::lock_guard lock(cache.mutex);
    auto recorded = state.ring().record(state.length(), cache);
    if (!recorded) {
      return Status::out_of_capacity("record: ", recorded.status().message(),
                                     ", or lower its ring_depth of ",
                                     cache.plan.options().ring_depth);
    }
    item = *recorded;
  }
  if (cache.backing) {
    std::memcpy(cache.pools.ring->data(item), core_->state_now(), cache.plan.slot_bytes());
  }
  return state.length();
}

Status Sequence::rollback(std::uint64_t position) {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_idle("rollback"); !status) return status;
  CacheCore& cache = *core_->cache;
  sequence::SequenceState& state = *core_->state;
  if (Status status = state.check_truncate("rollback", position); !status) return status;
  if (cache.plan.has_fixed_state()) {
    if (Status status = check_ring(cache.plan, "rollback"); !status) return status;
    const ItemId item = state.ring().item_at(position);
    if (item == kNoItem) {
      return Status::unsupported("rollback to ", position, ": the decode ring holds ",
                                 listed(state.ring().positions()),
                                 "; record() where you may roll back to");
    }
    if (cache.backing) {
      std::memcpy(core_->state_to_replace(), cache.pools.ring->data(item), cache.plan.slot_bytes());
    }
  }
  const std::lock_guard lock(cache.mutex);
  state.truncate(position);
  core_->forget_after(position);
  return Status::ok();
}

std::vector<std::uint64_t> Sequence::recorded() const {
  if (!core_) return {};
  const std::lock_guard own(core_->mutex);
  if (!core_->check_open()) return {};
  return core_->state->ring().positions();
}

}  // namespace kvcache
