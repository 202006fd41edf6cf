#include "arena/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "arena/free_bitmap.h"
#include "arena/os_memory.h"
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

// ---- Memory that changes pools ----------------------------------------------------------------

// Fills an item with a value that names it.
void stamp(Pool& pool, ItemId id, unsigned char value) {
  std::memset(pool.data(id), value, pool.item_bytes());
}

bool stamped(const Pool& pool, ItemId id, unsigned char value) {
  const std::byte* data = pool.data(id);
  return std::all_of(data, data + pool.item_bytes(),
                     [&](std::byte b) { return b == static_cast<std::byte>(value); });
}

TEST(Arena, MemoryOfFreedPagesIsMovedUnderASnapshotAndBack) {
  const auto arena = make_arena(64 * kSpan, {{"pages", kSpan, 0}, {"snapshots", 24 * kSpan, 0}});
  Pool& pages = arena->pool(0);
  Pool& snapshots = arena->pool(1);
  std::vector<ItemId> ids(64);
  ASSERT_TRUE(pages.allocate_many(ids).is_ok());
  for (const ItemId id : ids) stamp(pages, id, static_cast<unsigned char>(id));
  for (std::size_t i = 0; i < 48; i += 2) pages.release(ids[i]);  // scattered
  const ItemId snapshot = *snapshots.allocate();
  const std::uint64_t moved = os::can_move() ? 24 * kSpan : 0;
  EXPECT_EQ(arena->moved_bytes(), moved);
  stamp(snapshots, snapshot, 200);
  for (std::size_t i = 0; i < 64; ++i) {
    if (i % 2 == 0 && i < 48) continue;
    EXPECT_TRUE(stamped(pages, ids[i], static_cast<unsigned char>(ids[i]))) << i;
  }
  snapshots.release(snapshot);
  std::vector<ItemId> again(24);
  ASSERT_TRUE(pages.allocate_many(again).is_ok());
  EXPECT_EQ(arena->moved_bytes(), 2 * moved);
  for (const ItemId id : again) stamp(pages, id, 77);
  for (const ItemId id : again) EXPECT_TRUE(stamped(pages, id, 77));
  EXPECT_TRUE(stamped(pages, ids[63], 63));
  EXPECT_EQ(arena->committed_bytes(), 64 * kSpan);
}

TEST(Arena, AnotherBudgetKeepsLiveItemsAndIsNeverPassed) {
  const auto made =
      Arena::create(32 * kSpan, {{"a", kSpan, 0}, {"b", 5 * kSpan, 0}}, true, {}, 128 * kSpan);
  ASSERT_TRUE(made.is_ok());
  Arena& arena = **made;
  std::mt19937 rng(8);
  std::vector<std::pair<std::size_t, ItemId>> live;
  for (int i = 0; i < 3000; ++i) {
    const std::size_t which = rng() % 2;
    if (rng() % 3 != 0) {
      if (const auto id = arena.pool(which).allocate()) {
        stamp(arena.pool(which), *id, static_cast<unsigned char>(*id + 100 * which));
        live.emplace_back(which, *id);
      }
    } else if (!live.empty()) {
      std::swap(live[rng() % live.size()], live.back());
      const auto [pool, id] = live.back();
      ASSERT_TRUE(stamped(arena.pool(pool), id, static_cast<unsigned char>(id + 100 * pool)));
      arena.pool(pool).release(id);
      live.pop_back();
    }
    const std::uint64_t least = arena.committed_bytes() - arena.idle_bytes();
    if (i % 50 == 0) arena.resize(std::max(least, rng() % 129 * kSpan));
    ASSERT_LE(arena.committed_bytes(), arena.budget_bytes());
  }
}

TEST(Arena, FragmentationStaysWithinItsBoundWhateverIsFreed) {
  // Small items, freed so that every span keeps one: the worst that can be done to a pool.
  const std::uint64_t item = 1000;
  const auto arena = make_arena(64 * kSpan, {{"small", item, 0}, {"large", kSpan + 1, 0}}, false);
  Pool& small = arena->pool(0);
  const SpanGeometry geometry = span_geometry(item);
  std::mt19937 rng(9);
  std::set<ItemId> live;
  std::uint64_t peak = 0;
  for (int round = 0; round < 40; ++round) {
    const std::uint64_t grow = rng() % 1500;
    for (std::uint64_t i = 0; i < grow; ++i) {
      if (const auto id = small.allocate()) live.insert(*id);
    }
    peak = std::max<std::uint64_t>(peak, live.size());
    const auto keep = static_cast<ItemId>(rng() % geometry.items);
    for (auto it = live.begin(); it != live.end();) {
      const bool kept = *it % static_cast<ItemId>(geometry.items) == keep;
      if (!kept) small.release(*it);
      it = kept ? std::next(it) : live.erase(it);
    }
    const std::uint64_t held = arena->committed_bytes() - arena->idle_bytes();
    ASSERT_LE(held, span_bytes(geometry, peak));
    ASSERT_GE(geometry.items * item * 8, geometry.bytes * 7);  // rounding takes an eighth at most
    // Whatever is idle serves the other pool before anything is refused.
    const std::uint64_t room = (arena->budget_bytes() - held) / arena->pool(1).span_bytes();
    std::vector<ItemId> all(room);
    ASSERT_TRUE(arena->pool(1).allocate_many(all).is_ok());
    ASSERT_FALSE(arena->pool(1).allocate().is_ok());
    arena->pool(1).release_many(all);
  }
}

TEST(Arena, AMaximumBelowTheBudgetIsRefused) {
  EXPECT_EQ(Arena::create(2 * kSpan, {{"a", kSpan, 0}}, true, {}, kSpan).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(Arena, RoomToGrowNeverMakesCreationFail) {
  // Tiny items: the machine's memory would hold more than ids can name.
  const auto arena = make_arena(kSpan, {{"a", 1, 0}}, false);
  EXPECT_GE(arena->max_bytes(), kSpan);
  const std::vector<PoolSpec> many(5000, PoolSpec{"a", kSpan, 0});  // and more than addresses reach
  EXPECT_TRUE(Arena::create(kSpan, many, true).is_ok());
}

TEST(Arena, WithoutBackingItCountsAndHasNoBytes) {
  const auto arena = make_arena(4 * kSpan, {{"a", kSpan, 0}}, false);
  const ItemId id = *arena->pool(0).allocate();
  EXPECT_EQ(arena->pool(0).data(id), nullptr);
  EXPECT_EQ(arena->used_bytes(), kSpan);
}

}  // namespace
}  // namespace kvcache::arena
