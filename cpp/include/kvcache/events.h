// What a cache tells routers: which whole blocks, and which snapshots, have become or stopped being
// available for reuse. Thread safety: values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kvcache/prefix_space.h"

namespace kvcache {

enum class EventKind : std::uint8_t { kStored = 0, kRemoved = 1, kCleared = 2 };

// Blocks are named by the first 64 bits of a SHA-256 chain: of the name before, the block's tokens
// and the media items that begin in it; the first one follows the space and the block length. Names
// are the same in every process and for every weight epoch.
struct CacheEvent {
  EventKind kind = EventKind::kCleared;
  // A group of the plan; one more than the last for snapshots of the fixed-size state.
  std::uint32_t group = 0;
  std::vector<std::uint64_t> hashes;  // of consecutive blocks, when stored; of any, when removed
  // Of what is stored:
  std::optional<std::uint64_t> parent;  // of the block before; none at position 0
  std::uint64_t start = 0;              // position of tokens[0]
  // Of each block; a snapshot inside a block has the tokens since the block began.
  std::uint32_t block_tokens = 0;
  std::vector<std::int32_t> tokens;  // block_tokens for each name
  std::vector<MediaSpan> media;      // those that reach into the tokens
  // Without media; events of one space that were taken together share it. Null: nothing is stored.
  std::shared_ptr<const PrefixSpace> space;
};

}  // namespace kvcache
