// Cost of handing out blocks and of sharing them. Prints ns or us an operation, the best of some
// rounds, and what the metadata of a block takes. The pool is the one that the cache uses.
//
//   bench_arena [rounds]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
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

// A model with 12 attention layers and 48 MiB of recurrent state, its budget full of stored pages.
struct Busy {
  std::unique_ptr<Cache> cache;
  std::int32_t next = 0;

  explicit Busy(std::uint32_t heads) {
    std::vector<StateDecl> decls = {{.id = "r",
                                     .layer = 99,
                                     .component = "state.recurrent",
                                     .kind = StateKind::kRecurrent,
                                     .dtype = DType::kF32,
                                     .shape = {12 << 20}}};
    for (int layer = 0; layer < 12; ++layer) {
      decls.push_back({.id = "k" + std::to_string(layer),
                       .layer = layer,
                       .component = "attention.keys",
                       .kind = StateKind::kPagedKv,
                       .dtype = DType::kF16,
                       .shape = {heads, 256}});
    }
    auto plan =
        StatePlan::create(decls, {.memory_bytes = 768 << 20, .block_tokens = 16, .sequences = 2});
    expect(plan.is_ok(), "StatePlan::create");
    auto made = Cache::create(std::move(plan).value(), {});
    expect(made.is_ok(), "Cache::create");
    cache = std::move(made).value();
  }

  // A sequence of a new prompt, complete but not published.
  Sequence run(std::uint64_t tokens) {
    const std::uint64_t heads = cache->plan().groups()[0].components[0].heads;
    const std::vector<std::uint16_t> rows(tokens * heads * 256, 1);
    constexpr auto head_bytes = static_cast<std::ptrdiff_t>(256 * sizeof(std::uint16_t));
    const codec::RowsView view{.data = rows.data(),
                               .dtype = DType::kF16,
                               .tokens = tokens,
                               .heads = heads,
                               .width = 256,
                               .token_stride = static_cast<std::ptrdiff_t>(heads) * head_bytes,
                               .head_stride = head_bytes};
    const std::vector<std::int32_t> prompt(tokens, next++);
    auto sequence = cache->open(prompt, {});
    expect(sequence.is_ok(), "open");
    for (int layer = 0; layer < 12; ++layer) {
      expect(sequence->write(layer, 0, {&view, 1}).is_ok(), "write");
    }
    expect(sequence->advance(tokens).is_ok(), "advance");
    return std::move(sequence).value();
  }

  // Stores prompts until nothing but pages is left of the budget.
  void fill() {
    const std::uint64_t tokens = 4096;
    const std::uint64_t prompts =
        (cache->stats().budget_bytes - (48 << 20)) / (tokens / 16 * cache->plan().block_bytes());
    for (std::uint64_t i = 0; i < prompts; ++i) expect(run(tokens).publish().is_ok(), "publish");
  }
};

// A snapshot whose memory must come from evicted pages, beside a memcpy of as many bytes.
void bench_snapshot(std::uint32_t heads) {
  Busy busy(heads);
  busy.fill();
  const std::size_t bytes = busy.cache->plan().slot_bytes();
  std::vector<std::byte> from(bytes, std::byte{1});
  std::vector<std::byte> to(bytes, std::byte{2});
  std::vector<double> snapshots;
  std::vector<double> copies;
  for (int round = 0; round < rounds; ++round) {
    Sequence sequence = busy.run(8);
    const std::uint64_t evicted = busy.cache->stats().evicted_blocks;
    auto start = std::chrono::steady_clock::now();
    expect(sequence.snapshot().is_ok(), "snapshot");
    snapshots.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    expect(busy.cache->stats().evicted_blocks > evicted, "eviction by the snapshot");
    start = std::chrono::steady_clock::now();
    std::memcpy(to.data(), from.data(), bytes);
    copies.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    expect(to[bytes / 2] == std::byte{1}, "memcpy");
    sequence.close();
    busy.fill();  // pages take the snapshot's memory again
  }
  std::sort(snapshots.begin(), snapshots.end());
  std::sort(copies.begin(), copies.end());
  std::printf("snapshot of %zu MiB out of evicted pages of %llu KiB: %.2f ms, memcpy %.2f ms\n",
              bytes >> 20, static_cast<unsigned long long>(busy.cache->plan().block_bytes() >> 10),
              snapshots[snapshots.size() / 2] * 1e3, copies[copies.size() / 2] * 1e3);
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
  bench_snapshot(1);
  bench_snapshot(4);
}
