// A cache's disk tier. Thread safety: as Tier.
#pragma once

#include <memory>
#include <string>

#include "cache/tier.h"
#include "kvcache/disk_tier.h"
#include "persist/segment_log.h"

namespace kvcache {

class DiskTier final : public Tier {
 public:
  // As SegmentLog::open(), or kOutOfCapacity: no thread. `release` gives back what a job holds.
  static Result<std::unique_ptr<DiskTier>> open(const StatePlan& plan, const arena::PoolMap& pools,
                                                const DiskTierOptions& options, std::string weights,
                                                TierWriter::Release release);

  DiskTierStats stats() const;

 private:
  DiskTier(const StatePlan& plan, const arena::PoolMap& pools, TierOptions options,
           std::unique_ptr<persist::SegmentLog> log, const persist::SegmentLog& its_store,
           std::uint64_t max_bytes);

  const persist::SegmentLog& log_;  // the store
  const std::uint64_t max_bytes_;
};

}  // namespace kvcache
