// A cache's remote tier. Thread safety: as Tier.
#pragma once

#include <memory>
#include <string>

#include "cache/tier.h"
#include "kvcache/remote_tier.h"
#include "remote/remote_store.h"

namespace kvcache {

class RemoteTier final : public Tier {
 public:
  // Asks nobody yet: a server that is not there is a miss. kInvalidArgument: options out of range,
  // or files of TLS that are none. kUnsupported: TLS, and no OpenSSL. kOutOfCapacity: no thread.
  // `release` gives back what a job holds.
  static Result<std::unique_ptr<RemoteTier>> open(const StatePlan& plan,
                                                  const arena::PoolMap& pools,
                                                  const RemoteTierOptions& options,
                                                  std::string weights, TierWriter::Release release);

  RemoteTierStats stats() const;

 private:
  RemoteTier(const StatePlan& plan, const arena::PoolMap& pools, TierOptions options,
             std::unique_ptr<remote::RemoteStore> store, const remote::RemoteStore& its_store);

  const remote::RemoteStore& server_;  // the store
};

}  // namespace kvcache
