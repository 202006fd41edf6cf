#include "prefix/pins.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>

#include "cache/clock.h"
#include "content.h"
#include "kvcache/lifetime.h"

namespace kvcache {
namespace {

using content::Tokens;

constexpr std::uint64_t kMinute = 60'000;

Tokens numbered(std::int32_t first, std::size_t count) {
  Tokens tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<std::int32_t>(i);
  return tokens;
}

// A cache of few blocks, and prompts in it that are right to the byte.
class Pins : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Cache> make(std::uint64_t capacity_blocks, MemoryShare pin_limit = {},
                              std::uint32_t snapshots_per_path = 32) {
    auto plan = StatePlan::create(content::decls(), {64 << 20, 4, 64, 3});
    return Cache::create(std::move(plan).value(),
                         {.policy = GetParam(),
                          .capacity_blocks = capacity_blocks,
                          .placement = {.snapshots_per_path = snapshots_per_path},
                          .pin_limit = pin_limit})
        .value();
  }

  // Runs a prompt with snapshots where they are due and after each of `more`.
  static void store(Cache& cache, const Tokens& tokens, std::vector<std::uint64_t> more = {}) {
    Sequence sequence = cache.open(tokens, {}).value();
    for (const std::uint64_t stop : more) ASSERT_TRUE(sequence.mark(stop, MarkKind::kTurn));
    for (const std::uint64_t stop : sequence.prefill_stops()) {
      ASSERT_TRUE(content::complete(sequence, stop));
      ASSERT_TRUE(sequence.snapshot().is_ok());
    }
    ASSERT_TRUE(content::complete(sequence, tokens.size()));
    ASSERT_TRUE(sequence.publish());
  }

  // So much of `tokens` is restored, and right.
  static std::uint64_t hit(Cache& cache, const Tokens& tokens) {
    const auto sequence = cache.open(tokens, {});
    EXPECT_TRUE(sequence.is_ok()) << sequence.status().message();
    EXPECT_EQ(content::wrong_bytes(*sequence), "");
    return sequence->cached_tokens();
  }

  // Stores others until whatever may go has gone.
  static void press(Cache& cache) {
    for (std::int32_t i = 0; i < 12; ++i) store(cache, numbered(10'000 * (i + 1), 30));
  }

  // Takes all of so many blocks, whatever has them.
  static void fill(Cache& cache, std::uint64_t blocks) {
    const Tokens tokens = numbered(500'000, blocks * 4);
    Sequence sequence = cache.open(tokens, {}).value();
    ASSERT_TRUE(content::complete(sequence, tokens.size()));
  }

  static void expect_empty(Cache& cache) {
    cache.clear();
    const CacheStats stats = cache.stats();
    EXPECT_EQ(stats.used_bytes, 0U);
    EXPECT_EQ(stats.pins + stats.pinned_pages + stats.pinned_bytes, 0U);
    EXPECT_EQ(stats.indexed_blocks, 0U);
  }
};

INSTANTIATE_TEST_SUITE_P(Policies, Pins,
                         testing::Values("lru", "gdsf", "s3fifo", "flop_aware", "price_list"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Pins, WhatIsPinnedStaysThroughPressureAndGoesAfterwards) {
  const auto cache = make(24);
  const Tokens tokens = numbered(1, 22);
  store(*cache, tokens);
  {
    const auto pin = cache->pin(tokens, {});
    ASSERT_TRUE(pin.is_ok()) << pin.status().message();
    EXPECT_EQ(pin->tokens(), 21U);  // the snapshot is before the last token
    EXPECT_TRUE(pin->is_held());
    EXPECT_FALSE(pin->expires_ms().has_value());
    const CacheStats stats = cache->stats();
    EXPECT_EQ(stats.pins, 1U);
    // Two groups keep all 6 blocks, one 2 of its window, one 2 and a sink.
    EXPECT_EQ(stats.pinned_pages, 6U + 6 + 2 + 3);
    press(*cache);
    EXPECT_GT(cache->stats().evicted_blocks, 0U);
    EXPECT_EQ(hit(*cache, tokens), 21U);
  }
  EXPECT_EQ(cache->stats().pins, 0U);
  EXPECT_EQ(cache->stats().pinned_bytes, 0U);
  fill(*cache, 24);
  EXPECT_EQ(hit(*cache, tokens), 0U);
  expect_empty(*cache);
}

TEST_P(Pins, WhatContinuesAPinnedPrefixMayGo) {
  const auto cache = make(24);
  const Tokens tokens = numbered(1, 40);
  store(*cache, tokens, {18});
  const Tokens front(tokens.begin(), tokens.begin() + 18);
  const auto pin = cache->pin(front, {});
  ASSERT_EQ(pin->tokens(), 18U);
  press(*cache);
  EXPECT_EQ(hit(*cache, tokens), 18U);
  // A branch from the middle cuts the run in two; both parts stay.
  Tokens branch(tokens.begin(), tokens.begin() + 9);
  branch.resize(20, 7);
  store(*cache, branch, {9});
  press(*cache);
  EXPECT_EQ(hit(*cache, tokens), 18U);
  // The same prompt goes on past the pin.
  store(*cache, tokens);
  EXPECT_EQ(hit(*cache, tokens), 39U);
  press(*cache);
  EXPECT_EQ(hit(*cache, tokens), 18U);
  expect_empty(*cache);
}

TEST_P(Pins, TwoPinsOfOnePrefixCountItOnce) {
  const auto cache = make(0);
  const Tokens tokens = numbered(1, 30);
  store(*cache, tokens, {12});
  auto deep = cache->pin(tokens, {});
  const std::uint64_t bytes = cache->stats().pinned_bytes;
  auto again = cache->pin(tokens, {});
  EXPECT_EQ(cache->stats().pins, 2U);
  EXPECT_EQ(cache->stats().pinned_bytes, bytes);
  auto front = cache->pin(Tokens(tokens.begin(), tokens.begin() + 12), {});
  EXPECT_EQ(front->tokens(), 12U);
  EXPECT_GT(cache->stats().pinned_bytes, bytes);  // its snapshot and windows
  deep->release();
  deep->release();
  EXPECT_FALSE(deep->is_held());
  EXPECT_TRUE(again->is_held());
  again->release();
  EXPECT_GT(cache->stats().pinned_bytes, 0U);
  front->release();
  EXPECT_EQ(cache->stats().pinned_bytes, 0U);
  EXPECT_EQ(cache->stats().pinned_pages, 0U);
}

TEST_P(Pins, ALimitRefusesAndChangesNothing) {
  const Tokens tokens = numbered(1, 22);
  const auto roomy = make(0);
  store(*roomy, tokens);
  const auto fits = roomy->pin(tokens, {});
  const std::uint64_t limit = roomy->stats().pinned_bytes - 1;
  const auto cache = make(0, {.fraction = 1, .bytes = limit});
  store(*cache, tokens);
  const CacheStats before = cache->stats();
  const auto pin = cache->pin(tokens, {});
  ASSERT_EQ(pin.status().code(), StatusCode::kOutOfCapacity);
  EXPECT_NE(pin.status().message().find("of the " + std::to_string(limit)), std::string::npos);
  EXPECT_NE(pin.status().message().find("pin_limit"), std::string::npos);
  const CacheStats after = cache->stats();
  EXPECT_EQ(after.pins, 0U);
  EXPECT_EQ(after.indexed_blocks, before.indexed_blocks);
  EXPECT_EQ(cache->pin(numbered(1, 3), {}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(cache->pin({}, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->pin(numbered(900, 5), {}).status().code(), StatusCode::kNotFound);
}

TEST_P(Pins, LeasesLapseWithTheCallersClock) {
  const auto cache = make(24);
  const Tokens tokens = numbered(1, 22);
  store(*cache, tokens);
  auto pin = cache->pin(tokens, {}, {.lease_ms = 5000, .now_ms = 1000});
  EXPECT_EQ(pin->expires_ms(), 6000U);
  EXPECT_TRUE(cache->open({{5}}, {}, {.hints = {}, .now_ms = 5999}).is_ok());
  EXPECT_TRUE(pin->is_held());
  EXPECT_TRUE(pin->renew({.lease_ms = 2000, .now_ms = 5999}));
  EXPECT_EQ(pin->expires_ms(), 7999U);
  EXPECT_TRUE(cache->open({{5}}, {}, {.hints = {}, .now_ms = 7998}).is_ok());
  EXPECT_TRUE(pin->is_held());
  EXPECT_TRUE(cache->open({{5}}, {}, {.hints = {}, .now_ms = 7999}).is_ok());
  EXPECT_EQ(cache->stats().lapsed_leases, 1U);
  EXPECT_FALSE(pin->is_held());
  EXPECT_EQ(pin->renew({}).code(), StatusCode::kNotFound);
  pin->release();
  fill(*cache, 24);
  EXPECT_EQ(hit(*cache, tokens), 0U);
}

TEST_P(Pins, OwnersWishesEndThem) {
  const auto cache = make(0);
  const Tokens tokens = numbered(1, 22);
  for (int wish = 0; wish < 4; ++wish) {
    store(*cache, tokens);
    auto pin = cache->pin(tokens, {}, {.lease_ms = 1000});
    ASSERT_TRUE(pin.is_ok());
    if (wish == 0) cache->clear();
    if (wish == 1) cache->bump_epoch("other");
    if (wish == 2) {
      EXPECT_GT(*cache->erase({.name = "", .adapter = {}, .salt = {}, .media = {}, .tokens = {}}),
                0U);
    }
    if (wish == 3) {
      EXPECT_GT(
          *cache->erase({.name = "", .adapter = "", .salt = "", .media = {}, .tokens = {1, 2, 3}}),
          0U);
    }
    EXPECT_FALSE(pin->is_held());
    EXPECT_EQ(hit(*cache, tokens), 0U);
    EXPECT_EQ(cache->stats().pinned_bytes, 0U);
    pin->release();
  }
  EXPECT_EQ(cache->stats().lapsed_leases, 0U);
  expect_empty(*cache);
}

TEST_P(Pins, SnapshotsOnAFullPathStay) {
  const auto cache = make(0, {}, 2);
  const Tokens tokens = numbered(1, 40);
  store(*cache, Tokens(tokens.begin(), tokens.begin() + 10), {6});
  const auto pin = cache->pin(Tokens(tokens.begin(), tokens.begin() + 6), {});
  ASSERT_EQ(pin->tokens(), 6U);
  for (const std::size_t length : {16, 24, 32, 40}) {
    store(*cache, Tokens(tokens.begin(), tokens.begin() + static_cast<long>(length)));
  }
  EXPECT_LE(cache->stats().indexed_snapshots, 2U);
  EXPECT_EQ(hit(*cache, Tokens(tokens.begin(), tokens.begin() + 7)), 6U);
}

// Long prompts, which take long to check.
class LongPins : public Pins {};

INSTANTIATE_TEST_SUITE_P(Policies, LongPins, testing::Values("lru"));

TEST_P(LongPins, ResizeRefusesWhatPinsNeed) {
  const auto cache = make(0, {.fraction = 1});
  const Tokens tokens = numbered(1, 8000);
  store(*cache, tokens);
  store(*cache, numbered(50'000, 100));
  auto pin = cache->pin(tokens, {});
  ASSERT_TRUE(pin.is_ok());
  const std::uint64_t least = *cache->plan().sequence_bytes(1, 1);
  const std::uint64_t pinned = cache->stats().pinned_bytes;
  ASSERT_GT(pinned, least);
  const Status refused = cache->resize(pinned - 1);
  EXPECT_EQ(refused.code(), StatusCode::kOutOfCapacity);
  EXPECT_NE(refused.message().find("pins"), std::string::npos);
  EXPECT_EQ(cache->stats().evicted_blocks, 0U);
  EXPECT_EQ(hit(*cache, tokens), 7999U);
  pin->release();
  EXPECT_TRUE(cache->resize(least));
}

TEST_P(Pins, AHandleOutlivesItsCacheAndMoves) {
  Pin kept;
  EXPECT_FALSE(kept.is_held());
  EXPECT_EQ(kept.renew({}).code(), StatusCode::kNotFound);
  {
    const auto cache = make(0);
    store(*cache, numbered(1, 22));
    kept = cache->pin(numbered(1, 22), {}).value();
  }
  Pin moved = std::move(kept);
  EXPECT_TRUE(moved.is_held());
  EXPECT_FALSE(kept.is_held());  // NOLINT: a moved-from handle is empty
  moved.release();
}

TEST_P(Pins, HoldNothingInAChildOfFork) {
  const auto cache = make(0);
  store(*cache, numbered(1, 22));
  Pin pin = cache->pin(numbered(1, 22), {}).value();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const bool refused = !pin.is_held() && !pin.check_process() && !pin.renew({}) &&
                         !cache->pin(numbered(1, 22), {}).is_ok();
    pin.release();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(pin.is_held());
}

TEST(CacheOptions, AShareOutsideItsRangeIsRefused) {
  auto plan = StatePlan::create(content::decls(), {64 << 20, 4, 64, 3}).value();
  for (const double wrong : {-0.1, 1.1, std::nan("")}) {
    const auto cache = Cache::create(plan, {.pin_limit = {.fraction = wrong}});
    ASSERT_EQ(cache.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(cache.status().message().find("pin_limit"), std::string::npos);
  }
}

TEST(Clock, NeverGoesBackAndForgivesJumps) {
  Clock clock;
  EXPECT_EQ(clock.read(1000), 0U);
  EXPECT_EQ(clock.read(1500), 500U);
  EXPECT_EQ(clock.read(1400), 500U);  // another thread's call came late
  EXPECT_EQ(clock.read(1600), 600U);
  EXPECT_EQ(clock.read({}), 600U);  // the caller's clock is the only one now
  EXPECT_EQ(clock.read(1600 + kMinute), 600U + kMinute);
  EXPECT_EQ(clock.read(0), 600U + kMinute);  // set back, and counted from there
  EXPECT_EQ(clock.read(50), 650U + kMinute);
  const std::uint64_t most = UINT64_MAX;
  for (int i = 0; i < 4; ++i) {
    const std::uint64_t far = clock.read(most);
    EXPECT_GE(clock.read(0), far);
    EXPECT_LT(far, most);
  }
}

TEST(Clock, AnotherClockGoesOnFromWhereItIs) {
  Clock clock;
  const std::uint64_t steady = clock.read({});
  EXPECT_EQ(clock.read(1'700'000'000'000), steady);
  EXPECT_EQ(clock.read(1'700'000'000'100), steady + 100);
}

}  // namespace
}  // namespace kvcache
