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
      : make_([policy] { return std::move(make_policy(policy, kCosts)).value(); }),
        policies(make_(), *this, make_),
        tree(policies) {}

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
  const TenantPolicies::Maker make_;

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

// Beside another tenant's prefixes, one's victims are those of a cache that has no others.
TEST_P(TenantOrders, VictimsOfATenantAreThoseOfAPolicyThatKnowsNobodyElse) {
  std::uint64_t compared = 0;
  for (unsigned seed = 0; seed < 12; ++seed) {
    std::mt19937 rng(seed);
    Owned shared(GetParam());
    shared.add_tenant(kOwn);
    shared.add_tenant(kOther);
    const auto alone_policy = std::move(make_policy(GetParam(), kCosts)).value();
    Tree alone(*alone_policy);
    std::map<Unit, Unit> there;  // of the tree alone, by the shared one's
    there[run_unit(0)] = run_unit(0);
    for (int step = 0; step < 1500; ++step) {
      const auto runs = shared.tree.runs();
      const bool at_root = runs.empty() || rng() % 4 == 0;
      const RunId any = at_root ? 0 : runs[rng() % runs.size()];
      const TenantId tenant =
          at_root ? 1 + static_cast<TenantId>(rng() % 2) : shared.owner(run_unit(any));
      const bool own = tenant == kOwn;
      const std::uint64_t length = at_root ? 0 : shared.tree.end(any) - shared.tree.start(any);
      switch (rng() % 7) {
        case 0:
        case 1: {
          const std::uint64_t tokens = 1 + rng() % 20;
          const RunId added = shared.add(any, tokens, tenant);
          if (own) {
            there[run_unit(added)] = run_unit(alone.add(there[run_unit(any)].id, tokens));
          } else {
            alone.tick();
          }
          break;
        }
        case 2:
          if (at_root) break;
          shared.tree.use(any);
          own ? alone.use(there[run_unit(any)].id) : alone.tick();
          break;
        case 3: {
          if (length < 2) break;
          const std::uint64_t at = shared.tree.start(any) + 1 + rng() % (length - 1);
          shared.tree.split(any, at);
          const RunId upper = shared.tree.parent(any);
          shared.owners[run_unit(upper)] = tenant;
          if (!own) break;
          const RunId same = there[run_unit(any)].id;
          alone.split(same, at);
          there[run_unit(upper)] = run_unit(alone.parent(same));
          break;
        }
        case 4: {
          if (length == 0) break;
          const std::uint64_t at = shared.tree.start(any) + 1 + rng() % length;
          const SnapshotId added = shared.snapshot(any, at, tenant);
          if (own) {
            there[snapshot_unit(added)] =
                snapshot_unit(alone.snapshot(there[run_unit(any)].id, at));
          } else {
            alone.tick();
          }
          break;
        }
        case 5: {
          const auto victim = shared.policies.victim_of(kOwn, kAny);
          const auto expected = alone_policy->victim(kAny);
          ASSERT_EQ(victim.has_value(), expected.has_value()) << seed << ' ' << step;
          if (!victim) break;
          ASSERT_EQ(there[*victim], *expected) << seed << ' ' << step;
          ASSERT_EQ(shared.owner(*victim), kOwn);
          shared.tree.evict(*victim);
          alone.evict(*expected);
          ++compared;
          break;
        }
        default: {
          if (rng() % 2 == 0) break;
          // Memory runs out: whoever's it is.
          const auto victim = shared.policies.victim(kAny);
          if (!victim) break;
          const bool was_own = shared.owner(*victim) == kOwn;
          shared.tree.evict(*victim);
          if (was_own) alone.evict(there[*victim]);
        }
      }
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
