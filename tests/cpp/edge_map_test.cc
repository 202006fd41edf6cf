// The hash table of edges against an ordered map.
#include "prefix/edge_map.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

namespace kvcache::prefix {
namespace {

TEST(EdgeMap, FindsWhatAMapFindsWhateverIsSetAndErased) {
  EdgeMap edges;
  std::map<std::pair<std::uint32_t, std::int32_t>, std::uint32_t> reference;
  std::mt19937 rng(5);
  EXPECT_EQ(edges.find(0, 0), EdgeMap::kNone);
  edges.erase(0, 0);
  for (int step = 0; step < 200000; ++step) {
    // Grows to some thousands, and shrinks to few, three times.
    const bool grows = step / 30000 % 2 == 0;
    const std::uint32_t parent = rng() % 100;
    const auto token = static_cast<std::int32_t>(rng() % 200) - 100;
    if (rng() % 4 < (grows ? 3U : 1U)) {
      const std::uint32_t child = rng() % 1000000;
      edges.set(parent, token, child);
      reference[{parent, token}] = child;
    } else {
      edges.erase(parent, token);
      reference.erase({parent, token});
    }
    const std::uint32_t other = rng() % 100;
    const auto known = reference.find({other, token});
    ASSERT_EQ(edges.find(other, token), known == reference.end() ? EdgeMap::kNone : known->second);
    ASSERT_EQ(edges.size(), reference.size());
  }
  for (const auto& [key, child] : reference) ASSERT_EQ(edges.find(key.first, key.second), child);
}

}  // namespace
}  // namespace kvcache::prefix
