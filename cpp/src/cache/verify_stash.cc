// The inputs of a verify's rows, handed over instead of the state after each of them.
#include <utility>

#include "cache/cache_core.h"
#include "kvcache/verify.h"

namespace kvcache {

namespace {

Status ended(std::string_view call) {
  return Status::invalid_argument(call, ": the verify session has ended");
}

}  // namespace

Result<StateView> VerifySession::live(std::int32_t layer, std::string_view name) const {
  if (!core_) return ended("live");
  const std::lock_guard own(core_->mutex);
  if (Status status = check_open("live"); !status) return status;
  CacheCore& cache = *core_->cache;
  if (Status status = cache.check_backing("live"); !status) return status;
  const auto component = cache.layers.fixed(layer, name);
  if (!component) return component.status();
  return pin_tensor(core_->cache, *cache.pools.slots, core_->state->slot(), **component);
}

Result<PendingRows> VerifySession::pending(std::int32_t layer, std::string_view name) const {
  if (!core_) return ended("pending");
  const std::lock_guard own(core_->mutex);
  if (Status status = check_open("pending"); !status) return status;
  CacheCore& cache = *core_->cache;
  if (Status status = cache.check_backing("pending"); !status) return status;
  const auto component = cache.layers.fixed(layer, name);
  if (!component) return component.status();
  const speculate::CarryStash& stash = core_->stash;
  const StashComponent* part = stash.find(**component);
  PendingRows pending;
  pending.component = *component;
  if (part == nullptr || stash.item() == arena::kNoItem) return pending;
  pending.rows = stash.pending(**component);
  pending.row = part->row;
  const bool window = part->row.kind == StashRow::Kind::kWindow;
  StateView view = pin_tensor(core_->cache, *stash.pool(), stash.item(), **component);
  pending.pin = std::move(view.pin);
  if (!window) pending.gate = stash.data() + part->gate_offset;
  if (!window) pending.left = stash.data() + part->left_offset;
  pending.right = stash.data() + part->right_offset;
  return pending;
}

Status VerifySession::stash(std::int32_t layer, std::string_view name, const StashInputs& inputs) {
  if (!core_) return ended("stash");
  const std::lock_guard own(core_->mutex);
  if (Status status = check_open("stash"); !status) return status;
  CacheCore& cache = *core_->cache;
  if (Status status = cache.check_backing("stash"); !status) return status;
  const auto component = cache.layers.fixed(layer, name);
  if (!component) return component.status();
  if (strategy_ == VerifyStrategy::kSteps) {
    return Status::invalid_argument(
        "stash: this session keeps the state after each row; begin it "
        "by replay or carry, or fill state()");
  }
  return core_->stash.put(**component, inputs);
}

}  // namespace kvcache
