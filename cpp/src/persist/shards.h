// Which arrays a saved prefix has, in which files, and where their bytes lie in memory. Writer and
// reader ask here, so a size in a file is never trusted: it is compared.
// Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kvcache/state_plan.h"
#include "kvcache/status.h"
#include "persist/prompt_cache.h"

namespace kvcache::persist {

struct ArraySpec {
  enum class Source : std::uint8_t { kTokens, kRows, kScales, kFixed };

  std::string name;
  DType dtype = DType::kI32;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // behind the header of its file
  Source source = Source::kTokens;
  std::size_t group = 0;                  // of kRows and kScales
  const PagedComponent* paged = nullptr;  // likewise
  const FixedComponent* fixed = nullptr;  // of kFixed
};

inline constexpr char kStateFile[] = "state.safetensors";  // all there is in this version

struct ShardSpec {
  std::string file;
  std::vector<ArraySpec> arrays;  // in file order, wide elements first
  std::uint64_t payload_bytes = 0;
};

// The files of a prefix in a version of the format; the tokens are in the first.
// kCorruption: sizes that fit no file. kUnsupported: names that no file can hold.
Result<std::vector<ShardSpec>> shard_specs(const StatePlan& plan, const PrefixShape& shape,
                                           std::uint64_t version = kPromptCacheVersion);

// Rows [row, row + count) of a block.
struct PageRange {
  std::uint64_t block = 0;
  std::uint64_t row = 0;
  std::uint64_t count = 0;
};

// Calls `visit` with the stored rows of a group, page by page in file order, until it fails.
Status for_each_page(const StatePlan& plan, std::size_t group, const PrefixShape& shape,
                     const std::function<Status(const PageRange&)>& visit);

// Calls `visit` with the memory of an array, piece by piece in file order, until it fails.
Status for_each_piece(const StatePlan& plan, const ArraySpec& array, const PrefixShape& shape,
                      const PrefixBytes& bytes,
                      const std::function<Status(std::byte*, std::size_t)>& visit);

}  // namespace kvcache::persist
