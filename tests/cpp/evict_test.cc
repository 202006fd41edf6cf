// What every eviction policy must do, driven by a tree of runs like the index's, and what LRU does.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "evict/lru_debt.h"
#include "evict/policy.h"
#include "evict_tree.h"
#include "kvcache/cache.h"

namespace kvcache::evict {
namespace {

class EveryPolicy : public testing::TestWithParam<std::string_view> {
 protected:
  std::unique_ptr<Policy> policy_ = std::move(make_policy(GetParam(), kCosts)).value();
  Tree tree_{*policy_};
};

TEST_P(EveryPolicy, KnowsItsName) { EXPECT_EQ(policy_->name(), GetParam()); }

TEST_P(EveryPolicy, AnEmptyOneHasNoVictim) { EXPECT_EQ(policy_->victim(kAny), std::nullopt); }

TEST_P(EveryPolicy, NamesCandidatesAloneUntilNoneIsLeft) {
  std::mt19937 rng(3);
  for (int step = 0; step < 4000; ++step) {
    if (!random_step(tree_, rng)) {
      if (const auto victim = policy_->victim(kAny)) {
        ASSERT_EQ(policy_->victim(kAny), victim) << "a victim stays until it is erased";
        ASSERT_TRUE(tree_.candidates().contains(*victim));
        tree_.evict(*victim);
      }
    }
    ASSERT_EQ(policy_->victim(kAny).has_value(), !tree_.candidates().empty());
  }
  while (const auto victim = policy_->victim(kAny)) {
    ASSERT_TRUE(tree_.candidates().contains(*victim));
    tree_.evict(*victim);
  }
  EXPECT_TRUE(tree_.candidates().empty());
  EXPECT_TRUE(tree_.runs().empty());
}

TEST_P(EveryPolicy, PassesOverWhatMayNotGo) {
  for (int i = 0; i < 20; ++i) tree_.snapshot(tree_.add(0, 9), 5);
  std::set<Unit> offered;
  const auto none = policy_->victim([&](Unit unit) {
    EXPECT_TRUE(offered.insert(unit).second) << "offered twice";
    return false;
  });
  EXPECT_EQ(none, std::nullopt);
  EXPECT_EQ(offered, tree_.candidates());
  const Unit only = *std::next(offered.begin(), 7);
  EXPECT_EQ(policy_->victim([&](Unit unit) { return unit == only; }), only);
}

TEST_P(EveryPolicy, WhatIsErasedIsNotOfferedUntilItIsInsertedAgain) {
  for (int i = 0; i < 20; ++i) tree_.snapshot(tree_.add(0, 9), 5);
  const std::set<Unit> all = tree_.candidates();
  std::set<Unit> erased;
  for (const Unit unit : all) {
    if (erased.size() < 10 || unit.kind == UnitKind::kSnapshot) erased.insert(unit);
  }
  for (const Unit unit : erased) policy_->erase(unit);
  tree_.use(tree_.runs().front());
  std::set<Unit> offered;
  policy_->victim([&](Unit unit) {
    offered.insert(unit);
    return false;
  });
  for (const Unit unit : erased) {
    EXPECT_FALSE(offered.contains(unit));
    policy_->insert(unit);
    offered.insert(unit);
  }
  EXPECT_EQ(offered, all);
  while (const auto victim = policy_->victim(kAny)) tree_.evict(*victim);
  EXPECT_TRUE(tree_.candidates().empty());
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryPolicy, testing::ValuesIn(policy_names()),
                         [](const auto& info) { return std::string(info.param); });

// Sequences of few tokens that grow, go back, fork and are published while they run: what one
// stored and lost is found again by others, in the middle of what they have written since.
TEST_P(EveryPolicy, FollowsSequencesThatArePublishedAsTheyGrow) {
  StateDecl keys = {.id = "k", .layer = 0, .component = "attention.keys", .shape = {1, 2}};
  const auto plan = *StatePlan::create({keys}, {.memory_bytes = 1 << 20, .block_tokens = 3});
  CacheOptions options;
  options.backing = false;
  options.policy = GetParam();
  const auto cache = std::move(Cache::create(plan, options)).value();
  std::mt19937 rng(0);
  const auto random_tokens = [&](std::size_t most) {
    std::vector<std::int32_t> tokens(1 + rng() % most);
    for (std::int32_t& token : tokens) token = rng() % 8 == 0;
    return tokens;
  };
  std::vector<Sequence> open;
  for (int step = 0; step < 6000; ++step) {
    if (open.empty() || (open.size() < 6 && rng() % 8 == 0)) {
      open.push_back(std::move(cache->open(random_tokens(14), {})).value());
    }
    const std::size_t at = rng() % open.size();
    Sequence& sequence = open[at];
    const std::uint64_t length = sequence.length();
    std::vector<std::int32_t> tokens = sequence.tokens();
    switch (rng() % 6) {
      case 0:
        ASSERT_TRUE(tokens.size() < 40 ? sequence.extend(random_tokens(4)) : sequence.truncate(0));
        break;
      case 1:
        if (open.size() < 6) open.push_back(std::move(sequence.fork()).value());
        break;
      case 2:
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 3:
        tokens.resize(rng() % (tokens.size() + 1));
        if (rng() % 6 == 0 && !tokens.empty()) {
          ASSERT_TRUE(cache->erase({"", "", "", {}, tokens}));
        }
        break;
      default:
        ASSERT_TRUE(sequence.advance(rng() % (tokens.size() - length + 1)));
        ASSERT_TRUE(sequence.publish());
    }
  }
  open.clear();
  cache->clear();
  EXPECT_EQ(cache->stats().pages, 0U);
}

TEST(Lru, TheOldestGoesFirstAndOfEqualAgeTheRunTail) {
  const auto lru = std::move(make_policy("lru", kCosts)).value();
  const std::vector<std::int32_t> path(8);
  for (const auto& [run, clock] : {std::pair{1U, 9U}, {7U, 5U}}) {
    lru->add_run(run, 0, path, 0, clock);
    lru->insert(run_unit(run));
  }
  lru->add_snapshot(2, 7, 4, 5);
  lru->insert(snapshot_unit(2));
  for (const Unit unit : {run_unit(7), snapshot_unit(2), run_unit(1)}) {
    EXPECT_EQ(lru->victim(kAny), unit);
    lru->erase(unit);
  }
}

// Requests for 10,000 blocks, of which both find as many; LRU has 1,000.
LruDebt even_debt() {
  LruDebt debt;
  for (int i = 0; i < 100; ++i) debt.request(100, 30, 30, 1000);
  return debt;
}

std::uint64_t lend_all(LruDebt debt) {
  std::uint64_t lent = 0;
  for (; debt.allows_another() && lent < 10000; ++lent) debt.lend(1);
  return lent;
}

TEST(LruDebt, WithoutEvidenceNothingIsLentBeyondTheAllowance) {
  EXPECT_FALSE(LruDebt().allows_another());
  LruDebt debt = even_debt();
  EXPECT_EQ(lend_all(debt), 29) << "3 thousandths of 10,000 blocks, less for the older ones";
  for (int i = 0; i < 3500; ++i) debt.expired(1);
  EXPECT_EQ(lend_all(debt), 29) << "too few blocks to go by";
}

TEST(LruDebt, WhatWouldHaveBeenEvictedIsEvidenceWithoutLending) {
  LruDebt debt = even_debt();
  for (int i = 0; i < 6000; ++i) debt.expired(1);
  EXPECT_GT(lend_all(debt), 500);
}

TEST(LruDebt, ASurpriseEndsTheLending) {
  LruDebt debt = even_debt();
  for (int i = 0; i < 6000; ++i) debt.expired(1);
  const std::uint64_t lent = lend_all(debt);
  debt.lend(lent);
  debt.found(lent / 2);
  debt.repay(lent / 2);
  debt.request(100, 0, lent / 2, 1000);
  EXPECT_FALSE(debt.allows_another());
  debt.expired(lent - lent / 2);
  debt.repay(lent - lent / 2);
  EXPECT_FALSE(debt.allows_another()) << "behind LRU by more than the allowance";
  debt.request(100, lent, 0, 1000);
  EXPECT_TRUE(debt.allows_another());
}

TEST(LruDebt, ATimeInWhichLruFoundMuchIsRemembered) {
  LruDebt calm = even_debt();
  LruDebt burnt = even_debt();
  burnt.found(500);
  calm.expired(500);
  for (LruDebt* debt : {&calm, &burnt}) {
    for (int i = 0; i < 6000; ++i) debt->expired(1);
  }
  EXPECT_LT(4 * lend_all(burnt), lend_all(calm)) << "though a twelfth was found in all";
}

TEST(Registry, AnUnknownPolicyIsRefusedWithTheKnownOnes) {
  const auto refused = make_policy("clock", kCosts);
  ASSERT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("'clock'"), std::string::npos);
  for (const std::string_view name : policy_names()) {
    EXPECT_NE(refused.status().message().find(name), std::string::npos);
  }
}

}  // namespace
}  // namespace kvcache::evict
