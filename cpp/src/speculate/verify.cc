#include "speculate/verify.h"

#include <cstring>

namespace kvcache::speculate {

Status VerifyState::check_begin(const sequence::SequenceState& state) {
  const std::uint64_t length = state.length();
  const std::uint64_t waiting = state.tokens().size() - length;
  if (waiting != 1) {
    return Status::invalid_argument(
        "begin_verify: ", waiting, " known tokens have not run, expected 1, the last sampled; ",
        waiting == 0 ? "extend() the sequence by it" : "write and advance() the others first");
  }
  return state.check_nothing_ahead("begin_verify");
}

VerifyState::VerifyState(const StatePlan& plan, const arena::PoolMap& pools,
                         const sequence::SequenceState& state, std::span<const std::int32_t> drafts)
    : plan_(&plan), pool_(pools.snapshots), start_(state.length()) {
  tokens_.reserve(drafts.size() + 1);
  tokens_.push_back(state.tokens().back());
  tokens_.insert(tokens_.end(), drafts.begin(), drafts.end());
}

Status VerifyState::take_slots(arena::ItemSource& source) {
  if (pool_ == nullptr) return Status::ok();
  while (slots_.size() < rows()) {
    auto slot = source.allocate(*pool_);
    if (!slot) {
      release();
      return slot.status();
    }
    slots_.push_back(*slot);
  }
  taken_.assign(rows() * plan_->fixed().size(), false);
  return Status::ok();
}

void VerifyState::release() {
  for (const ItemId slot : slots_) pool_->release(slot);
  slots_.clear();
}

ItemId VerifyState::take(std::uint64_t row, const FixedComponent& component,
                         const std::byte* live) {
  const std::size_t count = plan_->fixed().size();
  const auto index = static_cast<std::size_t>(&component - plan_->fixed().data());
  const std::size_t at = row * count + index;
  if (!taken_[at]) {
    const bool follows = row > 0 && taken_[at - count];
    const std::byte* from = follows ? pool_->data(slots_[row - 1]) : live;
    std::memcpy(pool_->data(slots_[row]) + component.offset, from + component.offset,
                component.bytes);
    taken_[at] = true;
  }
  return slots_[row];
}

Status VerifyState::check_taken(std::uint64_t row) const {
  const std::vector<FixedComponent>& fixed = plan_->fixed();
  for (std::size_t index = 0; index < fixed.size(); ++index) {
    if (taken_[row * fixed.size() + index]) continue;
    return Status::invalid_argument("commit of ", row + 1, " rows: '", fixed[index].name,
                                    "' of layer ", fixed[index].layer, " after row ", row,
                                    " was never taken; fill state(", row, ", ", fixed[index].layer,
                                    ", \"", fixed[index].name, "\") before");
  }
  return Status::ok();
}

void VerifyState::adopt(std::uint64_t row, std::byte* live) const {
  if (pool_ != nullptr) std::memcpy(live, pool_->data(slots_[row]), plan_->slot_bytes());
}

}  // namespace kvcache::speculate
