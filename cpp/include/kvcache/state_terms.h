// The sizing law of what a model's layers keep: declarations and counts in, exact bytes out.
// No alignment and no padding anywhere: bytes are units times the bytes of one unit.
// Thread safety: pure functions of their arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvcache/state_decl.h"
#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache {

// What the units of a term are held for.
enum class Holding : std::uint8_t {
  kLive = 0,        // one per sequence slot
  kSteps = 1,       // intermediates of a speculative verify
  kCheckpoint = 2,  // the state before a verify
  kBlocks = 3,      // positions of a block pool
};

struct BlockPool {
  std::uint64_t blocks = 0;
  std::uint64_t block_tokens = 0;  // positions in a block
};

struct VerifyCounts {
  std::vector<std::uint64_t> h_steps;  // intermediates of each verify slot, the dummy's last
  std::uint64_t conv_steps = 0;        // intermediates of every verify slot
};

struct StateInputs {
  std::uint64_t slots = 0;  // sequence slots, padding dummy included
  std::optional<VerifyCounts> verify;
  std::optional<BlockPool> kv;        // pool of the main section
  std::optional<BlockPool> draft_kv;  // pool of the draft section
};

struct StateTerm {
  std::uint32_t decl = 0;  // index into the declarations
  Holding holding = Holding::kLive;
  std::uint64_t units = 0;
  std::uint64_t bytes = 0;
};

// Terms of every recurrent and paged declaration, in order; cache kinds give none, and neither
// does paged state of a section without a pool.
// kInvalidArgument: a bad declaration, recurrent state without a verify rule while verify counts
// are given, a pool that does not hold whole records, or bytes beyond 64 bits.
Result<std::vector<StateTerm>> state_terms(const std::vector<StateDecl>& decls,
                                           const StateInputs& inputs);

// Units of one declaration that a sequence of `tokens` positions keeps: the records of the last
// `window` positions and of the sinks (of all without a window), positions rounded up to
// `block_tokens` first where the state is not windowed; 1 for recurrent state.
// kInvalidArgument: block_tokens is 0, a cache kind, or more than 64 bits.
Result<std::uint64_t> retained_units(const StateDecl& decl, std::uint64_t tokens,
                                     std::uint64_t block_tokens);

// Bytes of those units, for one declaration and for all. Errors as above.
Result<std::uint64_t> retained_bytes(const StateDecl& decl, std::uint64_t tokens,
                                     std::uint64_t block_tokens);
Result<std::uint64_t> retained_bytes(const std::vector<StateDecl>& decls, std::uint64_t tokens,
                                     std::uint64_t block_tokens);

}  // namespace kvcache
