#include "kvcache/tenants.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tenants.h"

namespace kvcache {
namespace {

using namespace tenants;

TEST(Tenants, WhoStoresABlockFirstIsChargedForIt) {
  const auto cache = make(attention());
  const Tokens shared = numbered(1, 8);
  Tokens longer = shared;
  longer.insert(longer.end(), {50, 51, 52, 53});
  store(*cache, shared, "a");
  store(*cache, longer, "b");
  store(*cache, longer, "c");
  store(*cache, numbered(100, 4), "");
  ASSERT_EQ(cache->tenants().size(), 2U);
  EXPECT_EQ(usage(*cache, "a").bytes, 2 * page_bytes(*cache));
  EXPECT_EQ(usage(*cache, "a").blocks, 2U);
  EXPECT_EQ(usage(*cache, "b").bytes, page_bytes(*cache));
  EXPECT_EQ(usage(*cache, "b").blocks, 1U);
  EXPECT_FALSE(usage(*cache, "a").quota_bytes.has_value());
  cache->clear();
  EXPECT_TRUE(cache->tenants().empty());
}

TEST(Tenants, WhatDoesNotFitTheQuotaMakesRoomAmongTheTenantsOwn) {
  const auto cache = make(attention(), {.policy = "lru"});
  ASSERT_TRUE(cache->set_quota("a", MemoryShare{.bytes = 4 * page_bytes(*cache)}).is_ok());
  store(*cache, numbered(1000, 8), "b");
  for (std::int32_t i = 1; i <= 4; ++i) store(*cache, numbered(100 * i, 4), "a");
  EXPECT_EQ(usage(*cache, "a").bytes, 4 * page_bytes(*cache));
  EXPECT_EQ(usage(*cache, "a").evicted_blocks, 0U);
  (void)cache->open(numbered(100, 5), {});  // the first is used once more
  store(*cache, numbered(500, 4), "a");
  EXPECT_EQ(stored(*cache, numbered(100, 4)), 4U);
  EXPECT_EQ(stored(*cache, numbered(200, 4)), 0U);
  EXPECT_EQ(stored(*cache, numbered(500, 4)), 4U);
  EXPECT_EQ(stored(*cache, numbered(1000, 8)), 8U);
  EXPECT_EQ(usage(*cache, "a").bytes, 4 * page_bytes(*cache));
  EXPECT_EQ(usage(*cache, "a").evicted_blocks, 1U);
  EXPECT_EQ(usage(*cache, "a").refused_blocks, 0U);
}

TEST(Tenants, APromptLongerThanTheQuotaIsStoredAsFarAsItGoes) {
  const auto cache = make(attention());
  ASSERT_TRUE(cache->set_quota("a", MemoryShare{.bytes = 3 * page_bytes(*cache) + 1}).is_ok());
  store(*cache, numbered(500, 8), "a");
  store(*cache, numbered(1, 22), "a");
  EXPECT_EQ(stored(*cache, numbered(1, 22)), 12U);
  EXPECT_EQ(stored(*cache, numbered(500, 8)), 0U);
  EXPECT_EQ(usage(*cache, "a").bytes, 3 * page_bytes(*cache));
  EXPECT_EQ(usage(*cache, "a").refused_blocks, 3U);
  ASSERT_TRUE(cache->set_quota("a", MemoryShare{.bytes = 0}).is_ok());
  EXPECT_EQ(usage(*cache, "a").bytes, 0U);
  store(*cache, numbered(1, 22), "a");
  EXPECT_EQ(stored(*cache, numbered(1, 22)), 0U);
  EXPECT_EQ(cache->stats().indexed_blocks, 0U);
  ASSERT_TRUE(cache->set_quota("a", std::nullopt).is_ok());
  EXPECT_TRUE(cache->tenants().empty());
  store(*cache, numbered(1, 22), "a");
  EXPECT_EQ(stored(*cache, numbered(1, 22)), 22U);
}

// Others continue what the tenant has stored: it stays, and the tenant stores nothing more.
TEST(Tenants, WhatOthersContinueIsNotGivenUpForAQuota) {
  const auto cache = make(attention());
  ASSERT_TRUE(cache->set_quota("a", MemoryShare{.bytes = 2 * page_bytes(*cache)}).is_ok());
  store(*cache, numbered(1, 8), "a");
  Tokens longer = numbered(1, 8);
  longer.insert(longer.end(), {90, 91, 92, 93});
  store(*cache, longer, "b");
  store(*cache, numbered(500, 8), "a");
  EXPECT_EQ(stored(*cache, longer), 12U);
  EXPECT_EQ(stored(*cache, numbered(500, 8)), 0U);
  EXPECT_EQ(usage(*cache, "a").refused_blocks, 2U);
  EXPECT_EQ(usage(*cache, "b").bytes, page_bytes(*cache));
}

TEST(Tenants, WhatIsPinnedOrHeldCountsButStays) {
  const auto cache = make(attention());
  store(*cache, numbered(1, 8), "a");
  store(*cache, numbered(100, 8), "a");
  store(*cache, numbered(200, 8), "a");
  auto pin = cache->pin(numbered(1, 8), {});
  ASSERT_TRUE(pin.is_ok());
  Sequence open = cache->open(numbered(100, 9), {}, by("a")).value();  // holds two blocks
  ASSERT_TRUE(cache->set_quota("a", MemoryShare{.bytes = page_bytes(*cache)}).is_ok());
  EXPECT_EQ(stored(*cache, numbered(200, 8)), 0U);
  EXPECT_EQ(usage(*cache, "a").bytes, 4 * page_bytes(*cache));
  open.close();  // what it held may go now
  EXPECT_EQ(usage(*cache, "a").bytes, 2 * page_bytes(*cache));
  EXPECT_EQ(stored(*cache, numbered(1, 8)), 8U);
  pin->release();
  store(*cache, numbered(300, 4), "a");
  EXPECT_EQ(usage(*cache, "a").bytes, page_bytes(*cache));
  EXPECT_EQ(stored(*cache, numbered(300, 4)), 4U);
}

TEST(Tenants, ASnapshotThatIsPinnedBeforeThereIsAQuotaStays) {
  for (const std::string policy : {"price_list", "lru", "gdsf", "s3fifo", "flop_aware"}) {
    const auto cache = make(content::decls(), {.policy = policy});
    const Tokens tokens = numbered(1, 9);
    Sequence sequence = cache->open(first(tokens, 8), {}, by("a")).value();
    EXPECT_TRUE(content::complete(sequence, 8));
    EXPECT_TRUE(sequence.snapshot().is_ok());
    EXPECT_TRUE(sequence.publish());
    sequence.close();
    const auto pin = cache->pin(first(tokens, 8), {});
    ASSERT_TRUE(pin.is_ok());
    ASSERT_TRUE(cache->set_quota("a", MemoryShare{.bytes = 0}).is_ok());
    EXPECT_EQ(cache->explain(tokens, {})->cached_tokens, 8U) << policy;
  }
}

// Another tenant has filled a window's hole in its run: evicting the run would take the page along.
TEST(Tenants, ARunThatHoldsAnothersPageIsNotGivenUpForAQuota) {
  const auto cache = make({content::keys(0), content::keys(1, 6)}, {.policy = "lru"});
  const auto turn = [&](std::size_t count, const std::string& tenant) {
    const Tokens tokens = numbered(1, count);
    Sequence sequence = cache->open(tokens, {}, by(tenant)).value();
    const std::uint64_t start = sequence.length();
    for (std::int32_t layer = 0; layer < 2; ++layer) {
      std::vector<float> rows = content::rows_of(tokens, start, count, layer);
      const auto view = content::view_of<codec::RowsView>(rows.data(), count - start);
      ASSERT_TRUE(sequence.write(layer, start, {&view, 1}).is_ok());
    }
    ASSERT_TRUE(sequence.advance(count - start).is_ok());
    ASSERT_TRUE(sequence.publish().is_ok());
  };
  turn(40, "a");
  // Pages that no hit needs go first: the windows before the end.
  const std::uint64_t whole = usage(*cache, "a").bytes;
  ASSERT_TRUE(cache->set_quota("a", MemoryShare{.bytes = whole - 1}).is_ok());
  EXPECT_EQ(usage(*cache, "a").evicted_blocks, 0U);
  EXPECT_EQ(cache->explain(numbered(1, 21), {})->cached_tokens, 0U);
  turn(20, "b");
  EXPECT_GT(usage(*cache, "b").bytes, 0U);
  EXPECT_EQ(usage(*cache, "b").blocks, 0U);
  EXPECT_EQ(cache->explain(numbered(1, 21), {})->cached_tokens, 20U);
  ASSERT_TRUE(cache->set_quota("a", MemoryShare{.bytes = 0}).is_ok());
  EXPECT_EQ(stored(*cache, numbered(1, 40)), 20U);
  EXPECT_EQ(cache->explain(numbered(1, 21), {})->cached_tokens, 20U);
}

// One conversation that grows: the newest snapshot takes the place of older ones.
TEST(Tenants, AHybridIsStoredUpToASnapshotThatFits) {
  const auto cache = make(content::decls());
  const Tokens tokens = numbered(1, 41);
  const auto turn = [&](std::uint64_t end, const std::string& tenant) {
    Sequence sequence = cache->open(first(tokens, end), {}, by(tenant)).value();
    EXPECT_TRUE(content::complete(sequence, end));
    EXPECT_TRUE(sequence.snapshot().is_ok());
    EXPECT_TRUE(sequence.publish());
  };
  turn(8, "free");
  const std::uint64_t one = usage(*cache, "free").bytes;
  turn(20, "free");
  const std::uint64_t two = usage(*cache, "free").bytes;
  cache->clear();
  // Room for the pages of the second turn and one snapshot.
  const std::uint64_t quota = two - cache->plan().slot_bytes();
  ASSERT_TRUE(cache->set_quota("a", MemoryShare{.bytes = quota}).is_ok());
  turn(8, "a");
  EXPECT_EQ(usage(*cache, "a").bytes, one);
  turn(20, "a");
  EXPECT_EQ(cache->explain(first(tokens, 21), {})->cached_tokens, 20U);
  EXPECT_EQ(cache->explain(first(tokens, 9), {})->cached_tokens, 0U);  // its snapshot has gone
  EXPECT_EQ(usage(*cache, "a").snapshots, 1U);
  EXPECT_LE(usage(*cache, "a").bytes, quota);
  // Longer, nothing but the part up to the last snapshot that fits is stored.
  turn(40, "a");
  EXPECT_EQ(cache->explain(first(tokens, 41), {})->cached_tokens, 20U);
  EXPECT_EQ(cache->explain(first(tokens, 41), {})->matched_tokens, 20U);
  EXPECT_LE(usage(*cache, "a").bytes, quota);
}

TEST(Tenants, WhenMemoryRunsOutQuotasDoNotCount) {
  const auto cache = make(attention(), {.policy = "lru", .capacity_blocks = 6});
  ASSERT_TRUE(cache->set_quota("a", MemoryShare{.bytes = 3 * page_bytes(*cache)}).is_ok());
  store(*cache, numbered(1, 8), "b");
  store(*cache, numbered(100, 12), "a");
  store(*cache, numbered(200, 8), "c");  // the oldest goes, whoever is nearest to a quota
  EXPECT_EQ(stored(*cache, numbered(100, 12)), 12U);
  EXPECT_EQ(stored(*cache, numbered(1, 8)), 4U);
  EXPECT_EQ(usage(*cache, "b").evicted_blocks, 1U);
}

// What would have followed the last victim of all is not looked at, for it may have gone since.
TEST(Tenants, MakingRoomForAQuotaDoesNotLookBehindAnEarlierVictim) {
  const auto cache = make(attention(), {.policy = "price_list", .capacity_blocks = 6});
  for (std::int32_t i = 1; i <= 7; ++i) store(*cache, numbered(100 * i, 4), "");
  for (std::int32_t i = 2; i <= 6; ++i) {
    EraseFilter one;
    one.name = one.adapter = one.salt = "";
    one.tokens = numbered(100 * i, 4);
    ASSERT_TRUE(cache->erase(one).is_ok());
  }
  ASSERT_TRUE(cache->set_quota("a", MemoryShare{.bytes = page_bytes(*cache)}).is_ok());
  store(*cache, numbered(1000, 4), "a");
  store(*cache, numbered(2000, 4), "a");
  EXPECT_EQ(usage(*cache, "a").evicted_blocks, 1U);
}

TEST(Tenants, AShareFollowsTheBudget) {
  const auto cache = make(attention(), {}, 16 << 20);
  ASSERT_TRUE(cache->set_quota("a", MemoryShare{.fraction = 0.5}).is_ok());
  ASSERT_TRUE(cache->set_quota("b", MemoryShare{.bytes = 1000}).is_ok());
  EXPECT_EQ(*usage(*cache, "a").quota_bytes, 8U << 20);
  ASSERT_TRUE(cache->resize(4 << 20).is_ok());
  EXPECT_EQ(*usage(*cache, "a").quota_bytes, 2U << 20);
  EXPECT_EQ(*usage(*cache, "b").quota_bytes, 1000U);
  store(*cache, numbered(1, 4000), "a");
  const std::uint64_t bytes = usage(*cache, "a").bytes;
  ASSERT_EQ(bytes, 1000 * page_bytes(*cache));
  ASSERT_TRUE(cache->resize(2 * (bytes - page_bytes(*cache))).is_ok());
  EXPECT_EQ(usage(*cache, "a").bytes, bytes - page_bytes(*cache));
  // A ledger's budget is in blocks.
  const auto ledger =
      make(attention(), {.backing = false, .capacity_blocks = 100, .event_capacity = 0});
  ASSERT_TRUE(ledger->set_quota("a", MemoryShare{.fraction = 0.25}).is_ok());
  EXPECT_EQ(*usage(*ledger, "a").quota_bytes, 25 * ledger->plan().block_bytes());
}

TEST(Tenants, QuotasThatAreNoneAreRefusedAndChangeNothing) {
  const auto cache = make(attention());
  ASSERT_TRUE(cache->set_quota("a", MemoryShare{.bytes = 5000}).is_ok());
  for (const double share : {-0.1, 1.1, std::nan(""), HUGE_VAL}) {
    const Status status = cache->set_quota("a", MemoryShare{.fraction = share});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << share;
    EXPECT_NE(status.message().find("quota"), std::string::npos);
  }
  EXPECT_EQ(cache->set_quota("", MemoryShare{}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(*usage(*cache, "a").quota_bytes, 5000U);
  EXPECT_EQ(cache->tenants().size(), 1U);
  EXPECT_TRUE(cache->set_quota("nobody", std::nullopt).is_ok());
  EXPECT_EQ(cache->tenants().size(), 1U);
  EXPECT_TRUE(cache->set_quota("a", MemoryShare{.bytes = UINT64_MAX}).is_ok());
  store(*cache, numbered(1, 40), "a");
  EXPECT_EQ(usage(*cache, "a").blocks, 10U);
}

TEST(Tenants, AQuotaSetLaterBeginsWithTheLeastRecentlyUsed) {
  for (const char* policy : {"lru", "gdsf", "s3fifo", "flop_aware", "price_list"}) {
    const auto cache = make(attention(), {.policy = policy});
    for (std::int32_t i = 0; i < 6; ++i) store(*cache, numbered(100 * i, 8), "a");
    store(*cache, numbered(1000, 8), "b");
    (void)cache->open(numbered(0, 9), {});
    ASSERT_TRUE(cache->set_quota("a", MemoryShare{.bytes = 5 * page_bytes(*cache)}).is_ok());
    EXPECT_EQ(usage(*cache, "a").bytes, 5 * page_bytes(*cache));
    EXPECT_EQ(usage(*cache, "a").evicted_blocks, 7U);
    EXPECT_EQ(stored(*cache, numbered(1000, 8)), 8U);
    if (std::string_view(policy) != "lru") continue;
    EXPECT_EQ(stored(*cache, numbered(0, 8)), 8U);
    EXPECT_EQ(stored(*cache, numbered(100, 8)) + stored(*cache, numbered(200, 8)), 0U);
  }
}

TEST(Tenants, ErasingATenantLeavesWhatOthersUse) {
  const auto cache = make(attention());
  const PrefixSpace other{.name = "n", .adapter = {}, .salt = {}};
  store(*cache, numbered(1, 8), "a");
  Tokens longer = numbered(1, 8);
  longer.insert(longer.end(), {90, 91, 92, 93});
  store(*cache, longer, "b");
  store(*cache, numbered(100, 8), "a");
  store(*cache, numbered(100, 8), "a", other);
  Tokens branch = numbered(100, 4);
  branch.insert(branch.end(), {7, 7, 7, 7});
  store(*cache, branch, "a");
  EXPECT_EQ(cache->erase(of("a", "n")).value(), 2U);
  EXPECT_EQ(stored(*cache, numbered(100, 8), other), 0U);
  // Paths that begin with these tokens, and what led only there.
  EXPECT_EQ(cache->erase({"", "", "", {}, branch, "a"}).value(), 1U);
  EXPECT_EQ(stored(*cache, numbered(100, 8)), 8U);
  EXPECT_EQ(cache->erase({"", "", "", {}, numbered(100, 8), "b"}).value(), 0U);
  EXPECT_EQ(cache->erase(of("nobody")).value(), 0U);
  EXPECT_EQ(cache->erase(of("")).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->erase(of("a")).value(), 2U);
  EXPECT_EQ(stored(*cache, numbered(100, 8)), 0U);
  EXPECT_EQ(stored(*cache, longer), 12U);
  ASSERT_EQ(cache->tenants().size(), 1U);
  EXPECT_EQ(usage(*cache, "b").bytes, page_bytes(*cache));
  EXPECT_EQ(cache->stats().erased_blocks, 5U);
  EXPECT_EQ(cache->erase(of("b")).value(), 1U);
  EXPECT_EQ(cache->stats().indexed_blocks, 2U);  // nobody's
  cache->clear();
  EXPECT_EQ(cache->stats().used_bytes, 0U);
}

// A tenant's snapshot inside another's prefix goes, and ends the pin that held it.
TEST(Tenants, ErasingATenantTakesItsSnapshotsOutOfOthersPrefixes) {
  const auto cache = make(content::decls());
  const Tokens tokens = numbered(1, 24);
  const auto turn = [&](std::uint64_t end, const std::string& tenant) {
    Sequence sequence = cache->open(first(tokens, end), {}, by(tenant)).value();
    EXPECT_TRUE(content::complete(sequence, end));
    EXPECT_TRUE(sequence.snapshot().is_ok());
    EXPECT_TRUE(sequence.publish());
  };
  turn(24, "a");
  turn(10, "b");
  EXPECT_EQ(usage(*cache, "b").snapshots, 1U);
  auto pin = cache->pin(first(tokens, 10), {});
  ASSERT_EQ(pin->tokens(), 10U);
  EXPECT_EQ(cache->erase(of("b")).value(), 0U);
  EXPECT_FALSE(pin->is_held());
  EXPECT_EQ(cache->stats().pinned_bytes, 0U);
  EXPECT_EQ(cache->explain(first(tokens, 11), {})->cached_tokens, 0U);
  EXPECT_EQ(cache->explain(numbered(1, 25), {})->cached_tokens, 24U);
  EXPECT_EQ(cache->tenants().size(), 1U);
  // And the other way round: what it resumes at keeps the run.
  turn(10, "b");
  EXPECT_EQ(cache->erase(of("a")).value(), 4U);  // from position 10 on
  EXPECT_EQ(cache->explain(first(tokens, 11), {})->cached_tokens, 10U);
  EXPECT_EQ(usage(*cache, "b").snapshots, 1U);
  EXPECT_EQ(cache->tenants().size(), 1U);
}

TEST(Tenants, AMorePreciseSnapshotIsChargedToWhoTookIt) {
  const auto cache = make(content::decls(), {.policy = "lru"});
  const Tokens tokens = numbered(1, 12);
  const auto turn = [&](const std::string& tenant, SnapshotFormat format) {
    Sequence sequence = cache->open(tokens, {}, by(tenant)).value();
    EXPECT_TRUE(content::complete(sequence, 12));
    EXPECT_TRUE(sequence.snapshot(format).is_ok());
    EXPECT_TRUE(sequence.publish());
  };
  ASSERT_TRUE(cache->set_quota("a", MemoryShare{.bytes = 1 << 20}).is_ok());
  ASSERT_TRUE(cache->set_quota("b", MemoryShare{.bytes = 1 << 20}).is_ok());
  turn("a", SnapshotFormat::kF16);
  EXPECT_EQ(usage(*cache, "a").snapshots, 1U);
  turn("b", SnapshotFormat::kExact);
  EXPECT_EQ(usage(*cache, "a").snapshots, 0U);
  EXPECT_EQ(usage(*cache, "b").snapshots, 1U);
  EXPECT_EQ(usage(*cache, "b").bytes, cache->plan().slot_bytes());
  // It is among b's own now: it goes for b's quota, not for a's.
  ASSERT_TRUE(cache->set_quota("b", MemoryShare{.bytes = 0}).is_ok());
  EXPECT_EQ(cache->stats().indexed_snapshots, 0U);
  EXPECT_EQ(usage(*cache, "a").blocks, 3U);
}

TEST(Tenants, LoadingIsChargedAndRefusedWhole) {
  const auto cache = make(content::decls());
  const Tokens tokens = numbered(1, 16);
  {
    Sequence sequence = cache->open(tokens, {}).value();
    ASSERT_TRUE(content::complete(sequence, 16));
    ASSERT_TRUE(sequence.snapshot().is_ok());
    ASSERT_TRUE(sequence.publish());
  }
  const std::string path = testing::TempDir() + "kvcache_tenants_test";
  ASSERT_TRUE(cache->save(path, tokens, {}, {.replace = true}).is_ok());
  cache->clear();
  ASSERT_TRUE(cache->load(path, {}, {.tenant = "a"}).is_ok());
  const std::uint64_t bytes = usage(*cache, "a").bytes;
  EXPECT_GT(bytes, 4 * cache->plan().slot_bytes() / 4);
  EXPECT_EQ(usage(*cache, "a").blocks, 4U);
  ASSERT_TRUE(cache->load(path, {}, {.tenant = "b"}).is_ok());  // it is there already
  EXPECT_EQ(cache->tenants().size(), 1U);
  cache->bump_epoch("");
  EXPECT_TRUE(cache->tenants().empty());
  ASSERT_TRUE(cache->set_quota("a", MemoryShare{.bytes = bytes - 1}).is_ok());
  const auto refused = cache->load(path, {}, {.tenant = "a"});
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfCapacity);
  EXPECT_NE(refused.status().message().find("quota"), std::string::npos);
  EXPECT_EQ(cache->stats().indexed_blocks, 0U);
  EXPECT_EQ(usage(*cache, "a").bytes, 0U);
  ASSERT_TRUE(cache->set_quota("a", MemoryShare{.bytes = bytes}).is_ok());
  EXPECT_EQ(cache->load(path, {}, {.tenant = "a"}).value(), 16U);
  EXPECT_EQ(usage(*cache, "a").bytes, bytes);
  std::filesystem::remove_all(path);
}

TEST(Tenants, OtherWeightsFreeEverybodysQuota) {
  const auto cache = make(attention());
  ASSERT_TRUE(cache->set_quota("a", MemoryShare{.bytes = 4 * page_bytes(*cache)}).is_ok());
  store(*cache, numbered(1, 16), "a");
  store(*cache, numbered(100, 16), "b");
  cache->bump_epoch("new");
  EXPECT_EQ(usage(*cache, "a").bytes, 0U);
  EXPECT_EQ(cache->tenants().size(), 1U);
  // Its memory is still there; it comes back as more is stored.
  for (std::int32_t i = 1; i < 9; ++i) store(*cache, numbered(1000 * i, 16), "a");
  EXPECT_EQ(usage(*cache, "a").bytes, 4 * page_bytes(*cache));
  EXPECT_EQ(usage(*cache, "a").blocks, 4U);
  EXPECT_EQ(stored(*cache, numbered(8000, 16)), 16U);
  cache->clear();
  EXPECT_EQ(cache->stats().used_bytes, 0U);
}

TEST(Tenants, AForkIsItsParentsTenants) {
  const auto cache = make(attention());
  Sequence parent = run(*cache, numbered(1, 8), "a");
  Sequence child = parent.fork().value();
  ASSERT_TRUE(child.extend(numbered(50, 4)).is_ok());
  std::vector<float> rows = content::rows_of(child.tokens(), 8, 12, 0);
  const auto view = content::view_of<codec::RowsView>(rows.data(), 4);
  ASSERT_TRUE(child.write(0, 8, {&view, 1}).is_ok());
  ASSERT_TRUE(child.advance(4).is_ok());
  ASSERT_TRUE(child.publish().is_ok());
  EXPECT_EQ(usage(*cache, "a").blocks, 3U);
}

}  // namespace
}  // namespace kvcache
