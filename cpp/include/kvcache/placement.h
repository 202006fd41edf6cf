// Where state that can be resumed is kept: the vocabulary of Sequence::mark() and prefill_stops().
// Thread safety: values.
#pragma once

#include <cstdint>

namespace kvcache {

// What ends at a marked position. Later prompts tend to agree up to such a point and to differ
// after it. Numbers ascend by worth: when a path holds too many snapshots the lowest kind goes.
enum class MarkKind : std::uint8_t { kOther = 0, kTurn = 1, kTools = 2, kSystem = 3 };

struct PlacementOptions {
  // Where nobody marked anything a snapshot each so many tokens bounds what a first divergence
  // recomputes; 0: none.
  std::uint64_t interval_tokens = 1024;
  // Most snapshots on one path from the first token to the end of a prompt; 0: no limit. A longer
  // prompt is given wider intervals.
  std::uint32_t snapshots_per_path = 32;
};

}  // namespace kvcache
