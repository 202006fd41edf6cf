// What pins keep from eviction: which runs, pages and snapshots, and how many bytes they are.
// Thread safety: thread-compatible; the cache's lock guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arena/pool_map.h"
#include "evict/policy.h"

namespace kvcache::prefix {

using evict::RunId;
using PinId = std::uint64_t;  // from 1 on; never used again
using SnapshotIndex = evict::SnapshotId;

inline constexpr std::uint64_t kNever = UINT64_MAX;  // of a time

// One pin: the prefix that ends where `run` ends.
struct PinRecord {
  RunId run = 0;
  std::uint64_t deadline = kNever;
  std::vector<std::vector<arena::ItemId>> pages;  // by group, each page once
  std::vector<SnapshotIndex> snapshots;           // each once
};

class PinTable {
 public:
  explicit PinTable(const arena::PoolMap& pools) : pools_(pools), pages_(pools.pages.size()) {}

  // Whether a pin ends at the run or below it.
  bool covers(RunId run) const { return run < runs_.size() && runs_[run] > 0; }
  bool holds_page(std::size_t group, arena::ItemId page) const {
    const auto at = static_cast<std::size_t>(page);
    return at < pages_[group].size() && pages_[group][at] > 0;
  }
  bool holds_snapshot(SnapshotIndex snapshot) const {
    return snapshot < snapshots_.size() && snapshots_[snapshot] > 0;
  }

  // A pin, by its number; null when it has gone.
  const PinRecord* find(PinId id) const;
  // The pins that end at a run.
  std::vector<PinId> ending_at(RunId run) const;
  // The pins that hold a snapshot. O(pins).
  std::vector<PinId> holding(SnapshotIndex snapshot) const;
  // The next pin that has lapsed at `now`, or 0.
  PinId lapsed(std::uint64_t now) const {
    return leases_.empty() || leases_.begin()->first > now ? 0 : leases_.begin()->second;
  }
  bool has_leases() const { return !leases_.empty(); }

  // Room to count what a pin of `path` and of `record` holds, so that counting cannot fail.
  void reserve(std::span<const RunId> path, const PinRecord& record);
  // A new pin, which holds nothing yet; where memory runs out, nothing is changed.
  PinId add(PinRecord record);
  // Takes a pin away, which has let go of everything.
  PinRecord remove(PinId id);
  void set_deadline(PinId id, std::uint64_t deadline);

  // What a pin holds, one more or one less. A run counts as often as pins end at it or below.
  void cover(RunId run);
  void uncover(RunId run) { --runs_[run]; }
  // `upper` was cut off the front of `run`.
  void split(RunId upper, RunId run);
  void hold_page(std::size_t group, arena::ItemId page);
  void release_page(std::size_t group, arena::ItemId page);
  // True when it is the first or the last to hold the snapshot, which has so many bytes.
  bool hold_snapshot(SnapshotIndex snapshot, std::uint64_t bytes);
  bool release_snapshot(SnapshotIndex snapshot, std::uint64_t bytes);
  // A snapshot that is held has other bytes now.
  void replace_snapshot(std::uint64_t before, std::uint64_t after) { bytes_ += after - before; }

  // All pins are gone; their numbers are not used again.
  void clear() noexcept;

  // Any pin, or 0.
  PinId any() const { return pins_.empty() ? 0 : pins_.begin()->first; }
  std::size_t size() const { return pins_.size(); }
  std::uint64_t pages() const { return held_pages_; }
  std::uint64_t bytes() const { return bytes_; }  // of all that is held, each page once

 private:
  const arena::PoolMap& pools_;
  std::unordered_map<PinId, PinRecord> pins_;
  std::unordered_multimap<RunId, PinId> ends_;
  std::set<std::pair<std::uint64_t, PinId>> leases_;
  // Counts, as long as the highest number that was ever pinned.
  std::vector<std::uint32_t> runs_;
  std::vector<std::vector<std::uint32_t>> pages_;
  std::vector<std::uint32_t> snapshots_;
  PinId last_ = 0;
  std::uint64_t held_pages_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace kvcache::prefix
