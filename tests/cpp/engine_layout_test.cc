#include "kvcache/engine_layout.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kvcache/cache.h"

namespace kvcache {
namespace {

constexpr std::uint32_t kHeads = 2;
constexpr std::uint32_t kWidth = 8;

StatePlan plan() {
  std::vector<StateDecl> decls;
  for (const char* name : {"attention.keys", "attention.values"}) {
    decls.push_back({.id = name, .layer = 0, .component = name, .shape = {kHeads, kWidth}});
  }
  return *StatePlan::create(decls, {.memory_bytes = 1 << 20, .block_tokens = 4});
}

// A row-major tensor over `data`.
EngineTensor tensor(std::vector<float>& data, std::string_view axes,
                    std::vector<std::uint64_t> shape) {
  EngineTensor result = {.data = data.data(),
                         .dtype = DType::kF32,
                         .shape = std::move(shape),
                         .layout = *EngineLayout::parse(axes)};
  std::ptrdiff_t stride = sizeof(float);
  for (auto size = result.shape.rbegin(); size != result.shape.rend(); ++size) {
    result.strides.insert(result.strides.begin(), stride);
    stride *= static_cast<std::ptrdiff_t>(*size);
  }
  return result;
}

class EngineRowsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cache_ = std::move(Cache::create(plan(), {})).value();
    std::iota(tokens_.begin(), tokens_.end(), 0);
    sequence_ = std::move(cache_->open(tokens_, {})).value();
    std::iota(data_.begin(), data_.end(), 0.0F);
  }

  std::vector<std::int32_t> tokens_ = std::vector<std::int32_t>(7);
  std::unique_ptr<Cache> cache_;
  Sequence sequence_;
  std::vector<float> data_ = std::vector<float>(2 * 3 * 4 * kHeads * kWidth);
  const std::vector<std::int32_t> layers_ = {0};
};

TEST(EngineLayout, TextIsWhatWasParsedWithoutSpareSpaces) {
  const auto layout = EngineLayout::parse("  layers (kv  dim) tokens 1 ");
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->text(), "layers (kv dim) tokens 1");
  EXPECT_TRUE(layout->has(EngineAxis::kKv));
  EXPECT_FALSE(layout->has(EngineAxis::kHeads));
}

TEST(EngineLayout, AnUnknownWordIsNamed) {
  const auto layout = EngineLayout::parse("tokens head dim");
  EXPECT_EQ(layout.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(layout.status().message().find("'head'"), std::string::npos);
}

TEST_F(EngineRowsTest, PagedRowsComeBackInAnotherLayout) {
  const std::vector<EngineTensor> paged = {
      tensor(data_, "kv blocks block heads dim", {2, 3, 4, kHeads, kWidth})};
  const std::vector<std::int32_t> table = {2, 0};
  ASSERT_TRUE(sequence_.import_rows(layers_, 0, 7, paged, {.block_table = table}));
  ASSERT_TRUE(sequence_.advance(7));
  std::vector<float> keys(kHeads * 7 * kWidth);
  std::vector<float> values(kHeads * kWidth * 7);
  const std::vector<EngineTensor> out = {tensor(keys, "heads tokens dim", {kHeads, 7, kWidth}),
                                         tensor(values, "heads dim tokens", {kHeads, kWidth, 7})};
  ASSERT_TRUE(sequence_.export_rows(layers_, 0, 7, out, {}));
  for (std::size_t position = 0; position < 7; ++position) {
    const std::size_t slot = static_cast<std::size_t>(table[position / 4]) * 4 + position % 4;
    for (std::size_t head = 0; head < kHeads; ++head) {
      for (std::size_t i = 0; i < kWidth; ++i) {
        const std::size_t at = (slot * kHeads + head) * kWidth + i;
        EXPECT_EQ(keys[(head * 7 + position) * kWidth + i], data_[at]);
        EXPECT_EQ(values[(head * kWidth + i) * 7 + position], data_[at + data_.size() / 2]);
      }
    }
  }
}

TEST_F(EngineRowsTest, ABlockOutsideOfTheTensorIsRefusedAndNothingIsWritten) {
  const std::vector<EngineTensor> paged = {
      tensor(data_, "kv blocks block heads dim", {2, 3, 4, kHeads, kWidth})};
  const std::vector<std::int32_t> table = {2, 3};
  const Status status = sequence_.import_rows(layers_, 0, 7, paged, {.block_table = table});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(*sequence_.written(0), 0U);
  EXPECT_EQ(cache_->stats().pages, 0U);
}

TEST_F(EngineRowsTest, TensorsThatShareMemoryAreNotWritten) {
  const std::vector<EngineTensor> whole = {
      tensor(data_, "kv tokens heads dim", {2, 7, kHeads, kWidth})};
  ASSERT_TRUE(sequence_.import_rows(layers_, 0, 7, whole, {}));
  ASSERT_TRUE(sequence_.advance(7));
  const std::vector<float> before = data_;
  const std::vector<EngineTensor> twice = {tensor(data_, "tokens heads dim", {7, kHeads, kWidth}),
                                           tensor(data_, "tokens heads dim", {7, kHeads, kWidth})};
  const Status status = sequence_.export_rows(layers_, 0, 7, twice, {});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(data_, before);
}

}  // namespace
}  // namespace kvcache
