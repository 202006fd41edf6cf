#include "kvcache/cache.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <thread>

#include "arena/pool_map.h"

namespace kvcache {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr std::uint64_t kHeads = 2;
constexpr std::uint64_t kWidth = 8;
constexpr std::uint64_t kRow = kHeads * kWidth;

StateDecl keys(std::int32_t layer, std::uint32_t window = 0, bool int8 = false) {
  return {.id = "k" + std::to_string(layer),
          .layer = layer,
          .component = "attention.keys",
          .kind = StateKind::kPagedKv,
          .dtype = int8 ? DType::kI8 : DType::kF16,
          .shape = {kHeads, kWidth},
          .row_scale_bytes = int8 ? 4U : 0U,
          .window = window};
}

StateDecl recurrent(std::int32_t layer) {
  return {.id = "r" + std::to_string(layer),
          .layer = layer,
          .component = "state.recurrent",
          .kind = StateKind::kRecurrent,
          .dtype = DType::kF32,
          .shape = {64}};
}

// Every layer kind at once.
std::vector<StateDecl> hybrid() { return {keys(0), keys(1, 6), keys(2, 0, true), recurrent(3)}; }
constexpr int kPagedLayers = 3;

std::unique_ptr<Cache> make_cache(std::vector<StateDecl> decls, std::uint64_t memory,
                                  std::uint32_t sequences, const CacheOptions& options = {}) {
  auto plan = StatePlan::create(
      std::move(decls), {.memory_bytes = memory, .block_tokens = 4, .sequences = sequences});
  EXPECT_TRUE(plan.is_ok()) << plan.status().message();
  auto cache = Cache::create(std::move(plan).value(), options);
  EXPECT_TRUE(cache.is_ok()) << cache.status().message();
  return std::move(cache).value();
}

// A value that names the prefix, so that a row of any other prefix differs.
std::uint32_t mix(std::uint32_t h, std::uint32_t v) { return (h ^ v) * 2654435761U + 40503U; }

std::uint32_t prefix_value(const Tokens& tokens, std::uint64_t end) {
  std::uint32_t h = 1;
  for (std::uint64_t i = 0; i < end; ++i) h = mix(h, static_cast<std::uint32_t>(tokens[i]));
  return h;
}

// Small integers with one 127 in each row: both storage formats keep them exactly.
void fill_row(float* row, std::uint32_t value, int layer) {
  for (std::uint64_t i = 0; i < kRow; ++i) {
    value = mix(value, static_cast<std::uint32_t>(layer) + 1);
    row[i] = i % kWidth == 0 ? 127.0F : static_cast<float>(value >> 16 & 127) - 63.0F;
  }
}

std::vector<float> rows_of(const Tokens& tokens, std::uint64_t start, std::uint64_t stop,
                           int layer) {
  std::vector<float> rows((stop - start) * kRow);
  for (std::uint64_t p = start; p < stop; ++p) {
    fill_row(rows.data() + (p - start) * kRow, prefix_value(tokens, p + 1), layer);
  }
  return rows;
}

template <typename View>
View view_of(float* data, std::uint64_t tokens) {
  return {.data = data,
          .dtype = DType::kF32,
          .tokens = tokens,
          .heads = kHeads,
          .width = kWidth,
          .token_stride = kRow * 4,
          .head_stride = kWidth * 4};
}

Status write_rows(Sequence& sequence, int layer, std::uint64_t start, std::uint64_t stop) {
  std::vector<float> rows = rows_of(sequence.tokens(), start, stop, layer);
  const auto view = view_of<codec::RowsView>(rows.data(), stop - start);
  return sequence.write(layer, start, {&view, 1});
}

Status complete(Sequence& sequence, std::uint64_t stop) {
  const std::uint64_t start = sequence.length();
  for (int layer = 0; layer < kPagedLayers; ++layer) {
    if (Status status = write_rows(sequence, layer, start, stop); !status) return status;
  }
  if (Status status = sequence.advance(stop - start); !status) return status;
  auto state = sequence.state(3, "state.recurrent");
  if (!state) return state.status();
  const std::uint32_t value = prefix_value(sequence.tokens(), stop);
  for (std::size_t i = 0; i < 64; ++i) std::memcpy(state->data + 4 * i, &value, 4);
  return Status::ok();
}

void expect_right_bytes(const Sequence& sequence) {
  const Tokens tokens = sequence.tokens();
  const std::uint64_t length = sequence.length();
  for (int layer = 0; layer < kPagedLayers; ++layer) {
    const std::uint64_t start = layer == 1 && length > 5 ? length - 5 : 0;
    std::vector<float> got((length - start) * kRow);
    const auto view = view_of<codec::MutableRowsView>(got.data(), length - start);
    const Status status = sequence.read(layer, start, {&view, 1});
    ASSERT_TRUE(status.is_ok()) << status.message();
    ASSERT_EQ(got, rows_of(tokens, start, length, layer)) << "layer " << layer;
  }
  const auto state = sequence.state(3, "state.recurrent");
  ASSERT_TRUE(state.is_ok());
  const std::uint32_t want = length == 0 ? 0 : prefix_value(tokens, length);
  for (std::size_t i = 0; i < 64; ++i) {
    std::uint32_t got = 0;
    std::memcpy(&got, state->data + 4 * i, 4);
    ASSERT_EQ(got, want);
  }
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
    ASSERT_NO_FATAL_FAILURE(expect_right_bytes(sequence));
    for (const std::uint64_t stop : sequence.prefill_stops()) {
      const Status status = complete(sequence, stop);
      if (status.code() == StatusCode::kOutOfCapacity) break;
      ASSERT_TRUE(status.is_ok()) << status.message();
      ASSERT_NE(sequence.snapshot().status().code(), StatusCode::kInvalidArgument);
    }
    ASSERT_NO_FATAL_FAILURE(expect_right_bytes(sequence));
    ASSERT_TRUE(sequence.publish().is_ok());
    if (auto child = sequence.fork()) {
      if (complete(*child, tokens.size()).is_ok()) {
        ASSERT_NO_FATAL_FAILURE(expect_right_bytes(*child));
      }
    }
    ASSERT_NO_FATAL_FAILURE(expect_right_bytes(sequence));
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
  const auto cache = make_cache(hybrid(), 16 << 20, 32);
  run_threads(8, [&](int i) { serve_prompts(*cache, static_cast<std::uint32_t>(i), 40); });
  EXPECT_GT(cache->stats().hits, 0U);
  expect_nothing_left(*cache);
}

TEST(CacheThreads, SequencesThatEvictEachOthersPrefixes) {
  const auto cache = make_cache(hybrid(), 16 << 20, 10, {.capacity_blocks = 40});
  run_threads(8, [&](int i) { serve_prompts(*cache, static_cast<std::uint32_t>(i), 40); });
  EXPECT_GT(cache->stats().evicted_blocks, 0U);
  expect_nothing_left(*cache);
}

TEST(CacheThreads, CallsOnOneSequenceRunOneAtATime) {
  const auto cache = make_cache(hybrid(), 16 << 20, 16);
  Tokens tokens;
  for (std::int32_t i = 0; i < 400; ++i) tokens.push_back(i % 5);
  Sequence sequence = std::move(cache->open(tokens, {})).value();
  run_threads(8, [&](int i) {
    for (int round = 0; round < 40; ++round) {
      if (i == 0) {
        ASSERT_TRUE(complete(sequence, sequence.length() + 1).is_ok());
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
  expect_right_bytes(sequence);
  sequence.close();
  EXPECT_FALSE(sequence.is_open());
  expect_nothing_left(*cache);
}

// ---- What threads do not show -----------------------------------------------------------------

TEST(Cache, SlotsHeldByViewsAreNoReasonToEvict) {
  const auto cache = make_cache(hybrid(), 16 << 20, 1);
  const Tokens tokens = {1, 2, 3, 4, 5};
  Sequence first = std::move(cache->open(tokens, {})).value();
  ASSERT_TRUE(complete(first, 4).is_ok());
  ASSERT_TRUE(first.snapshot().is_ok());
  ASSERT_TRUE(first.publish().is_ok());
  {
    const auto view = first.state(3, "state.recurrent");
    first.close();
    EXPECT_EQ(cache->open(tokens, {}).status().code(), StatusCode::kOutOfCapacity);
    EXPECT_EQ(cache->stats().indexed_tokens, 4U) << "evicting cannot free a slot";
  }
  EXPECT_EQ(cache->open(tokens, {})->cached_tokens(), 4U);
}

TEST(Cache, ARowThatIsNotFiniteTakesBackWhatItMayHaveOverwritten) {
  const auto cache = make_cache({keys(0, 0, true)}, 1 << 20, 2);
  Sequence sequence = std::move(cache->open(Tokens(8, 1), {})).value();
  ASSERT_TRUE(write_rows(sequence, 0, 0, 4).is_ok());
  std::vector<float> rows = rows_of(sequence.tokens(), 1, 4, 0);
  rows[kRow + 3] = std::numeric_limits<float>::infinity();
  const auto view = view_of<codec::RowsView>(rows.data(), 3);
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
  const auto cache = make_cache(hybrid(), 16 << 20, 4);
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
    const auto cache = make_cache(hybrid(), 16 << 20, 4);
    Sequence sequence = std::move(cache->open(Tokens(3, 1), {})).value();
    view = std::move(sequence.state(3, "state.recurrent")).value();
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
