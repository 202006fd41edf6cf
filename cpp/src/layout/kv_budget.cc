#include "kvcache/kv_budget.h"

#include <algorithm>

#include "base/checked.h"
#include "kvcache/state_terms.h"

namespace kvcache {
namespace {

// Draft tokens per step by the number of sequences that step holds.
std::uint64_t ladder(std::uint64_t width) { return width <= 8 ? 3 : 1; }

}  // namespace

Result<std::uint64_t> block_index_bytes(const std::vector<StateDecl>& decls, Section section,
                                        std::uint64_t block_tokens) {
  if (block_tokens == 0) return Status::invalid_argument("block_tokens must be positive, got 0");
  StateInputs inputs;
  (section == Section::kDraft ? inputs.draft_kv : inputs.kv) = BlockPool{1, block_tokens};
  const auto terms = state_terms(decls, inputs);
  if (!terms) return terms.status();
  std::uint64_t total = 0;
  for (const StateTerm& term : *terms) {
    if (term.holding != Holding::kBlocks) continue;
    const auto sum = checked_add(total, term.bytes);
    if (!sum) return Status::invalid_argument("the bytes of one block do not fit 64 bits");
    total = *sum;
  }
  return total;
}

Result<std::uint64_t> demanded_blocks(std::uint64_t sequences, std::uint64_t tokens,
                                      std::uint64_t block_tokens) {
  if (block_tokens == 0) return Status::invalid_argument("block_tokens must be positive, got 0");
  const auto each = checked_add(tokens / block_tokens, 1);
  const auto all = each ? checked_mul(sequences, *each) : std::nullopt;
  const auto with_dummy = all ? checked_add(*all, 1) : std::nullopt;
  if (!with_dummy) {
    return Status::invalid_argument("the blocks of ", sequences, " sequences of ", tokens,
                                    " positions do not fit 64 bits");
  }
  return *with_dummy;
}

Result<KvPools> solve_kv_pools(const KvBudget& budget) {
  if (budget.block_bytes == 0 || budget.block_tokens == 0) {
    return Status::invalid_argument("block_bytes and block_tokens must be positive, got ",
                                    budget.block_bytes, " and ", budget.block_tokens);
  }
  const std::uint64_t free = budget.available_bytes > budget.reserved_bytes
                                 ? budget.available_bytes - budget.reserved_bytes
                                 : 0;
  const std::uint64_t per_sequence = budget.max_tokens / budget.block_tokens + 1;
  const auto draft_demand = checked_mul(per_sequence, budget.draft_sequences);
  const auto reachable =
      checked_mul(budget.sequences, ceil_div(budget.max_tokens, budget.block_tokens));
  const auto padded = reachable ? checked_add(*reachable, budget.sequences) : std::nullopt;
  const auto most = padded ? checked_add(*padded, 1) : std::nullopt;
  if (!draft_demand || !most) {
    return Status::invalid_argument("the blocks of ", budget.sequences, " sequences of ",
                                    budget.max_tokens, " positions do not fit 64 bits");
  }
  const auto draft_blocks = [&](std::uint64_t main_blocks) {
    return budget.draft_block_bytes == 0
               ? 0
               : std::min(*draft_demand, std::max(main_blocks, per_sequence));
  };
  // Reserved by the count that ignores the draft pool itself: slightly too much, never too little.
  const auto draft_bytes =
      checked_mul(draft_blocks(free / budget.block_bytes), budget.draft_block_bytes);
  std::uint64_t pool = draft_bytes && *draft_bytes < free ? free - *draft_bytes : 0;
  if (budget.prefix_cache) pool -= pool / 1000 * 3 + pool % 1000 * 3 / 1000;
  KvPools pools;
  pools.blocks = pool / budget.block_bytes;
  if (!budget.prefix_cache && pools.blocks > *most) {
    pools.blocks = *most;
    pools.clamped = true;
  }
  if (pools.blocks == 0) {
    return Status::out_of_capacity(
        "no block of ", budget.block_bytes, " bytes fits: ", budget.available_bytes,
        " bytes available, ", budget.reserved_bytes, " reserved, ",
        draft_bytes.value_or(UINT64_MAX), " for drafts; raise the budget or lower the reserves");
  }
  pools.draft_blocks = draft_blocks(pools.blocks);
  return pools;
}

std::uint64_t fit_ring_depth(std::uint64_t requested, std::uint64_t depth_bytes,
                             std::uint64_t reserved_bytes, std::uint64_t headroom_bytes) {
  for (const std::uint64_t depth : {8, 4, 2, 1}) {
    if (depth > requested) continue;
    const auto ring = checked_mul(depth, depth_bytes);
    const auto total = ring ? checked_add(*ring, reserved_bytes) : std::nullopt;
    if (total && *total <= headroom_bytes) return depth;
  }
  return 0;
}

Result<std::uint64_t> best_slots(std::uint64_t max_tokens, std::uint64_t block_tokens,
                                 const std::function<std::uint64_t(std::uint64_t)>& blocks) {
  constexpr std::uint64_t kMostSlots = 128;
  if (block_tokens == 0) return Status::invalid_argument("block_tokens must be positive, got 0");
  std::uint64_t best = 1;
  std::uint64_t best_running = 0;
  for (std::uint64_t slots = 1; slots <= kMostSlots; ++slots) {
    const auto per_sequence = checked_add(max_tokens / block_tokens, 1);
    const std::uint64_t running = per_sequence ? std::min(slots, blocks(slots) / *per_sequence) : 0;
    if (running > best_running) {
      best = slots;
      best_running = running;
    }
  }
  return best;
}

Result<std::optional<std::uint64_t>> largest_fitting(
    std::uint64_t first, std::uint64_t last, const std::function<bool(std::uint64_t)>& fits) {
  if (first > last) {
    return Status::invalid_argument("the range ", first, "..", last, " is empty");
  }
  if (!fits(first)) return std::optional<std::uint64_t>();
  if (first == last || fits(last)) return std::optional(last);
  std::uint64_t good = first;
  std::uint64_t bad = last;
  while (bad - good > 1) {
    const std::uint64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return std::optional(good);
}

Result<std::optional<std::uint64_t>> max_tokens(const std::vector<StateDecl>& decls,
                                                std::uint64_t sequences, std::uint64_t memory_bytes,
                                                std::uint64_t block_tokens, std::uint64_t limit) {
  if (sequences == 0) return Status::invalid_argument("sequences must be positive, got 0");
  // A declaration that is wrong at one position is an error; a size beyond 64 bits does not fit.
  const auto one = retained_bytes(decls, 1, block_tokens);
  if (!one) return one.status();
  return largest_fitting(1, limit, [&](std::uint64_t tokens) {
    const auto each = retained_bytes(decls, tokens, block_tokens);
    const auto all = each ? checked_mul(*each, sequences) : std::nullopt;
    return all && *all <= memory_bytes;
  });
}

Result<std::optional<std::uint64_t>> max_sequences(const std::vector<StateDecl>& decls,
                                                   std::uint64_t tokens, std::uint64_t memory_bytes,
                                                   std::uint64_t block_tokens,
                                                   std::uint64_t limit) {
  const auto each = retained_bytes(decls, tokens, block_tokens);
  if (!each) return each.status();
  return largest_fitting(1, limit, [&](std::uint64_t sequences) {
    const auto all = checked_mul(*each, sequences);
    return all && *all <= memory_bytes;
  });
}

Result<std::vector<std::uint64_t>> verify_steps_by_slot(const DraftingPlan& plan) {
  constexpr std::uint64_t kMostSlots = 1 << 16;
  if (plan.drafts == 0) return Status::invalid_argument("drafts must be positive, got 0");
  if (plan.sequences > kMostSlots) {
    return Status::invalid_argument("sequences must be at most ", kMostSlots, ", got ",
                                    plan.sequences);
  }
  std::vector<std::uint64_t> steps;
  for (std::uint64_t slot = 0; slot < plan.sequences; ++slot) {
    // The ladder never rises, so the narrowest batch that uses the slot drafts most.
    steps.push_back(plan.uniform ? plan.drafts : std::min(ladder(slot + 1), plan.drafts));
  }
  steps.push_back(plan.drafts);
  return steps;
}

}  // namespace kvcache
