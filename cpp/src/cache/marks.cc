// Where a sequence should keep state that can be resumed: marks, and the stops that follow.
#include <algorithm>

#include "cache/cache_core.h"
#include "kvcache/sequence.h"

namespace kvcache {

void SequenceCore::forget_after(std::uint64_t position) {
  ++setbacks;
  std::erase_if(marks, [=](const prefix::Mark& mark) { return mark.position > position; });
  std::erase_if(branches, [=](std::uint64_t branch) { return branch > position; });
}

std::vector<prefix::Stop> SequenceCore::stops() const {
  prefix::PlacementInput input;
  input.length = state->length();
  input.tokens = state->tokens().size();
  input.branches = branches;
  input.marks = marks;
  input.resident = resident_snapshots;
  input.intervals = cache->plan.has_fixed_state();
  return prefix::place_stops(input, cache->placement);
}

prefix::SnapshotKind SequenceCore::snapshot_kind() const {
  const std::uint64_t length = state->length();
  if (length == 0) return prefix::SnapshotKind::kOther;
  prefix::PlacementInput input;
  input.length = length - 1;
  input.tokens = state->tokens().size();
  input.branches = branches;
  input.marks = marks;
  for (const prefix::Stop& stop : prefix::place_stops(input, {0, 0})) {
    if (stop.position == length) return stop.kind;
  }
  const std::uint64_t interval = cache->placement.interval_tokens;
  const bool regular = interval > 0 && length % interval == 0;
  return regular ? prefix::SnapshotKind::kInterval : prefix::SnapshotKind::kOther;
}

Status Sequence::mark(std::uint64_t position, MarkKind kind) {
  if (!core_) return Status::invalid_argument("mark: the sequence is closed");
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_open(); !status) return status;
  const std::uint64_t tokens = core_->state->tokens().size();
  if (position > tokens) {
    return Status::invalid_argument("mark at ", position, ": only ", tokens,
                                    " tokens are known; extend() the sequence first");
  }
  auto& marks = core_->marks;
  const auto at =
      std::lower_bound(marks.begin(), marks.end(), position,
                       [](const prefix::Mark& mark, std::uint64_t p) { return mark.position < p; });
  if (at != marks.end() && at->position == position) {
    at->kind = std::max(at->kind, kind);
  } else {
    marks.insert(at, {position, kind});
  }
  return Status::ok();
}

std::vector<std::uint64_t> Sequence::prefill_stops() const {
  if (!core_) return {};
  const std::lock_guard own(core_->mutex);
  if (!core_->check_open()) return {};
  std::vector<std::uint64_t> positions;
  for (const prefix::Stop& stop : core_->stops()) positions.push_back(stop.position);
  return positions;
}

}  // namespace kvcache
