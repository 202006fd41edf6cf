#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "kvcache/pages.h"
#include "tenants.h"

namespace kvcache {
namespace {

using namespace tenants;

// Random requests of three tenants against an account that is kept without the index: who is
// charged for a page is who made it appear among the indexed ones, until it is none of them.
class Fuzz {
 public:
  Fuzz(const char* policy, bool hybrid, unsigned seed)
      : rng_(seed), cache_(make(hybrid ? content::decls() : attention(), {.policy = policy})) {}

  void step() {
    switch (below(14)) {
      case 0:
        return set_quota();
      case 1:
        if (below(4) == 0) return drop();
        return erase();
      case 2:
        if (!pins_.empty() && below(2) == 0) pins_.pop_back();
        if (auto pin = cache_->pin(prompt(), {})) pins_.push_back(std::move(pin).value());
        return check({});
      case 3:
        if (!open_.empty()) open_.erase(open_.begin() + below(open_.size()));
        return check({});
      default:
        return request();
    }
  }

  void finish() {
    open_.clear();
    pins_.clear();
    for (const std::string& name : kNames) {
      ASSERT_TRUE(cache_->set_quota(name, MemoryShare{.bytes = 0}).is_ok());
    }
    // Now everything may go, but for what others continue: from the last one on, nobody does.
    for (const std::string& name : kNames) (void)cache_->erase(of(name));
    for (const TenantUsage& each : cache_->tenants()) {
      EXPECT_EQ(each.bytes + each.blocks + each.snapshots, 0U) << each.name;
    }
    for (const std::string& name : kNames) {
      ASSERT_TRUE(cache_->set_quota(name, std::nullopt).is_ok());
    }
    EXPECT_TRUE(cache_->tenants().empty());
    cache_->clear();
    EXPECT_EQ(cache_->stats().used_bytes, 0U);
  }
  std::uint64_t refusals() const { return refusals_; }
  std::uint64_t evictions() const { return evictions_; }

 private:
  static inline const std::vector<std::string> kNames = {"a", "b", "c"};
  using Page = std::pair<std::size_t, std::int32_t>;

  std::uint32_t below(std::size_t limit) { return static_cast<std::uint32_t>(rng_() % limit); }
  Tokens prompt() {
    Tokens tokens(2 + below(20), 5);
    for (std::size_t i = 3; i < tokens.size(); ++i) tokens[i] = static_cast<int>(below(2));
    return tokens;
  }

  std::set<Page> indexed() const {
    std::set<Page> found;
    for (std::size_t group = 0; group < cache_->plan().groups().size(); ++group) {
      const auto live = cache_->page_refs(group);
      for (const PageRefs& page : *live) {
        if (page.indexed > 0) found.insert({group, page.page});
      }
    }
    return found;
  }

  // After a call of `tenant`'s.
  void check(const std::string& tenant) {
    const std::set<Page> now = indexed();
    std::erase_if(charged_, [&](const auto& each) { return !now.contains(each.first); });
    std::erase_if(stale_, [&](const Page& page) { return !now.contains(page); });
    for (const Page& page : now) {
      if (!stale_.contains(page)) charged_.try_emplace(page, tenant);
    }
    std::map<std::string, std::uint64_t> bytes;
    for (const auto& [page, owner] : charged_) {
      bytes[owner] += cache_->plan().groups()[page.first].page_bytes;
    }
    std::uint64_t blocks = 0;
    std::uint64_t snapshots = 0;
    const CacheStats stats = cache_->stats();
    for (const TenantUsage& each : cache_->tenants()) {
      const std::uint64_t state = each.snapshots * cache_->plan().slot_bytes();
      EXPECT_EQ(each.bytes, bytes[each.name] + state) << each.name;
      bytes.erase(each.name);
      blocks += each.blocks;
      snapshots += each.snapshots;
      if (!each.quota_bytes) continue;
      // Beyond the quota it never grows.
      std::uint64_t& most = most_[each.name];
      most = std::max(*each.quota_bytes, std::min(most, each.bytes));
      EXPECT_LE(each.bytes, most) << each.name;
      refusals_ += each.refused_blocks;
      evictions_ += each.evicted_blocks;
    }
    for (const auto& [name, left] : bytes) EXPECT_TRUE(name.empty() || left == 0) << name;
    EXPECT_LE(blocks, stats.indexed_blocks);
    EXPECT_LE(snapshots, stats.indexed_snapshots);
    if (!disowned_) {
      EXPECT_EQ(blocks, stats.indexed_blocks);
      EXPECT_EQ(snapshots, stats.indexed_snapshots);
    }
  }

  void request() {
    const std::string& tenant = kNames[below(3)];
    Sequence sequence = [&] {
      if (!open_.empty() && below(3) == 0) {
        const std::size_t at = below(open_.size());
        Sequence taken = std::move(open_[at].first);
        tenant_ = open_[at].second;
        open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(at));
        EXPECT_TRUE(taken.extend(Tokens(1 + below(6), static_cast<int>(below(2)))).is_ok());
        return taken;
      }
      tenant_ = tenant;
      return cache_->open(prompt(), {}, by(tenant)).value();
    }();
    EXPECT_EQ(is_hybrid() ? content::wrong_bytes(sequence) : "", "");
    const std::uint64_t size = sequence.tokens().size();
    while (sequence.length() < size) {
      const std::uint64_t stop = std::min<std::uint64_t>(size, sequence.length() + 1 + below(9));
      complete(sequence, stop);
      if (below(2) == 0) {
        EXPECT_TRUE(sequence.snapshot().is_ok());
      }
      if (below(2) == 0) publish(sequence);
    }
    if (below(3) > 0) publish(sequence);
    if (open_.size() < 6 && below(3) == 0) {
      open_.emplace_back(std::move(sequence), tenant_);
    }
    check(tenant_);
  }

  bool is_hybrid() const { return cache_->plan().has_fixed_state(); }
  void complete(Sequence& sequence, std::uint64_t stop) {
    if (is_hybrid()) {
      ASSERT_TRUE(content::complete(sequence, stop).is_ok());
      return;
    }
    const std::uint64_t start = sequence.length();
    std::vector<float> rows = content::rows_of(sequence.tokens(), start, stop, 0);
    const auto view = content::view_of<codec::RowsView>(rows.data(), stop - start);
    ASSERT_TRUE(sequence.write(0, start, {&view, 1}).is_ok());
    ASSERT_TRUE(sequence.advance(stop - start).is_ok());
  }

  // Nothing that others are charged for leaves for it, but for pages that no hit needs.
  void publish(Sequence& sequence) {
    check(tenant_);  // closed sequences may have let others go
    std::set<Page> others;
    for (const auto& [page, owner] : charged_) {
      if (owner != tenant_ && cache_->plan().groups()[page.first].window == 0) others.insert(page);
    }
    std::map<std::string, std::uint64_t> snapshots;
    for (const TenantUsage& each : cache_->tenants()) snapshots[each.name] = each.snapshots;
    EXPECT_TRUE(sequence.publish().is_ok());
    const std::set<Page> now = indexed();
    for (const Page& page : others) EXPECT_TRUE(now.contains(page)) << "for " << tenant_;
    for (const auto& [name, before] : snapshots) {
      if (name == tenant_) continue;
      EXPECT_EQ(usage(*cache_, name).snapshots, before) << "for " << tenant_;
    }
    check(tenant_);
  }

  void set_quota() {
    const std::string& name = kNames[below(3)];
    std::optional<MemoryShare> quota;
    const std::uint64_t unit = cache_->plan().block_bytes() + cache_->plan().slot_bytes();
    if (below(4) > 0) quota = MemoryShare{.bytes = below(12) * unit};
    EXPECT_TRUE(cache_->set_quota(name, quota).is_ok());
    most_[name] = UINT64_MAX;
    check({});
  }

  void erase() {
    const std::string& name = kNames[below(3)];
    EraseFilter filter = of(name);
    const bool part = below(3) == 0;
    if (part) filter = {"", "", "", {}, prompt(), name};
    EXPECT_TRUE(cache_->erase(filter).is_ok());
    // What of it stays for others is nobody's; of a part, whose is not for this test to say.
    const std::set<Page> now = indexed();
    std::uint64_t left = 0;
    for (auto& [page, owner] : charged_) {
      if (!now.contains(page) || owner != name) continue;
      if (!part) owner.clear();
      ++left;
    }
    if (part) {
      const auto rest = cache_->erase(of(name));
      EXPECT_TRUE(rest.is_ok());
      for (auto& [page, owner] : charged_) {
        if (owner == name) owner.clear();
      }
    }
    disowned_ = disowned_ || left > 0;
    check({});
  }

  void drop() {
    const std::set<Page> now = indexed();
    if (below(2) == 0) {
      cache_->clear();
    } else {
      cache_->bump_epoch("");
      stale_.insert(now.begin(), now.end());
      open_.clear();  // they go on, but store nothing any more
    }
    charged_.clear();
    disowned_ = false;
    check({});
  }

  std::mt19937 rng_;
  const std::unique_ptr<Cache> cache_;
  std::string tenant_;
  std::vector<std::pair<Sequence, std::string>> open_;
  std::vector<Pin> pins_;
  std::map<Page, std::string> charged_;
  std::set<Page> stale_;  // dropped, but still there
  std::map<std::string, std::uint64_t> most_;
  bool disowned_ = false;
  std::uint64_t refusals_ = 0;
  std::uint64_t evictions_ = 0;
};

class TenantsFuzz : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Policies, TenantsFuzz,
                         testing::Values("lru", "gdsf", "s3fifo", "flop_aware", "price_list"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(TenantsFuzz, ChargesAndLimitsAreThoseOfABruteForceAccount) {
  std::uint64_t refusals = 0;
  std::uint64_t evictions = 0;
  for (unsigned seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    Fuzz fuzz(GetParam(), seed % 2 == 0, seed);
    for (int i = 0; i < 400 && !HasFailure(); ++i) fuzz.step();
    if (HasFailure()) return;
    fuzz.finish();
    refusals += fuzz.refusals();
    evictions += fuzz.evictions();
  }
  EXPECT_GT(refusals, 100U);
  EXPECT_GT(evictions, 100U);
}

}  // namespace
}  // namespace kvcache
