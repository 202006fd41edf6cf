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

namespace kvcache::evict {
namespace {

constexpr std::uint64_t kBlock = 4;
constexpr Costs kCosts{kBlock, 64, 256, 1 << 12, 1.0, 0.01};
const Policy::MayGo kAny = [](Unit) { return true; };

// The part of an index that a policy sees. Node 0 is the root.
class Tree {
 public:
  explicit Tree(Policy& policy) : policy_(policy) {
    nodes_[0] = {};
    policy_.add_root(0, "");
  }

  RunId add(RunId parent, std::uint64_t tokens) {
    const RunId id = next_++;
    Node& node = nodes_[id];
    node.parent = parent;
    node.path = nodes_[parent].path;
    node.start = node.path.size();
    for (std::uint64_t i = 0; i < tokens; ++i) {
      node.path.push_back(static_cast<std::int32_t>(id * 1000 + i));
    }
    if (parent != 0 && nodes_[parent].children == 0) drop(run_unit(parent));
    ++nodes_[parent].children;
    policy_.add_run(id, parent, node.path, node.start, ++clock_);
    enter(run_unit(id));
    return id;
  }
  void use(RunId id) {
    ++clock_;
    policy_.arrive({clock_ * 1000, id, nodes_[id].path.size()});
    for (RunId at = id; at != 0; at = nodes_[at].parent) policy_.use(run_unit(at), clock_);
    const std::uint64_t end = nodes_[id].path.size();
    policy_.complete({clock_ * 1000, id, end, end, 0, 0});
  }
  void split(RunId id, std::uint64_t position) {
    const RunId upper = next_++;
    Node& lower = nodes_[id];
    Node above = lower;
    above.path.resize(position);
    above.children = 1;
    lower.start = position;
    lower.parent = upper;
    nodes_[upper] = above;
    for (auto& [snapshot, where] : snapshots_) {
      if (where.run == id && where.position <= position) where.run = upper;
    }
    policy_.split_run(upper, id, position);
  }
  SnapshotId snapshot(RunId id, std::uint64_t position) {
    const SnapshotId snapshot = next_++;
    snapshots_[snapshot] = {id, position};
    policy_.add_snapshot(snapshot, id, position, ++clock_);
    enter(snapshot_unit(snapshot));
    return snapshot;
  }
  void evict(Unit unit) {
    if (unit.kind == UnitKind::kSnapshot) return remove_snapshot(unit.id);
    Node& node = nodes_[unit.id];
    const std::uint64_t last = (node.path.size() - 1) / kBlock * kBlock;
    const std::uint64_t end = std::max(node.start, last);
    for (const SnapshotId snapshot : snapshots_below(unit.id, end)) remove_snapshot(snapshot);
    node.path.resize(end);
    if (end > node.start) return policy_.shrink_run(unit.id, end);
    drop(unit);
    policy_.shrink_run(unit.id, end);
    const RunId parent = node.parent;
    nodes_.erase(unit.id);
    if (--nodes_[parent].children == 0 && parent != 0) enter(run_unit(parent));
  }

  std::vector<RunId> runs() const {
    std::vector<RunId> ids;
    for (const auto& [id, node] : nodes_) {
      if (id != 0) ids.push_back(id);
    }
    return ids;
  }
  std::uint64_t start(RunId id) const { return nodes_.at(id).start; }
  std::uint64_t end(RunId id) const { return nodes_.at(id).path.size(); }
  const std::set<Unit>& candidates() const { return candidates_; }

 private:
  struct Node {
    RunId parent = 0;
    std::uint64_t start = 0;
    std::vector<std::int32_t> path;
    int children = 0;
  };
  struct Where {
    RunId run;
    std::uint64_t position;
  };

  void enter(Unit unit) {
    candidates_.insert(unit);
    policy_.insert(unit);
  }
  void drop(Unit unit) {
    candidates_.erase(unit);
    policy_.erase(unit);
  }
  void remove_snapshot(SnapshotId id) {
    drop(snapshot_unit(id));
    policy_.remove_snapshot(id);
    snapshots_.erase(id);
  }
  std::vector<SnapshotId> snapshots_below(RunId run, std::uint64_t end) const {
    std::vector<SnapshotId> found;
    for (const auto& [id, where] : snapshots_) {
      if (where.run == run && where.position > end) found.push_back(id);
    }
    return found;
  }

  Policy& policy_;
  std::map<RunId, Node> nodes_;
  std::map<SnapshotId, Where> snapshots_;
  std::set<Unit> candidates_;
  std::uint32_t next_ = 1;
  std::uint64_t clock_ = 0;
};

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
    const auto runs = tree_.runs();
    const RunId any = runs.empty() ? 0 : runs[rng() % runs.size()];
    switch (rng() % 6) {
      case 0:
        tree_.add(any, 1 + rng() % 20);
        break;
      case 1:
        if (any != 0) tree_.use(any);
        break;
      case 2:
        if (any != 0 && tree_.end(any) - tree_.start(any) > 1) {
          tree_.split(any, tree_.start(any) + 1 + rng() % (tree_.end(any) - tree_.start(any) - 1));
        }
        break;
      case 3:
        if (any != 0) {
          tree_.snapshot(any, tree_.start(any) + 1 + rng() % (tree_.end(any) - tree_.start(any)));
        }
        break;
      default:
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

INSTANTIATE_TEST_SUITE_P(Registry, EveryPolicy, testing::ValuesIn(policy_names()),
                         [](const auto& info) { return std::string(info.param); });

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

TEST(LruDebt, WithoutEvidenceNothingIsLentBeyondTheAllowance) {
  LruDebt debt;
  EXPECT_FALSE(debt.allows_another());
  for (int i = 0; i < 100; ++i) debt.request(100, 30, 30);
  std::uint64_t lent = 0;
  for (; debt.allows_another(); ++lent) debt.lend(1);
  EXPECT_EQ(lent, 29) << "3 thousandths of 10,000 blocks, a little less of the older ones";
}

TEST(LruDebt, EvidenceAllowsMoreAndASurpriseNothing) {
  LruDebt debt;
  for (int i = 0; i < 100; ++i) debt.request(100, 30, 30);
  for (int i = 0; i < 1000; ++i) {
    debt.lend(1);
    debt.expired(1);
  }
  std::uint64_t lent = 0;
  for (; debt.allows_another(); ++lent) debt.lend(1);
  EXPECT_GT(lent, 200);
  debt.found(lent / 2);
  debt.request(100, 0, lent / 2);
  EXPECT_FALSE(debt.allows_another());
  debt.expired(lent - lent / 2);
  EXPECT_FALSE(debt.allows_another()) << "behind LRU by more than the allowance";
  debt.request(100, lent, 0);
  EXPECT_TRUE(debt.allows_another());
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
