// Cost of handing out blocks and of sharing them. Prints ns or us an operation, the best of some
// rounds, and what the metadata of a block takes. The pool is the one that the cache uses.
//
//   bench_arena [rounds]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "kvcache/cache.h"
#include "kvcache/page_pool.h"

namespace {

using namespace kvcache;
using Ids = std::vector<std::int32_t>;

int rounds = 15;

// Seconds of one `work()`, the best round of `times` calls.
double best(int times, const std::function<void()>& work) {
  double least = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) work();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    least = std::min(least, spent.count() / times);
  }
  return least;
}

void expect(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "bench_arena: %s failed\n", what);
  std::exit(1);
}

std::unique_ptr<PagePool> make_pool(std::uint64_t blocks, std::uint64_t block_bytes) {
  auto pool = PagePool::create({.blocks = blocks, .block_bytes = block_bytes, .backing = false});
  expect(pool.is_ok(), "PagePool::create");
  return std::move(pool).value();
}

// Half of the blocks live, the free ones scattered, as after a long time of service.
void age(PagePool& pool) {
  Ids all(pool.blocks());
  expect(pool.allocate_many(all).is_ok(), "allocate_many");
  std::shuffle(all.begin(), all.end(), std::mt19937(1));
  expect(pool.free(std::span(all).first(all.size() / 2)).is_ok(), "free");
}

void bench_pool(std::uint64_t blocks, std::uint64_t block_bytes) {
  const auto pool = make_pool(blocks, block_bytes);
  age(*pool);
  const double one = best(20000, [&] {
    const auto id = pool->allocate();
    expect(id.is_ok() && pool->free({&*id, 1}).is_ok(), "allocate and free");
  });
  Ids many(std::min<std::uint64_t>(2048, blocks / 2));
  const double bulk = best(
      200, [&] { expect(pool->allocate_many(many).is_ok() && pool->free(many).is_ok(), "bulk"); });
  const double share = best(200, [&] {
    expect(pool->allocate_many(many).is_ok(), "allocate_many");
    expect(pool->retain(many).is_ok() && pool->free(many).is_ok(), "retain");
    expect(pool->free(many).is_ok(), "free");
  });
  std::printf("%9llu %9llu  %8.1f ns  %9.2f us (%5zu) %9.2f us  %8.1f\n",
              static_cast<unsigned long long>(blocks), static_cast<unsigned long long>(block_bytes),
              one * 1e9, bulk * 1e6, many.size(), (share - bulk) * 1e6,
              static_cast<double>(pool->metadata_bytes()) / static_cast<double>(blocks));
}

// A sequence of `tokens` positions in one group, forked and closed.
void bench_fork(std::uint64_t tokens, bool windowed) {
  std::vector<StateDecl> decls;
  for (int layer = 0; layer < (windowed ? 2 : 1); ++layer) {
    decls.push_back({.id = "k" + std::to_string(layer),
                     .layer = layer,
                     .component = "attention.keys",
                     .kind = StateKind::kPagedKv,
                     .dtype = DType::kF16,
                     .shape = {8, 128},
                     .window = layer == 1 ? 4096U : 0U});
  }
  auto plan = StatePlan::create(
      decls, {.memory_bytes = std::uint64_t{16} << 30, .block_tokens = 16, .sequences = 64});
  expect(plan.is_ok(), "StatePlan::create");
  auto cache = Cache::create(std::move(plan).value(), {.backing = false});
  expect(cache.is_ok(), "Cache::create");
  std::vector<std::int32_t> prompt(tokens);
  std::iota(prompt.begin(), prompt.end(), 0);
  auto sequence = (*cache)->open(prompt, {});
  expect(sequence.is_ok() && sequence->advance(tokens).is_ok(), "advance");
  const double both = best(200, [&] { expect(sequence->fork().is_ok(), "fork"); });
  double fork = 1e9;
  double close = 1e9;
  for (int i = 0; i < rounds * 200; ++i) {
    const auto start = std::chrono::steady_clock::now();
    auto child = sequence->fork();
    const auto made = std::chrono::steady_clock::now();
    expect(child.is_ok(), "fork");
    child->close();
    const auto end = std::chrono::steady_clock::now();
    fork = std::min(fork, std::chrono::duration<double>(made - start).count());
    close = std::min(close, std::chrono::duration<double>(end - made).count());
  }
  std::printf("fork of %llu tokens, %s: %.1f us, close of it %.1f us, both in a row %.1f us\n",
              static_cast<unsigned long long>(tokens),
              windowed ? "a full and a windowed group" : "one full group", fork * 1e6, close * 1e6,
              both * 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) rounds = std::max(1, std::atoi(argv[1]));
  std::printf("   blocks     bytes  one+free      bulk+free          retain+free  B a block\n");
  for (const std::uint64_t block_bytes : {std::uint64_t{64} << 10, std::uint64_t{4096}}) {
    for (const std::uint64_t blocks : {1000, 10000, 100000, 1000000}) {
      bench_pool(blocks, block_bytes);
    }
  }
  bench_fork(32768, false);
  bench_fork(32768, true);
}
