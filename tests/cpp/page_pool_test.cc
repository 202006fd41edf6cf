#include "kvcache/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace kvcache {
namespace {

std::unique_ptr<PagePool> make_pool(const PagePoolOptions& options) {
  auto pool = PagePool::create(options);
  EXPECT_TRUE(pool.is_ok()) << pool.status().message();
  return std::move(pool).value();
}

TEST(PagePool, ABlockLivesUntilItsLastReference) {
  const auto pool = make_pool({.blocks = 2, .block_bytes = 100});
  const std::int32_t id = *pool->allocate();
  ASSERT_TRUE(pool->retain({&id, 1}).is_ok());
  ASSERT_TRUE(pool->free({&id, 1}).is_ok());
  EXPECT_EQ(*pool->refs(id), 1U);
  EXPECT_EQ(pool->live_blocks(), 1U);
  ASSERT_TRUE(pool->free({&id, 1}).is_ok());
  EXPECT_EQ(*pool->refs(id), 0U);
  EXPECT_EQ(pool->free({&id, 1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(pool->free_blocks(), 2U);
}

TEST(PagePool, BlocksHaveBytesOfTheirOwn) {
  const auto pool = make_pool({.blocks = 500, .block_bytes = 24 << 10});
  std::vector<std::int32_t> ids(500);
  ASSERT_TRUE(pool->allocate_many(ids).is_ok());
  for (const std::int32_t id : ids) std::memset(*pool->data(id), id % 251, pool->block_bytes());
  for (const std::int32_t id : ids) {
    const std::byte* data = *pool->data(id);
    for (std::uint64_t at = 0; at < pool->block_bytes(); ++at) {
      ASSERT_EQ(static_cast<int>(data[at]), id % 251);
    }
  }
  EXPECT_EQ(pool->data(-1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(pool->data(500).status().code(), StatusCode::kInvalidArgument);
  const auto ledger = make_pool({.blocks = 1, .block_bytes = 1, .backing = false});
  EXPECT_EQ(ledger->data(*ledger->allocate()).status().code(), StatusCode::kUnsupported);
}

TEST(PagePool, EveryBlockThatWasPromisedIsThere) {
  for (const std::uint64_t block_bytes : {1U, 100U, 5000U, 21000U, 32768U, 32769U, 1U << 20}) {
    const auto pool = make_pool({.blocks = 777, .block_bytes = block_bytes, .backing = false});
    std::vector<std::int32_t> ids(777);
    EXPECT_TRUE(pool->allocate_many(ids).is_ok());
    EXPECT_EQ(ids.back(), 776);
    EXPECT_EQ(pool->allocate().status().message(), "blocks: all 777 items are live");
    EXPECT_EQ(pool->refs(777).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(PagePool, BlocksLieWhereItsMemorySays) {
  const auto pool = make_pool({.blocks = 300, .block_bytes = 1000});
  const auto memory = pool->memory();
  ASSERT_TRUE(memory.is_ok());
  EXPECT_FALSE(memory->settled);
  EXPECT_EQ(memory->blocks, 300U);
  EXPECT_GE(memory->stride, 1000U);
  EXPECT_EQ(memory->bytes, 300 * memory->stride);
  std::vector<std::int32_t> ids(300);
  ASSERT_TRUE(pool->allocate_many(ids).is_ok());
  for (const std::int32_t id : ids) {
    EXPECT_EQ(*pool->data(id), memory->data + static_cast<std::uint64_t>(id) * memory->stride);
  }
  const auto ledger = make_pool({.blocks = 1, .block_bytes = 1, .backing = false});
  EXPECT_EQ(ledger->memory().status().code(), StatusCode::kUnsupported);
}

TEST(PagePool, SettledMemoryIsNeverGivenToTheSystem) {
  for (const std::uint64_t block_bytes : {100U, 5000U, 40000U}) {
    const auto pool =
        make_pool({.blocks = 50, .block_bytes = block_bytes, .memory = {.prefault_threads = 2}});
    const auto memory = pool->memory();
    ASSERT_TRUE(memory.is_ok());
    ASSERT_TRUE(memory->settled);
    std::fill_n(memory->data, memory->bytes, std::byte{7});
    std::vector<std::int32_t> ids(50);
    for (int round = 0; round < 3; ++round) {
      ASSERT_TRUE(pool->allocate_many(ids).is_ok());
      ASSERT_TRUE(pool->free(ids).is_ok());
    }
    // What went to the system would come back as zeros.
    EXPECT_EQ(std::count(memory->data, memory->data + memory->bytes, std::byte{7}),
              static_cast<std::ptrdiff_t>(memory->bytes));
  }
}

TEST(PagePool, SizesThatCannotBeAreRefused) {
  for (const PagePoolOptions& options :
       {PagePoolOptions{0, 1, false}, PagePoolOptions{1, 0, false},
        PagePoolOptions{std::uint64_t{1} << 31, 1, false}, PagePoolOptions{2, UINT64_MAX, false},
        PagePoolOptions{INT32_MAX, std::uint64_t{1} << 40, true}}) {
    EXPECT_EQ(PagePool::create(options).status().code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace kvcache
