#include "arena/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "arena/free_bitmap.h"
#include "arena/pool_map.h"

namespace kvcache::arena {
namespace {

constexpr std::uint64_t kSpan = kSmallSpanBytes;

std::unique_ptr<Arena> make_arena(std::uint64_t budget, const std::vector<PoolSpec>& pools,
                                  bool backing = true) {
  auto arena = Arena::create(budget, pools, backing);
  EXPECT_TRUE(arena.is_ok()) << arena.status().message();
  return std::move(arena).value();
}

// ---- FreeBitmap -------------------------------------------------------------------------------

TEST(FreeBitmap, AgreesWithASetThroughGrowthOverThreeLevels) {
  std::mt19937 rng(1);
  FreeBitmap bitmap;
  std::set<std::size_t> set;
  std::size_t size = 0;
  for (int i = 0; i < 60000; ++i) {
    if (size == 0 || rng() % 50 == 0) bitmap.grow(size += rng() % 700);
    if (size == 0) continue;
    const std::size_t id = rng() % size;
    if (rng() % 2 == 0) {
      bitmap.insert(id);
      set.insert(id);
    } else {
      const auto first = bitmap.first();
      const std::size_t gone = rng() % 2 == 0 && first ? *first : id;
      bitmap.erase(gone);
      set.erase(gone);
    }
    ASSERT_EQ(bitmap.first(), set.empty() ? std::nullopt : std::optional(*set.begin()));
    ASSERT_EQ(bitmap.last(), set.empty() ? std::nullopt : std::optional(*set.rbegin()));
    ASSERT_EQ(bitmap.contains(id), set.contains(id));
    if (rng() % 200 != 0) continue;
    std::vector<std::int32_t> taken(rng() % 300);
    taken.resize(bitmap.take(taken));
    for (const std::int32_t member : taken) {
      ASSERT_EQ(static_cast<std::size_t>(member), *set.begin());
      set.erase(set.begin());
    }
  }
  EXPECT_GT(size, 64U * 64U * 64U);
}

TEST(FreeBitmap, AnEmptyOneHasNoFirst) {
  FreeBitmap bitmap;
  EXPECT_EQ(bitmap.first(), std::nullopt);
  bitmap.grow(0);
  EXPECT_EQ(bitmap.first(), std::nullopt);
}

TEST(FreeBitmap, ANewTopLevelKnowsWhatWasThere) {
  FreeBitmap bitmap;
  bitmap.grow(64);
  bitmap.insert(63);
  bitmap.grow(5000);
  EXPECT_EQ(bitmap.first(), 63U);
  bitmap.erase(63);
  EXPECT_EQ(bitmap.first(), std::nullopt);
}

// ---- Pool and Arena ---------------------------------------------------------------------------

TEST(Pool, LiveItemsNeverOverlapAndKeepTheirBytes) {
  const auto arena = make_arena(8 * kSpan, {{"a", 100, 0}, {"b", 40000, 0}, {"c", 7, 0}});
  std::mt19937 rng(2);
  std::map<std::pair<std::size_t, ItemId>, unsigned char> live;
  for (int i = 0; i < 4000; ++i) {
    const std::size_t which = rng() % 3;
    Pool& pool = arena->pool(which);
    if (rng() % 2 == 0) {
      const auto id = pool.allocate();
      if (!id) continue;
      const auto fill = static_cast<unsigned char>(rng());
      ASSERT_TRUE(live.emplace(std::pair(which, *id), fill).second);
      std::memset(pool.data(*id), fill, pool.item_bytes());
    } else if (!live.empty()) {
      const auto victim = std::next(live.begin(), static_cast<long>(rng() % live.size()));
      const auto [key, fill] = *victim;
      Pool& owner = arena->pool(key.first);
      const std::byte* data = owner.data(key.second);
      for (std::uint64_t at = 0; at < owner.item_bytes(); ++at) {
        ASSERT_EQ(static_cast<unsigned char>(data[at]), fill);
      }
      owner.release(key.second);
      live.erase(victim);
    }
    std::uint64_t used = 0;
    std::uint64_t committed = 0;
    for (const auto& [key, unused] : live) used += arena->pool(key.first).item_bytes();
    for (std::size_t p = 0; p < 3; ++p) committed += arena->pool(p).committed_bytes();
    ASSERT_EQ(arena->used_bytes(), used);
    ASSERT_EQ(arena->committed_bytes(), committed);
    ASSERT_LE(committed, arena->budget_bytes());
    ASSERT_LE(arena->peak_bytes(), arena->budget_bytes());
  }
}

TEST(Pool, ASpanMovesToAnotherPoolWhenItIsEmpty) {
  const auto arena = make_arena(kSpan, {{"a", kSpan / 4, 0}, {"b", kSpan / 2, 0}});
  std::vector<ItemId> items;
  for (int i = 0; i < 4; ++i) items.push_back(*arena->pool(0).allocate());
  EXPECT_EQ(arena->pool(1).allocate().status().code(), StatusCode::kOutOfCapacity);
  for (const ItemId id : items) arena->pool(0).release(id);
  EXPECT_EQ(arena->committed_bytes(), kSpan);  // kept until somebody needs it
  EXPECT_TRUE(arena->pool(1).allocate().is_ok());
  EXPECT_EQ(arena->pool(0).committed_bytes(), 0U);
  EXPECT_EQ(arena->committed_bytes(), kSpan);
  EXPECT_EQ(arena->pool(0).allocate().status().code(), StatusCode::kOutOfCapacity);
}

TEST(Pool, AReturnedSpanIsTakenAgainAndItsIdsToo) {
  const auto arena = make_arena(2 * kSpan, {{"a", kSpan, 0}, {"b", kSpan, 0}});
  const ItemId first = *arena->pool(0).allocate();
  const ItemId second = *arena->pool(0).allocate();
  arena->pool(0).release(first);
  const ItemId other = *arena->pool(1).allocate();
  arena->pool(1).release(other);
  EXPECT_EQ(*arena->pool(0).allocate(), first);
  arena->pool(0).release(second);
  EXPECT_EQ(arena->pool(0).live_items(), 1U);
}

TEST(Pool, ARefusedAllocationChangesNothingAndSaysWhatIsFree) {
  const auto arena = make_arena(kSpan + kSpan / 2, {{"pages of group 0", kSpan, 0}});
  const ItemId id = *arena->pool(0).allocate();
  const auto refused = arena->pool(0).allocate();
  ASSERT_EQ(refused.status().code(), StatusCode::kOutOfCapacity);
  EXPECT_NE(refused.status().message().find("pages of group 0: asked 65536 bytes, 32768 of 98304"),
            std::string::npos)
      << refused.status().message();
  EXPECT_EQ(arena->used_bytes(), kSpan);
  EXPECT_EQ(arena->committed_bytes(), kSpan);
  EXPECT_EQ(arena->pool(0).refs(id), 1U);
}

TEST(Pool, AnItemLivesUntilItsLastReference) {
  const auto arena = make_arena(kSpan, {{"a", 64, 0}});
  Pool& pool = arena->pool(0);
  const ItemId id = *pool.allocate();
  EXPECT_TRUE(pool.in_use(id));
  pool.retain_indexed(id);
  pool.release(id);
  EXPECT_FALSE(pool.in_use(id));
  EXPECT_EQ(pool.live_items(), 1U);
  pool.retain(id);
  EXPECT_TRUE(pool.in_use(id));
  pool.release_indexed(id);
  pool.release(id);
  EXPECT_EQ(pool.live_items(), 0U);
  EXPECT_EQ(*pool.allocate(), id);
}

TEST(Pool, ManyAtOnceAreThoseThatOneByOneGives) {
  for (const std::uint64_t item_bytes : {std::uint64_t{100}, std::uint64_t{5000}, kSpan}) {
    const auto bulk = make_arena(40 * kSpan, {{"a", item_bytes, 0}}, false);
    const auto single = make_arena(40 * kSpan, {{"a", item_bytes, 0}}, false);
    std::mt19937 rng(4);
    std::vector<ItemId> live;
    for (int i = 0; i < 300; ++i) {
      std::vector<ItemId> ids(rng() % 8);
      if (rng() % 2 == 0 && bulk->pool(0).allocate_many(ids).is_ok()) {
        for (const ItemId id : ids) {
          ASSERT_EQ(*single->pool(0).allocate(), id);
          live.push_back(id);
        }
      } else {
        std::shuffle(live.begin(), live.end(), rng);
        ids.assign(live.begin(),
                   live.begin() + static_cast<long>(std::min(live.size(), ids.size())));
        live.erase(live.begin(), live.begin() + static_cast<long>(ids.size()));
        bulk->pool(0).release_many(ids);
        for (const ItemId id : ids) single->pool(0).release(id);
      }
      ASSERT_EQ(bulk->used_bytes(), single->used_bytes());
      ASSERT_EQ(bulk->committed_bytes(), single->committed_bytes());
      ASSERT_EQ(bulk->idle_bytes(), single->idle_bytes());
    }
  }
}

TEST(Pool, TooManyAtOnceTakeNothing) {
  const auto arena = make_arena(10 * kSpan, {{"a", kSpan, 0}, {"b", kSpan, 3}}, false);
  std::vector<ItemId> ids(11);
  const Status refused = arena->pool(0).allocate_many(ids);
  EXPECT_EQ(refused.message(),
            "a: asked 720896 bytes, 655360 of 655360 bytes are free; close sequences or raise the "
            "plan's memory");
  EXPECT_EQ(arena->committed_bytes(), 0U);
  ids.resize(4);
  EXPECT_EQ(arena->pool(1).allocate_many(ids).message(), "b: asked 4 items, 3 of 3 are free");
  EXPECT_TRUE(arena->pool(0).allocate_many(ids).is_ok());
}

TEST(Pool, AReleaseFromOutsideIsWholeOrNothing) {
  const auto arena = make_arena(4 * kSpan, {{"a", 8192, 0}}, false);
  Pool& pool = arena->pool(0);
  std::vector<ItemId> ids(9);
  ASSERT_TRUE(pool.allocate_many(ids).is_ok());
  pool.retain(3);
  using Ids = std::vector<ItemId>;
  for (const Ids& bad : {Ids{0, 9}, Ids{0, 0}, Ids{3, 3, 3}, Ids{1, kNoItem}, Ids{1, INT32_MAX}}) {
    EXPECT_EQ(pool.try_release(bad), bad.size() - 1);
    EXPECT_EQ(pool.live_items(), 9U);
    EXPECT_EQ(pool.refs(0), 1U);
    EXPECT_EQ(pool.refs(3), 2U);
  }
  EXPECT_EQ(pool.try_release(Ids{3, 0, 3}), 3U);
  EXPECT_EQ(pool.live_items(), 7U);
  EXPECT_EQ(*pool.allocate(), 0);
}

TEST(Pool, TheSmallestIdleSpanThatIsEnoughMovesElseTheLargest) {
  const auto arena = make_arena(
      7 * kSpan, {{"a", kSpan, 0}, {"b", 2 * kSpan, 0}, {"c", 4 * kSpan, 0}, {"d", 3 * kSpan, 0}},
      false);
  for (std::size_t p = 0; p < 3; ++p) arena->pool(p).release(*arena->pool(p).allocate());
  EXPECT_EQ(arena->idle_bytes(), 7 * kSpan);
  ASSERT_TRUE(arena->pool(3).allocate().is_ok());
  EXPECT_EQ(arena->pool(0).committed_bytes(), kSpan);
  EXPECT_EQ(arena->pool(1).committed_bytes(), 2 * kSpan);
  EXPECT_EQ(arena->pool(2).committed_bytes(), 0U);
  ASSERT_TRUE(arena->pool(3).allocate().is_ok());
  EXPECT_EQ(arena->pool(1).committed_bytes(), 0U);
  EXPECT_EQ(arena->committed_bytes(), 7 * kSpan);
}

TEST(Pool, MostItemsIsALimitOfItsOwn) {
  const auto arena = make_arena(100 * kSpan, {{"slots", 64, 3}});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(arena->pool(0).allocate().is_ok());
  EXPECT_EQ(arena->pool(0).allocate().status().message(), "slots: all 3 items are live");
}

TEST(Arena, MoreItemsThanABlockTableAddressesIsRefusedByName) {
  const auto refused = Arena::create(std::uint64_t{1} << 40, {{"pages of group 1", 64, 0}}, false);
  ASSERT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("pages of group 1"), std::string::npos);
  EXPECT_NE(refused.status().message().find("2147483647"), std::string::npos);
}

TEST(Arena, SizesThatOverflowAreRefused) {
  EXPECT_EQ(Arena::create(1 << 20, {{"a", 0, 0}}, false).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Arena::create(1 << 20, {{"a", UINT64_MAX, 0}}, false).status().code(),
            StatusCode::kInvalidArgument);
  const std::vector<PoolSpec> pools(5, PoolSpec{"a", std::uint64_t{1} << 40, 0});
  EXPECT_EQ(Arena::create(std::uint64_t{1} << 62, pools, true).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(Arena, OffsetsBeyond32BitsReachTheirOwnBytes) {
  // 3277 blocks of 1280 * 512 elements pass 2^31 elements; a ledger of addresses, few pages
  // touched.
  constexpr std::uint64_t kPage = 1280 * 512 * 2;
  const auto arena = make_arena(4000 * kPage, {{"latent", kPage, 0}});
  Pool& pool = arena->pool(0);
  std::vector<ItemId> items;
  for (int i = 0; i < 3500; ++i) items.push_back(*pool.allocate());
  EXPECT_EQ(pool.data(items[3277]) - pool.data(items[0]),
            static_cast<std::ptrdiff_t>(3277 * kPage));
  *pool.data(items[3277]) = std::byte{7};
  EXPECT_EQ(*pool.data(items[0]), std::byte{0});
}

TEST(Arena, WithoutBackingItCountsAndHasNoBytes) {
  const auto arena = make_arena(4 * kSpan, {{"a", kSpan, 0}}, false);
  const ItemId id = *arena->pool(0).allocate();
  EXPECT_EQ(arena->pool(0).data(id), nullptr);
  EXPECT_EQ(arena->used_bytes(), kSpan);
}

}  // namespace
}  // namespace kvcache::arena
