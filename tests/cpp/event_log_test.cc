#include "prefix/event_log.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvcache::prefix {
namespace {

constexpr std::uint64_t kBlock = 4;

class Log : public ::testing::Test {
 protected:
  void store(std::string_view key, std::uint64_t first, std::uint64_t last,
             std::span<const MediaSpan> media = {}) {
    log_.stored({key, media, tokens_, names_}, 0, first, last);
  }

  EventLog log_{kBlock, 100};
  std::vector<std::int32_t> tokens_ = std::vector<std::int32_t>(40, 1);
  std::vector<std::uint64_t> names_ = {11, 12, 13, 14, 15, 16, 17, 18, 19, 20};
};

TEST_F(Log, EventsOfOneSpaceShareItsKey) {
  const std::string long_key(1000, 'k');
  store(long_key, 0, 1);
  store("other", 0, 1);
  store(long_key, 2, 3);
  const auto events = log_.take();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(*events[0].key, long_key);
  EXPECT_EQ(*events[1].key, "other");
  EXPECT_EQ(events[0].key, events[2].key);
  store(long_key, 0, 1);
  EXPECT_EQ(*log_.take().front().key, long_key);
}

TEST_F(Log, AnEventThatGoesOnHasEachItemThatReachesIntoItOnce) {
  const std::vector<MediaSpan> media = {{1, 1, "a"},  {3, 1, "b"},  {4, 5, "c"},
                                        {15, 3, "d"}, {19, 1, "e"}, {20, 1, "f"}};
  store("", 1, 2, media);
  store("", 2, 3, media);
  store("", 3, 5, media);
  const auto events = log_.take();
  ASSERT_EQ(events.size(), 1U);
  const auto said = std::span(events[0].event.media);
  EXPECT_TRUE(std::ranges::equal(said, std::span(media).subspan(2, 3)));
}

TEST_F(Log, ARunThatIsCutInTwoKeepsItsNames) {
  log_.run(3) = {1, 2, 3, 4, 5};
  log_.reserve_split(7, 2);
  static_assert(noexcept(log_.split_run(7, 3, 2)));
  log_.split_run(7, 3, 2);
  EXPECT_EQ(log_.run(7), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(log_.run(3), (std::vector<std::uint64_t>{3, 4, 5}));
  log_.reserve_split(0, 4);
  log_.split_run(0, 900, 4);  // has no names
  EXPECT_TRUE(log_.run(0).empty());
  EXPECT_TRUE(log_.run(900).empty());
}

TEST_F(Log, IsLostOnceAndRightAgainWhenItIsRestatedOrCleared) {
  store("", 0, 2);
  log_.lose();
  log_.lose();
  store("", 0, 2);
  EXPECT_TRUE(log_.lost());
  EXPECT_EQ(log_.waiting(), 0U);
  EXPECT_EQ(log_.losses(), 1U);
  log_.restated();
  store("", 0, 2);
  EXPECT_EQ(log_.waiting(), 2U);
  log_.cleared();
  EXPECT_FALSE(log_.lost());
  EXPECT_EQ(log_.take().front().event.kind, EventKind::kCleared);
}

}  // namespace
}  // namespace kvcache::prefix
