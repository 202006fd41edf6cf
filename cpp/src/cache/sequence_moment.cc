#include "cache/sequence_moment.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "cache/cache_core.h"

namespace kvcache {
namespace {

Status closed_since(std::string_view call, std::string_view what) {
  return Status::invalid_argument(call, ": ", what, " ended when its sequence was closed");
}

Status set_back(std::string_view call, std::string_view what) {
  return Status::invalid_argument(call, ": ", what, " ended when its sequence went back");
}

Status later_verify(std::string_view call, std::string_view what) {
  return Status::invalid_argument(call, ": ", what,
                                  " ended when the next verify of its sequence began");
}

Status check_length(std::string_view call, std::string_view what, std::uint64_t now,
                    std::uint64_t then) {
  if (now == then) return Status::ok();
  return Status::invalid_argument(call, ": ", what, " ended when its sequence went from position ",
                                  then, " to ", now);
}

Status still_open(std::string_view call, std::string_view what, std::string_view then) {
  return Status::invalid_argument(call, ": ", what, ": the verify of its sequence is open; ", then);
}

}  // namespace

Result<SequenceMoment> SequenceMoment::of(const Sequence& sequence, std::string_view call) {
  const auto refused = [&] { return Status::invalid_argument(call, ": the sequence is closed"); };
  if (!sequence.core_) return refused();
  const SequenceCore& core = *sequence.core_;
  if (Status status = core.mutex.check_process(); !status) return status;
  const std::lock_guard own(core.mutex);
  if (!core.state) return refused();
  SequenceMoment moment;
  moment.core_ = sequence.core_;
  moment.serial_ = core.verify_serial;
  moment.setbacks_ = core.setbacks;
  moment.length_ = core.state->length();
  moment.rows_ = core.verify ? core.verify->rows() : 0;
  moment.verifying_ = core.verify.has_value();
  moment.branching_ = core.verify && core.verify->is_tree();
  return moment;
}

Status SequenceMoment::check_distinct(std::span<const Sequence* const> sequences,
                                      std::string_view call) {
  std::vector<std::size_t> order(sequences.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto core_of = [&](std::size_t i) { return sequences[i]->core_.get(); };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(core_of(a), a) < std::pair(core_of(b), b);
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (core_of(order[i - 1]) == nullptr || core_of(order[i - 1]) != core_of(order[i])) continue;
    return Status::invalid_argument(call, ": sequences ", order[i - 1], " and ", order[i],
                                    " are the same");
  }
  return Status::ok();
}

bool SequenceMoment::is_open() const {
  const auto core = core_.lock();
  if (!core || !core->mutex.is_own_process()) return false;
  const std::lock_guard own(core->mutex);
  return core->state.has_value();
}

bool SequenceMoment::has_moved() const {
  const auto core = core_.lock();
  if (!core || !core->mutex.is_own_process()) return true;
  const std::lock_guard own(core->mutex);
  return !core->state || core->setbacks != setbacks_ || core->state->length() != length_;
}

// What every question needs: the sequence, alive and never set back since, under its lock.
template <typename Answer>
auto SequenceMoment::ask(std::string_view call, std::string_view what, const Answer& answer) const
    -> decltype(answer(std::declval<const SequenceCore&>())) {
  const auto core = core_.lock();
  if (!core) return closed_since(call, what);
  if (Status status = core->mutex.check_process(); !status) return status;
  const std::lock_guard own(core->mutex);
  if (!core->state) return closed_since(call, what);
  if (core->setbacks != setbacks_) return set_back(call, what);
  return answer(*core);
}

Status SequenceMoment::check_same(std::string_view call, std::string_view what) const {
  return ask(call, what, [&](const SequenceCore& core) {
    if (core.verify_serial != serial_) return later_verify(call, what);
    return check_length(call, what, core.state->length(), length_);
  });
}

Result<std::uint64_t> SequenceMoment::kept_rows(std::string_view call,
                                                std::string_view what) const {
  return ask(call, what, [&](const SequenceCore& core) -> Result<std::uint64_t> {
    if (core.verify_serial != serial_) return later_verify(call, what);
    if (core.verify) return still_open(call, what, "commit() it first");
    const std::uint64_t kept = core.verified_length;
    Status status = check_length(call, what, core.state->length(), kept);
    if (!status) return status;
    if (kept > length_) return kept - length_;
    return Status::invalid_argument(call, ": ", what, " ended when its verify was rolled back");
  });
}

Result<std::uint64_t> SequenceMoment::idle_length(std::string_view call,
                                                  std::string_view what) const {
  return ask(call, what, [&](const SequenceCore& core) -> Result<std::uint64_t> {
    if (core.verify) return still_open(call, what, "commit() it or roll it back first");
    return core.state->length();
  });
}

}  // namespace kvcache
