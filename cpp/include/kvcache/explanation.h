// Why a prompt would hit as far as it does. Thread safety: values.
#pragma once

#include <cstdint>
#include <optional>

#include "kvcache/snapshot.h"
#include "kvcache/tenants.h"

namespace kvcache {

// What limited a hit, in the words of explain().
enum class HitLimit : std::uint8_t { kNone = 0, kTokens = 1, kSnapshot = 2, kWindow = 3 };

// Why what a longer hit would need is not there. Below 8: ghosts keep it in three bits.
enum class MissReason : std::uint8_t {
  kNone = 0,         // nothing is missing: only the last token must run
  kNeverStored = 1,  // or so long ago that it is forgotten
  kEvicted = 2,      // by the policy, for memory
  kErased = 3,       // by erase()
  kWeights = 4,      // by bump_epoch()
  kThinned = 5,      // a snapshot, for others of its path
  kExpired = 6,      // at the end of its time to live
  kQuota = 7,        // a quota had no room for it: it gave way, or was not stored
};

struct Explanation {
  std::uint64_t tokens = 0;            // asked
  std::uint64_t matched_tokens = 0;    // longest prefix whose tokens are known
  std::uint64_t cached_tokens = 0;     // what a hit would cover
  std::uint64_t nearest_snapshot = 0;  // deepest resident snapshot at or below matched_tokens
  HitLimit limit = HitLimit::kTokens;
  std::optional<SnapshotFormat> snapshot_format;  // of the one a hit would restore
  // What is missing: the first token that is not known, the end of what a snapshot would give back,
  // or the first position of the block that a window lacks.
  std::uint64_t position = 0;
  std::optional<std::uint32_t> group;  // whose window it is
  MissReason reason = MissReason::kNeverStored;
  std::uint64_t once_tokens = 0;    // of the prompt, how much is or was stored; at least matched
  std::uint64_t lost_snapshot = 0;  // deepest position up to matched_tokens that has lost one; or 0
  std::optional<TenantUsage> quota;  // kQuota: of the tenant whose it was, while it has one
};

}  // namespace kvcache
