// Which positions of a prompt deserve a snapshot, before the prompt runs.
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/placement.h"

namespace kvcache::prefix {

// Why a snapshot was taken, ascending by worth.
enum class SnapshotKind : std::uint8_t {
  kInterval = 0,  // nobody asked for this position
  kOther = 1,     // the caller's own choice
  kTurn = 2,
  kPromptEnd = 3,
  kBranch = 4,  // two prompts have parted here
  kTools = 5,
  kSystem = 6,
};

struct Mark {
  std::uint64_t position = 0;
  MarkKind kind = MarkKind::kOther;
};

struct Stop {
  std::uint64_t position = 0;
  SnapshotKind kind = SnapshotKind::kOther;
};

struct PlacementInput {
  std::uint64_t length = 0;                 // positions that have run
  std::uint64_t tokens = 0;                 // positions that are known
  std::span<const std::uint64_t> branches;  // where other prompts parted from this one
  std::span<const Mark> marks;
  std::uint64_t resident = 0;  // snapshots that the path up to `length` holds already
  bool intervals = false;      // whether positions that nobody marked are worth a snapshot
};

// Stops after `length`, ascending by position. Marks, branches and the position before the last
// token come first, by worth and then from the end; intervals fill what the limit leaves.
std::vector<Stop> place_stops(const PlacementInput& input, const PlacementOptions& options);

}  // namespace kvcache::prefix
