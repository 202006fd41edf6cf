// How far the price list falls under LRU, over generated traces, seeds, lengths and capacities.
//   bench_floor [POLICY [SEEDS [REQUESTS...]]]
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "block_tree.h"
#include "traces.h"

namespace {

using kvcache::bench::BlockRequest;
using kvcache::bench::BlockTree;
using kvcache::bench::TraceKind;

constexpr std::uint64_t kBlockTokens = 512;
constexpr kvcache::evict::Costs kCosts{kBlockTokens, 1 << 20, 0, 64 << 20, 6e9, 196608};
constexpr int kPercents[] = {2, 5, 10, 20, 40, 80};  // of the blocks that are ever used again

std::uint64_t hits(const char* name, const std::vector<BlockRequest>& trace,
                   std::uint64_t capacity) {
  const auto policy = std::move(kvcache::evict::make_policy(name, kCosts)).value();
  BlockTree tree(*policy, kBlockTokens);
  std::uint64_t found = 0;
  for (const BlockRequest& request : trace) {
    found += tree.serve(request);
    while (tree.stored() > capacity && tree.evict()) {
    }
  }
  return found;
}

struct Size {
  std::uint64_t blocks = 0;
  std::uint64_t reused = 0;
  std::uint64_t longest = 0;
};

Size size_of(const std::vector<BlockRequest>& trace) {
  Size size;
  std::unordered_map<std::int32_t, int> uses;
  for (const BlockRequest& request : trace) {
    size.blocks += request.blocks.size();
    size.longest = std::max<std::uint64_t>(size.longest, request.blocks.size());
    for (const std::int32_t block : request.blocks) size.reused += ++uses[block] == 2;
  }
  return size;
}

// Differences to LRU in hit rate: one row, worst of the seeds for each capacity.
double measure(const TraceKind& kind, const char* policy, std::size_t requests, int seeds) {
  constexpr std::size_t kCapacities = std::size(kPercents);
  double worst[kCapacities];
  double sum[kCapacities] = {};
  std::fill(std::begin(worst), std::end(worst), 1.0);
  for (int seed = 0; seed < seeds; ++seed) {
    std::mt19937_64 rng(static_cast<std::uint64_t>(seed) * 1000003 + requests);
    const auto trace = kind.make(rng, requests);
    const Size size = size_of(trace);
    for (std::size_t c = 0; c < kCapacities; ++c) {
      const auto share = size.reused * static_cast<std::uint64_t>(kPercents[c]) / 100;
      const std::uint64_t capacity = std::max(share, size.longest);
      const auto ours = static_cast<double>(hits(policy, trace, capacity));
      const auto lru = static_cast<double>(hits("lru", trace, capacity));
      const double difference = (ours - lru) / static_cast<double>(size.blocks);
      worst[c] = std::min(worst[c], difference);
      sum[c] += difference;
    }
  }
  std::printf("%-17s %6zu", std::string(kind.name).c_str(), requests);
  for (std::size_t c = 0; c < kCapacities; ++c) {
    std::printf("  %+.4f (%+.3f)", worst[c], sum[c] / seeds);
  }
  const double least = *std::min_element(std::begin(worst), std::end(worst));
  std::printf("%s\n", least < -0.004 ? "  <<" : "");
  std::fflush(stdout);
  return least;
}

}  // namespace

int main(int argc, char** argv) {
  const char* policy = argc > 1 ? argv[1] : "price_list";
  const int seeds = argc > 2 ? std::atoi(argv[2]) : 4;
  std::vector<std::size_t> lengths;
  for (int i = 3; i < argc; ++i) lengths.push_back(std::strtoull(argv[i], nullptr, 10));
  if (lengths.empty()) lengths = {500, 1500, 4000, 12000};
  if (!kvcache::evict::make_policy(policy, kCosts) || seeds < 1) {
    std::fprintf(stderr, "usage: bench_floor [POLICY [SEEDS [REQUESTS...]]]\n");
    return 2;
  }
  std::printf(
      "%s, block hit rate less LRU's: worst (mean) of %d seeds, keeping 2, 5, 10, 20, 40, "
      "80 %% of the blocks used again\n",
      policy, seeds);
  double worst = 1;
  for (const std::size_t length : lengths) {
    for (const TraceKind& kind : kvcache::bench::trace_kinds()) {
      worst = std::min(worst, measure(kind, policy, length, seeds));
    }
  }
  std::printf("worst %+.4f\n", worst);
  return 0;
}
