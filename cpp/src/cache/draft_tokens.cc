#include "kvcache/draft_tokens.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/checked.h"
#include "base/process.h"
#include "cache/sequence_moment.h"

namespace kvcache {
namespace {

constexpr std::uint64_t kMost = std::uint64_t{1} << 24;
constexpr std::string_view kWhat = "the drafts";

enum class Holds : std::uint8_t { kNothing, kPending, kTaken };

struct Slot {
  SequenceMoment moment;  // where the drafts are good
  std::uint64_t count = 0;
  bool confident = false;
  Holds holds = Holds::kNothing;
};

}  // namespace

struct DraftTokens::State {
  State(std::uint64_t slot_count, std::uint64_t position_count)
      : positions(position_count),
        slots(slot_count),
        tokens(slot_count * position_count),
        confidences(slot_count * position_count) {}

  const std::uint64_t positions;
  mutable ProcessMutex mutex;  // guards what follows; taken before that of a sequence
  std::vector<Slot> slots;
  std::vector<std::int32_t> tokens;
  std::vector<float> confidences;

  // Locked. The slot of a sequence; null without.
  Slot* find(const SequenceMoment& moment) {
    const auto found = std::find_if(slots.begin(), slots.end(), [&](const Slot& slot) {
      return slot.holds != Holds::kNothing && slot.moment.same_sequence(moment);
    });
    return found == slots.end() ? nullptr : &*found;
  }
  // Locked. A slot that holds nothing that anybody could take; null without.
  Slot* free_slot() {
    const auto found = std::find_if(slots.begin(), slots.end(), [](const Slot& slot) {
      return slot.holds == Holds::kNothing || slot.moment.has_moved();
    });
    return found == slots.end() ? nullptr : &*found;
  }
  std::uint64_t first_of(const Slot& slot) const {
    return static_cast<std::uint64_t>(&slot - slots.data()) * positions;
  }
  void fill(Slot& slot, const SequenceMoment& moment, std::span<const std::int32_t> ids,
            std::span<const float> sure) {
    const auto first = static_cast<std::ptrdiff_t>(first_of(slot));
    std::copy(ids.begin(), ids.end(), tokens.begin() + first);
    std::copy(sure.begin(), sure.end(), confidences.begin() + first);
    slot = {moment, ids.size(), !sure.empty(), Holds::kPending};
  }
};

DraftTokens::DraftTokens(std::shared_ptr<State> state) : state_(std::move(state)) {}
DraftTokens::~DraftTokens() = default;

Result<std::unique_ptr<DraftTokens>> DraftTokens::create(std::uint64_t slots,
                                                         std::uint64_t positions) {
  const auto all = checked_mul(slots, positions);
  if (!all || *all == 0 || *all > kMost) {
    return Status::invalid_argument("draft tokens: slots * positions must be 1..", kMost, ", got ",
                                    slots, " and ", positions);
  }
  std::shared_ptr<State> state(new State(slots, positions), DeleteInOwnProcess());
  return std::unique_ptr<DraftTokens>(new DraftTokens(std::move(state)));
}

Status DraftTokens::put(const Sequence& sequence, std::span<const std::int32_t> tokens,
                        std::span<const float> confidences) {
  if (Status status = state_->mutex.check_process(); !status) return status;
  if (tokens.empty() || tokens.size() > state_->positions) {
    return Status::invalid_argument("put: expected 1..", state_->positions, " drafts, got ",
                                    tokens.size());
  }
  if (!confidences.empty() && confidences.size() != tokens.size()) {
    return Status::invalid_argument("put: ", tokens.size(),
                                    " drafts need as many confidences, got ", confidences.size());
  }
  for (const float confidence : confidences) {
    if (!(confidence >= 0 && confidence <= 1)) {
      return Status::invalid_argument("put: confidences are 0..1, got ", confidence);
    }
  }
  const std::lock_guard lock(state_->mutex);
  const auto moment = SequenceMoment::of(sequence, "put");
  if (!moment) return moment.status();
  if (moment->is_verifying()) {
    return Status::invalid_argument(
        "put: a verify of the sequence is open; commit() it or roll it back first");
  }
  Slot* slot = state_->find(*moment);
  if (slot == nullptr) slot = state_->free_slot();
  if (slot == nullptr) {
    return Status::out_of_capacity("put: all ", state_->slots.size(),
                                   " slots have drafts; take or clear some, or make more slots");
  }
  state_->fill(*slot, *moment, tokens, confidences);
  return Status::ok();
}

Result<DraftTokens::Drafts> DraftTokens::take(const Sequence& sequence) {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  const auto moment = SequenceMoment::of(sequence, "take");
  if (!moment) return moment.status();
  Slot* slot = state_->find(*moment);
  if (slot == nullptr || slot->holds != Holds::kPending) return Drafts{};
  if (Status status = slot->moment.check_same("take", kWhat); !status) {
    *slot = {};
    return status;
  }
  const auto first = static_cast<std::ptrdiff_t>(state_->first_of(*slot));
  const auto end = first + static_cast<std::ptrdiff_t>(slot->count);
  Drafts drafts;
  drafts.tokens.assign(state_->tokens.begin() + first, state_->tokens.begin() + end);
  if (slot->confident) {
    drafts.confidences.assign(state_->confidences.begin() + first,
                              state_->confidences.begin() + end);
  }
  slot->holds = Holds::kTaken;
  return drafts;
}

Status DraftTokens::put_back(const Sequence& sequence) {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  const auto moment = SequenceMoment::of(sequence, "put_back");
  if (!moment) return moment.status();
  Slot* slot = state_->find(*moment);
  if (slot == nullptr || slot->holds != Holds::kTaken) {
    return Status::invalid_argument("put_back: ",
                                    slot == nullptr ? "no drafts of the sequence were taken"
                                                    : "its drafts are pending: they were put back "
                                                      "already, or others were put since");
  }
  const auto length = slot->moment.idle_length("put_back", kWhat);
  if (!length) return length.status();
  if (*length != slot->moment.length()) {
    return Status::invalid_argument("put_back: ", kWhat,
                                    " ended when their sequence went from position ",
                                    slot->moment.length(), " to ", *length);
  }
  slot->moment = *moment;  // the failed verify was the latest
  slot->holds = Holds::kPending;
  return Status::ok();
}

Result<bool> DraftTokens::clear(const Sequence& sequence) {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  const auto moment = SequenceMoment::of(sequence, "clear");
  if (!moment) return moment.status();
  Slot* slot = state_->find(*moment);
  if (slot == nullptr) return false;
  const bool pending = slot->holds == Holds::kPending;
  *slot = {};
  return pending;
}

Result<std::uint64_t> DraftTokens::pending(const Sequence& sequence) const {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  const auto moment = SequenceMoment::of(sequence, "pending");
  if (!moment) return moment.status();
  const Slot* slot = state_->find(*moment);
  const bool pending = slot != nullptr && slot->holds == Holds::kPending &&
                       slot->moment.check_same("pending", kWhat).is_ok();
  return pending ? slot->count : 0;
}

Status DraftTokens::check_process() const { return state_->mutex.check_process(); }

std::uint64_t DraftTokens::slots() const { return state_->slots.size(); }
std::uint64_t DraftTokens::positions() const { return state_->positions; }
std::uint64_t DraftTokens::bytes() const {
  if (!state_->mutex.is_own_process()) return 0;
  return state_->tokens.size() * sizeof(std::int32_t);
}

}  // namespace kvcache
