// One prefix on disk, with everything that is needed to go on from it: see "Prompt cache" in
// FORMAT.md. A directory is published whole or not at all; a reader trusts nothing in it.
// Thread safety: functions are thread-safe, PromptCacheReader is thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvcache/prompt_cache.h"
#include "kvcache/state_plan.h"
#include "kvcache/status.h"

namespace kvcache::persist {

// Of the format: what is written; all from 1 on are read.
inline constexpr std::uint64_t kPromptCacheVersion = 2;

// Most tokens of a saved prefix.
inline constexpr std::uint64_t kMaxTokens = 1 << 28;

// What of a prefix is stored.
struct PrefixShape {
  std::uint64_t tokens = 0;
  // By group: rows of positions [0, sinks) and [starts, tokens) are stored; sinks <= starts.
  std::vector<std::uint64_t> starts;
  std::vector<std::uint64_t> sinks;
  std::vector<std::uint64_t> snapshots;  // positions, ascending; empty without fixed-size state
};

// Where it lies in memory: pages by group and block, those without stored rows may be null, and one
// snapshot for each position. The writer only reads them.
struct PrefixBytes {
  std::vector<std::vector<std::byte*>> pages;
  std::vector<std::byte*> snapshots;
};

// Whether the rows that a shape stores of a group are all that it needs to go on at `tokens`.
bool covers(const PrefixShape& shape, std::size_t index, const Group& group, std::uint64_t tokens);

// Publishes a prefix as the directory `path`. `space` is the digest of the prefix space.
// kInvalidArgument: `path` exists (without `replace`), is no prompt cache (with it), or names
// nothing. kIoError: the system refused. In every case what was at `path` is as before.
Status write_prompt_cache(const std::string& path, const StatePlan& plan, const std::string& space,
                          std::span<const std::int32_t> tokens, const PrefixShape& shape,
                          const PrefixBytes& bytes, const SaveOptions& options);

// A directory of which all has been checked but the checksums of the state. Holds its files open,
// so that a later replacement takes nothing away.
class PromptCacheReader {
 public:
  // kCorruption: damage, naming the file. kUnsupported: another format version, model or prefix
  // space, or, without `convert`, storage format of the rows. kIoError: the system refused.
  static Result<PromptCacheReader> open(const std::string& path, const StatePlan& plan,
                                        const std::string& space, bool convert);
  PromptCacheReader(PromptCacheReader&&) noexcept;
  ~PromptCacheReader();

  const std::vector<std::int32_t>& tokens() const;
  const PrefixShape& shape() const;  // of the plan's groups
  // Checks the checksums, without a place for the state, with up to `threads` threads. kCorruption.
  Status verify(unsigned threads) const;
  // Copies the state into pages of the plan's own block size; rows that no page takes are left
  // out. kCorruption: the checksum of a file is wrong; what has been copied is then no state.
  // kNonFinite: of rows that become INT8.
  Status read_into(const PrefixBytes& destination, unsigned threads) const;

 private:
  struct Impl;
  explicit PromptCacheReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcache::persist
