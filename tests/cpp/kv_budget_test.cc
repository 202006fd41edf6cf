#include "kvcache/kv_budget.h"

#include <gtest/gtest.h>

#include <numeric>

namespace kvcache {
namespace {

StateDecl paged(Section section = Section::kMain, std::uint32_t window = 0) {
  return {.id = "k",
          .component = "attention.keys",
          .kind = StateKind::kPagedKv,
          .section = section,
          .dtype = DType::kF16,
          .shape = {2, 4},
          .window = window};
}

StateDecl fixed(std::uint64_t elements) {
  return {.id = "h",
          .component = "state.recurrent",
          .kind = StateKind::kRecurrent,
          .dtype = DType::kF32,
          .shape = {elements}};
}

KvBudget budget(std::uint64_t available, bool prefix_cache = true) {
  return {.available_bytes = available,
          .reserved_bytes = 0,
          .block_bytes = 100,
          .block_tokens = 16,
          .sequences = 2,
          .max_tokens = 40,
          .prefix_cache = prefix_cache};
}

TEST(KvPools, APrefixCacheLeavesThreePerMilleToTheDriver) {
  EXPECT_EQ(solve_kv_pools(budget(100000))->blocks, 997U);
}

TEST(KvPools, WithoutAPrefixCacheUnreachableBlocksAreNotTaken) {
  const auto pools = solve_kv_pools(budget(100000, false));
  EXPECT_EQ(pools->blocks, 2U * 3 + 2 + 1);
  EXPECT_TRUE(pools->clamped);
  EXPECT_FALSE(solve_kv_pools(budget(500, false))->clamped);
}

TEST(KvPools, TheDraftPoolComesFirst) {
  KvBudget asked = budget(100000, false);
  asked.sequences = 1000;
  asked.draft_block_bytes = 50;
  asked.draft_sequences = 5;
  const auto pools = solve_kv_pools(asked);
  EXPECT_EQ(pools->draft_blocks, 5U * (40 / 16 + 1));
  EXPECT_EQ(pools->blocks, (100000U - pools->draft_blocks * 50) / 100);
}

TEST(KvPools, ABudgetWithoutOneBlockIsOutOfCapacityAndTellsTheNumbers) {
  KvBudget asked = budget(1000);
  asked.reserved_bytes = 950;
  const auto pools = solve_kv_pools(asked);
  ASSERT_FALSE(pools.is_ok());
  EXPECT_EQ(pools.status().code(), StatusCode::kOutOfCapacity);
  EXPECT_NE(pools.status().message().find("950"), std::string::npos);
}

TEST(KvPools, ZeroSizesAndOverflowsAreRejected) {
  KvBudget asked = budget(1000);
  asked.block_bytes = 0;
  EXPECT_EQ(solve_kv_pools(asked).status().code(), StatusCode::kInvalidArgument);
  asked = budget(1000);
  asked.sequences = UINT64_MAX;
  EXPECT_EQ(solve_kv_pools(asked).status().code(), StatusCode::kInvalidArgument);
  asked = budget(1000);
  asked.draft_sequences = UINT64_MAX;
  EXPECT_EQ(solve_kv_pools(asked).status().code(), StatusCode::kInvalidArgument);
}

TEST(BlockIndex, CountsOneSectionAndNoFixedState) {
  const std::vector<StateDecl> decls = {paged(), fixed(1000), paged(Section::kDraft)};
  EXPECT_EQ(*block_index_bytes(decls, Section::kMain, 16), 16U * 16);
  EXPECT_EQ(*block_index_bytes(decls, Section::kDraft, 8), 8U * 16);
  EXPECT_FALSE(block_index_bytes(decls, Section::kMain, 0).is_ok());
}

TEST(Demand, ReservesTheNextTokensBlockAndOneDummy) {
  EXPECT_EQ(*demanded_blocks(32, 2048, 16), 32U * 129 + 1);
  EXPECT_EQ(*demanded_blocks(0, 2048, 16), 1U);
  EXPECT_FALSE(demanded_blocks(UINT64_MAX, 16, 16).is_ok());
}

TEST(Ring, ShrinksInStepsAndNeverBeyondWhatWasAsked) {
  EXPECT_EQ(fit_ring_depth(8, 10, 20, 100), 8U);
  EXPECT_EQ(fit_ring_depth(8, 10, 20, 99), 4U);
  EXPECT_EQ(fit_ring_depth(3, 10, 20, 1000), 2U);
  EXPECT_EQ(fit_ring_depth(8, 10, 95, 100), 0U);
  EXPECT_EQ(fit_ring_depth(8, UINT64_MAX, 1, UINT64_MAX), 0U);
}

TEST(LargestFitting, AgreesWithAScanAndAsksAtMostTenTimes) {
  for (std::uint64_t limit = 0; limit <= 101; ++limit) {
    int asked = 0;
    const auto found = largest_fitting(1, 100, [&](std::uint64_t value) {
      ++asked;
      return value <= limit;
    });
    ASSERT_TRUE(found.is_ok());
    const std::uint64_t best = std::min<std::uint64_t>(limit, 100);
    EXPECT_EQ(*found, limit == 0 ? std::nullopt : std::optional(best));
    EXPECT_LE(asked, 10);
  }
  EXPECT_FALSE(largest_fitting(2, 1, [](std::uint64_t) { return true; }).is_ok());
}

TEST(InverseQueries, AreTheLastThatFits) {
  const std::vector<StateDecl> decls = {paged(), fixed(25)};  // 16 bytes a position, 100 fixed
  EXPECT_EQ(**max_tokens(decls, 3, 3 * (100 + 16 * 7) + 5, 1, 1000), 7U);
  EXPECT_EQ(**max_tokens(decls, 1, 100 + 16 * 47, 16, 1000), 32U);
  EXPECT_FALSE(max_tokens(decls, 1, 115, 1, 1000)->has_value());
  EXPECT_EQ(**max_sequences(decls, 7, 3 * (100 + 16 * 7) + 5, 1, 1000), 3U);
  EXPECT_FALSE(max_sequences(decls, 7, 10, 1, 1000)->has_value());
}

TEST(InverseQueries, BoundedStateReachesTheLimit) {
  EXPECT_EQ(**max_tokens({paged(Section::kMain, 8)}, 1, 128, 1, 1 << 20), 1U << 20);
  EXPECT_EQ(**max_tokens({paged()}, 1, UINT64_MAX, 1, UINT64_MAX), UINT64_MAX / 16);
}

TEST(InverseQueries, ABadDeclarationIsAnErrorNotAMisfit) {
  StateDecl bad = paged();
  bad.shape = {0, 4};
  EXPECT_FALSE(max_tokens({bad}, 1, 100, 1, 10).is_ok());
  EXPECT_FALSE(max_sequences({bad}, 1, 100, 1, 10).is_ok());
  EXPECT_FALSE(max_tokens({paged()}, 0, 100, 1, 10).is_ok());
}

TEST(BestSlots, TakesTheFewestThatRunMostSequences) {
  // Each slot costs two blocks of 20; a sequence needs three.
  const auto blocks = [](std::uint64_t slots) { return slots > 10 ? 0 : 20 - 2 * slots; };
  EXPECT_EQ(*best_slots(40, 16, blocks), 4U);
  EXPECT_EQ(*best_slots(40, 16, [](std::uint64_t) { return std::uint64_t{0}; }), 1U);
}

TEST(VerifySteps, HighSlotsKeepWhatWideBatchesDraft) {
  const auto steps = verify_steps_by_slot({.sequences = 32, .drafts = 3});
  EXPECT_EQ(steps->size(), 33U);
  EXPECT_EQ(std::accumulate(steps->begin(), steps->end(), std::uint64_t{0}), 8U * 3 + 24 + 3);
  const auto uniform = verify_steps_by_slot({.sequences = 2, .drafts = 5, .uniform = true});
  EXPECT_EQ(*uniform, (std::vector<std::uint64_t>{5, 5, 5}));
  EXPECT_FALSE(verify_steps_by_slot({.sequences = 2, .drafts = 0}).is_ok());
  EXPECT_FALSE(verify_steps_by_slot({.sequences = UINT64_MAX, .drafts = 1}).is_ok());
}

}  // namespace
}  // namespace kvcache
