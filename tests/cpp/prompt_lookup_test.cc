#include "kvcache/prompt_lookup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kvcache/cache_terms.h"
#include "speculate/lookup_window.h"
#include "speculate/ngram_index.h"

namespace kvcache {
namespace {

using speculate::LookupWindow;
using speculate::NgramIndex;
using speculate::NgramTable;
using Ids = std::vector<std::int32_t>;

struct Found {
  std::uint64_t end = 0;
  std::uint64_t length = 0;
};

// Every earlier occurrence of every end, longest first.
Found scan(const Ids& history, std::uint64_t min, std::uint64_t max, bool earliest) {
  const std::uint64_t size = history.size();
  for (std::uint64_t length = std::min(max, size); length >= min && length > 0; --length) {
    Found found;
    for (std::uint64_t end = length; end < size; ++end) {
      if (!std::equal(history.end() - length, history.end(), history.begin() + end - length)) {
        continue;
      }
      found = {end, length};
      if (earliest) break;
    }
    if (found.length != 0) return found;
  }
  return {};
}

Ids random_ids(std::mt19937& rng, std::size_t count, std::int32_t alphabet) {
  Ids ids(count);
  for (auto& id : ids) id = static_cast<std::int32_t>(rng() % static_cast<unsigned>(alphabet)) - 1;
  return ids;
}

TEST(NgramIndex, AgreesWithAScanOfAGrowingHistory) {
  std::mt19937 rng(1);
  for (int round = 0; round < 300; ++round) {
    const std::uint64_t min = 1 + rng() % 3;
    const std::uint64_t max = min + rng() % 4;
    NgramIndex index(min, max, 1 << 12);
    Ids history;
    for (int step = 0; step < 40; ++step) {
      const Ids more = random_ids(rng, rng() % 5, 1 + static_cast<std::int32_t>(rng() % 4));
      history.insert(history.end(), more.begin(), more.end());
      ASSERT_TRUE(index.observe(history).is_ok());
      for (const bool earliest : {false, true}) {
        const Found expected = scan(history, min, max, earliest);
        const auto found = index.find(history, earliest);
        ASSERT_EQ(found.length, expected.length);
        ASSERT_EQ(found.end, expected.end);
      }
    }
  }
}

// Stale entries take room and may hide the latest occurrence, but with room never all of them.
TEST(NgramIndex, ATruncatedHistoryStillFindsALongestMatch) {
  std::mt19937 rng(2);
  for (int round = 0; round < 300; ++round) {
    NgramIndex index(1, 4, 1 << 12);
    ASSERT_TRUE(index.reserve().is_ok());
    Ids history;
    for (int step = 0; step < 60; ++step) {
      if (rng() % 4 == 0) {
        history.resize(rng() % (history.size() + 1));
        index.truncate(history.size());
      }
      const Ids more = random_ids(rng, rng() % 6, 3);
      history.insert(history.end(), more.begin(), more.end());
      ASSERT_TRUE(index.observe(history).is_ok());
      const Found expected = scan(history, 1, 4, true);
      const auto earliest = index.find(history, true);
      ASSERT_EQ(earliest.length, expected.length);
      ASSERT_EQ(earliest.end, expected.end);
      const auto latest = index.find(history, false);
      ASSERT_EQ(latest.length, expected.length);
      ASSERT_GE(latest.end, expected.end);
      ASSERT_LT(latest.end, std::max<std::uint64_t>(history.size(), 1));
    }
  }
}

TEST(NgramIndex, CollidingHashesNeverMakeAMatchThatIsNone) {
  std::mt19937 rng(3);
  for (const std::uint64_t mask : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{7},
                                   std::uint64_t{0xFC} << 56, std::uint64_t{3} << 62}) {
    NgramIndex index(1, 5, 256, mask);
    Ids history;
    std::uint64_t matches = 0;
    for (int step = 0; step < 2000; ++step) {
      if (rng() % 100 == 0) history.resize(history.size() / 2);
      history.push_back(static_cast<std::int32_t>(rng() % 3));
      ASSERT_TRUE(index.observe(history).is_ok());
      for (const bool earliest : {false, true}) {
        const auto found = index.find(history, earliest);
        if (found.length == 0) continue;
        ++matches;
        ASSERT_LT(found.end, history.size());
        ASSERT_TRUE(std::equal(history.end() - found.length, history.end(),
                               history.begin() + found.end - found.length));
      }
    }
    EXPECT_GT(matches, 0U) << mask;
  }
}

TEST(NgramIndex, TakesWhatThePlanSays) {
  for (const std::uint64_t lengths : {1U, 3U}) {
    for (const std::uint64_t capacity : {1U, 3U, 5U, 14U, 15U, 1000U, 32768U}) {
      NgramIndex grown(2, 1 + lengths, capacity);
      Ids history;
      EXPECT_EQ(grown.bytes(), 0U);
      std::mt19937 rng(4);
      for (std::uint64_t step = 0; step < std::min<std::uint64_t>(2 * capacity, 3000); ++step) {
        history.push_back(static_cast<std::int32_t>(rng()));
        ASSERT_TRUE(grown.observe(history).is_ok());
        const std::uint64_t held = std::min<std::uint64_t>(history.size(), capacity) * lengths;
        ASSERT_EQ(grown.bytes(), *hash_table_bytes(held, 16));
      }
      NgramIndex reserved(2, 1 + lengths, capacity);
      ASSERT_TRUE(reserved.reserve().is_ok());
      EXPECT_EQ(reserved.bytes(), *hash_table_bytes(capacity * lengths, 16));
    }
  }
}

TEST(NgramIndex, OfAHistoryBeyondItsCapacityTheNewestIsKept) {
  std::mt19937 rng(5);
  NgramIndex index(2, 2, 512);
  Ids history(20'000);
  for (auto& id : history) id = static_cast<std::int32_t>(rng());
  ASSERT_TRUE(index.observe(history).is_ok());
  EXPECT_EQ(index.bytes(), *hash_table_bytes(512, 16));
  EXPECT_LE(index.entries(), 1024U);
  const auto found_at = [&](std::size_t end) {
    Ids asked = history;
    asked.insert(asked.end(), history.begin() + static_cast<std::ptrdiff_t>(end) - 2,
                 history.begin() + static_cast<std::ptrdiff_t>(end));
    const auto found = index.find(asked, false);
    EXPECT_TRUE(found.length == 0 || found.end == end);
    return found.length != 0;
  };
  std::size_t old = 0;
  std::size_t recent = 0;
  for (std::size_t age = 1; age <= 100; ++age) {
    recent += found_at(history.size() - age);
    old += found_at(1000 + age);
  }
  EXPECT_GE(recent, 99U);
  EXPECT_EQ(old, 0U);
}

TEST(NgramTable, KeepsEveryEntryUpToItsLoad) {
  std::mt19937_64 rng(6);
  for (const std::uint64_t entries : {1U, 3U, 7U, 14U, 100U, 5000U}) {
    NgramTable table;
    ASSERT_TRUE(table.allocate(NgramTable::buckets_for(entries)));
    std::vector<std::uint64_t> hashes(entries);
    for (std::uint64_t i = 0; i < entries; ++i) {
      hashes[i] = rng();
      auto& entry = table.claim(hashes[i]);
      EXPECT_EQ(entry.last, 0U);
      entry.first = entry.last = static_cast<std::uint32_t>(i + 1);
    }
    EXPECT_EQ(table.entries(), entries);
    for (std::uint64_t i = 0; i < entries; ++i) {
      ASSERT_NE(table.find(hashes[i]), nullptr);
      EXPECT_EQ(table.find(hashes[i])->last, i + 1);
    }
    EXPECT_EQ(table.find(rng()), nullptr);
  }
}

TEST(LookupWindow, DoublesHalvesAndPauses) {
  LookupWindow window(16, 4);
  const auto round = [&](std::uint64_t accepted) {
    EXPECT_TRUE(window.begin());
    window.propose(window.window());
    window.settle(std::min(accepted, window.in_flight()));
  };
  std::vector<std::uint64_t> widths;
  for (int i = 0; i < 4; ++i) {
    widths.push_back(window.window());
    round(99);
  }
  EXPECT_EQ(widths, (std::vector<std::uint64_t>{2, 4, 8, 16}));
  round(99);
  EXPECT_EQ(window.window(), 16U);
  round(15);
  EXPECT_EQ(window.window(), 8U);
  EXPECT_EQ(window.pause(), 0U);
  for (const std::uint64_t pause : {1U, 2U, 4U, 4U}) {  // the cap is 4
    round(0);
    EXPECT_EQ(window.pause(), pause);
    for (std::uint64_t i = 0; i < pause; ++i) EXPECT_FALSE(window.begin());
  }
  EXPECT_EQ(window.window(), 1U);
  round(1);
  EXPECT_EQ(window.window(), 2U);
  round(0);
  EXPECT_EQ(window.pause(), 1U);  // misses are counted anew
}

std::unique_ptr<PromptLookupIndex> make_index(const PromptLookupOptions& options = {}) {
  auto index = PromptLookupIndex::create(options);
  EXPECT_TRUE(index.is_ok()) << index.status().message();
  return std::move(index).value();
}

TEST(PromptLookupIndex, DraftsAreSettledBeforeTheNext) {
  const auto index = make_index();
  const Ids history{1, 2, 3, 4, 5, 1, 2};
  Ids drafts(8);
  EXPECT_EQ(*index->propose(history, drafts), 2U);
  EXPECT_EQ(drafts[0], 3);
  EXPECT_EQ(drafts[1], 4);
  EXPECT_EQ(index->propose(history, drafts).status().message(),
            "propose: 2 drafts are in flight; settle() or abandon() them first");
  EXPECT_EQ(index->settle(3).message(), "settle: 3 accepted of 2 drafts in flight");
  EXPECT_TRUE(index->settle(2).is_ok());
  EXPECT_FALSE(index->settle(0).is_ok());
  EXPECT_EQ(*index->propose(history, drafts), 4U);
  EXPECT_TRUE(index->abandon().is_ok());
  EXPECT_EQ(index->window(), 4U);
  EXPECT_EQ(index->in_flight(), 0U);
  EXPECT_EQ(*index->propose(history, {}), 0U);
  EXPECT_EQ(*index->find(history, drafts), 5U);
  EXPECT_EQ(*index->propose(Ids{7, 8, 9}, drafts), 0U);
  EXPECT_EQ(index->observed(), 3U);
}

TEST(PromptLookupIndex, ImpossibleOptionsAreRefused) {
  for (const PromptLookupOptions& options :
       {PromptLookupOptions{.min_match = 0}, PromptLookupOptions{.min_match = 5, .max_match = 4},
        PromptLookupOptions{.min_match = 60, .max_match = 65},
        PromptLookupOptions{.min_match = 1, .max_match = 17}, PromptLookupOptions{.max_drafts = 0},
        PromptLookupOptions{.max_drafts = 65537}, PromptLookupOptions{.max_pause = 1ULL << 32},
        PromptLookupOptions{.history_tokens = 0},
        PromptLookupOptions{.history_tokens = 1ULL << 32}}) {
    EXPECT_EQ(PromptLookupIndex::create(options).status().code(), StatusCode::kInvalidArgument);
  }
}

const PromptLookupScopeKey kKey{"model", "tokenizer", "", "tenant"};

TEST(PromptLookupCache, OneScopeNeverSeesAnother) {
  const auto cache = *PromptLookupCache::create({.memory_bytes = 1 << 20, .scope_bytes = 8192});
  PromptLookupScope scope = cache->scope(kKey);
  ASSERT_TRUE(scope.insert(Ids{1, 2, 3, 4, 5}).is_ok());
  Ids drafts(8);
  EXPECT_EQ(*cache->scope(kKey).find(Ids{1, 2, 3}, drafts), 2U);
  EXPECT_EQ(drafts[0], 4);
  for (const PromptLookupScopeKey& other :
       {PromptLookupScopeKey{"modeltokenizer", "", "", "tenant"},
        PromptLookupScopeKey{"model", "tokenizer", "tenant", ""},
        PromptLookupScopeKey{"model", "tokenizer", "", "tenant2"}}) {
    EXPECT_EQ(*cache->scope(other).find(Ids{1, 2, 3}, drafts), 0U);
  }
  EXPECT_EQ(cache->scopes(), 1U);
}

TEST(PromptLookupCache, TheScopeUsedLongestAgoGoesWhole) {
  const auto cache = *PromptLookupCache::create({.memory_bytes = 20'000, .scope_bytes = 8192});
  const auto scope = [&](const char* tenant) { return cache->scope({"m", "t", "", tenant}); };
  const Ids tokens{1, 2, 3, 4};
  Ids drafts(1);
  for (const char* tenant : {"a", "b"}) ASSERT_TRUE(scope(tenant).insert(tokens).is_ok());
  EXPECT_EQ(*scope("a").find(Ids{1, 2, 3}, drafts), 1U);
  ASSERT_TRUE(scope("c").insert(tokens).is_ok());
  EXPECT_EQ(cache->scopes(), 2U);
  EXPECT_EQ(cache->bytes(), 2U * 8192);
  EXPECT_EQ(scope("b").tokens(), 0U);
  EXPECT_EQ(*scope("b").find(Ids{1, 2, 3}, drafts), 0U);
  EXPECT_EQ(*scope("a").find(Ids{1, 2, 3}, drafts), 1U);
  EXPECT_TRUE(*cache->drop({"m", "t", "", "a"}));
  EXPECT_FALSE(*cache->drop({"m", "t", "", "a"}));
  EXPECT_EQ(scope("a").tokens(), 0U);
}

TEST(PromptLookupCache, WhatIsPredictedAlreadyIsNotStoredAgain) {
  const auto cache = *PromptLookupCache::create({.scope_bytes = 1 << 16});
  PromptLookupScope scope = cache->scope(kKey);
  std::mt19937 rng(7);
  Ids tokens(1000);
  for (auto& id : tokens) id = static_cast<std::int32_t>(rng() % 50'000);
  ASSERT_TRUE(scope.insert(tokens).is_ok());
  const std::uint64_t stored = scope.tokens();
  EXPECT_EQ(stored, 1001U);  // and what parts it from another
  ASSERT_TRUE(scope.insert(tokens).is_ok());
  EXPECT_EQ(scope.tokens(), stored);
  tokens.push_back(50'001);
  tokens.push_back(7);
  ASSERT_TRUE(scope.insert(tokens).is_ok());
  EXPECT_EQ(scope.tokens(), stored + 1 + 3 + 2);
}

// Whatever the ring went over, a proposal continues some inserted sequence after its match.
TEST(PromptLookupCache, EveryProposalWasSaid) {
  const auto cache =
      *PromptLookupCache::create({.memory_bytes = 8192, .scope_bytes = 8192, .match = 2});
  PromptLookupScope scope = cache->scope(kKey);
  std::mt19937 rng(8);
  std::vector<Ids> said;
  std::uint64_t proposed = 0;
  for (int round = 0; round < 200; ++round) {
    Ids tokens(rng() % 300);
    for (auto& id : tokens) id = static_cast<std::int32_t>(rng() % 12);
    ASSERT_TRUE(scope.insert(tokens).is_ok());
    said.push_back(tokens);
    for (int asked = 0; asked < 10; ++asked) {
      const Ids end{static_cast<std::int32_t>(rng() % 12), static_cast<std::int32_t>(rng() % 12)};
      Ids drafts(6);
      drafts.resize(*scope.find(end, drafts));
      if (drafts.empty()) continue;
      ++proposed;
      Ids run = end;
      run.insert(run.end(), drafts.begin(), drafts.end());
      ASSERT_TRUE(std::any_of(said.begin(), said.end(), [&](const Ids& ids) {
        return std::search(ids.begin(), ids.end(), run.begin(), run.end()) != ids.end();
      }));
    }
  }
  EXPECT_GT(proposed, 1000U);
  EXPECT_LE(scope.tokens(), 1023U);
}

TEST(PromptLookupCache, WrongSizesAndIdsAreRefused) {
  for (const PromptLookupCacheOptions& options :
       {PromptLookupCacheOptions{.scope_bytes = 8191}, PromptLookupCacheOptions{.match = 0},
        PromptLookupCacheOptions{.match = 65},
        PromptLookupCacheOptions{.memory_bytes = 8192, .scope_bytes = 8193},
        PromptLookupCacheOptions{.memory_bytes = ~0ULL, .scope_bytes = (1ULL << 33) + 1}}) {
    EXPECT_EQ(PromptLookupCache::create(options).status().code(), StatusCode::kInvalidArgument);
  }
  const auto cache = *PromptLookupCache::create({});
  EXPECT_EQ(cache->scope(kKey).insert(Ids{1, 2, -1}).message(),
            "insert: id -1 at index 2 is negative");
  EXPECT_EQ(cache->scopes(), 0U);
  EXPECT_TRUE(cache->scope(kKey).insert(Ids{1, 2, 3}).is_ok());
  EXPECT_EQ(cache->scopes(), 0U);
}

TEST(PromptLookupCache, ThreadsShareAnIndexAndScopes) {
  const auto cache = *PromptLookupCache::create({.memory_bytes = 20'000, .scope_bytes = 8192});
  const auto index = make_index();
  const auto work = [&](unsigned seed) {
    std::mt19937 rng(seed);
    Ids drafts(8);
    for (int round = 0; round < 300; ++round) {
      PromptLookupScope scope = cache->scope({"m", "t", "", std::to_string(rng() % 3)});
      const Ids tokens = random_ids(rng, rng() % 100, 5);
      switch (rng() % 6) {
        case 0:
          static_cast<void>(scope.insert(tokens));  // refused where an id is negative
          break;
        case 1:
          EXPECT_TRUE(scope.find(tokens, drafts).is_ok());
          break;
        case 2:
          EXPECT_TRUE(cache->drop({"m", "t", "", "1"}).is_ok());
          break;
        case 3:
          static_cast<void>(index->propose(tokens, drafts, &scope));
          static_cast<void>(index->settle(0));
          break;
        case 4:
          EXPECT_TRUE(index->observe(tokens).is_ok());
          EXPECT_TRUE(index->abandon().is_ok());
          break;
        default:
          EXPECT_LE(cache->bytes(), 20'000U);
          EXPECT_LE(index->window() + scope.tokens(), 16U + 2048U);
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed);
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace kvcache
