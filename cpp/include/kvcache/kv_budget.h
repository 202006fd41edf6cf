// How many blocks, slots and ring snapshots fit a memory budget, and the inverse questions.
// Thread safety: pure functions of their arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kvcache/state_decl.h"
#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache {

// Bytes of one block index: `block_tokens` positions of every paged declaration of a section.
// kInvalidArgument: block_tokens is 0, a bad declaration, or more than 64 bits.
Result<std::uint64_t> block_index_bytes(const std::vector<StateDecl>& decls, Section section,
                                        std::uint64_t block_tokens);

// Blocks that `sequences` sequences of `tokens` positions need: each holds the block of its next
// token too, and one dummy block serves padding rows.
// kInvalidArgument: block_tokens is 0, or more than 64 bits.
Result<std::uint64_t> demanded_blocks(std::uint64_t sequences, std::uint64_t tokens,
                                      std::uint64_t block_tokens);

struct KvBudget {
  std::uint64_t available_bytes = 0;  // what is free of the budget
  std::uint64_t reserved_bytes = 0;   // everything that is no block pool
  std::uint64_t block_bytes = 0;      // one block index of the main section
  std::uint64_t block_tokens = 16;
  std::uint64_t sequences = 0;          // open at once
  std::uint64_t max_tokens = 0;         // longest sequence
  bool prefix_cache = false;            // blocks beyond what open sequences reach are useful
  std::uint64_t draft_block_bytes = 0;  // one block index of the draft section, 0 without one
  std::uint64_t draft_sequences = 0;    // sequences that draft at once
};

struct KvPools {
  std::uint64_t blocks = 0;
  std::uint64_t draft_blocks = 0;
  bool clamped = false;  // fewer blocks than fit, because more could never be used
};

// Splits the budget into block pools: the draft pool first, then the main pool, of which a prefix
// cache leaves 0.3 % to the driver and without one nothing unreachable is taken.
// kOutOfCapacity: not one block fits. kInvalidArgument: a zero size, or counts beyond 64 bits.
Result<KvPools> solve_kv_pools(const KvBudget& budget);

// Largest depth of 8, 4, 2, 1 that is no more than `requested` and for which
// reserved + depth * depth_bytes fits the headroom; 0 when none does. The ring is the only term
// that may shrink: it costs rollback anchors, never correctness.
std::uint64_t fit_ring_depth(std::uint64_t requested, std::uint64_t depth_bytes,
                             std::uint64_t reserved_bytes, std::uint64_t headroom_bytes);

// Slots 1..128 that let most sequences of `max_tokens` run at once, fewest on a tie. `blocks`
// tells how many blocks are left when that many slots are reserved.
// kInvalidArgument: block_tokens is 0.
Result<std::uint64_t> best_slots(std::uint64_t max_tokens, std::uint64_t block_tokens,
                                 const std::function<std::uint64_t(std::uint64_t)>& blocks);

// Largest value in first..last that fits, by bisection; none when `first` does not. `fits` must be
// monotone: once false, false for every larger value. kInvalidArgument: an empty range.
Result<std::optional<std::uint64_t>> largest_fitting(
    std::uint64_t first, std::uint64_t last, const std::function<bool(std::uint64_t)>& fits);

// Most positions that each of `sequences` may hold in `memory_bytes`, up to `limit`; none when not
// even one fits. kInvalidArgument: sequences, block_tokens or limit is 0, or a bad declaration.
Result<std::optional<std::uint64_t>> max_tokens(const std::vector<StateDecl>& decls,
                                                std::uint64_t sequences, std::uint64_t memory_bytes,
                                                std::uint64_t block_tokens, std::uint64_t limit);

// Most sequences of `tokens` positions in `memory_bytes`, up to `limit`; none when not even one
// fits. kInvalidArgument: block_tokens or limit is 0, a bad declaration, or more than 64 bits.
Result<std::optional<std::uint64_t>> max_sequences(const std::vector<StateDecl>& decls,
                                                   std::uint64_t tokens, std::uint64_t memory_bytes,
                                                   std::uint64_t block_tokens, std::uint64_t limit);

struct DraftingPlan {
  std::uint64_t sequences = 0;  // verify slots without the dummy
  std::uint64_t drafts = 0;     // most draft tokens of one step
  bool uniform = false;         // every slot keeps the most (token trees, block drafts)
};

// Intermediates that each verify slot keeps, the dummy's last. A slot is only used in batches
// wider than its index, and wide batches draft less: up to 8 sequences three tokens, beyond one.
// kInvalidArgument: no draft, or more than 2^16 slots.
Result<std::vector<std::uint64_t>> verify_steps_by_slot(const DraftingPlan& plan);

}  // namespace kvcache
