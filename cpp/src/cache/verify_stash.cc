// The inputs of a verify's rows, handed over instead of the state after each of them.
#include <utility>

#include "cache/batch_core.h"
#include "cache/verify_life.h"
#include "kvcache/batch_verify.h"
#include "speculate/carry_table.h"

namespace kvcache {

// ---- Of one sequence --------------------------------------------------------------------------

Result<StateView> live_tensor(SequenceCore& core, std::int32_t layer, std::string_view name) {
  CacheCore& cache = *core.cache;
  if (Status status = cache.check_backing("live"); !status) return status;
  const auto component = cache.layers.fixed(layer, name);
  if (!component) return component.status();
  return pin_tensor(core.cache, *cache.pools.slots, core.state->slot(), **component);
}

Result<PendingRows> pending_rows(SequenceCore& core, std::int32_t layer, std::string_view name) {
  CacheCore& cache = *core.cache;
  if (Status status = cache.check_backing("pending"); !status) return status;
  const auto component = cache.layers.fixed(layer, name);
  if (!component) return component.status();
  const speculate::CarryStash& stash = core.stash;
  const StashComponent* part = stash.find(**component);
  PendingRows pending;
  pending.component = *component;
  if (part == nullptr || stash.item() == arena::kNoItem) return pending;
  pending.rows = stash.pending(**component);
  pending.row = part->row;
  const bool window = part->row.kind == StashRow::Kind::kWindow;
  StateView view = pin_tensor(core.cache, *stash.pool(), stash.item(), **component);
  pending.pin = std::move(view.pin);
  if (!window) pending.gate = stash.data() + part->gate_offset;
  if (!window) pending.left = stash.data() + part->left_offset;
  pending.right = stash.data() + part->right_offset;
  return pending;
}

Status check_stash(const SequenceCore& core, std::int32_t layer, std::string_view name) {
  const CacheCore& cache = *core.cache;
  if (Status status = cache.check_backing("stash"); !status) return status;
  const auto component = cache.layers.fixed(layer, name);
  if (!component) return component.status();
  if (core.verify->strategy() == VerifyStrategy::kSteps) {
    return Status::invalid_argument(
        "stash: this session keeps the state after each row; begin it "
        "by replay or carry, or fill state()");
  }
  if (!core.verify->is_taken(**component)) return Status::ok();
  return Status::invalid_argument("stash of '", name, "' of layer ", layer,
                                  ": state() of it was taken in this session; fill that, or hand "
                                  "over the inputs");
}

Status stash_inputs(SequenceCore& core, std::int32_t layer, std::string_view name,
                    const StashInputs& inputs) {
  if (Status status = check_stash(core, layer, name); !status) return status;
  return core.stash.put(**core.cache->layers.fixed(layer, name), inputs);
}

Result<StateView> VerifySession::live(std::int32_t layer, std::string_view name) const {
  if (!core_) return verify_ended("live");
  const std::lock_guard own(core_->mutex);
  if (Status status = check_open("live"); !status) return status;
  return live_tensor(*core_, layer, name);
}

Result<PendingRows> VerifySession::pending(std::int32_t layer, std::string_view name) const {
  if (!core_) return verify_ended("pending");
  const std::lock_guard own(core_->mutex);
  if (Status status = check_open("pending"); !status) return status;
  return pending_rows(*core_, layer, name);
}

Status VerifySession::stash(std::int32_t layer, std::string_view name, const StashInputs& inputs) {
  if (!core_) return verify_ended("stash");
  const std::lock_guard own(core_->mutex);
  if (Status status = check_open("stash"); !status) return status;
  return stash_inputs(*core_, layer, name, inputs);
}

// ---- Of a batch -------------------------------------------------------------------------------

Status BatchVerifySession::check_member(std::string_view call, std::size_t sequence) const {
  if (Status status = check_open(call); !status) return status;
  if (sequence < size()) return Status::ok();
  return Status::invalid_argument(call, ": the batch has sequences 0..", size() - 1, ", got ",
                                  sequence);
}

Result<StateView> BatchVerifySession::live(std::size_t sequence, std::int32_t layer,
                                           std::string_view name) const {
  if (!core_) return verify_ended("live");
  const BatchLock lock(*core_);
  if (Status status = check_member("live", sequence); !status) return status;
  return live_tensor(*core_->members[sequence], layer, name);
}

Result<PendingRows> BatchVerifySession::pending(std::size_t sequence, std::int32_t layer,
                                                std::string_view name) const {
  if (!core_) return verify_ended("pending");
  const BatchLock lock(*core_);
  if (Status status = check_member("pending", sequence); !status) return status;
  return pending_rows(*core_->members[sequence], layer, name);
}

Status BatchVerifySession::stash(std::int32_t layer, std::string_view name,
                                 const StashInputs& inputs) {
  if (!core_) return verify_ended("stash");
  const BatchLock lock(*core_);
  if (Status status = check_open("stash"); !status) return status;
  for (const auto& view : {inputs.gate, inputs.left, inputs.right, inputs.window}) {
    if (!view || view->tokens == rows()) continue;
    return Status::invalid_argument("stash of '", name, "' of layer ", layer,
                                    ": the verify session has ", rows(), " rows, got ",
                                    view->tokens);
  }
  for (std::size_t i = 0; i < size(); ++i) {
    Status status = check_stash(*core_->members[i], layer, name);
    if (!status) return in_row(i, status);
  }
  for (std::size_t i = 0; i < size(); ++i) {
    const auto first = static_cast<std::size_t>(offsets_[i]);
    const std::size_t count = static_cast<std::size_t>(offsets_[i + 1]) - first;
    const auto part = [&](const std::optional<codec::RowsView>& all) {
      std::optional<codec::RowsView> own = all;
      if (own) own = slice(std::span(&*all, 1), first, count)[0];
      return own;
    };
    const StashInputs own{part(inputs.gate), part(inputs.left), part(inputs.right),
                          part(inputs.window)};
    // What does not fit the first sequence fits none, and what fits it fits all.
    const Status status = stash_inputs(*core_->members[i], layer, name, own);
    if (!status) return status;
  }
  return Status::ok();
}

void BatchVerifySession::engage() {
  for (std::size_t at = 0; carry_ && at < carry_->layers.size(); ++at) {
    for (std::size_t i = 0; i < size(); ++i) {
      if (carry_->layers[at].engaged[i] != 0) core_->members[i]->stash.engage(at);
    }
  }
}

}  // namespace kvcache
