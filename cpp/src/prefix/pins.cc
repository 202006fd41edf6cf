#include "prefix/pins.h"

#include <algorithm>

namespace kvcache::prefix {
namespace {

void make_room(std::vector<std::uint32_t>& counts, std::size_t at) {
  if (at >= counts.size()) counts.resize(at + 1);
}

std::uint32_t& count_of(std::vector<std::uint32_t>& counts, std::size_t at) {
  make_room(counts, at);
  return counts[at];
}

}  // namespace

const PinRecord* PinTable::find(PinId id) const {
  const auto found = pins_.find(id);
  return found == pins_.end() ? nullptr : &found->second;
}

std::vector<PinId> PinTable::ending_at(RunId run) const {
  std::vector<PinId> ids;
  const auto [first, last] = ends_.equal_range(run);
  for (auto at = first; at != last; ++at) ids.push_back(at->second);
  return ids;
}

std::vector<PinId> PinTable::holding(SnapshotIndex snapshot) const {
  std::vector<PinId> ids;
  if (!holds_snapshot(snapshot)) return ids;
  for (const auto& [id, record] : pins_) {
    const auto& held = record.snapshots;
    if (std::find(held.begin(), held.end(), snapshot) != held.end()) ids.push_back(id);
  }
  return ids;
}

void PinTable::reserve(std::span<const RunId> path, const PinRecord& record) {
  for (const RunId run : path) make_room(runs_, run);
  for (std::size_t group = 0; group < record.pages.size(); ++group) {
    const auto& pages = record.pages[group];  // ascending
    if (!pages.empty()) make_room(pages_[group], static_cast<std::size_t>(pages.back()));
  }
  for (const SnapshotIndex snapshot : record.snapshots) make_room(snapshots_, snapshot);
}

PinId PinTable::add(PinRecord record) {
  const PinId id = last_ + 1;
  const std::pair lease{record.deadline, id};
  const bool leased = record.deadline != kNever;
  const auto end = ends_.emplace(record.run, id);
  try {
    if (leased) leases_.insert(lease);
    pins_.emplace(id, std::move(record));
  } catch (...) {
    ends_.erase(end);
    leases_.erase(lease);
    throw;
  }
  return last_ = id;
}

PinRecord PinTable::remove(PinId id) {
  const auto found = pins_.find(id);
  PinRecord record = std::move(found->second);
  pins_.erase(found);
  leases_.erase({record.deadline, id});
  auto [at, last] = ends_.equal_range(record.run);
  while (at != last && at->second != id) ++at;
  if (at != last) ends_.erase(at);
  return record;
}

void PinTable::clear() noexcept {
  pins_.clear();
  ends_.clear();
  leases_.clear();
  runs_.clear();
  for (std::vector<std::uint32_t>& counts : pages_) counts.clear();
  snapshots_.clear();
  held_pages_ = 0;
  bytes_ = 0;
}

void PinTable::set_deadline(PinId id, std::uint64_t deadline) {
  PinRecord& record = pins_.at(id);
  if (deadline == record.deadline) return;
  if (deadline != kNever) leases_.emplace(deadline, id);  // alone may fail
  leases_.erase({record.deadline, id});
  record.deadline = deadline;
}

void PinTable::cover(RunId run) { ++count_of(runs_, run); }

void PinTable::split(RunId upper, RunId run) {
  if (covers(run)) count_of(runs_, upper) = runs_[run];
}

void PinTable::hold_page(std::size_t group, arena::ItemId page) {
  if (count_of(pages_[group], static_cast<std::size_t>(page))++ > 0) return;
  ++held_pages_;
  bytes_ += pools_.pages[group]->item_bytes();
}

void PinTable::release_page(std::size_t group, arena::ItemId page) {
  if (--pages_[group][static_cast<std::size_t>(page)] > 0) return;
  --held_pages_;
  bytes_ -= pools_.pages[group]->item_bytes();
}

bool PinTable::hold_snapshot(SnapshotIndex snapshot, std::uint64_t bytes) {
  if (count_of(snapshots_, snapshot)++ > 0) return false;
  bytes_ += bytes;
  return true;
}

bool PinTable::release_snapshot(SnapshotIndex snapshot, std::uint64_t bytes) {
  if (--snapshots_[snapshot] > 0) return false;
  bytes_ -= bytes;
  return true;
}

}  // namespace kvcache::prefix
