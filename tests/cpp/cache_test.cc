#include "kvcache/cache.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <thread>

#include "content.h"

namespace kvcache {
namespace {

using content::complete;
using content::complete_rows;
using content::keys;
using content::kRow;
using content::rows_of;
using content::Tokens;
using content::view_of;

std::unique_ptr<Cache> make_cache(std::vector<StateDecl> decls, std::uint64_t memory,
                                  std::uint32_t sequences, const CacheOptions& options = {}) {
  auto plan = StatePlan::create(
      std::move(decls), {.memory_bytes = memory, .block_tokens = 4, .sequences = sequences});
  EXPECT_TRUE(plan.is_ok()) << plan.status().message();
  auto cache = Cache::create(std::move(plan).value(), options);
  EXPECT_TRUE(cache.is_ok()) << cache.status().message();
  return std::move(cache).value();
}

void expect_nothing_left(Cache& cache) {
  cache.clear();
  const CacheStats stats = cache.stats();
  EXPECT_EQ(stats.used_bytes, 0U);
  EXPECT_EQ(stats.pages + stats.slots + stats.snapshots + stats.open_sequences, 0U);
  EXPECT_LE(stats.peak_bytes, stats.budget_bytes);
}

// ---- Threads ----------------------------------------------------------------------------------

// Opens prompts of a shared stem, verifies what a hit restored, computes the rest, publishes.
void serve_prompts(Cache& cache, std::uint32_t seed, int rounds) {
  std::mt19937 rng(seed);
  for (int round = 0; round < rounds; ++round) {
    Tokens tokens(6 + rng() % 12, 5);
    for (std::size_t i = 4; i < tokens.size(); ++i) {
      tokens[i] = static_cast<std::int32_t>(rng() % 2);
    }
    auto opened = cache.open(tokens, {});
    if (!opened) {
      ASSERT_EQ(opened.status().code(), StatusCode::kOutOfCapacity);
      continue;
    }
    Sequence sequence = std::move(opened).value();
    ASSERT_EQ(content::wrong_bytes(sequence), "");
    for (const std::uint64_t stop : sequence.prefill_stops()) {
      const Status status = complete(sequence, stop);
      if (status.code() == StatusCode::kOutOfCapacity) break;
      ASSERT_TRUE(status.is_ok()) << status.message();
      ASSERT_NE(sequence.snapshot().status().code(), StatusCode::kInvalidArgument);
    }
    ASSERT_EQ(content::wrong_bytes(sequence), "");
    ASSERT_TRUE(sequence.publish().is_ok());
    if (auto child = sequence.fork()) {
      if (complete(*child, tokens.size()).is_ok()) {
        ASSERT_EQ(content::wrong_bytes(*child), "");
      }
    }
    ASSERT_EQ(content::wrong_bytes(sequence), "");
    static_cast<void>(cache.stats());
    static_cast<void>(cache.explain(tokens, {}));
    if (rng() % 64 == 0) cache.clear();
  }
}

void run_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

TEST(CacheThreads, SequencesOfOneCacheSideBySide) {
  const auto cache = make_cache(content::decls(), 16 << 20, 32);
  run_threads(8, [&](int i) { serve_prompts(*cache, static_cast<std::uint32_t>(i), 40); });
  EXPECT_GT(cache->stats().hits, 0U);
  expect_nothing_left(*cache);
}

TEST(CacheThreads, SequencesThatEvictEachOthersPrefixes) {
  const auto cache = make_cache(content::decls(), 16 << 20, 10, {.capacity_blocks = 40});
  run_threads(8, [&](int i) { serve_prompts(*cache, static_cast<std::uint32_t>(i), 40); });
  EXPECT_GT(cache->stats().evicted_blocks, 0U);
  expect_nothing_left(*cache);
}

TEST(CacheThreads, CallsOnOneSequenceRunOneAtATime) {
  const auto cache = make_cache(content::decls(), 16 << 20, 16);
  Tokens tokens;
  for (std::int32_t i = 0; i < 400; ++i) tokens.push_back(i % 5);
  Sequence sequence = std::move(cache->open(tokens, {})).value();
  run_threads(8, [&](int i) {
    for (int round = 0; round < 40; ++round) {
      if (i == 0) {
        // Without the state: a view of it is not for a sequence that others snapshot meanwhile.
        ASSERT_TRUE(complete_rows(sequence, sequence.length() + 1).is_ok());
      } else if (i == 1) {
        ASSERT_TRUE(sequence.publish().is_ok());
      } else if (i == 2) {
        ASSERT_TRUE(sequence.snapshot().is_ok());
      } else if (i == 3) {
        auto child = sequence.fork();
        ASSERT_TRUE(child.is_ok()) << child.status().message();
      } else if (i == 4) {
        auto other = cache->open(tokens, {});
        ASSERT_TRUE(other.is_ok()) << other.status().message();
      } else {
        // Only the full layers: the sliding one moves on while this looks.
        const std::uint64_t length = sequence.length();
        std::vector<float> got(length * kRow);
        const auto view = view_of<codec::MutableRowsView>(got.data(), length);
        ASSERT_TRUE(sequence.read(0, 0, {&view, 1}).is_ok());
        ASSERT_EQ(got, rows_of(tokens, 0, length, 0));
        static_cast<void>(sequence.prefill_stops());
        static_cast<void>(sequence.written(1));
      }
    }
  });
  ASSERT_TRUE(complete(sequence, sequence.length() + 1).is_ok());
  EXPECT_EQ(content::wrong_bytes(sequence), "");
  sequence.close();
  EXPECT_FALSE(sequence.is_open());
  expect_nothing_left(*cache);
}

// ---- What threads do not show -----------------------------------------------------------------

TEST(Cache, SlotsHeldByViewsAreNoReasonToEvict) {
  const auto cache = make_cache(content::decls(), 16 << 20, 1);
  const Tokens tokens = {1, 2, 3, 4, 5};
  Sequence first = std::move(cache->open(tokens, {})).value();
  ASSERT_TRUE(complete(first, 4).is_ok());
  ASSERT_TRUE(first.snapshot().is_ok());
  ASSERT_TRUE(first.publish().is_ok());
  {
    const auto view = first.state(content::kStateLayer, content::kStateName);
    first.close();
    EXPECT_EQ(cache->open(tokens, {}).status().code(), StatusCode::kOutOfCapacity);
    EXPECT_EQ(cache->stats().indexed_tokens, 4U) << "evicting cannot free a slot";
  }
  EXPECT_EQ(cache->open(tokens, {})->cached_tokens(), 4U);
}

TEST(Cache, ARowThatIsNotFiniteTakesBackWhatItMayHaveOverwritten) {
  const auto cache = make_cache({keys(0, 0, true)}, 1 << 20, 2);
  Sequence sequence = std::move(cache->open(Tokens(8, 1), {})).value();
  std::vector<float> rows = rows_of(sequence.tokens(), 0, 4, 0);
  const auto right = view_of<codec::RowsView>(rows.data(), 4);
  ASSERT_TRUE(sequence.write(0, 0, {&right, 1}).is_ok());
  rows[2 * kRow + 3] = std::numeric_limits<float>::infinity();
  const auto view = view_of<codec::RowsView>(rows.data() + kRow, 3);
  EXPECT_EQ(sequence.write(0, 1, {&view, 1}).code(), StatusCode::kNonFinite);
  EXPECT_EQ(*sequence.written(0), 1U);
  EXPECT_EQ(sequence.advance(2).code(), StatusCode::kInvalidArgument);
}

TEST(Cache, AWriteWithoutRoomKeepsNoPages) {
  // Keys and values of two formats are two groups; the second runs out.
  StateDecl values = keys(0, 0, true);
  values.id = "v0";
  values.component = "attention.values";
  const auto cache = make_cache({keys(0), values}, 2 * 64 << 10, 2);
  Tokens tokens(4 * 1024, 1);
  Sequence sequence = std::move(cache->open(tokens, {})).value();
  std::vector<float> rows(tokens.size() * kRow, 1.0F);
  const std::array views = {view_of<codec::RowsView>(rows.data(), tokens.size()),
                            view_of<codec::RowsView>(rows.data(), tokens.size())};
  EXPECT_EQ(sequence.write(0, 0, views).code(), StatusCode::kOutOfCapacity);
  EXPECT_EQ(cache->stats().used_bytes, 0U);
  EXPECT_EQ(*sequence.written(0), 0U);
}

TEST(Cache, TheArenaTakesExactlyWhatThePlanSays) {
  const auto cache = make_cache(content::decls(), 16 << 20, 4);
  Sequence sequence = std::move(cache->open(Tokens(9, 1), {})).value();
  ASSERT_TRUE(complete(sequence, 5).is_ok());
  ASSERT_TRUE(sequence.snapshot().is_ok());
  const StatePlan& plan = cache->plan();
  EXPECT_EQ(cache->stats().used_bytes, 2 * plan.block_bytes() + 2 * plan.slot_bytes());
  EXPECT_LE(cache->stats().committed_bytes, *plan.sequence_bytes(5, 5) + (64U << 10));
}

TEST(Cache, AViewOutlivesItsSequenceAndItsCache) {
  StateView view;
  {
    const auto cache = make_cache(content::decls(), 16 << 20, 4);
    Sequence sequence = std::move(cache->open(Tokens(3, 1), {})).value();
    view = std::move(sequence.state(content::kStateLayer, content::kStateName)).value();
    sequence.close();
  }
  const std::uint32_t value = 7;
  std::memcpy(view.data, &value, 4);
  EXPECT_EQ(static_cast<int>(view.data[0]), 7);
}

TEST(Cache, ABudgetThatHoldsNoBlockIsRefused) {
  auto plan = StatePlan::create({keys(0)}, {.memory_bytes = 1000, .block_tokens = 4});
  ASSERT_TRUE(plan.is_ok());
  EXPECT_EQ(Cache::create(std::move(plan).value(), {}).status().code(), StatusCode::kOutOfCapacity);
}

}  // namespace
}  // namespace kvcache
