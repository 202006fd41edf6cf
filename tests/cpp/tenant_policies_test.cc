#include "evict/tenant_policies.h"

#include <gtest/gtest.h>

#include "evict_tree.h"

namespace kvcache::evict {
namespace {

constexpr TenantId kOwn = 1;
constexpr TenantId kOther = 2;

// A tree that tells TenantPolicies, and the owners of what is in it.
class Owned : public UnitOwners {
 public:
  Owned(std::string_view policy)
      : make_(policy_maker(policy, kCosts)), policies(make_(), *this, make_), tree(policies) {}

  TenantId owner(Unit unit) const override {
    const auto found = owners.find(unit);
    return found == owners.end() ? next : found->second;
  }
  std::optional<RunId> above(RunId run) const override {
    if (run == 0) return std::nullopt;
    return tree.parent(run);
  }
  std::uint64_t start(RunId run) const override { return tree.start(run); }
  std::uint64_t end(RunId run) const override { return tree.end(run); }

  void add_tenant(TenantId tenant) {
    policies.add(tenant);
    policies.join_root(tenant, 0, "");
  }
  RunId add(RunId parent, std::uint64_t tokens, TenantId tenant) {
    next = tenant;
    const RunId id = tree.add(parent, tokens);
    owners[run_unit(id)] = tenant;
    return id;
  }
  SnapshotId snapshot(RunId run, std::uint64_t position, TenantId tenant) {
    next = tenant;
    const SnapshotId id = tree.snapshot(run, position);
    owners[snapshot_unit(id)] = tenant;
    return id;
  }

 private:
  const PolicyMaker make_;

 public:
  std::map<Unit, TenantId> owners = {{run_unit(0), kNobody}};
  TenantId next = kNobody;
  TenantPolicies policies;
  Tree tree;
};

class TenantOrders : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Policies, TenantOrders,
                         testing::Values("lru", "gdsf", "s3fifo", "flop_aware", "price_list"),
                         [](const auto& info) { return std::string(info.param); });

// A tree with prefixes of two tenants, and one with those of kOwn alone, which is told at the same
// times.
class Twins {
 public:
  Twins(const char* policy, unsigned seed)
      : rng_(seed),
        shared_(policy),
        alone_policy_(std::move(make_policy(policy, kCosts)).value()),
        alone_(*alone_policy_) {
    shared_.add_tenant(kOwn);
    shared_.add_tenant(kOther);
  }

  // Returns whether victims were compared, which EXPECT does.
  bool step() {
    const auto runs = shared_.tree.runs();
    const bool at_root = runs.empty() || rng_() % 4 == 0;
    const RunId any = at_root ? 0 : runs[rng_() % runs.size()];
    const TenantId tenant =
        at_root ? 1 + static_cast<TenantId>(rng_() % 2) : shared_.owner(run_unit(any));
    const std::uint64_t length = at_root ? 0 : shared_.tree.end(any) - shared_.tree.start(any);
    switch (rng_() % 7) {
      case 0:
      case 1:
        add(any, 1 + rng_() % 20, tenant);
        break;
      case 2:
        if (at_root) break;
        shared_.tree.use(any);
        tenant == kOwn ? alone_.use(there_[run_unit(any)].id) : alone_.tick();
        break;
      case 3:
        if (length > 1) split(any, shared_.tree.start(any) + 1 + rng_() % (length - 1), tenant);
        break;
      case 4:
        if (length > 0) snapshot(any, shared_.tree.start(any) + 1 + rng_() % length, tenant);
        break;
      case 5:
        return compare();
      default:
        if (rng_() % 2 == 0) run_out();
    }
    return false;
  }

 private:
  void add(RunId parent, std::uint64_t tokens, TenantId tenant) {
    const Unit added = run_unit(shared_.add(parent, tokens, tenant));
    if (tenant != kOwn) return alone_.tick();
    there_[added] = run_unit(alone_.add(there_[run_unit(parent)].id, tokens));
  }
  void split(RunId run, std::uint64_t at, TenantId tenant) {
    shared_.tree.split(run, at);
    const Unit upper = run_unit(shared_.tree.parent(run));
    shared_.owners[upper] = tenant;
    if (tenant != kOwn) return;
    const RunId same = there_[run_unit(run)].id;
    alone_.split(same, at);
    there_[upper] = run_unit(alone_.parent(same));
  }
  void snapshot(RunId run, std::uint64_t at, TenantId tenant) {
    const Unit added = snapshot_unit(shared_.snapshot(run, at, tenant));
    if (tenant != kOwn) return alone_.tick();
    there_[added] = snapshot_unit(alone_.snapshot(there_[run_unit(run)].id, at));
  }
  bool compare() {
    const auto victim = shared_.policies.victim_of(kOwn, kAny);
    const auto expected = alone_policy_->victim(kAny);
    EXPECT_EQ(victim.has_value(), expected.has_value());
    if (!victim || !expected) return false;
    EXPECT_EQ(there_[*victim], *expected);
    EXPECT_EQ(shared_.owner(*victim), kOwn);
    shared_.tree.evict(*victim);
    alone_.evict(*expected);
    return true;
  }
  // Memory does: somebody's prefix goes.
  void run_out() {
    const auto victim = shared_.policies.victim(kAny);
    if (!victim) return;
    const bool own = shared_.owner(*victim) == kOwn;
    shared_.tree.evict(*victim);
    if (own) alone_.evict(there_[*victim]);
  }

  std::mt19937 rng_;
  Owned shared_;
  const std::unique_ptr<Policy> alone_policy_;
  Tree alone_;
  std::map<Unit, Unit> there_ = {{run_unit(0), run_unit(0)}};  // in alone_, by what it is here
};

// Beside another tenant's prefixes, one's victims are those of a cache that has no others.
TEST_P(TenantOrders, VictimsOfATenantAreThoseOfAPolicyThatKnowsNobodyElse) {
  std::uint64_t compared = 0;
  for (unsigned seed = 0; seed < 12; ++seed) {
    Twins twins(GetParam(), seed);
    for (int step = 0; step < 1500; ++step) {
      compared += twins.step();
      ASSERT_FALSE(HasFailure()) << seed << ' ' << step;
    }
  }
  EXPECT_GT(compared, 500U);
}

// Prefixes that tenants share: whoever continues another's run knows it, and never gives it up.
TEST_P(TenantOrders, OnSharedPathsVictimsAreTheTenantsOwnLeaves) {
  std::uint64_t found = 0;
  for (unsigned seed = 0; seed < 8; ++seed) {
    std::mt19937 rng(seed);
    Owned shared(GetParam());
    shared.add_tenant(kOwn);
    shared.add_tenant(kOther);
    for (int step = 0; step < 1500; ++step) {
      const auto runs = shared.tree.runs();
      const RunId any = runs.empty() || rng() % 5 == 0 ? 0 : runs[rng() % runs.size()];
      const auto tenant = static_cast<TenantId>(rng() % 3);
      const std::uint64_t length = any == 0 ? 0 : shared.tree.end(any) - shared.tree.start(any);
      const auto join = [&] {
        if (tenant == kNobody) return;
        std::vector<RunId> path;
        for (RunId at = any; at != 0; at = shared.tree.parent(at)) path.push_back(at);
        for (; !path.empty(); path.pop_back()) {
          const std::vector<std::int32_t> tokens(shared.tree.end(path.back()), 1);
          shared.policies.join(tenant, path.back(), tokens, 0);
        }
      };
      switch (rng() % 6) {
        case 0:
        case 1:
          join();
          shared.add(any, 1 + rng() % 20, tenant);
          break;
        case 2:
          if (any != 0) shared.tree.use(any);
          break;
        case 3:
          if (length > 1) {
            shared.tree.split(any, shared.tree.start(any) + 1 + rng() % (length - 1));
            shared.owners[run_unit(shared.tree.parent(any))] = shared.owner(run_unit(any));
          }
          break;
        case 4:
          if (length > 0) {
            join();
            shared.snapshot(any, shared.tree.start(any) + 1 + rng() % length, tenant);
          }
          break;
        default:
          const TenantId whose = rng() % 2 == 0 ? kOwn : kOther;
          const bool of_one = rng() % 3 > 0;
          const auto victim =
              of_one ? shared.policies.victim_of(whose, kAny) : shared.policies.victim(kAny);
          std::set<Unit> own;
          for (const Unit unit : shared.tree.candidates()) {
            if (!of_one || shared.owner(unit) == whose) own.insert(unit);
          }
          ASSERT_EQ(victim.has_value(), !own.empty());
          if (!victim) break;
          ASSERT_TRUE(own.contains(*victim)) << seed << ' ' << step;
          found += of_one;
          shared.tree.evict(*victim);
      }
    }
  }
  EXPECT_GT(found, 300U);
}

TEST(TenantPolicies, WhatIsToldAfterEverythingWasDroppedConcernsNoTenant) {
  Owned shared("lru");
  shared.add_tenant(kOwn);
  const RunId run = shared.add(0, 8, kOwn);
  ASSERT_TRUE(shared.policies.victim_of(kOwn, kAny).has_value());
  shared.policies.forget_all();
  EXPECT_FALSE(shared.policies.victim_of(kOwn, kAny).has_value());
  EXPECT_EQ(shared.policies.victim(kAny), run_unit(run));
  shared.tree.evict(run_unit(run));
  shared.tree.evict(run_unit(run));
  EXPECT_FALSE(shared.policies.victim(kAny).has_value());
  const auto all = shared.policies.take_all();
  EXPECT_EQ(all->name(), "lru");
}

}  // namespace
}  // namespace kvcache::evict
