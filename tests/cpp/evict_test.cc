// What every eviction policy must do, and what LRU does.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>

#include "evict/policy.h"

namespace kvcache::evict {
namespace {

class EveryPolicy : public testing::TestWithParam<std::string_view> {
 protected:
  std::unique_ptr<Policy> policy_ = std::move(make_policy(GetParam())).value();
};

TEST_P(EveryPolicy, KnowsItsName) { EXPECT_EQ(policy_->name(), GetParam()); }

TEST_P(EveryPolicy, AnEmptyOneHasNoVictim) { EXPECT_EQ(policy_->victim(), std::nullopt); }

TEST_P(EveryPolicy, GivesEachCandidateOnceAndOnlyWhatIsThere) {
  std::mt19937 rng(3);
  std::set<Candidate> present;
  for (std::uint64_t clock = 1; clock < 3000; ++clock) {
    if (rng() % 3 != 0) {
      const auto kind = static_cast<CandidateKind>(rng() % 2);
      const Candidate candidate{kind, static_cast<std::uint32_t>(clock), clock - rng() % 2};
      policy_->insert(candidate);
      present.insert(candidate);
    } else if (!present.empty()) {
      const auto any = std::next(present.begin(), static_cast<long>(rng() % present.size()));
      const Candidate gone = rng() % 2 == 0 ? *any : *policy_->victim();
      ASSERT_EQ(present.erase(gone), 1U);
      policy_->erase(gone);
    }
    ASSERT_EQ(policy_->victim().has_value(), !present.empty());
  }
  while (const auto victim = policy_->victim()) {
    ASSERT_EQ(policy_->victim(), victim) << "a victim stays until it is erased";
    ASSERT_EQ(present.erase(*victim), 1U);
    policy_->erase(*victim);
  }
  EXPECT_TRUE(present.empty());
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryPolicy, testing::ValuesIn(policy_names()),
                         [](const auto& info) { return std::string(info.param); });

TEST(Lru, TheOldestGoesFirstAndOfEqualAgeTheRunTail) {
  const auto lru = std::move(make_policy("lru")).value();
  const Candidate young{CandidateKind::kRunTail, 1, 9};
  const Candidate old_snapshot{CandidateKind::kSnapshot, 2, 5};
  const Candidate old_tail{CandidateKind::kRunTail, 7, 5};
  for (const Candidate& candidate : {young, old_snapshot, old_tail}) lru->insert(candidate);
  for (const Candidate& candidate : {old_tail, old_snapshot, young}) {
    EXPECT_EQ(lru->victim(), candidate);
    lru->erase(candidate);
  }
}

TEST(Registry, AnUnknownPolicyIsRefusedWithTheKnownOnes) {
  const auto refused = make_policy("clock");
  ASSERT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("'clock'"), std::string::npos);
  for (const std::string_view name : policy_names()) {
    EXPECT_NE(refused.status().message().find(name), std::string::npos);
  }
}

}  // namespace
}  // namespace kvcache::evict
