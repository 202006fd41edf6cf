// The process runs out of memory in the middle of a pin: it is held whole or not at all.
#include <gtest/gtest.h>

#include "content.h"
#include "failing_new.h"
#include "kvcache/lifetime.h"

namespace kvcache {
namespace {

using content::Tokens;

// Lets the first, second, ... allocation of pin() fail until none is left that would.
TEST(PinsMemory, APinThatRunsOutOfMemoryHoldsNothing) {
  auto plan = StatePlan::create(content::decls(), {64 << 20, 4, 64, 3});
  const auto cache =
      Cache::create(std::move(plan).value(), {.policy = "lru", .capacity_blocks = 24}).value();
  const Tokens tokens(22, 5);
  {
    Sequence sequence = cache->open(tokens, {}).value();
    for (const std::uint64_t stop : sequence.prefill_stops()) {
      ASSERT_TRUE(content::complete(sequence, stop));
      ASSERT_TRUE(sequence.snapshot().is_ok());
    }
    ASSERT_TRUE(content::complete(sequence, tokens.size()));
    ASSERT_TRUE(sequence.publish());
    // Where the pin will end a run ends already, so that pinning cuts none.
    Sequence other = cache->open(Tokens(tokens.begin(), tokens.begin() + 21), {}).value();
    ASSERT_TRUE(content::complete(other, 21));
    ASSERT_TRUE(other.publish());
  }
  long failures = 0;
  for (;; ++failures) {
    ASSERT_LT(failures, 1000);
    Result<Pin> pin = Status::internal("not called");
    remaining = failures;
    try {
      pin = cache->pin(tokens, {}, {.lease_ms = 60'000});
    } catch (const std::bad_alloc&) {
    }
    const bool reached = remaining < 0;
    remaining = -1;
    if (!reached) {
      ASSERT_TRUE(pin.is_ok()) << pin.status().message();
      EXPECT_EQ(cache->stats().pins, 1U);
      EXPECT_GT(cache->stats().pinned_bytes, 0U);
      break;
    }
    if (pin.is_ok()) continue;  // a string that did not fit was done without
    const CacheStats stats = cache->stats();
    ASSERT_EQ(stats.pins + stats.pinned_pages + stats.pinned_bytes, 0U) << failures;
    ASSERT_EQ(stats.lapsed_leases, 0U) << failures;
  }
  EXPECT_GT(failures, 5);
  EXPECT_EQ(cache->stats().pins, 0U);
  // Nothing is held any more: others take all of the memory.
  const Tokens others(24 * 4, 7);
  Sequence sequence = cache->open(others, {}).value();
  EXPECT_TRUE(content::complete(sequence, others.size()));
  EXPECT_EQ(cache->stats().indexed_blocks, 0U);
}

}  // namespace
}  // namespace kvcache
