// What the eviction policies cost and find, on a tree without bytes.
//   bench_evict TRACE.jsonl [--hints FILE] CAPACITY...
//                                          blocks found, and ns for each block touched
//   bench_evict --victims NODES            us for each victim among so many leaves
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "block_tree.h"

namespace {

using kvcache::bench::BlockRequest;
using kvcache::bench::BlockTree;
using kvcache::evict::make_policy;
using kvcache::evict::policy_names;

constexpr std::uint64_t kBlockTokens = 512;
constexpr kvcache::evict::Costs kCosts{kBlockTokens, 1 << 20, 0, 64 << 20, 6e9, 196608};

// Of this process alone: others may be busy.
double cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

std::uint64_t number_after(const std::string& line, const char* key) {
  const auto at = line.find(key);
  return at == std::string::npos ? 0
                                 : std::strtoull(line.c_str() + at + std::strlen(key), nullptr, 10);
}

// Lines as the Mooncake traces have them.
std::vector<BlockRequest> read_trace(const char* path) {
  std::vector<BlockRequest> requests;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    BlockRequest request{number_after(line, "\"timestamp\": "),
                         number_after(line, "\"input_length\": "),
                         number_after(line, "\"output_length\": "),
                         {},
                         0};
    const char* at = std::strchr(line.c_str() + line.find("\"hash_ids\""), '[');
    while (at != nullptr && *at != ']') {
      char* end = nullptr;
      request.blocks.push_back(static_cast<std::int32_t>(std::strtoll(at + 1, &end, 10)));
      at = end;
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

// LRU first, for the others are compared with it.
std::vector<std::string_view> names() {
  auto all = policy_names();
  std::stable_partition(all.begin(), all.end(), [](auto name) { return name == "lru"; });
  return all;
}

void replay(const std::vector<BlockRequest>& requests, std::uint64_t capacity) {
  double lru_ns = 0;
  for (const auto name : names()) {
    const auto policy = std::move(make_policy(name, kCosts)).value();
    BlockTree tree(*policy, kBlockTokens);
    std::uint64_t hits = 0;
    std::uint64_t blocks = 0;
    std::uint64_t first_half = 0;
    const double start = cpu_ns();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (i == requests.size() / 2) first_half = hits;
      hits += tree.serve(requests[i]);
      blocks += requests[i].blocks.size();
      while (tree.stored() > capacity && tree.evict()) {
      }
    }
    const double ns = (cpu_ns() - start) / static_cast<double>(blocks);
    if (name == "lru") lru_ns = ns;
    const auto meter = policy->meter();
    std::printf("%7" PRIu64 " %-10s hits %7" PRIu64 " (%.4f, first half %" PRIu64
                ") %6.0f ns/block (%+.0f to lru) meter %" PRIu64 "/%" PRIu64 "\n",
                capacity, std::string(name).c_str(), hits,
                static_cast<double>(hits) / static_cast<double>(blocks), first_half, ns,
                ns - lru_ns, meter.hit_blocks, meter.lru_hit_blocks);
  }
}

// Fresh prompts of a few blocks each, then victims one by one.
void victims(std::uint64_t leaves) {
  for (const auto name : names()) {
    const auto policy = std::move(make_policy(name, kCosts)).value();
    BlockTree tree(*policy, kBlockTokens);
    std::mt19937 rng(1);
    for (std::uint64_t i = 0; i < leaves; ++i) {
      const auto block = static_cast<std::int32_t>(1 + i);
      tree.serve({i, kBlockTokens, rng() % 300, {block}});
    }
    const std::uint64_t count = leaves / 10;
    const double start = cpu_ns();
    for (std::uint64_t i = 0; i < count; ++i) tree.evict();
    std::printf("%-10s %.2f us a victim among %" PRIu64 "\n", std::string(name).c_str(),
                (cpu_ns() - start) / 1000 / static_cast<double>(count), leaves);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--victims") == 0) {
    victims(std::strtoull(argv[2], nullptr, 10));
    return 0;
  }
  if (argc < 3) {
    std::fprintf(stderr,
                 "usage: bench_evict TRACE.jsonl [--hints FILE] CAPACITY... | --victims NODES\n");
    return 2;
  }
  auto requests = read_trace(argv[1]);
  int first = 2;
  if (argc > 4 && std::strcmp(argv[2], "--hints") == 0) {
    std::ifstream hints(argv[3]);
    for (BlockRequest& request : requests) {
      if (hints >> request.hint) continue;
      std::fprintf(stderr, "%s: fewer hints than requests\n", argv[3]);
      return 2;
    }
    first = 4;
  }
  for (int i = first; i < argc; ++i) replay(requests, std::strtoull(argv[i], nullptr, 10));
  return 0;
}
