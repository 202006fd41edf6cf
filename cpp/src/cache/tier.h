// A tier of a cache below memory: what of a path is stored, what of a prompt is found, and both
// sides' counters. It knows keys and records; pages are moved by the cache, and where records lie
// its store knows. Thread safety: thread-safe. Its own locks are taken after the cache's or without
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arena/pool_map.h"
#include "cache/tier_writer.h"
#include "kvcache/cache.h"
#include "kvcache/prefix_space.h"
#include "kvcache/state_plan.h"
#include "kvcache/tier_stats.h"
#include "persist/record_store.h"
#include "prefix/radix_index.h"

namespace kvcache {

// A position that can be resumed, and the records it takes.
struct TierHit {
  std::uint64_t position = 0;
  std::vector<persist::Located> runs;  // ascending
  std::optional<persist::Located> boundary;
};

// A path as it is stored: its pages belong to a sequence that holds them, with its chain up to
// date.
struct TierPath {
  const prefix::BlockChain& chain;
  std::span<const std::int32_t> tokens;
  const prefix::BlockTables& tables;
  std::span<const arena::SnapshotRef> snapshots;
  bool is_last = false;    // the sequence ends here
  std::string owner = {};  // owner_text()
};

struct TierOptions {
  std::string name;  // as errors call it
  std::string weights;
  QueueOptions queue;
  std::uint32_t read_threads = 1;  // of one fetch
  bool at_open = true;             // open() looks for a longer prefix here
};

class Tier {
 public:
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;
  virtual ~Tier() = default;

  std::uint32_t read_threads() const { return options_.read_threads; }
  bool at_open() const { return options_.at_open; }

  // The name of a space here: with model and weights, so that no other state has its keys. None:
  // the tier is not used, because the weights have changed without a new name.
  std::optional<std::string> space_key(std::string_view key) const;
  // Other weights.
  void set_weights(const std::string& weights);

  // Whether a sequence that ends has more to store than it published.
  bool wants_last() const { return boundaries_ && !plan_.has_fixed_state(); }
  // Records of a path that are not there yet and that the queue has room for: `hold` keeps what a
  // job names before it is queued. `last_boundary` is the latest position of the path that was
  // stored on its own account, in models without snapshots.
  using Hold = std::function<void(const TierJobs&)>;
  void store(const TierPath& path, std::uint64_t& last_boundary, const Hold& hold);

  // The longest prefix in (at_least, at_most] that can be resumed.
  std::optional<TierHit> find(const prefix::BlockChain& chain, std::uint64_t at_least,
                              std::uint64_t at_most);
  void read(std::span<persist::RecordRead> reads) { store_->read(reads); }
  // A record could not be read, or is not what it should be.
  void fail(const persist::Located& record, const Status& why);
  void count_fetch(std::uint64_t tokens, std::uint64_t records, std::uint64_t bytes);
  void count_no_room();

  // Takes out of the store what agrees with every field given, behind what waits to be written, for
  // all weights and models alike; media are not looked at. kUnsupported: it is another process's to
  // erase. Otherwise as RecordStore::erase().
  Result<std::uint64_t> erase(const EraseFilter& filter);
  Status flush(std::optional<std::uint64_t> wait_ms);

 protected:
  Tier(const StatePlan& plan, const arena::PoolMap& pools, TierOptions options,
       std::unique_ptr<persist::RecordStore> store);
  // kOutOfCapacity: no thread. `release` gives back what a job holds.
  Status start(TierWriter::Release release);
  // The counters of every tier.
  TierStats counters() const;

 private:
  std::vector<std::uint64_t> known_starts(const prefix::BlockChain& chain) const;
  void plan_chain(const TierPath& path, std::uint64_t block, std::vector<std::uint64_t>& starts,
                  TierJobs& jobs) const;
  std::optional<TierJob> make_job(const TierPath& path, const std::vector<struct PageOf>& pages,
                                  const arena::SnapshotRef* snapshot, std::uint64_t first,
                                  std::uint64_t last) const;
  std::vector<std::uint64_t> boundaries_of(const TierPath& path, std::uint64_t& last) const;
  bool queue(TierJobs jobs, const Hold& hold);
  const arena::SnapshotRef* snapshot_at(const TierPath& path, std::uint64_t position) const;
  std::optional<persist::Located> find_boundary(const prefix::BlockChain& chain,
                                                std::span<const std::uint64_t> blocks,
                                                std::uint64_t at_least, std::uint64_t at_most);
  bool find_runs(const prefix::BlockChain& chain, std::span<const std::uint64_t> starts,
                 std::uint64_t block, std::vector<persist::Located>& runs);

  const StatePlan& plan_;
  const arena::PoolMap& pools_;
  const TierOptions options_;
  const bool boundaries_;
  const std::uint64_t run_blocks_;
  const std::string fingerprint_;
  const std::unique_ptr<persist::RecordStore> store_;

  mutable std::mutex mutex_;
  std::string weights_;
  bool nameless_ = false;  // the weights have changed, their name has not
  persist::Digest origin_{};
  TierStats counters_;

  std::unique_ptr<TierWriter> writer_;  // the last member: its thread uses the others
};

}  // namespace kvcache
