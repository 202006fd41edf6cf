#include "prefix/ghosts.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

#include "prefix/block_chain.h"

namespace kvcache::prefix {
namespace {

constexpr std::uint64_t kLine = 64;  // bytes of eight entries

TEST(Ghosts, AreFoundWithTheLatestReasonAndNothingElseIs) {
  Ghosts ghosts(1 << 20);
  EXPECT_FALSE(ghosts.find(0));
  std::mt19937_64 rng(1);
  std::vector<std::uint64_t> keys(10'000);
  for (std::uint64_t& key : keys) ghosts.add(key = rng(), MissReason::kEvicted);
  for (const std::uint64_t key : keys) ghosts.add(key, MissReason::kErased);
  for (const std::uint64_t key : keys) EXPECT_EQ(ghosts.find(key), MissReason::kErased);
  for (int i = 0; i < 1'000'000; ++i) EXPECT_FALSE(ghosts.find(rng()));
}

TEST(Ghosts, KeepTheEightLatestOfALine) {
  Ghosts ghosts(2 * kLine);
  for (std::uint64_t key = 1; key <= 20; ++key) ghosts.add(key << 8, MissReason::kEvicted);
  ghosts.add(13 << 8, MissReason::kThinned);  // is there already, and young again
  ghosts.add(21 << 8, MissReason::kEvicted);
  ghosts.add(std::uint64_t{1} << 63, MissReason::kEvicted);  // on the other line; written later
  for (std::uint64_t key = 1; key <= 21; ++key) {
    EXPECT_EQ(ghosts.find(key << 8).has_value(), key >= 15 || key == 13) << key;
  }
  EXPECT_TRUE(ghosts.find(std::uint64_t{1} << 63));
}

TEST(Ghosts, KindsAndGroupsOfOnePathAreApart) {
  const std::uint64_t path = 12345;
  EXPECT_NE(Ghosts::key_of(path, GhostKind::kRun), Ghosts::key_of(path, GhostKind::kSnapshot));
  EXPECT_NE(Ghosts::key_of(path, GhostKind::kWindow, 0),
            Ghosts::key_of(path, GhostKind::kWindow, 1));
  EXPECT_NE(root_key("a", 0), root_key("a", 1));
}

TEST(Ghosts, KeysOfABlocksBeginningsAreTheSameOneByOneAndAtOnce) {
  std::vector<std::int32_t> tokens(100);
  std::iota(tokens.begin(), tokens.end(), 7);
  const std::vector<LabelAt> items{{0, "a"}, {15, "b"}, {16, "c"}, {90, "d"}};
  RollingPathKey rolling(5);
  std::set<std::uint64_t> seen;
  std::size_t inside = 0;
  for (std::size_t end = 1; end <= tokens.size(); ++end) {
    for (; inside < items.size() && items[inside].offset < end; ++inside) {
      rolling.add(items[inside]);
    }
    const auto beginning = std::span(tokens).first(end);
    const std::uint64_t key = rolling.of(beginning);
    EXPECT_EQ(key, block_path_key(5, beginning, std::span(items).first(inside))) << end;
    EXPECT_NE(key, block_path_key(5, beginning, {})) << end;
    seen.insert(key);
  }
  EXPECT_EQ(seen.size(), tokens.size());
}

TEST(BlockChain, NamesDoNotDependOnWhatWasNamedBefore) {
  std::vector<std::int32_t> tokens(64);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<MediaSpan> media{{5, 3, "a"}, {21, 20, "b"}};
  std::mt19937 rng(2);
  BlockChain grown;
  for (int i = 0; i < 500; ++i) {
    const auto any = [&](std::uint64_t limit) { return rng() % limit; };
    if (any(3) == 0) tokens[any(tokens.size())] = static_cast<std::int32_t>(any(100));
    if (any(5) == 0) media[any(2)].digest = std::string(1 + any(3), 'x');
    if (any(5) == 0) media[1].start = 21 + any(9);
    const auto path = std::span(tokens).first(1 + any(tokens.size()));
    const SpaceRef space("key", std::span(media).first(any(3)), 0);
    grown.update(space, path, 4);
    BlockChain fresh;
    fresh.update(space, path, 4);
    ASSERT_TRUE(std::equal(grown.blocks().begin(), grown.blocks().end(), fresh.blocks().begin(),
                           fresh.blocks().end()));
    ASSERT_EQ(grown.blocks().size(), path.size() / 4);
    const std::uint64_t position = 1 + any(path.size());
    ASSERT_EQ(grown.name_at(position), fresh.name_at(position));
  }
}

}  // namespace
}  // namespace kvcache::prefix
