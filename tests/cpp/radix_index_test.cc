#include "prefix/radix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "arena/arena.h"
#include "evict_reference.h"

namespace kvcache::prefix {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr std::uint32_t kBlock = 4;

StateDecl paged(std::int32_t layer, std::uint32_t window) {
  return {.id = "l" + std::to_string(layer),
          .layer = layer,
          .component = "attention.keys",
          .kind = StateKind::kPagedKv,
          .shape = {1, 8},
          .window = window};
}

StateDecl recurrent() {
  return {.id = "r",
          .layer = 9,
          .component = "state.recurrent",
          .kind = StateKind::kRecurrent,
          .dtype = DType::kF32,
          .shape = {4}};
}

// An index over a ledger, and pages that remember which tokens they hold the state of.
class Index {
 public:
  explicit Index(std::vector<StateDecl> decls,
                 const evict::PolicyMaker& policy = evict::policy_maker("lru", {}))
      : plan_(std::move(StatePlan::create(std::move(decls),
                                          {.memory_bytes = 64 << 20, .block_tokens = kBlock}))
                  .value()),
        arena_(std::move(arena::Arena::create(plan_.options().memory_bytes,
                                              arena::pool_specs(plan_, 0), false))
                   .value()),
        pools(arena::map_pools(plan_, *arena_)),
        index(plan_, pools, policy, policy) {}

  // Tables of a sequence that has computed `tokens`; blocks before `first` are let go.
  BlockTables compute(const Tokens& tokens, std::uint64_t first = 0) {
    BlockTables tables(pools.pages.size());
    for (std::size_t group = 0; group < tables.size(); ++group) {
      for (std::uint64_t at = 0; at < tokens.size(); at += kBlock) {
        if (at / kBlock < first && plan_.groups()[group].window != 0) {
          tables[group].push_back(kNoItem);
          continue;
        }
        const ItemId page = *pools.pages[group]->allocate();
        const auto stop = std::min<std::uint64_t>(at + kBlock, tokens.size());
        holds[{group, page}] = Tokens(tokens.begin(), tokens.begin() + static_cast<long>(stop));
        tables[group].push_back(page);
      }
    }
    return tables;
  }

  void release(const BlockTables& tables) {
    for (std::size_t group = 0; group < tables.size(); ++group) {
      for (const ItemId page : tables[group]) {
        if (page != kNoItem) pools.pages[group]->release(page);
      }
    }
  }

  SnapshotRef snapshot(std::uint64_t position) { return {position, *pools.snapshots->allocate()}; }

  // Computes, inserts and closes: only the index holds the pages afterwards.
  void store(const Tokens& tokens, const std::vector<std::uint64_t>& stops = {},
             const std::string& space = "") {
    const BlockTables tables = compute(tokens);
    std::vector<SnapshotRef> snapshots;
    for (const std::uint64_t stop : stops) snapshots.push_back(snapshot(stop));
    index.insert(space, tokens, tables, snapshots);
    release(tables);
    for (const SnapshotRef& ref : snapshots) pools.snapshots->release(ref.item);
  }

  // Every page of the match holds the state of exactly these tokens.
  void expect_right_pages(const Match& match, const Tokens& tokens) {
    for (std::size_t group = 0; group < match.tables.size(); ++group) {
      ASSERT_EQ(match.tables[group].size(), (match.usable + kBlock - 1) / kBlock);
      for (std::size_t b = 0; b < match.tables[group].size(); ++b) {
        const ItemId page = match.tables[group][b];
        if (page == kNoItem) continue;
        const auto stop = std::min<std::uint64_t>((b + 1) * kBlock, match.usable);
        const Tokens& held = holds.at({group, page});
        ASSERT_GE(held.size(), stop);
        ASSERT_TRUE(
            std::equal(tokens.begin(), tokens.begin() + static_cast<long>(stop), held.begin()));
      }
    }
  }

  void expect_empty() {
    EXPECT_EQ(arena_->used_bytes(), 0U);
    EXPECT_EQ(index.counts().nodes, 0U);
    EXPECT_EQ(index.counts().blocks, 0U);
    EXPECT_EQ(index.counts().tokens, 0U);
    EXPECT_EQ(index.counts().snapshots, 0U);
  }

 private:
  const StatePlan plan_;
  const std::unique_ptr<arena::Arena> arena_;

 public:
  const PoolMap pools;
  RadixIndex index;
  std::map<std::pair<std::size_t, ItemId>, Tokens> holds;
};

Tokens range(std::int32_t from, std::int32_t to) {
  Tokens tokens;
  for (std::int32_t t = from; t < to; ++t) tokens.push_back(t);
  return tokens;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(RadixIndex, TheLastTokenOfAPromptAlwaysRuns) {
  Index t({paged(0, 0)});
  t.store(range(0, 8));
  const Match match = t.index.match("", range(0, 8), false);
  EXPECT_EQ(match.matched, 8U);
  EXPECT_EQ(match.usable, 7U);
  EXPECT_EQ(match.limit, HitLimit::kNone);
  EXPECT_EQ(t.index.match("", range(0, 9), false).usable, 8U);
  EXPECT_EQ(t.index.match("", Tokens{0}, false).usable, 0U);
  EXPECT_EQ(t.index.match("", Tokens{7}, false).matched, 0U);
}

TEST(RadixIndex, ASplitInsideABlockSharesThePageOfThatBlock) {
  Index t({paged(0, 0)});
  const Tokens first = range(0, 11);
  const Tokens second = range(0, 6) + range(50, 55);
  t.store(first);
  EXPECT_EQ(t.index.counts().blocks, 3U);
  t.store(second);
  // 0..5 | 6..10 and 50..54: block 1 belongs to three runs, on two pages.
  EXPECT_EQ(t.index.counts().nodes, 4U);  // with the root
  EXPECT_EQ(t.index.counts().tokens, 16U);
  EXPECT_EQ(t.index.counts().blocks, 2U + 2U + 2U);
  EXPECT_EQ(t.pools.pages[0]->live_items(), 3U + 2U);
  for (const Tokens& tokens : {first, second}) {
    const Tokens prompt = tokens + Tokens{99};
    const Match match = t.index.match("", prompt, false);
    EXPECT_EQ(match.usable, 11U);
    t.expect_right_pages(match, prompt);
  }
  t.index.clear();
  t.expect_empty();
}

TEST(RadixIndex, ALeafGrowsInPlaceOnlyOverItsOwnPage) {
  Index t({paged(0, 0)});
  const Tokens tokens = range(0, 10);
  const BlockTables tables = t.compute(tokens);
  t.index.insert("", std::span(tokens).first(6), {{tables[0].begin(), tables[0].begin() + 2}}, {});
  t.index.insert("", tokens, tables, {});
  EXPECT_EQ(t.index.counts().nodes, 2U);
  EXPECT_EQ(t.index.counts().blocks, 3U);
  t.release(tables);
  t.store(range(0, 13));  // another sequence: its own page of block 2
  EXPECT_EQ(t.index.counts().nodes, 3U);
  EXPECT_EQ(t.pools.pages[0]->live_items(), 3U + 2U);
  t.index.clear();
  t.expect_empty();
}

TEST(RadixIndex, EvictionTakesTheTailOfTheOldestLeafFirst) {
  Index t({paged(0, 0)});
  t.store(range(0, 8) + range(100, 106));
  t.store(range(0, 8) + range(200, 206));
  const Tokens old_prompt = range(0, 8) + range(100, 107);
  const Tokens young_prompt = range(0, 8) + range(200, 207);
  ASSERT_TRUE(t.index.evict_one());
  EXPECT_EQ(t.index.match("", old_prompt, false).usable, 12U);
  ASSERT_TRUE(t.index.evict_one());
  EXPECT_EQ(t.index.match("", old_prompt, false).usable, 8U);
  EXPECT_EQ(t.index.match("", young_prompt, false).usable, 14U);
  // Only now that both branches are gone does the shared run lose blocks.
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(t.index.evict_one());
  EXPECT_EQ(t.index.match("", young_prompt, false).usable, 8U);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(t.index.evict_one());
  EXPECT_FALSE(t.index.evict_one());
  EXPECT_EQ(t.index.counts().evicted_blocks, 6U);
  t.expect_empty();
}

TEST(RadixIndex, WhatASequenceHoldsIsPassedOverAndStaysACandidate) {
  Index t({paged(0, 0)});
  const Tokens held = range(0, 4);
  const BlockTables tables = t.compute(held);
  t.index.insert("", held, tables, {});
  t.store(range(10, 14));
  ASSERT_TRUE(t.index.evict_one());
  EXPECT_EQ(t.index.match("", range(0, 5), false).usable, 4U);
  EXPECT_EQ(t.index.match("", range(10, 15), false).usable, 0U);
  EXPECT_FALSE(t.index.evict_one());
  t.release(tables);
  EXPECT_TRUE(t.index.evict_one());
  t.expect_empty();
}

// Least recently used, and how often what it named might not go.
class Refused final : public evict::PlainPolicy {
 public:
  explicit Refused(int& times) : PlainPolicy({.block_tokens = kBlock}), times_(times) {}
  std::string_view name() const override { return "refused"; }
  std::optional<evict::Unit> victim(const MayGo& may_go) override {
    const auto counted = [&](evict::Unit unit) {
      const bool may = may_go(unit);
      times_ += !may;
      return may;
    };
    return least(counted, [&](evict::Unit unit) { return units_[unit].last_access; });
  }

 private:
  int& times_;
};

TEST(RadixIndex, WhatSequencesHoldIsAskedForOnceAndComesBackWhenTheyEnd) {
  int refused = 0;
  Index t({paged(0, 0)}, [&refused] { return std::make_unique<Refused>(refused); });
  std::vector<std::pair<Tokens, BlockTables>> open;
  for (std::int32_t i = 0; i < 50; ++i) {
    const Tokens tokens{i, 1, 2, 3};
    open.emplace_back(tokens, t.compute(tokens));
    t.index.insert("", tokens, open.back().second, {});
    t.store({100 + i, 1, 2, 3});
  }
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(t.index.evict_one());
  EXPECT_EQ(refused, 50);
  EXPECT_FALSE(t.index.evict_one());
  EXPECT_EQ(refused, 50);
  // One ends as requests do, the others without a word.
  t.index.complete("", open.back().first, {});
  for (const auto& [tokens, tables] : open) t.release(tables);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(t.index.evict_one());
  EXPECT_FALSE(t.index.evict_one());
  EXPECT_EQ(refused, 50);
  t.expect_empty();
}

TEST(RadixIndex, AHitNeedsASnapshotAndTakesTheDeepest) {
  Index t({paged(0, 0), recurrent()});
  t.store(range(0, 10), {3, 7, 10});
  Match match = t.index.match("", range(0, 10), false);
  EXPECT_EQ(match.usable, 7U);
  EXPECT_EQ(match.snapshot.position, 7U);
  EXPECT_EQ(match.nearest_snapshot, 10U);
  EXPECT_EQ(match.limit, HitLimit::kSnapshot);
  match = t.index.match("", range(0, 5) + Tokens{77, 78}, false);
  EXPECT_EQ(match.matched, 5U);
  EXPECT_EQ(match.usable, 3U);
  EXPECT_EQ(t.index.match("", range(0, 3), false).usable, 0U);
  EXPECT_EQ(t.index.find_snapshot("", range(0, 10), 9).position, 7U);
  EXPECT_EQ(t.index.find_snapshot("", range(0, 10), 2).position, 0U);
}

TEST(RadixIndex, SnapshotsFollowASplitAndLeaveWithTheirPositions) {
  Index t({paged(0, 0), recurrent()});
  t.store(range(0, 10), {3, 6, 10});
  t.store(range(0, 6) + range(50, 53), {8});
  EXPECT_EQ(t.index.counts().snapshots, 4U);
  EXPECT_EQ(t.index.match("", range(0, 11), false).usable, 10U);
  EXPECT_EQ(t.index.match("", range(0, 6) + range(50, 54), false).usable, 8U);
  EXPECT_EQ(t.index.match("", range(0, 7), false).usable, 6U);
  while (t.index.evict_one()) {
  }
  EXPECT_EQ(t.index.counts().evicted_snapshots, 4U);
  t.expect_empty();
}

TEST(RadixIndex, AWindowNeedsOnlyItsOwnBlocks) {
  Index t({paged(0, 6)});
  const Tokens tokens = range(0, 20);
  const BlockTables tables = t.compute(tokens, 3);  // blocks 0..2 have left
  t.index.insert("", tokens, tables, {});
  t.release(tables);
  EXPECT_EQ(t.index.match("", range(0, 21), false).usable, 20U);  // needs 15..19
  EXPECT_EQ(t.index.match("", range(0, 18), false).usable, 17U);  // needs 12..16
  const Match match = t.index.match("", range(0, 17), false);     // needs 11..15
  EXPECT_EQ(match.usable, 0U);
  EXPECT_EQ(match.limit, HitLimit::kWindow);
  t.store(range(0, 12));  // computed again: the holes are filled
  EXPECT_EQ(t.index.match("", range(0, 17), false).usable, 16U);
}

TEST(RadixIndex, AHoleInADeeperRunDoesNotHideTheShallowerPage) {
  Index t({paged(0, 8)});
  const Tokens tokens = range(0, 20);
  const BlockTables tables = t.compute(tokens, 3);
  t.index.insert("", tokens, tables, {});
  t.release(tables);
  t.store(range(0, 6));  // a run of its own over blocks 0 and half of 1
  const Match match = t.index.match("", range(0, 10), false);
  EXPECT_EQ(match.matched, 10U);
  EXPECT_EQ(match.usable, 6U);
  t.expect_right_pages(match, range(0, 10));
}

TEST(RadixIndex, SpacesShareNothing) {
  Index t({paged(0, 0)});
  t.store(range(0, 8), {}, "a");
  EXPECT_EQ(t.index.match("a", range(0, 8), false).usable, 7U);
  EXPECT_EQ(t.index.match("b", range(0, 8), false).matched, 0U);
  EXPECT_EQ(t.index.match("", range(0, 8), false).matched, 0U);
}

// Against a list of everything that was ever stored.
void run_against_a_list(std::vector<StateDecl> decls, bool evict, std::uint32_t seed) {
  std::mt19937 rng(seed);
  Index t(std::move(decls));
  const bool fixed = t.pools.snapshots != nullptr;
  std::set<Tokens> prefixes;
  std::set<Tokens> snapshots;
  std::vector<Tokens> prompts = {{}};
  for (int round = 0; round < 1500; ++round) {
    Tokens tokens = prompts[rng() % prompts.size()];
    tokens.resize(rng() % (tokens.size() + 1));
    for (std::uint32_t n = rng() % 9; n > 0; --n) {
      tokens.push_back(static_cast<std::int32_t>(rng() % 3));
    }
    if (tokens.empty()) continue;
    if (rng() % 3 == 0) {
      std::vector<std::uint64_t> stops;
      if (fixed) stops = {1 + rng() % tokens.size()};
      t.store(tokens, stops);
      for (std::size_t n = 1; n <= tokens.size(); ++n) {
        prefixes.insert(Tokens(tokens.begin(), tokens.begin() + static_cast<long>(n)));
      }
      for (const std::uint64_t stop : stops) {
        snapshots.insert(Tokens(tokens.begin(), tokens.begin() + static_cast<long>(stop)));
      }
      prompts.push_back(tokens);
    }
    if (evict && rng() % 2 == 0) t.index.evict_one();
    std::uint64_t matched = 0;
    std::uint64_t usable = 0;
    for (std::size_t n = 1; n <= tokens.size(); ++n) {
      const Tokens prefix(tokens.begin(), tokens.begin() + static_cast<long>(n));
      if (prefixes.contains(prefix)) matched = n;
      if (n < tokens.size() && (fixed ? snapshots : prefixes).contains(prefix)) usable = n;
    }
    const Match match = t.index.match("", tokens, rng() % 2 == 0);
    if (evict) {
      ASSERT_LE(match.matched, matched);
      ASSERT_LE(match.usable, usable);
    } else {
      ASSERT_EQ(match.matched, matched);
      ASSERT_EQ(match.usable, usable);
      ASSERT_EQ(t.index.counts().tokens, prefixes.size());
      ASSERT_EQ(t.index.counts().snapshots, snapshots.size());
    }
    ASSERT_NO_FATAL_FAILURE(t.expect_right_pages(match, tokens));
  }
  if (evict) {
    while (t.index.evict_one()) {
    }
  } else {
    t.index.clear();
  }
  t.expect_empty();
}

TEST(RadixIndexModel, AttentionAgreesWithAList) { run_against_a_list({paged(0, 0)}, false, 1); }
TEST(RadixIndexModel, HybridAgreesWithAList) {
  run_against_a_list({paged(0, 0), recurrent()}, false, 2);
}
TEST(RadixIndexModel, RecurrentAgreesWithAList) { run_against_a_list({recurrent()}, false, 3); }
TEST(RadixIndexModel, EvictionNeverGivesAPageOfOtherTokens) {
  run_against_a_list({paged(0, 0), paged(1, 6)}, true, 4);
}
TEST(RadixIndexModel, EvictionOfAHybridNeverGivesAPageOfOtherTokens) {
  run_against_a_list({paged(0, 0), recurrent()}, true, 5);
}

}  // namespace
}  // namespace kvcache::prefix
