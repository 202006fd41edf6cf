// The carry stash: where it lies, what waits in it, and who folds it.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "content.h"
#include "kvcache/fold.h"

namespace kvcache {
namespace {

constexpr std::uint64_t kHeads = 2, kLines = 3, kColumns = 5, kTaps = 3, kChannels = 4;

std::vector<StateDecl> delta_layer(std::int32_t layer, DType dtype) {
  const std::string id = std::to_string(layer);
  return {{.id = "h" + id,
           .layer = layer,
           .component = "state.recurrent",
           .kind = StateKind::kRecurrent,
           .dtype = dtype,
           .shape = {kHeads, kLines, kColumns},
           .verify = VerifyRule::kHSteps},
          {.id = "c" + id,
           .layer = layer,
           .component = "state.convolution.0",
           .kind = StateKind::kRecurrent,
           .dtype = DType::kBf16,
           .shape = {kTaps, kChannels},
           .verify = VerifyRule::kConvSteps}};
}

std::unique_ptr<Cache> make_cache(std::uint32_t stash_rows = 4, DType dtype = DType::kF32) {
  std::vector<StateDecl> decls = delta_layer(0, dtype);
  for (StateDecl& decl : delta_layer(1, dtype)) decls.push_back(std::move(decl));
  PlanOptions options{.memory_bytes = 1 << 20};
  options.stash_rows = stash_rows;
  auto plan = StatePlan::create(std::move(decls), options);
  EXPECT_TRUE(plan.is_ok()) << plan.status().message();
  auto cache = Cache::create(std::move(plan).value(), {});
  EXPECT_TRUE(cache.is_ok()) << cache.status().message();
  return std::move(cache).value();
}

// Inputs of rows, a function of token and layer.
struct Inputs {
  std::vector<float> gate, left, right, rows;
  std::uint64_t count;

  Inputs(const std::vector<std::int32_t>& tokens, std::int32_t layer) : count(tokens.size()) {
    for (const std::int32_t token : tokens) {
      const auto value = [&](std::uint64_t i) {
        return static_cast<float>((token * 7 + layer * 3 + static_cast<int>(i) * 5) % 11) - 5.0F;
      };
      for (std::uint64_t i = 0; i < kHeads; ++i) gate.push_back(0.5F + value(i) / 16);
      for (std::uint64_t i = 0; i < kHeads * kLines; ++i) left.push_back(value(i) / 3);
      for (std::uint64_t i = 0; i < kHeads * kColumns; ++i) right.push_back(value(i + 1) / 7);
      for (std::uint64_t i = 0; i < kChannels; ++i) rows.push_back(value(i));
    }
  }

  codec::RowsView view(const std::vector<float>& data, std::uint64_t heads,
                       std::uint64_t width) const {
    const auto bytes = static_cast<std::ptrdiff_t>(width * 4);
    return {data.data(), DType::kF32, count,
            heads,       width,       static_cast<std::ptrdiff_t>(heads) * bytes,
            bytes};
  }
  StashInputs matrix() const {
    return {view(gate, 1, kHeads), view(left, kHeads, kLines), view(right, kHeads, kColumns), {}};
  }
  StashInputs window() const { return {{}, {}, {}, view(rows, 1, kChannels)}; }
};

void stash(VerifySession& session, std::int32_t layer) {
  const Inputs inputs(session.tokens(), layer);
  Status status = session.stash(layer, "state.recurrent", inputs.matrix());
  EXPECT_TRUE(status.is_ok()) << status.message();
  status = session.stash(layer, "state.convolution.0", inputs.window());
  EXPECT_TRUE(status.is_ok()) << status.message();
}

// The state after `tokens`, folded one by one.
std::vector<std::byte> decoded(const std::vector<std::int32_t>& tokens, std::int32_t layer,
                               DType dtype = DType::kF32) {
  std::vector<std::byte> state(kHeads * kLines * kColumns * dtype_bytes(dtype));
  for (const std::int32_t token : tokens) {
    const Inputs in({token}, layer);
    const Status status = codec::fold(
        {state.data(), dtype, kHeads, kLines, kColumns},
        {1, Gate::kHead, in.gate.data(), 0, in.left.data(), kHeads, 0, in.right.data(), kHeads, 0});
    EXPECT_TRUE(status.is_ok());
  }
  return state;
}

std::vector<std::byte> bytes_of(const Result<StateView>& view) {
  EXPECT_TRUE(view.is_ok()) << view.status().message();
  return {view->data, view->data + view->component->bytes};
}

void verify(Sequence& sequence, std::vector<std::int32_t> tokens, std::uint64_t accepted,
            VerifyStrategy strategy) {
  EXPECT_TRUE(sequence.extend({tokens.data(), 1}));
  auto session = sequence.begin_verify({tokens.data() + 1, tokens.size() - 1}, nullptr, strategy);
  ASSERT_TRUE(session.is_ok()) << session.status().message();
  for (const std::int32_t layer : {0, 1}) stash(*session, layer);
  const auto length = session->commit(accepted);
  ASSERT_TRUE(length.is_ok()) << length.status().message();
}

Sequence opened(Cache& cache) {
  auto sequence = cache.open({{9}}, {}, {});
  EXPECT_TRUE(sequence.is_ok());
  EXPECT_TRUE(sequence->truncate(0));
  return std::move(sequence).value();
}

TEST(CarryStash, EveryReaderSeesTheRowsThatWait) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    const auto cache = make_cache(4, dtype);
    Sequence sequence = opened(*cache);
    verify(sequence, {1, 2, 3}, 2, VerifyStrategy::kCarry);
    Sequence child = std::move(sequence.fork()).value();
    EXPECT_EQ(bytes_of(child.state(1, "state.recurrent")), decoded({1, 2}, 1, dtype));
    verify(child, {4, 5}, 2, VerifyStrategy::kCarry);
    EXPECT_EQ(bytes_of(sequence.state(1, "state.recurrent")), decoded({1, 2}, 1, dtype));
    EXPECT_EQ(bytes_of(child.state(0, "state.recurrent")), decoded({1, 2, 4, 5}, 0, dtype));
    verify(child, {6}, 1, VerifyStrategy::kReplay);
    EXPECT_EQ(bytes_of(child.state(0, "state.recurrent")), decoded({1, 2, 4, 5, 6}, 0, dtype));
    const auto window = bytes_of(child.state(0, "state.convolution.0"));
    std::vector<std::uint16_t> expected;
    for (const float x : Inputs({4, 5, 6}, 0).rows) {
      expected.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16));
    }
    EXPECT_EQ(std::memcmp(window.data(), expected.data(), window.size()), 0);
  }
}

TEST(CarryStash, WaitingRowsStayWhereTheyAreWhileMoreJoinThem) {
  const auto cache = make_cache();
  Sequence sequence = opened(*cache);
  verify(sequence, {1, 2}, 1, VerifyStrategy::kCarry);
  EXPECT_TRUE(sequence.extend({{3}}));
  auto session = sequence.begin_verify({{4}}, nullptr, VerifyStrategy::kCarry);
  ASSERT_TRUE(session.is_ok());
  auto first = session->pending(0, "state.recurrent");
  ASSERT_TRUE(first.is_ok());
  EXPECT_EQ(first->rows, 1U);
  EXPECT_EQ(std::memcmp(first->right, Inputs({1}, 0).right.data(), kHeads * kColumns * 4), 0);
  for (const std::int32_t layer : {0, 1}) stash(*session, layer);
  ASSERT_TRUE(session->commit(2).is_ok());
  EXPECT_TRUE(sequence.extend({{5}}));
  session = sequence.begin_verify({}, nullptr, VerifyStrategy::kCarry);
  const auto second = session->pending(0, "state.recurrent");
  EXPECT_EQ(second->rows, 3U);
  EXPECT_EQ(second->right, first->right);
  EXPECT_EQ(
      std::memcmp(second->right, Inputs({1, 3, 4}, 0).right.data(), 3 * kHeads * kColumns * 4), 0);
  EXPECT_FALSE(session->pending(2, "state.recurrent").is_ok());
}

TEST(CarryStash, AStateThatIsReplacedForgetsWhatWaited) {
  const auto cache = make_cache();
  Sequence sequence = opened(*cache);
  verify(sequence, {1}, 1, VerifyStrategy::kCarry);
  ASSERT_TRUE(sequence.snapshot().is_ok());
  verify(sequence, {2, 3}, 2, VerifyStrategy::kCarry);
  ASSERT_TRUE(sequence.truncate(1));
  EXPECT_EQ(bytes_of(sequence.state(0, "state.recurrent")), decoded({1}, 0));
  verify(sequence, {2, 3}, 2, VerifyStrategy::kCarry);
  ASSERT_TRUE(sequence.truncate(0));
  EXPECT_EQ(bytes_of(sequence.state(0, "state.recurrent")), decoded({}, 0));
}

TEST(CarryStash, ATreeCarriesTheRowsOfItsPath) {
  const auto cache = make_cache(8);
  Sequence sequence = opened(*cache);
  verify(sequence, {1}, 1, VerifyStrategy::kCarry);
  for (const VerifyStrategy strategy : {VerifyStrategy::kCarry, VerifyStrategy::kReplay}) {
    Sequence child = std::move(sequence.fork()).value();
    const auto tree = TokenTree::create({{-1, 0, 0, 2, 2}});
    ASSERT_TRUE(tree.is_ok()) << tree.status().message();
    ASSERT_TRUE(child.extend({{2}}));
    auto session = child.begin_verify({{3, 4, 5, 6}}, &*tree, strategy);
    ASSERT_TRUE(session.is_ok()) << session.status().message();
    for (const std::int32_t layer : {0, 1}) stash(*session, layer);
    const std::vector<std::int32_t> path = {0, 2, 4};
    ASSERT_TRUE(session->commit(path).is_ok());
    EXPECT_EQ(bytes_of(child.state(1, "state.recurrent")), decoded({1, 2, 4, 6}, 1));
  }
}

TEST(CarryStash, NoFailureChangesTheCommittedState) {
  const auto cache = make_cache();
  Sequence sequence = opened(*cache);
  verify(sequence, {1, 2}, 2, VerifyStrategy::kCarry);
  EXPECT_TRUE(sequence.extend({{3}}));
  {
    auto session = sequence.begin_verify({{4}}, nullptr, VerifyStrategy::kCarry);
    ASSERT_TRUE(session.is_ok());
    stash(*session, 0);
    EXPECT_EQ(session->commit(1).status().code(), StatusCode::kInvalidArgument);
    const Inputs short_of_a_row({3}, 1);
    EXPECT_EQ(session->stash(1, "state.recurrent", short_of_a_row.matrix()).code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(session->stash(1, "state.convolution.0", short_of_a_row.matrix()).code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(session->commit(2).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(sequence.begin_verify({{4, 5, 6, 7}}, nullptr, VerifyStrategy::kCarry).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(bytes_of(sequence.state(0, "state.recurrent")), decoded({1, 2}, 0));
}

TEST(StashLayout, EveryRegionIsAlignedAndNoneMeet) {
  std::vector<StateDecl> decls = delta_layer(0, DType::kF16);
  decls[0].gate = Gate::kChannel;
  PlanOptions options{.memory_bytes = 1 << 20};
  options.stash_rows = 3;
  const auto plan = StatePlan::create(decls, options);
  ASSERT_TRUE(plan.is_ok());
  const StashLayout& stash = plan->stash();
  const std::uint64_t floats = kHeads * kLines + kHeads * kLines + kHeads * kColumns;
  EXPECT_EQ(stash.bytes, 3 * floats * 4 + 4 + 3 * kChannels * 2);
  ASSERT_EQ(stash.layers.size(), 1U);
  const StashComponent& matrix = stash.layers[0].components[0];
  const StashComponent& window = stash.layers[0].components[1];
  EXPECT_EQ(matrix.gate_offset, 0U);
  EXPECT_EQ(matrix.left_offset, 3 * kHeads * kLines * 4);
  EXPECT_EQ(matrix.right_offset, 6 * kHeads * kLines * 4);
  EXPECT_EQ(stash.layers[0].pending_offset, 3 * floats * 4);
  EXPECT_EQ(window.right_offset, 3 * floats * 4 + 4);
}

TEST(StashLayout, SizesThatNoMachineHasAreRefused) {
  std::vector<StateDecl> decls = delta_layer(0, DType::kF32);
  decls[0].shape = {1, std::uint64_t{1} << 20, std::uint64_t{1} << 22};
  decls[0].gate = Gate::kElement;
  PlanOptions options{.memory_bytes = 1 << 20};
  options.stash_rows = 4096;
  EXPECT_EQ(StatePlan::create(decls, options).status().code(), StatusCode::kInvalidArgument);
  options.stash_rows = 1;
  EXPECT_TRUE(StatePlan::create(decls, options).is_ok());
  options.stash_rows = 4097;
  EXPECT_EQ(StatePlan::create(decls, options).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvcache
