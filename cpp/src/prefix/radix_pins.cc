// Prefixes that are kept from eviction.
#include <algorithm>
#include <utility>

#include "prefix/radix_index.h"

namespace kvcache::prefix {

// Adds what a hit of `match` needs to what a pin keeps.
void RadixIndex::collect(const Match& match, const std::vector<Step>& path,
                         PinRecord& record) const {
  const std::uint64_t block = plan_.block_tokens();
  for (std::size_t group = 0; group < match.tables.size(); ++group) {
    const Group& needs = plan_.groups()[group];
    const BlockRange live = needs.live_blocks(match.usable, block);
    auto& pages = record.pages[group];
    const auto add = [&](std::uint64_t first, std::uint64_t last) {
      for (std::uint64_t b = first; b < last; ++b) {
        if (const ItemId page = match.tables[group][b]; page != kNoItem) pages.push_back(page);
      }
    };
    add(0, std::min(needs.sink_blocks(match.usable, block), live.first));
    add(live.first, live.last);
    std::sort(pages.begin(), pages.end());
    pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
  }
  if (match.snapshot.item == kNoItem) return;
  const std::uint32_t index = deepest_snapshot(path, match.usable);
  if (std::find(record.snapshots.begin(), record.snapshots.end(), index) ==
      record.snapshots.end()) {
    record.snapshots.push_back(index);
  }
}

std::uint64_t RadixIndex::snapshot_bytes(std::uint32_t index) const {
  return pools_.of(snapshots_[index].format).item_bytes();
}

// Bytes of what nobody has pinned yet.
std::uint64_t RadixIndex::bytes_to_pin(const PinRecord& record) const {
  std::uint64_t bytes = 0;
  for (std::size_t group = 0; group < record.pages.size(); ++group) {
    for (const ItemId page : record.pages[group]) {
      if (!pins_.holds_page(group, page)) bytes += pools_.pages[group]->item_bytes();
    }
  }
  for (const std::uint32_t index : record.snapshots) {
    if (!pins_.holds_snapshot(index)) bytes += snapshot_bytes(index);
  }
  return bytes;
}

Result<Pinned> RadixIndex::pin(const SpaceRef& space, std::span<const std::int32_t> tokens,
                               std::uint64_t deadline, std::uint64_t most_bytes) {
  lapse();
  std::vector<std::int32_t> longer(tokens.begin(), tokens.end());
  longer.push_back(0);  // match() leaves the last token to run
  const Match whole = match(space, longer, false);
  if (whole.usable == 0) {
    return Status::not_found("pin: no prefix of these ", tokens.size(),
                             " tokens is stored and usable; explain() tells why");
  }
  const std::vector<Step> path = walk(root_of(space, false), tokens, space.media, true);
  PinRecord record;
  record.deadline = deadline;
  record.pages.resize(pools_.pages.size());
  collect(whole, path, record);
  if (whole.usable == tokens.size() && (has_windows_ || plan_.has_fixed_state())) {
    // The same prompt again runs its last token, so it resumes further back.
    collect(match(space, tokens, false), path, record);
  }
  const std::uint64_t more = bytes_to_pin(record);
  if (pins_.bytes() > most_bytes || more > most_bytes - pins_.bytes()) {
    return Status::out_of_capacity("pin: ", whole.usable, " tokens need ", more,
                                   " bytes more, all pins hold ", pins_.bytes(), " of the ",
                                   most_bytes, " they may; release some or raise pin_limit");
  }
  const auto last = std::find_if(path.begin(), path.end(), [&](const Step& step) {
    return nodes_[step.node].end() >= whole.usable;
  });
  record.run = last->node;
  // It ends with a run of its own, so that what continues it may go.
  if (nodes_[record.run].end() > whole.usable) {
    const auto change = begin_change();
    record.run = split(record.run, whole.usable);
  }
  return Pinned{hold(std::move(record)), whole.usable};
}

// Memory is taken before anything is counted: a pin is held whole or not at all.
PinId RadixIndex::hold(PinRecord record) {
  std::vector<NodeId> path;
  for (NodeId run = record.run; run != kNoNode; run = nodes_[run].parent) path.push_back(run);
  pins_.reserve(path, record);
  const PinId id = pins_.add(std::move(record));
  const auto change = begin_change();
  const PinRecord& held = *pins_.find(id);
  for (const NodeId run : path) pins_.cover(run);
  set_candidate(held.run, false);
  for (std::size_t group = 0; group < held.pages.size(); ++group) {
    for (const ItemId page : held.pages[group]) pins_.hold_page(group, page);
  }
  for (const std::uint32_t index : held.snapshots) {
    if (pins_.hold_snapshot(index, snapshot_bytes(index))) {
      policy_->erase(evict::snapshot_unit(index));
    }
  }
  return id;
}

bool RadixIndex::unpin(PinId id) noexcept {
  if (pins_.find(id) == nullptr) return false;
  try {
    const auto change = begin_change();
    end_pin(id);
  } catch (const std::bad_alloc&) {  // that has let go of everything
  }
  return true;
}

void RadixIndex::end_pin(PinId id) {
  const PinRecord record = pins_.remove(id);
  for (std::size_t group = 0; group < record.pages.size(); ++group) {
    for (const ItemId page : record.pages[group]) pins_.release_page(group, page);
  }
  for (const std::uint32_t index : record.snapshots) {
    if (pins_.release_snapshot(index, snapshot_bytes(index))) {
      policy_->insert(evict::snapshot_unit(index));
    }
  }
  for (NodeId run = record.run; run != kNoNode; run = nodes_[run].parent) {
    pins_.uncover(run);
    if (!pins_.covers(run)) lives_.resume(run);
    if (has_windows_ && !nodes_[run].is_root()) queue_windows(run);
  }
  if (nodes_[record.run].children == 0) set_candidate(record.run, true);
}

void RadixIndex::unpin_ending_at(NodeId run) {
  if (!pins_.covers(run)) return;
  for (const PinId id : pins_.ending_at(run)) end_pin(id);
}

bool RadixIndex::renew_pin(PinId id, std::uint64_t deadline) {
  lapse();
  if (pins_.find(id) == nullptr) return false;
  pins_.set_deadline(id, deadline);
  return true;
}

void RadixIndex::lapse() {
  const auto change = begin_change();
  while (const PinId id = pins_.lapsed(now_)) {
    end_pin(id);
    ++lapsed_leases_;
  }
}

}  // namespace kvcache::prefix
