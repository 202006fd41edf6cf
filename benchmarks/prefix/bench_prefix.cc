// The prefix index by itself: match, insert, evict and memory, on a ledger without bytes.
//   bench_prefix [rounds]    0: memory and eviction alone
// Best of the rounds, in microseconds; memcmp of the same tokens beside them.
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "arena/arena.h"
#include "arena/pool_map.h"
#include "evict/policy.h"
#include "prefix/radix_index.h"

namespace {

using namespace kvcache;
using prefix::BlockTables;
using prefix::RadixIndex;
using prefix::SnapshotRef;
using Tokens = std::vector<std::int32_t>;

constexpr std::size_t kPrompt = 32768;
constexpr std::uint32_t kBlock = 16;
constexpr std::size_t kTurn = 256;
constexpr std::size_t kChunk = 2048;

template <typename Call>
double best_us(int rounds, Call call) {
  double best = 1e30;
  for (int i = 0; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  return best;
}

struct Bench {
  explicit Bench(bool hybrid, std::string_view policy = "lru") {
    std::vector<StateDecl> decls = {{.id = "k",
                                     .layer = 0,
                                     .component = "attention.keys",
                                     .kind = StateKind::kPagedKv,
                                     .shape = {1, 8}}};
    if (hybrid) {
      decls.push_back({.id = "r",
                       .layer = 1,
                       .component = "state.recurrent",
                       .kind = StateKind::kRecurrent,
                       .dtype = DType::kF32,
                       .shape = {16}});
    }
    plan = std::make_unique<StatePlan>(
        StatePlan::create(decls, {.memory_bytes = std::uint64_t{8} << 30, .block_tokens = kBlock})
            .value());
    arena = arena::Arena::create(plan->options().memory_bytes, arena::pool_specs(*plan, 0), false)
                .value();
    pools = arena::map_pools(*plan, *arena);
    const auto make = evict::policy_maker(policy, {.block_tokens = kBlock});
    index = std::make_unique<RadixIndex>(*plan, pools, make, make);
  }

  BlockTables pages(std::size_t tokens) {
    BlockTables tables(1);
    for (std::size_t i = 0; i < (tokens + kBlock - 1) / kBlock; ++i) {
      tables[0].push_back(*pools.pages[0]->allocate());
    }
    return tables;
  }

  std::unique_ptr<StatePlan> plan;
  std::unique_ptr<arena::Arena> arena;
  arena::PoolMap pools;
  std::unique_ptr<RadixIndex> index;
};

Tokens random_tokens(std::mt19937& rng, std::size_t count) {
  Tokens tokens(count);
  for (auto& token : tokens) token = static_cast<std::int32_t>(rng() % 150000);
  return tokens;
}

void report(const std::string& what, double us) {
  std::printf("%-44s %9.2f us\n", what.c_str(), us);
}

void match_and_insert(int rounds) {
  std::mt19937 rng(0);
  const Tokens prompt = random_tokens(rng, kPrompt);
  const Tokens copy = prompt;
  volatile int sink = 0;
  report("memcmp of 32k tokens", best_us(rounds, [&] {
           sink = sink + std::memcmp(prompt.data(), copy.data(), kPrompt * sizeof(std::int32_t));
         }));
  double insert = 1e30;
  for (int i = 0; i < std::min(rounds, 20); ++i) {
    Bench b(false);
    const BlockTables tables = b.pages(kPrompt);
    insert = std::min(insert, best_us(1, [&] { b.index->insert("", prompt, tables, {}); }));
  }
  report("insert 32k cold", insert);
  Bench one(false);
  one.index->insert("", prompt, one.pages(kPrompt), {});
  report("match 32k, exact, one run", best_us(rounds, [&] { one.index->match("", copy, true); }));

  Bench branches(false);
  std::vector<Tokens> prompts;
  for (int i = 0; i < 64; ++i) {
    Tokens other(prompt.begin(), prompt.begin() + kPrompt / 2);
    const Tokens rest = random_tokens(rng, kPrompt / 2);
    other.insert(other.end(), rest.begin(), rest.end());
    prompts.push_back(other);
  }
  double shared = 1e30;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const BlockTables tables = branches.pages(kPrompt);
    const double us = best_us(1, [&] { branches.index->insert("", prompts[i], tables, {}); });
    if (i > 1) shared = std::min(shared, us);
  }
  report("insert 16k new after 16k shared", shared);
  std::size_t next = 0;
  report("match 32k in a tree of 64 branches",
         best_us(rounds, [&] { branches.index->match("", prompts[next++ % 64], true); }));

  // A leaf would grow in place; a branch at each turn makes 128 runs.
  Bench chain(false);
  for (std::size_t end = kTurn; end <= kPrompt; end += kTurn) {
    Tokens turn(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(end));
    chain.index->insert("", turn, chain.pages(end), {});
    turn.push_back(-1);
    chain.index->insert("", turn, chain.pages(end + 1), {});
  }
  report("match 32k along 128 runs", best_us(rounds, [&] { chain.index->match("", copy, true); }));
}

void hybrid(int rounds) {
  std::mt19937 rng(0);
  const Tokens prompt = random_tokens(rng, kPrompt);
  Bench b(true);
  const BlockTables tables = b.pages(kPrompt);
  const double insert = best_us(1, [&] {
    for (std::size_t end = kChunk; end <= kPrompt; end += kChunk) {
      const SnapshotRef snapshot{end, *b.pools.snapshots->allocate()};
      const BlockTables known = {
          {tables[0].begin(), tables[0].begin() + static_cast<std::ptrdiff_t>(end / kBlock)}};
      b.index->insert("", std::span(prompt).first(end), known, {&snapshot, 1});
    }
  });
  report("hybrid insert 32k in 16 chunks", insert);
  report("hybrid match 32k, 16 snapshots",
         best_us(rounds, [&] { b.index->match("", prompt, true); }));
}

// Great arrays are mappings of their own.
std::size_t allocated_bytes() {
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

// One request after the other, each with a prompt of its own; then one victim after the other.
void memory_and_eviction(std::string_view policy, std::size_t nodes, std::size_t run) {
  std::mt19937 rng(0);
  Bench b(false, policy);
  std::vector<Tokens> prompts;
  for (std::size_t i = 0; i < nodes; ++i) {
    prompts.push_back(random_tokens(rng, run * kBlock));
    prompts.back().front() = static_cast<std::int32_t>(i);  // or chance would part many once more
  }
  std::vector<BlockTables> tables;
  for (const Tokens& prompt : prompts) tables.push_back(b.pages(prompt.size()));
  const std::size_t before = allocated_bytes();
  for (std::size_t i = 0; i < nodes; ++i) {
    b.index->insert("", prompts[i], tables[i], {});
    b.index->complete("", prompts[i], {.now_ms = i, .prompt_tokens = prompts[i].size()});
  }
  const std::size_t held = allocated_bytes() - before;
  for (const BlockTables& t : tables) b.pools.pages[0]->release_many(t[0]);
  std::printf("%s, %zu runs of %zu blocks: %.0f bytes a block beyond its tokens\n",
              std::string(policy).c_str(), nodes, run,
              static_cast<double>(held) / static_cast<double>(nodes * run) - kBlock * 4);
  std::size_t evicted = 0;
  const std::clock_t start = std::clock();
  while (b.index->evict_one()) ++evicted;
  const double us = 1e6 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  std::printf("%zu victims: %.3f us of CPU each\n", evicted, us / static_cast<double>(evicted));
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 300;
  if (rounds > 0) {
    match_and_insert(rounds);
    hybrid(rounds);
  }
  for (const char* policy : {"lru", "price_list"}) {
    memory_and_eviction(policy, 1 << 16, 16);
    memory_and_eviction(policy, 1 << 18, 4);
    memory_and_eviction(policy, 1 << 20, 1);
  }
  return 0;
}
