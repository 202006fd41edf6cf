#include "kvcache/runtime_estimate.h"

#include <gtest/gtest.h>

namespace kvcache {
namespace {

EstimateComponent attention(std::uint64_t width, std::uint64_t element_bytes) {
  return {.name = "attention.keys",
          .shape = {{AxisKind::kBatch, 1}, {AxisKind::kPrefixTokens, 1}, {AxisKind::kFixed, width}},
          .element_bytes = element_bytes,
          .attention = true};
}

EstimateComponent tensor(std::vector<Axis> shape, std::uint64_t element_bytes,
                         Presence presence = Presence::kRequired, std::uint64_t value = 1) {
  return {.name = "state.pooling.0.pooled",
          .shape = std::move(shape),
          .element_bytes = element_bytes,
          .presence = presence,
          .presence_value = value};
}

TEST(RuntimeEstimate, FullAttentionIsRoundedToTheGranularity) {
  const std::vector<EstimateLayer> layers(2, {.components = {attention(8, 4)}});
  const auto found = estimate_runtime_state(
      layers, {.positions = 7, .batch = 1, .floating_bytes = 4, .granularity = 8});
  EXPECT_EQ(found->context_bytes, 512U);
  EXPECT_EQ(found->growth_bytes, 64U);
  EXPECT_EQ(found->requested_bytes, 512U);
}

TEST(RuntimeEstimate, WindowsBoundContextAndDoNotGrow) {
  std::vector<EstimateLayer> layers = {{.components = {attention(16, 4)}},
                                       {.window = 4, .components = {attention(16, 4)}},
                                       {.window = 4, .components = {attention(16, 4)}},
                                       {.window = 8, .components = {attention(16, 4)}}};
  const auto found = estimate_runtime_state(
      layers, {.positions = 10, .batch = 2, .floating_bytes = 4, .granularity = 1});
  EXPECT_EQ(found->context_bytes, 3328U);
  EXPECT_EQ(found->growth_bytes, 64U);
  EXPECT_EQ(found->window_bounds, (std::vector<std::uint64_t>{4, 8}));
}

TEST(RuntimeEstimate, LaggingLayersSeeFewerPositions) {
  const auto found = estimate_runtime_state({{.prefix_lag = 3, .components = {attention(1, 1)}},
                                             {.prefix_lag = 9, .components = {attention(1, 1)}}},
                                            {.positions = 5, .batch = 1});
  EXPECT_EQ(found->context_bytes, 2U);
}

TEST(RuntimeEstimate, TensorsCountByPresence) {
  const Axis batch{AxisKind::kBatch, 1};
  const Axis div{AxisKind::kPrefixTokensDiv, 4};
  const Axis rem{AxisKind::kPrefixTokensRem, 4};
  const auto bytes = [&](const EstimateComponent& component, std::uint64_t positions) {
    const auto found =
        estimate_runtime_state({{.components = {component}}}, {.positions = positions, .batch = 3});
    return std::pair(found->fixed_bytes + found->context_bytes, found->growth_bytes);
  };
  using Sizes = std::pair<std::uint64_t, std::uint64_t>;
  EXPECT_EQ(bytes(tensor({batch, div, {AxisKind::kFixed, 5}}, 2), 11), Sizes(3 * 2 * 5 * 2, 3));
  EXPECT_EQ(bytes(tensor({batch, rem}, 2, Presence::kPrefixRemainderNonZero, 4), 11), Sizes(18, 0));
  EXPECT_EQ(bytes(tensor({batch, rem}, 2, Presence::kPrefixRemainderNonZero, 4), 12), Sizes(0, 0));
  EXPECT_EQ(bytes(tensor({batch}, 2, Presence::kPrefixAtLeast, 12), 11), Sizes(0, 0));
  EXPECT_EQ(bytes(tensor({batch}, 2, Presence::kPrefixAtLeast, 11), 11), Sizes(6, 0));
  EXPECT_EQ(bytes(tensor({{AxisKind::kScalar, 1}}, 4, Presence::kOptional), 11), Sizes(4, 0));
  EXPECT_EQ(bytes(tensor({batch, {AxisKind::kPrefixTokens, 1}, {AxisKind::kFixed, 7}}, 2,
                         Presence::kChargedElsewhere),
                  11),
            Sizes(0, 14));
}

TEST(RuntimeEstimate, MediaIsChargedPerSequence) {
  const auto found = estimate_runtime_state({}, {.batch = 2,
                                                 .floating_bytes = 2,
                                                 .media_positions = 10,
                                                 .hidden_size = 8,
                                                 .media_workspace_bytes = 100});
  EXPECT_EQ(found->embedding_bytes, 320U);
  EXPECT_EQ(found->workspace_bytes, 200U);
  EXPECT_EQ(found->requested_bytes, 520U);
}

TEST(RuntimeEstimate, ZeroesAndOverflowsAreErrorsThatNameTheOperation) {
  EXPECT_FALSE(estimate_runtime_state({}, {.batch = 0}).is_ok());
  EXPECT_FALSE(estimate_runtime_state({}, {.granularity = 0}).is_ok());
  EXPECT_FALSE(estimate_runtime_state({{.components = {tensor({}, 2)}}}, {}).is_ok());
  EXPECT_FALSE(
      estimate_runtime_state({{.components = {tensor({{AxisKind::kPrefixTokensDiv, 0}}, 2)}}}, {})
          .is_ok());
  const auto wide =
      estimate_runtime_state({{.components = {attention(UINT64_MAX, 2)}}}, {.positions = 1});
  ASSERT_FALSE(wide.is_ok());
  EXPECT_NE(wide.status().message().find("attention.keys bytes"), std::string::npos);
  const auto media = estimate_runtime_state({}, {.media_positions = UINT64_MAX, .hidden_size = 2});
  EXPECT_NE(media.status().message().find("embeddings"), std::string::npos);
  const auto round = estimate_runtime_state({{.components = {attention(1, 1)}}},
                                            {.positions = UINT64_MAX, .granularity = 7});
  EXPECT_FALSE(round.is_ok());
}

}  // namespace
}  // namespace kvcache
