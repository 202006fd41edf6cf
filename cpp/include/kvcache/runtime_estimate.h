// Decoder state of one request batch by the component list of its layers, before anything is
// allocated. Counts what persists; activations and allocator caches are not state.
// Thread safety: pure functions of their arguments.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/status.h"

namespace kvcache {

enum class AxisKind : std::uint8_t {
  kBatch = 0,
  kPrefixTokens = 1,
  kPrefixTokensDiv = 2,  // prefix / value, rounded down
  kPrefixTokensRem = 3,  // prefix % value
  kFixed = 4,
  kScalar = 5,  // one element, whatever the batch
};

struct Axis {
  AxisKind kind = AxisKind::kFixed;
  std::uint64_t value = 1;
};

enum class Presence : std::uint8_t {
  kRequired = 0,
  kOptional = 1,  // counted: it may be there
  kPrefixRemainderNonZero = 2,
  kPrefixAtLeast = 3,
  kChargedElsewhere = 4,  // may be there, but its bytes are part of the input
};

struct EstimateComponent {
  std::string name;
  std::vector<Axis> shape;
  std::uint64_t element_bytes = 0;
  Presence presence = Presence::kRequired;
  std::uint64_t presence_value = 1;
  bool attention = false;  // positions retained follow the layer's window
};

struct EstimateLayer {
  std::uint64_t prefix_lag = 0;  // positions the layer is behind the model
  std::uint32_t window = 0;      // 0: every position is kept
  std::vector<EstimateComponent> components;
};

struct EstimateInput {
  std::uint64_t positions = 0;  // prompt and output
  std::uint64_t batch = 1;
  std::uint64_t floating_bytes = 2;  // bytes of one floating state element
  std::uint64_t granularity = 1;     // full attention grows in steps of so many positions
  std::uint64_t media_positions = 0;
  std::uint64_t hidden_size = 0;
  std::uint64_t media_workspace_bytes = 0;  // of one sequence
};

struct RuntimeEstimate {
  std::uint64_t fixed_bytes = 0;      // independent of the number of positions
  std::uint64_t context_bytes = 0;    // grows with positions
  std::uint64_t growth_bytes = 0;     // of one more position of one sequence
  std::uint64_t embedding_bytes = 0;  // of media positions
  std::uint64_t workspace_bytes = 0;
  std::uint64_t requested_bytes = 0;         // all of the above but growth
  std::vector<std::uint64_t> window_bounds;  // distinct windows in use, ascending
};

// kInvalidArgument: a zero batch, granularity, divisor or element; or a sum or product beyond 64
// bits, whose operation the message names.
Result<RuntimeEstimate> estimate_runtime_state(const std::vector<EstimateLayer>& layers,
                                               const EstimateInput& input);

}  // namespace kvcache
