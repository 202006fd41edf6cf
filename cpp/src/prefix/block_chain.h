// Names of prefixes that other processes agree on: chained SHA-256 digests of tokens, space and
// media. Thread safety: thread-compatible; a sequence's lock guards it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "kvcache/prefix_space.h"

namespace kvcache::prefix {

// What insert() needs to announce a path; empty when nothing is announced.
struct PathNames {
  std::span<const std::uint64_t> blocks;  // of whole blocks, from the first
  std::vector<std::pair<std::uint64_t, std::uint64_t>> snapshots;  // position and name
};

class BlockChain {
 public:
  using Digest = Sha256::Digest;

  // Names every whole block of `tokens`. What the call before has named is not hashed again. The
  // space and the length of blocks are the same in all calls.
  void update(const SpaceRef& space, std::span<const std::int32_t> tokens,
              std::uint64_t block_tokens);

  // Those of the latest update.
  std::span<const std::uint64_t> blocks() const { return names_; }
  // Of its first `position` tokens, at least one.
  std::uint64_t name_at(std::uint64_t position) const;

  // The same in full: of each whole block, and of the first `position` tokens, maybe none.
  std::span<const Digest> digests() const { return digests_; }
  Digest digest_at(std::uint64_t position) const;

 private:
  const Digest& before(std::uint64_t block) const;
  Digest link(std::uint64_t begin, std::uint64_t end) const;

  std::uint64_t block_tokens_ = 0;
  Digest root_{};
  std::vector<std::int32_t> tokens_;
  std::vector<MediaSpan> media_;
  std::vector<Digest> digests_;
  std::vector<std::uint64_t> names_;
};

}  // namespace kvcache::prefix
