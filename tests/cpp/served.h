// Models whose every byte follows from their tokens, caches of them with a disk tier, and serving a
// prompt from one. For tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "content.h"
#include "kvcache/cache.h"

namespace kvcache::served {

using content::Tokens;

constexpr std::uint32_t kBlock = 4;

// Which parts of content::decls() a model has.
struct Model {
  std::vector<std::int32_t> layers;
  bool state = false;

  std::vector<StateDecl> decls() const {
    std::vector<StateDecl> chosen;
    for (const StateDecl& decl : content::decls()) {
      const bool paged = std::find(layers.begin(), layers.end(), decl.layer) != layers.end();
      if (paged || (state && decl.layer == content::kStateLayer)) chosen.push_back(decl);
    }
    return chosen;
  }
};

inline const Model kHybrid{{0, 1, 2, 3}, true};
inline const Model kWindows{{0, 1, 3}, false};
inline const Model kOnlyWindows{{1}, false};
inline const Model kFull{{0, 2}, false};
inline const Model kRecurrent{{}, true};
inline const Model kModels[] = {kHybrid, kWindows, kOnlyWindows, kFull, kRecurrent};

inline std::unique_ptr<Cache> make_cache(const Model& model, const DiskTierOptions& disk,
                                         std::uint64_t capacity_blocks = 0,
                                         const std::string& weights = "") {
  auto plan = StatePlan::create(model.decls(), {.memory_bytes = 1 << 20, .block_tokens = kBlock});
  CacheOptions options;
  options.disk = disk;
  options.weights = weights;
  options.capacity_blocks = capacity_blocks;
  auto cache = Cache::create(std::move(plan).value(), options);
  EXPECT_TRUE(cache.is_ok()) << cache.status().message();
  return cache ? std::move(cache).value() : nullptr;
}

inline DiskTierOptions tier(const std::string& path) {
  DiskTierOptions options;
  options.path = path;
  options.max_bytes = 64 << 20;
  return options;
}

inline Tokens prompt(std::uint64_t length, std::int32_t seed = 0) {
  Tokens tokens(length);
  for (std::uint64_t i = 0; i < length; ++i) {
    tokens[i] = static_cast<std::int32_t>(i * 31 + static_cast<std::uint64_t>(seed) * 977);
  }
  return tokens;
}

// Computes up to `stop`, in steps that end at snapshots.
inline void complete(const Model& model, Sequence& sequence, std::uint64_t stop) {
  const Tokens tokens = sequence.tokens();
  const std::uint64_t start = sequence.length();
  for (const std::int32_t layer : model.layers) {
    std::vector<float> rows = content::rows_of(tokens, start, stop, layer);
    const auto view = content::view_of<codec::RowsView>(rows.data(), stop - start);
    ASSERT_TRUE(sequence.write(layer, start, {&view, 1}).is_ok());
  }
  ASSERT_TRUE(sequence.advance(stop - start).is_ok());
  if (!model.state) return;
  auto state = sequence.state(content::kStateLayer, content::kStateName);
  ASSERT_TRUE(state.is_ok());
  content::set_state(*state, tokens, stop);
  ASSERT_TRUE(sequence.snapshot().is_ok());
}

inline void expect_right(const Model& model, const Sequence& sequence, const std::string& what) {
  const Tokens tokens = sequence.tokens();
  const std::uint64_t length = sequence.length();
  for (const std::int32_t layer : model.layers) {
    const std::uint64_t start = content::live_start(layer, length);
    std::vector<float> got((length - start) * content::kRow);
    const auto view = content::view_of<codec::MutableRowsView>(got.data(), length - start);
    const Status status = length > start ? sequence.read(layer, start, {&view, 1}) : Status::ok();
    ASSERT_TRUE(status.is_ok()) << what;
    ASSERT_EQ(got, content::rows_of(tokens, start, length, layer)) << what << ", layer " << layer;
  }
  if (!model.state) return;
  const auto state = sequence.state(content::kStateLayer, content::kStateName);
  ASSERT_TRUE(state.is_ok());
  const auto want = content::state_of(tokens, length);
  ASSERT_EQ(std::memcmp(state->data, want.data(), content::kState * 4), 0) << what;
}

// Opens, checks, computes the rest with a snapshot one token short of the end, and publishes.
// Returns what was there already.
inline std::uint64_t serve(const Model& model, Cache& cache, const Tokens& tokens,
                           const PrefixSpace& space = {}) {
  auto sequence = cache.open(tokens, space);
  EXPECT_TRUE(sequence.is_ok()) << sequence.status().message();
  if (!sequence) return 0;
  const std::uint64_t cached = sequence->cached_tokens();
  expect_right(model, *sequence, "a hit of " + std::to_string(cached));
  for (std::uint64_t stop : {tokens.size() / 2, tokens.size() - 1, tokens.size()}) {
    if (stop <= sequence->length()) continue;
    complete(model, *sequence, stop);
    EXPECT_TRUE(sequence->publish().is_ok());
  }
  return cached;
}

// The least that a prompt served before gets back: hits end with a run or a boundary.
inline std::uint64_t least_hit(std::uint64_t length) {
  return length - 1 - (length - 1) % kBlock - kBlock;
}

}  // namespace kvcache::served
