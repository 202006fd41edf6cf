// Traces made to hurt an eviction policy: each has something that a policy may learn, and then
// lose by having learnt it.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "block_tree.h"

namespace kvcache::bench {

struct TraceKind {
  std::string_view name;
  std::vector<BlockRequest> (*make)(std::mt19937_64& rng, std::size_t requests);
};

std::span<const TraceKind> trace_kinds();

}  // namespace kvcache::bench
