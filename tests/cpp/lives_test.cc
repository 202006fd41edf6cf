#include "prefix/lives.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace kvcache::prefix {
namespace {

TEST(LifeTable, WithoutATimeNothingEndsAndNothingIsKept) {
  LifeTable lives;
  lives.begin(3, 0, kNever, 100);
  lives.renew(3, 50, 100);
  lives.use(3, 200);
  lives.split(4, 3, 10);
  lives.forget(3);
  EXPECT_TRUE(lives.empty());
  EXPECT_FALSE(lives.is_over(3, UINT64_MAX - 1));
  EXPECT_FALSE(lives.next(UINT64_MAX - 1).has_value());
}

TEST(LifeTable, UsesAndRenewalsPutTheEndOff) {
  LifeTable lives;
  lives.begin(0, 0, 10, 5);
  EXPECT_FALSE(lives.is_over(0, 14));
  EXPECT_TRUE(lives.is_over(0, 15));
  lives.use(0, 14);
  EXPECT_FALSE(lives.next(23).has_value());
  lives.renew(0, 100, 20);
  lives.renew(0, 1, 20);  // the longer one counts
  EXPECT_FALSE(lives.next(119).has_value());
  EXPECT_EQ(lives.next(120), 0U);
  lives.renew(0, kNever, 119);
  EXPECT_FALSE(lives.next(kNever - 1).has_value());
  EXPECT_TRUE(lives.empty());
}

TEST(LifeTable, OfEqualEndsTheDeepestComesFirst) {
  LifeTable lives;
  lives.begin(7, 0, 10, 0);
  lives.split(9, 7, 16);  // 9 is above 7 now
  lives.begin(8, 40, 10, 0);
  EXPECT_EQ(lives.next(10), 8U);
  lives.forget(8);
  EXPECT_EQ(lives.next(10), 7U);
  lives.pause(7);
  EXPECT_EQ(lives.next(10), 9U);
  EXPECT_FALSE(lives.empty());
  lives.forget(9);
  EXPECT_FALSE(lives.next(10).has_value());
  EXPECT_FALSE(lives.empty());  // it has to go on once it is resumed
  lives.resume(7);
  EXPECT_EQ(lives.next(10), 7U);
  lives.forget(7);
  EXPECT_TRUE(lives.empty());
}

TEST(LifeTable, ATimeNearTheEndOfAllTimesDoesNotWrap) {
  LifeTable lives;
  lives.begin(0, 0, kNever - 1, kNever / 2);
  EXPECT_FALSE(lives.is_over(0, kNever / 2 + 1));
  lives.begin(1, 0, 10, kNever - 5);
  EXPECT_FALSE(lives.is_over(1, kNever - 1));
}

TEST(LifeTable, AgreesWithAListOfEnds) {
  std::mt19937 rng(1);
  LifeTable lives;
  struct Known {
    std::uint64_t ttl, end;
  };
  std::map<RunId, Known> known;
  std::uint64_t now = 0;
  for (int step = 0; step < 20'000; ++step) {
    const auto run = static_cast<RunId>(rng() % 40);
    const std::uint64_t ttl = 1 + rng() % 30;
    switch (rng() % 4) {
      case 0:
        if (known.contains(run)) break;
        lives.begin(run, rng() % 100, ttl, now);
        known[run] = {ttl, now + ttl};
        break;
      case 1:
        if (!known.contains(run)) break;
        lives.renew(run, ttl, now);
        known[run].ttl = std::max(known[run].ttl, ttl);
        known[run].end = std::max(known[run].end, now + known[run].ttl);
        break;
      case 2:
        lives.use(run, now);
        if (known.contains(run)) {
          known[run].end = std::max(known[run].end, now + known[run].ttl);
        }
        break;
      default:
        now += rng() % 3;
    }
    while (const auto over = lives.next(now)) {
      ASSERT_TRUE(known.contains(*over));
      ASSERT_LE(known[*over].end, now);
      lives.forget(*over);
      known.erase(*over);
    }
    for (const auto& [id, life] : known) {
      ASSERT_GT(life.end, now);
      ASSERT_FALSE(lives.is_over(id, now));
    }
    ASSERT_EQ(lives.empty(), known.empty());
  }
}

}  // namespace
}  // namespace kvcache::prefix
