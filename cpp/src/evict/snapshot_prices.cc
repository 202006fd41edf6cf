#include "evict/snapshot_prices.h"

#include <algorithm>
#include <limits>

namespace kvcache::evict {
namespace {

// dead, 4 levels of uses x 6 kinds of path ends, interior used once or more, junctions of 2 or more
constexpr std::uint8_t kEnds = 1;
constexpr std::uint8_t kInteriors = kEnds + 4 * 6;
constexpr std::uint8_t kJunctions = kInteriors + 2;
constexpr std::uint8_t kMarkClasses = kJunctions + 2;

std::vector<HazardTable::Parents> mark_parents() {
  std::vector<HazardTable::Parents> parents;
  for (std::uint16_t cls = 0; cls < kMarkClasses; ++cls) {
    const bool end = cls >= kEnds && cls < kInteriors;
    const int level = end ? 1 + (cls - kEnds) / 6 : cls < kEnds ? 0 : 5 + cls - kInteriors;
    parents.push_back({HazardTable::kNoBase, static_cast<std::uint16_t>(level)});
  }
  return parents;
}

}  // namespace

SnapshotPrices::SnapshotPrices()
    : hazards_(mark_parents()),
      shelves_(std::size_t{kMarkClasses} * kAgeBuckets),
      timers_(kAgeBuckets) {}

std::uint8_t SnapshotPrices::class_of(MarkPlace place, std::uint32_t uses, std::uint32_t kind) {
  switch (place) {
    case MarkPlace::kInterior:
      return kInteriors + (uses > 1 ? 1 : 0);
    case MarkPlace::kJunction:
      return kJunctions;
    case MarkPlace::kWideJunction:
      return kJunctions + 1;
    case MarkPlace::kEnd:
      break;
  }
  return static_cast<std::uint8_t>(kEnds + std::min<std::uint32_t>(uses, 3) * 6 + kind);
}

MarkId SnapshotPrices::add(std::uint64_t position) {
  MarkId id = static_cast<MarkId>(marks_.size());
  if (free_.empty()) {
    marks_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  const std::uint32_t serial = marks_[id].serial + 1;
  marks_[id] = Mark();
  marks_[id].serial = serial;
  marks_[id].position = position;
  marks_[id].cls = kEnds;
  return id;
}

void SnapshotPrices::erase(MarkId id) {
  if (marks_[id].stored) unstore(id);
  ++marks_[id].serial;
  free_.push_back(id);
}

void SnapshotPrices::shelve(MarkId id) {
  const Mark& mark = marks_[id];
  if (mark.kept) return;
  shelves_[cell(mark)].insert({mark.worth, id});
  filled_.insert(cell(mark));
}

void SnapshotPrices::unshelve(MarkId id) {
  const Mark& mark = marks_[id];
  if (mark.kept) return;
  Shelf& shelf = shelves_[cell(mark)];
  shelf.erase({mark.worth, id});
  if (shelf.empty()) filled_.erase(cell(mark));
}

void SnapshotPrices::store(MarkId id, SnapshotId snapshot, double worth) {
  Mark& mark = marks_[id];
  mark.stored = true;
  mark.snapshot = snapshot;
  mark.worth = worth;
  if (snapshot >= by_snapshot_.size()) by_snapshot_.resize(snapshot + std::size_t{1}, kNoMark);
  by_snapshot_[snapshot] = id;
  mark.kept = true;
}

void SnapshotPrices::unstore(MarkId id) {
  unshelve(id);
  by_snapshot_[marks_[id].snapshot] = kNoMark;
  marks_[id].stored = false;
  marks_[id].kept = false;
}

void SnapshotPrices::set_kept(MarkId id, bool kept) {
  Mark& mark = marks_[id];
  if (mark.kept == kept) return;
  if (kept) unshelve(id);
  mark.kept = kept;
  if (!kept) shelve(id);
}

void SnapshotPrices::set_worth(MarkId id, double worth) {
  if (!marks_[id].stored || marks_[id].worth == worth) return;
  unshelve(id);
  marks_[id].worth = worth;
  shelve(id);
}

void SnapshotPrices::close(MarkId id) {
  Mark& mark = marks_[id];
  if (!mark.timed) return;
  hazards_.reuse(mark.cls, mark.bucket, 1);
  mark.timed = false;
  ++mark.serial;
}

void SnapshotPrices::open(MarkId id, std::uint8_t cls, std::uint64_t now_ms) {
  Mark& mark = marks_[id];
  if (mark.stored) unshelve(id);
  mark.cls = cls;
  mark.bucket = 0;
  mark.t0 = now_ms;
  mark.timed = true;
  mark.fresh = false;
  ++mark.serial;
  hazards_.enter(cls, 0, 1);
  timers_[0].push_back({id, mark.serial});
  if (mark.stored) shelve(id);
}

void SnapshotPrices::advance(std::uint64_t now_ms) {
  const auto& edges = age_edges();
  for (std::size_t bucket = 0; bucket < kLastBucket; ++bucket) {
    auto& timers = timers_[bucket];
    while (!timers.empty()) {
      const auto [id, serial] = timers.front();
      Mark& mark = marks_[id];
      if (mark.serial == serial) {
        if (static_cast<double>(now_ms - mark.t0) < edges[bucket + 1]) break;
        if (mark.stored) unshelve(id);
        ++mark.bucket;
        hazards_.enter(mark.cls, mark.bucket, 1);
        if (mark.stored) shelve(id);
        if (mark.bucket < kLastBucket) timers_[bucket + 1].push_back({id, serial});
      }
      timers.pop_front();
    }
  }
}

std::optional<SnapshotId> SnapshotPrices::cheapest(const Policy::MayGo& may_go) const {
  std::optional<SnapshotId> found;
  double least = std::numeric_limits<double>::infinity();
  for (const std::size_t at : filled_) {
    const double price =
        hazards_.price(static_cast<int>(at) / kAgeBuckets, static_cast<int>(at) % kAgeBuckets);
    for (const auto& [worth, id] : shelves_[at]) {
      if (found && price * worth >= least) break;
      if (!may_go(snapshot_unit(marks_[id].snapshot))) continue;
      least = price * worth;
      found = marks_[id].snapshot;
      break;
    }
  }
  return found;
}

}  // namespace kvcache::evict
