// Prices of snapshots. A position of a path at which a snapshot was ever taken is a mark, stored or
// not. What counts as a use of a mark is a request for which it is the deepest one known: only that
// one would be restored. A stored mark is worth its price times the FLOPs it saves, for each byte
// of the snapshot and of the pages that only it needs.
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "evict/hazard_table.h"
#include "evict/policy.h"

namespace kvcache::evict {

using MarkId = std::uint32_t;
inline constexpr MarkId kNoMark = UINT32_MAX;

struct Mark {
  std::uint64_t position = 0;
  std::uint64_t t0 = 0;      // ms of the last use
  double worth = 0;          // FLOPs for each byte, where stored
  SnapshotId snapshot = 0;   // where stored
  std::uint32_t record = 0;  // whose block it lies in
  std::uint32_t serial = 0;  // of its latest interval
  std::uint8_t cls = 0;
  std::uint8_t bucket = 0;
  std::uint8_t uses = 0;  // of the path that it ends, or its own; saturating
  bool stored = false;
  bool kept = false;   // stored, and no candidate
  bool timed = false;  // its interval is open
  bool fresh = true;   // no request has ended since it was taken
};

// How a mark lies on the path that it was used on.
enum class MarkPlace : std::uint8_t { kEnd, kInterior, kJunction, kWideJunction };

class SnapshotPrices {
 public:
  SnapshotPrices();

  MarkId add(std::uint64_t position);
  void erase(MarkId id);
  Mark& operator[](MarkId id) { return marks_[id]; }
  MarkId of(SnapshotId snapshot) const {
    return snapshot < by_snapshot_.size() ? by_snapshot_[snapshot] : kNoMark;
  }

  void store(MarkId id, SnapshotId snapshot, double worth);
  void unstore(MarkId id);
  void set_worth(MarkId id, double worth);
  // Whether a stored mark stays, as it does at first, or is one of those that may go.
  void set_kept(MarkId id, bool kept);

  // Classes of a mark on the path of a request with these answers to how long its output was and
  // how much of its prompt was new.
  static std::uint8_t class_of(MarkPlace place, std::uint32_t uses, std::uint32_t kind);
  static constexpr std::uint8_t kDead = 0;

  void close(MarkId id);  // its interval ends with a use
  void open(MarkId id, std::uint8_t cls, std::uint64_t now_ms);
  // Moves what has come of age on.
  void advance(std::uint64_t now_ms);
  void reprice(double half_life) { hazards_.reprice(half_life); }

  // The cheapest of those that may go.
  std::optional<SnapshotId> cheapest(const Policy::MayGo& may_go) const;

 private:
  using Shelf = std::set<std::pair<double, MarkId>>;

  std::size_t cell(const Mark& mark) const {
    return static_cast<std::size_t>(mark.cls) * kAgeBuckets + mark.bucket;
  }
  void shelve(MarkId id);
  void unshelve(MarkId id);

  HazardTable hazards_;
  std::vector<Mark> marks_;
  std::vector<MarkId> free_;
  std::vector<MarkId> by_snapshot_;
  std::vector<Shelf> shelves_;                                        // by cell, by worth
  std::set<std::size_t> filled_;                                      // cells
  std::vector<std::deque<std::pair<MarkId, std::uint32_t>>> timers_;  // by bucket, with serials
};

}  // namespace kvcache::evict
