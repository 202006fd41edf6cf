// What tenants and quotas cost when a prompt is stored: nobody named, a tenant, a tenant with a
// quota that has room, and one that makes room among its own.
//   build/bench_prefix/bench_tenants 100
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "prefix/radix_index.h"

namespace {

using namespace kvcache;
using prefix::BlockTables;
using prefix::RadixIndex;
using Tokens = std::vector<std::int32_t>;

constexpr std::size_t kPrompt = 32768;
constexpr std::uint32_t kBlock = 16;
constexpr std::size_t kStored = 32;  // prompts before those that are measured

class Bench {
 public:
  Bench(const char* policy, const char* tenant, std::uint64_t quota_prompts) : tenant_(tenant) {
    plan_ = std::make_unique<StatePlan>(
        StatePlan::create({{.id = "k",
                            .component = "attention.keys",
                            .kind = StateKind::kPagedKv,
                            .shape = {1, 8}}},
                          {.memory_bytes = std::uint64_t{8} << 30, .block_tokens = kBlock})
            .value());
    arena_ =
        arena::Arena::create(plan_->options().memory_bytes, arena::pool_specs(*plan_, 0), false)
            .value();
    pools_ = arena::map_pools(*plan_, *arena_);
    const auto make = evict::policy_maker(policy, {.block_tokens = kBlock});
    index_ = std::make_unique<RadixIndex>(*plan_, pools_, make, make);
    if (quota_prompts == 0) return;
    const std::uint64_t bytes = quota_prompts * (kPrompt / kBlock) * pools_.pages[0]->item_bytes();
    index_->set_quota(tenant_, prefix::Quota{{.bytes = bytes}, bytes});
  }

  // Microseconds of storing one more prompt.
  double store() {
    Tokens prompt(kPrompt);
    for (auto& token : prompt) token = static_cast<std::int32_t>(rng_() % 150000);
    BlockTables tables(1);
    for (std::size_t i = 0; i < kPrompt / kBlock; ++i) {
      tables[0].push_back(*pools_.pages[0]->allocate());
    }
    const auto start = std::chrono::steady_clock::now();
    index_->insert("", prompt, tables, {}, {}, prefix::kNever, tenant_);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    pools_.pages[0]->release_many(tables[0]);
    return took.count();
  }

 private:
  const std::string tenant_;
  std::mt19937 rng_{0};
  std::unique_ptr<StatePlan> plan_;
  std::unique_ptr<arena::Arena> arena_;
  arena::PoolMap pools_;
  std::unique_ptr<RadixIndex> index_;
};

struct Case {
  const char* what;
  const char* tenant;
  std::uint64_t quota;  // prompts; 0: none
};

// One prompt of each in turn, so that a busy machine is busy for all.
void compare(const char* policy, int rounds) {
  const std::vector<Case> cases = {{"nobody named", "", 0},
                                   {"a tenant without a quota", "a", 0},
                                   {"a tenant with room in its quota", "a", kStored + 1000},
                                   {"a tenant at its quota, 2048 victims", "a", kStored}};
  std::vector<std::unique_ptr<Bench>> benches;
  for (const Case& each : cases) {
    benches.push_back(std::make_unique<Bench>(policy, each.tenant, each.quota));
    for (std::size_t i = 0; i < kStored; ++i) benches.back()->store();
  }
  std::vector<double> best(cases.size(), 1e30);
  for (int i = 0; i < rounds; ++i) {
    for (std::size_t at = 0; at < cases.size(); ++at) {
      best[at] = std::min(best[at], benches[at]->store());
    }
  }
  for (std::size_t at = 0; at < cases.size(); ++at) {
    std::printf("%-10s  insert 32k cold, %-36s %7.1f us\n", policy, cases[at].what, best[at]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 100;
  for (const char* policy : {"lru", "price_list"}) compare(policy, rounds);
  return 0;
}
