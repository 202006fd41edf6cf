// Prompt caches on disk: how Cache::save() and Cache::load() take them, and what tools see of them
// without the model: what is in a directory, and whether its bytes are right.
// Thread safety: values; functions are thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/status.h"

namespace kvcache {

struct SaveOptions {
  bool replace = false;  // a prompt cache that is there already
  // It is on the disk when save() returns. Otherwise a process that is killed still leaves the old
  // or the new one; after a power cut load() may find neither, and says so.
  bool durable = true;
};

struct LoadOptions {
  std::optional<std::uint64_t> ttl_ms = {};  // as in OpenOptions
  std::string tenant = {};                   // charged for what is added
  bool convert = false;            // rows that are stored in another format than the plan's
  std::uint32_t read_threads = 2;  // at most, of 1..64; small files and `convert` take one
};

struct ShardReport {
  std::string file;
  std::uint64_t bytes = 0;
};

struct PromptCacheReport {
  std::uint64_t version = 0;
  std::string generation;
  std::string fingerprint;  // of the plan
  std::string space;        // digest of the prefix space
  std::uint64_t tokens = 0;
  std::vector<std::uint64_t> snapshots;  // their positions
  std::vector<ShardReport> shards;
  std::vector<std::string> problems;  // each names its file
};

// Reads the current generation; `deep`: every shard too, against the manifest's checksums. Changes
// nothing. kCorruption: it is no prompt cache, or its manifest is damaged. kUnsupported: of another
// version. kIoError: nothing is there, or the system refused.
Result<PromptCacheReport> check_prompt_cache(const std::string& path, bool deep);

// What one prompt cache must have in common with those of other ranks.
struct PromptPrefix {
  std::string fingerprint;  // of the plan
  std::string space;        // digest of the prefix space
  std::vector<std::uint64_t> snapshots;
  std::vector<std::int32_t> tokens;
};

// The same of the current generation, its tokens as its manifest names them. Of the shards sizes
// are checked. Errors as check_prompt_cache(), kCorruption for what that reports as a problem.
Result<PromptPrefix> read_prompt_prefix(const std::string& path);

}  // namespace kvcache
