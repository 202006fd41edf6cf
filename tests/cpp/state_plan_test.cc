#include "kvcache/state_plan.h"

#include <gtest/gtest.h>

namespace kvcache {
namespace {

StateDecl paged(std::string id, std::int32_t layer, std::string component, std::uint64_t heads,
                std::uint64_t width, std::uint32_t window = 0, bool int8 = false) {
  return {.id = std::move(id),
          .layer = layer,
          .component = std::move(component),
          .kind = StateKind::kPagedKv,
          .dtype = int8 ? DType::kI8 : DType::kF16,
          .shape = {heads, width},
          .row_scale_bytes = int8 ? 4U : 0U,
          .window = window};
}

TEST(StatePlan, PageBytesEqualBlockTimesUnitBytesWithoutPadding) {
  const auto plan = StatePlan::create({paged("k", 0, "attention.keys", 3, 5, 0, true),
                                       paged("v", 0, "attention.values", 3, 7, 0, true)},
                                      {.memory_bytes = 1 << 20, .block_tokens = 16});
  ASSERT_TRUE(plan.is_ok()) << plan.status().message();
  ASSERT_EQ(plan->groups().size(), 1U);
  EXPECT_EQ(plan->groups()[0].page_bytes, 16U * (3 * (5 + 4) + 3 * (7 + 4)));
}

TEST(StatePlan, DuplicateIdIsRejectedAndNamed) {
  const auto plan = StatePlan::create(
      {paged("k", 0, "attention.keys", 1, 8), paged("k", 1, "attention.keys", 1, 8)},
      {.memory_bytes = 1 << 20});
  ASSERT_FALSE(plan.is_ok());
  EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(plan.status().message().find("k: declared twice"), std::string::npos);
}

TEST(StatePlan, LayersOfOneWindowShareAGroup) {
  const auto plan = StatePlan::create(
      {paged("a", 0, "attention.keys", 1, 8, 128), paged("b", 1, "attention.keys", 1, 8),
       paged("c", 2, "attention.keys", 2, 16, 128)},
      {.memory_bytes = 1 << 20});
  ASSERT_TRUE(plan.is_ok());
  ASSERT_EQ(plan->groups().size(), 2U);
  EXPECT_EQ(plan->groups()[1].window, 128U);
  EXPECT_EQ(plan->groups()[1].components.size(), 2U);
}

}  // namespace
}  // namespace kvcache
