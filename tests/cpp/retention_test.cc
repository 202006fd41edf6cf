#include "kvcache/retention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace kvcache {
namespace {

constexpr std::uint64_t kEnd = 40;  // lengths that are tried

// The definition, one position at a time.
bool needs(const Retention& law, std::uint64_t position, std::uint64_t end) {
  if (position >= end) return false;
  if (law.window == 0) return true;
  if (position < law.sinks) return true;
  if (law.chunked) return position / law.window == end / law.window;
  return end - position < law.window;
}

std::vector<Retention> laws() {
  std::vector<Retention> found = {{}};
  for (const std::uint32_t window : {1U, 2U, 3U, 4U, 5U, 7U, 8U, 39U, 40U, 41U, 1000U}) {
    found.push_back({.window = window, .chunked = true});
    for (const std::uint32_t sinks : {0U, 1U, 3U, 4U, 5U, 9U, 1000U}) {
      found.push_back({.window = window, .sinks = sinks});
    }
  }
  return found;
}

TEST(Retention, RangesHoldTheNeededPositionsAndNoOther) {
  for (const Retention& law : laws()) {
    for (std::uint64_t end = 0; end <= kEnd; ++end) {
      std::uint64_t count = 0;
      for (std::uint64_t p = 0; p < end; ++p) {
        const bool inside = p < law.sink_end(end) || p >= law.live_start(end);
        ASSERT_EQ(inside, needs(law, p, end)) << law.window << ' ' << law.sinks << ' ' << end;
        count += inside;
      }
      EXPECT_LE(law.sink_end(end), law.live_start(end));
      EXPECT_LE(law.live_start(end), end);
      EXPECT_EQ(law.needed_rows(end), count);
    }
  }
}

TEST(Retention, ARangeIsSeenWhenAllOfItIsNeeded) {
  for (const Retention& law : laws()) {
    for (std::uint64_t end = 0; end <= 12; ++end) {
      for (std::uint64_t start = 0; start < end; ++start) {
        for (std::uint64_t stop = start + 1; stop <= end; ++stop) {
          bool all = true;
          for (std::uint64_t p = start; p < stop; ++p) all = all && needs(law, p, end);
          EXPECT_EQ(law.sees(start, stop, end), all);
        }
      }
    }
  }
}

TEST(Retention, BlocksAreNeededForTheirRowsAndForTheTail) {
  for (const Retention& law : laws()) {
    for (const std::uint64_t block : {1U, 3U, 4U, 16U}) {
      for (std::uint64_t end = 0; end <= kEnd; ++end) {
        const BlockRange live = law.live_blocks(end, block);
        const std::uint64_t sinks = law.sink_blocks(end, block);
        const BlockRange dead = law.dead_blocks(end, block);
        for (std::uint64_t b = 0; b * block < end; ++b) {
          bool rows = false;
          for (std::uint64_t p = b * block; p < std::min(end, (b + 1) * block); ++p) {
            rows = rows || needs(law, p, end);
          }
          const bool tail = law.window != 1 && end / block == b && end % block != 0;
          const bool needed = b < sinks || (b >= live.first && b < live.last);
          ASSERT_EQ(needed, rows || tail) << law.window << ' ' << law.sinks << ' ' << end;
          const bool gone = b >= dead.first && b < dead.last;
          // The block that is written next stays in any case.
          ASSERT_EQ(gone, !rows && (b + 1) * block <= end && b >= (law.sinks + block - 1) / block);
        }
      }
    }
  }
}

TEST(Retention, MostBlocksBoundsWhatAnyStepHolds) {
  for (const Retention& law : laws()) {
    for (const std::uint64_t block : {1U, 4U, 16U}) {
      for (const std::uint64_t step : {1U, 3U, 8U, 50U}) {
        for (std::uint64_t at = 0; at < kEnd; at += step) {
          const std::uint64_t end = std::min(kEnd, at + step);
          const BlockRange dead = law.dead_blocks(at, block);
          const std::uint64_t freed = dead.first < dead.last ? dead.last - dead.first : 0;
          const std::uint64_t held = (end + block - 1) / block - freed;
          EXPECT_LE(held, law.most_blocks(kEnd, step, block));
        }
      }
    }
  }
  const Retention window = {.window = UINT32_MAX};
  EXPECT_EQ(window.most_blocks(UINT64_MAX, UINT64_MAX - 1, 1), UINT64_MAX);
}

TEST(Retention, ARecordIsThereOnceAllItsPositionsAre) {
  const Retention pooled = {.record_tokens = 4};
  EXPECT_EQ(pooled.needed_rows(3), 0U);
  EXPECT_EQ(pooled.needed_rows(4), 1U);
  EXPECT_EQ(pooled.needed_rows(11), 2U);
  EXPECT_EQ(pooled.live_blocks(3, 8).last, 0U);  // no record is complete: no page is needed
  EXPECT_EQ(pooled.live_blocks(11, 8).last, 1U);
  EXPECT_EQ(pooled.live_blocks(12, 8).last, 2U);
}

}  // namespace
}  // namespace kvcache
