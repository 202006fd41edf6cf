// Policies against their plain references: equal victims, whatever the index does.
#include "evict_reference.h"

#include <gtest/gtest.h>

#include <random>

#include "evict_tree.h"

namespace kvcache::evict {
namespace {

// Tells two policies the same and wants the same of them.
class Both final : public Policy {
 public:
  Both(Policy& fast, Policy& plain) : fast_(fast), plain_(plain) {}

  std::string_view name() const override { return fast_.name(); }
  void add_root(RunId root, std::string_view space) override {
    for (Policy* each : {&fast_, &plain_}) each->add_root(root, space);
  }
  void add_run(RunId run, RunId parent, std::span<const std::int32_t> path, std::uint64_t start,
               std::uint64_t clock) override {
    for (Policy* each : {&fast_, &plain_}) each->add_run(run, parent, path, start, clock);
  }
  void grow_run(RunId run, std::span<const std::int32_t> path) override {
    for (Policy* each : {&fast_, &plain_}) each->grow_run(run, path);
  }
  void split_run(RunId upper, RunId run, std::uint64_t position) override {
    for (Policy* each : {&fast_, &plain_}) each->split_run(upper, run, position);
  }
  void shrink_run(RunId run, std::uint64_t end) override {
    for (Policy* each : {&fast_, &plain_}) each->shrink_run(run, end);
  }
  void add_snapshot(SnapshotId snapshot, RunId run, std::uint64_t position,
                    std::uint64_t clock) override {
    for (Policy* each : {&fast_, &plain_}) each->add_snapshot(snapshot, run, position, clock);
  }
  void remove_snapshot(SnapshotId snapshot) override {
    for (Policy* each : {&fast_, &plain_}) each->remove_snapshot(snapshot);
  }
  void use(Unit unit, std::uint64_t clock) override {
    for (Policy* each : {&fast_, &plain_}) each->use(unit, clock);
  }
  void complete(const Completion& completion) override {
    for (Policy* each : {&fast_, &plain_}) each->complete(completion);
  }
  void insert(Unit unit) override {
    for (Policy* each : {&fast_, &plain_}) each->insert(unit);
  }
  void erase(Unit unit) override {
    for (Policy* each : {&fast_, &plain_}) each->erase(unit);
  }
  std::optional<Unit> victim(const MayGo& may_go) override {
    const auto fast = fast_.victim(may_go);
    EXPECT_EQ(fast, plain_.victim(may_go)) << name();
    return fast;
  }

 private:
  Policy& fast_;
  Policy& plain_;
};

template <typename Plain>
class Reference : public testing::Test {};
using Plains = testing::Types<PlainLru, PlainGdsf, PlainFlopAware, PlainS3Fifo>;
TYPED_TEST_SUITE(Reference, Plains);

TYPED_TEST(Reference, NamesTheSameVictims) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    TypeParam plain(kCosts);
    const auto fast = std::move(make_policy(plain.name(), kCosts)).value();
    Both both(*fast, plain);
    Tree tree(both);
    std::mt19937 rng(seed);
    int evicted = 0;
    for (int step = 0; step < 1500; ++step) {
      if (random_step(tree, rng)) continue;
      // Sometimes a part of them may not go.
      const unsigned held = rng() % 4 == 0 ? 3 : 1000000;
      const auto victim = both.victim([&](Unit unit) { return unit.id % held != 1; });
      if (testing::Test::HasFailure()) FAIL() << "seed " << seed << ", step " << step;
      if (!victim || rng() % 4 == 0) continue;
      tree.evict(*victim);
      ++evicted;
    }
    EXPECT_GT(evicted, 100);
  }
}

}  // namespace
}  // namespace kvcache::evict
