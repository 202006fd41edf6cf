// manifest.json of a generation: what the files hold and how to tell that they are whole.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/state_plan.h"
#include "kvcache/status.h"
#include "persist/prompt_cache.h"

namespace kvcache::persist {

inline constexpr std::uint64_t kMaxManifestBytes = 16 << 20;

struct ShardEntry {
  std::string file;
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;  // CRC-32C of the whole file
};

// What a manifest may be of: the plan of the cache that reads it and, where rows may be converted,
// that plan with its rows in other storage formats.
struct ReadingPlans {
  const StatePlan& own;
  std::span<const StatePlan> others = {};
  bool convert = false;
};

struct Manifest {
  const StatePlan* plan = nullptr;  // one of the ReadingPlans
  std::uint64_t version = kPromptCacheVersion;
  std::string space;          // digest of the prefix space
  std::string prefix_sha256;  // of the tokens as little-endian int32
  PrefixShape shape;
  std::vector<ShardEntry> shards;
};

std::string write_manifest(const StatePlan& plan, const Manifest& manifest);

// Everything but the shards' own bytes is checked: version first, then model, storage and space,
// then the numbers. kUnsupported or kCorruption; messages name `path`.
Result<Manifest> parse_manifest(std::string_view text, const std::string& path,
                                const ReadingPlans& plans, const std::string& space);

std::string prefix_sha256(std::span<const std::int32_t> tokens);

}  // namespace kvcache::persist
