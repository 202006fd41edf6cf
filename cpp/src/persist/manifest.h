// manifest.json of a generation: what the files hold and how to tell that they are whole.
#pragma once

#include <cstdint>
#include <memory>
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

struct Manifest {
  // The writer's, where it stores rows in another format than the reader's plan; null: as that.
  std::shared_ptr<const StatePlan> stored;
  const StatePlan& plan(const StatePlan& readers) const { return stored ? *stored : readers; }

  std::uint64_t version = kPromptCacheVersion;
  std::string space;          // digest of the prefix space
  std::string prefix_sha256;  // of the tokens as little-endian int32
  PrefixShape shape;
  std::vector<ShardEntry> shards;
};

std::string write_manifest(const StatePlan& plan, const Manifest& manifest);

// Everything but the shards' own bytes is checked: version first, then model, storage and space,
// then the numbers. `convert`: rows may be stored in another format. kUnsupported or kCorruption;
// messages name `path`.
Result<Manifest> parse_manifest(std::string_view text, const std::string& path,
                                const StatePlan& plan, const std::string& space, bool convert);

std::string prefix_sha256(std::span<const std::int32_t> tokens);

}  // namespace kvcache::persist
