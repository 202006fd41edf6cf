#include "cache/disk_tier.h"

#include <utility>

namespace kvcache {

using persist::SegmentLog;

DiskTier::DiskTier(const StatePlan& plan, const arena::PoolMap& pools, TierOptions options,
                   std::unique_ptr<SegmentLog> log, const SegmentLog& its_store,
                   std::uint64_t max_bytes)
    : Tier(plan, pools, std::move(options), std::move(log)),
      log_(its_store),
      max_bytes_(max_bytes) {}

Result<std::unique_ptr<DiskTier>> DiskTier::open(const StatePlan& plan, const arena::PoolMap& pools,
                                                 const DiskTierOptions& options,
                                                 std::string weights, TierWriter::Release release) {
  if (options.read_threads == 0 || options.read_threads > 64) {
    return Status::invalid_argument("disk tier: read_threads: expected 1..64, got ",
                                    options.read_threads);
  }
  persist::LogOptions log_options;
  log_options.access = options.access;
  log_options.max_bytes = options.max_bytes;
  log_options.durability = options.durability;
  log_options.group_bytes = options.group_bytes;
  auto log = SegmentLog::open(persist::System::real(), options.path, log_options);
  if (!log) return log.status();
  TierOptions tier_options;
  tier_options.name = "disk tier at " + options.path;
  tier_options.weights = std::move(weights);
  tier_options.queue = queue_options(options);
  tier_options.read_threads = options.read_threads;
  tier_options.at_open = options.at_open;
  const SegmentLog& store = **log;
  std::unique_ptr<DiskTier> tier(new DiskTier(plan, pools, std::move(tier_options),
                                              std::move(log).value(), store, options.max_bytes));
  if (Status status = tier->start(std::move(release)); !status) return status;
  return tier;
}

DiskTierStats DiskTier::stats() const {
  DiskTierStats stats;
  static_cast<TierStats&>(stats) = counters();
  const persist::LogStats log = log_.stats();
  stats.is_writer = log_.is_writer();
  stats.max_bytes = max_bytes_;
  stats.segments = log.segments;
  stats.records = log.records;
  stats.bytes = log.bytes;
  stats.written_records = log.written_records;
  stats.written_bytes = log.written_bytes;
  stats.syncs = log.syncs;
  stats.evicted_segments = log.evicted_segments;
  stats.kept_records = log.kept_records;
  stats.erased_records = log.erased_records;
  stats.damaged_segments = log.damaged_segments;
  stats.torn_segments = log.torn_segments;
  stats.damaged_records = log.damaged_records;
  if (stats.last_error.empty()) stats.last_error = log.last_error;
  return stats;
}

}  // namespace kvcache
