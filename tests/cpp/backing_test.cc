#include "arena/backing.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "arena/os_memory.h"
#include "layout/spans.h"

namespace kvcache::arena {
namespace {

constexpr std::uint64_t kPage = kOsPageBytes;

std::unique_ptr<Backing> make_backing(std::uint64_t pages, std::size_t max_seams = 1000,
                                      std::uint64_t page_bytes = 0) {
  auto backing = Backing::create(pages * kPage, pages * kPage, {}, max_seams, page_bytes);
  EXPECT_TRUE(backing.is_ok()) << backing.status().message();
  return std::move(backing).value();
}

// Ranges of random lengths are taken and given back under a budget; what is taken keeps its bytes.
void take_and_give_back(std::size_t max_seams, std::uint64_t budget_pages) {
  constexpr std::uint64_t kPages = 600;
  const auto backing = make_backing(kPages, max_seams);
  std::mt19937 rng(static_cast<unsigned>(max_seams));
  std::map<std::uint64_t, std::uint64_t> taken;  // first page -> pages
  std::uint64_t used = 0;
  const auto value = [](std::uint64_t page) { return static_cast<int>(page * 13 % 251 + 1); };
  for (int step = 0; step < 6000; ++step) {
    if (rng() % 2 == 0) {
      const std::uint64_t first = rng() % kPages;
      const std::uint64_t pages = std::min(1 + rng() % 24, kPages - first);
      auto next = taken.lower_bound(first);
      const bool clash =
          (next != taken.end() && next->first < first + pages) ||
          (next != taken.begin() && std::prev(next)->first + std::prev(next)->second > first);
      if (clash || used + pages > budget_pages) continue;
      ASSERT_TRUE(backing->take(first * kPage, pages * kPage).is_ok());
      for (std::uint64_t p = first; p < first + pages; ++p) {
        std::memset(backing->base() + p * kPage, value(p), kPage);
      }
      taken.emplace(first, pages);
      used += pages;
    } else if (!taken.empty()) {
      const auto gone = std::next(taken.begin(), static_cast<long>(rng() % taken.size()));
      for (std::uint64_t p = gone->first; p < gone->first + gone->second; ++p) {
        const std::byte* page = backing->base() + p * kPage;
        ASSERT_EQ(static_cast<int>(page[0]), value(p));
        ASSERT_EQ(static_cast<int>(page[kPage - 1]), value(p));
      }
      backing->give_back(gone->first * kPage, gone->second * kPage);
      used -= gone->second;
      taken.erase(gone);
    }
    backing->trim((budget_pages - used) * kPage);
    ASSERT_LE(backing->spare_bytes() + used * kPage, budget_pages * kPage);
    ASSERT_LE(backing->seams(), max_seams + 2 * 24);
  }
  EXPECT_EQ(backing->moved_bytes() > 0, backing->can_move());
}

TEST(Backing, WhatIsTakenKeepsItsBytesWhileTheRestMoves) { take_and_give_back(100000, 200); }
TEST(Backing, WithFewSeamsTheRestGoesByWayOfTheSystem) { take_and_give_back(20, 200); }
TEST(Backing, ATightBudgetMovesTheMost) { take_and_give_back(300, 40); }

TEST(Backing, MemoryGivenBackIsTakenAgainInPlace) {
  const auto backing = make_backing(64);
  ASSERT_TRUE(backing->take(0, 8 * kPage).is_ok());
  std::memset(backing->base(), 5, 8 * kPage);
  backing->give_back(0, 4 * kPage);
  backing->give_back(4 * kPage, 4 * kPage);
  EXPECT_EQ(backing->spare_bytes(), 8 * kPage);
  ASSERT_TRUE(backing->take(2 * kPage, 3 * kPage).is_ok());
  EXPECT_EQ(backing->spare_bytes(), 5 * kPage);
  EXPECT_EQ(backing->moved_bytes(), 0U);
  EXPECT_EQ(backing->base()[2 * kPage], std::byte{5});  // no fault, no zeroing
  ASSERT_TRUE(backing->take(32 * kPage, 6 * kPage).is_ok());
  EXPECT_EQ(backing->moved_bytes(), backing->can_move() ? 5 * kPage : 0);
  EXPECT_EQ(backing->spare_bytes() + backing->moved_bytes(), 5 * kPage);
}

TEST(Backing, MemoryMovesWhereTheSystemCanAndSpansAreCutAtItsPages) {
  EXPECT_EQ(make_backing(8, 1000, kPage)->can_move(), os::can_move());
  EXPECT_FALSE(make_backing(8, 1000, 4 * kPage)->can_move());
}

TEST(Backing, WhatGoesToTheSystemComesBackEmpty) {
  for (const std::uint64_t page_bytes : {kPage, 4 * kPage}) {
    const auto backing = make_backing(64, 1000, page_bytes);
    ASSERT_TRUE(backing->take(0, 64 * kPage).is_ok());
    std::memset(backing->base(), 9, 64 * kPage);
    backing->give_back(16 * kPage, 16 * kPage);
    backing->trim(0);
    EXPECT_EQ(backing->spare_bytes(), 0U);
    ASSERT_TRUE(backing->take(16 * kPage, 16 * kPage).is_ok());
    for (const std::uint64_t page : {16U, 23U, 31U}) {
      EXPECT_EQ(backing->base()[page * kPage], std::byte{0}) << page;
    }
    EXPECT_EQ(backing->base()[16 * kPage - 1], std::byte{9});
    EXPECT_EQ(backing->base()[32 * kPage], std::byte{9});
  }
}

TEST(Backing, ALargePageGoesWithTheLastOfItsBytesInUse) {
  const auto backing = make_backing(64, 1000, 4 * kPage);
  ASSERT_TRUE(backing->take(0, 64 * kPage).is_ok());
  std::memset(backing->base(), 7, 64 * kPage);
  backing->give_back(6 * kPage, 8 * kPage);  // a half page, a whole one, a half one
  backing->trim(0);
  EXPECT_EQ(backing->spare_bytes(), 4 * kPage);
  EXPECT_EQ(backing->base()[6 * kPage - 1], std::byte{7});
  EXPECT_EQ(backing->base()[14 * kPage], std::byte{7});
  backing->give_back(4 * kPage, 2 * kPage);
  backing->give_back(14 * kPage, 50 * kPage);
  backing->trim(8 * kPage);
  EXPECT_EQ(backing->spare_bytes(), 8 * kPage);
  backing->trim(0);
  EXPECT_EQ(backing->spare_bytes(), 0U);
  for (std::uint64_t page = 0; page < 4; ++page) {
    EXPECT_EQ(backing->base()[page * kPage], std::byte{7});
  }
}

TEST(Backing, OnLargePagesWhatIsTakenKeepsItsBytesAndTheRestGoes) {
  constexpr std::uint64_t kPages = 240;
  constexpr std::uint64_t kSpan = 9;  // of pages: most spans begin and end inside a large page
  const auto backing = make_backing(kPages, 1000, 4 * kPage);
  std::mt19937 rng(5);
  std::map<std::uint64_t, int> taken;  // first page -> the value it holds
  for (int step = 0; step < 4000; ++step) {
    const std::uint64_t first = rng() % (kPages / kSpan) * kSpan;
    std::byte* const bytes = backing->base() + first * kPage;
    if (const auto old = taken.find(first); old == taken.end()) {
      ASSERT_TRUE(backing->take(first * kPage, kSpan * kPage).is_ok());
      std::memset(bytes, step % 250 + 1, kSpan * kPage);
      taken.emplace(first, step % 250 + 1);
    } else {
      for (std::uint64_t at = 0; at < kSpan * kPage; at += kPage) {
        ASSERT_EQ(static_cast<int>(bytes[at]), old->second);
        ASSERT_EQ(static_cast<int>(bytes[at + kPage - 1]), old->second);
      }
      backing->give_back(first * kPage, kSpan * kPage);
      taken.erase(old);
    }
    backing->trim(0);
    // Where two spans meet, less than a large page.
    ASSERT_LE(backing->spare_bytes(), (kPages / kSpan + 1) * 3 * kPage);
  }
  for (const auto& [first, value] : taken) backing->give_back(first * kPage, kSpan * kPage);
  ASSERT_TRUE(backing->take(0, kPages * kPage).is_ok());
  backing->give_back(0, kPages * kPage);
  backing->trim(0);
  EXPECT_EQ(backing->spare_bytes(), 0U);
}

TEST(Backing, AWholePrefaultedRangeIsSpare) {
  const auto backing = make_backing(64);
  ASSERT_TRUE(backing->prefault(0, 64 * kPage, 3).is_ok());
  EXPECT_EQ(backing->spare_bytes(), 64 * kPage);
  backing->trim(10 * kPage);
  EXPECT_EQ(backing->spare_bytes(), 10 * kPage);
}

TEST(Backing, WhatTheSystemCannotDoIsRefusedByName) {
  const auto far = Backing::create(kPage, kPage, {.numa_node = 1000}, 10);
  EXPECT_EQ(far.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(far.status().message().find("NUMA node 1000"), std::string::npos);
  for (const std::int32_t node : {-2, 1024}) {
    EXPECT_EQ(Backing::create(kPage, kPage, {.numa_node = node}, 10).status().code(),
              StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(Backing::create(std::uint64_t{1} << 60, kPage, {}, 10).status().code(),
            StatusCode::kOutOfCapacity);
}

}  // namespace
}  // namespace kvcache::arena
