// Prompt caches on disk as tools see them: what is in a directory that Cache::save() wrote, and
// whether its bytes are right, without the model.
// Thread safety: values; functions are thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/status.h"

namespace kvcache {

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
// nothing. kNotFound: nothing is there. kCorruption: it is no prompt cache, or its manifest is
// damaged. kUnsupported: of another version. kIoError: the system refused.
Result<PromptCacheReport> check_prompt_cache(const std::string& path, bool deep);

}  // namespace kvcache
