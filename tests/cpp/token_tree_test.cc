#include "kvcache/token_tree.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "content.h"
#include "kvcache/verify_table.h"

namespace kvcache {
namespace {

using content::Tokens;

std::vector<std::int32_t> random_parents(std::mt19937& rng, std::uint32_t nodes) {
  std::vector<std::int32_t> parents = {-1};
  for (std::uint32_t node = 1; node < nodes; ++node) {
    parents.push_back(static_cast<std::int32_t>(rng() % node));
  }
  return parents;
}

Tokens random_tokens(std::mt19937& rng, std::size_t count) {
  Tokens tokens(count);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(rng() % 5);
  return tokens;
}

TEST(TokenTree, MasksAgreeWithTheParents) {
  std::mt19937 rng(1);
  for (const std::uint64_t prefix : {0, 1, 31, 33, 64}) {
    const auto tree = TokenTree::create(random_parents(rng, 40)).value();
    const std::uint64_t columns = *tree.mask_columns(prefix, 1);
    const std::uint64_t words = *tree.packed_words(prefix);
    ASSERT_EQ(columns, prefix + 40);
    std::vector<std::uint8_t> mask(40 * columns, 9);
    std::vector<float> bias(40 * columns, 9);
    std::vector<std::uint32_t> packed(40 * words, UINT32_MAX);
    ASSERT_TRUE(tree.fill_mask(prefix, mask));
    ASSERT_TRUE(tree.fill_bias(prefix, bias));
    ASSERT_TRUE(tree.fill_packed_mask(prefix, packed));
    for (std::uint64_t row = 0; row < 40; ++row) {
      const auto path = *tree.path(row);
      std::vector<bool> seen(words * 32, false);
      std::fill_n(seen.begin(), prefix, true);
      for (const std::int32_t node : path) seen[prefix + static_cast<std::uint64_t>(node)] = true;
      for (std::uint64_t column = 0; column < words * 32; ++column) {
        const bool bit = (packed[row * words + column / 32] >> column % 32 & 1) != 0;
        EXPECT_EQ(bit, seen[column]);
        if (column >= columns) continue;
        EXPECT_EQ(mask[row * columns + column], seen[column] ? 1 : 0);
        EXPECT_EQ(bias[row * columns + column] == 0, seen[column]);
      }
    }
  }
}

TEST(TokenTree, SizesThatDoNotFitAreRefused) {
  const auto tree = TokenTree::linear(16).value();
  std::vector<std::uint8_t> small(255);
  EXPECT_EQ(tree.fill_mask(0, small).code(), StatusCode::kInvalidArgument);
  for (const std::uint64_t prefix : {std::uint64_t{1} << 27, UINT64_MAX, UINT64_MAX - 16}) {
    EXPECT_EQ(tree.mask_columns(prefix, 4).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(tree.fill_mask(prefix, small).code(), StatusCode::kInvalidArgument);
  }
  for (const std::uint64_t prefix : {std::uint64_t{1} << 32, UINT64_MAX, UINT64_MAX - 16}) {
    EXPECT_EQ(tree.packed_words(prefix).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(tree.fill_packed_mask(prefix, {}).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(tree.positions(INT64_MAX).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(TokenTree::linear(TokenTree::kMaxNodes + 1).status().code(),
            StatusCode::kInvalidArgument);
}

std::unique_ptr<Cache> make_cache() {
  auto plan = StatePlan::create(content::decls(), {16 << 20, 4, 16, 0});
  return Cache::create(std::move(plan).value(), {}).value();
}

TEST(TokenTree, SessionsKeepThePathThatWasAccepted) {
  const auto cache = make_cache();
  std::mt19937 rng(2);
  for (int round = 0; round < 60; ++round) {
    Sequence sequence = cache->open(random_tokens(rng, 1 + rng() % 12), {}).value();
    ASSERT_TRUE(content::complete(sequence, sequence.tokens().size()));
    if (round % 3 == 0) {
      ASSERT_TRUE(sequence.publish());
    }
    for (int turn = 0; turn < 4; ++turn) {
      ASSERT_TRUE(sequence.extend(random_tokens(rng, 1)));
      const auto tree = TokenTree::create(random_parents(rng, 1 + rng() % 9)).value();
      const Tokens drafts = random_tokens(rng, tree.nodes() - 1);
      const Tokens known = sequence.tokens();
      auto session = sequence.begin_verify(drafts, &tree).value();
      EXPECT_EQ(session.positions(), *tree.positions(session.start()));
      const auto paths = content::tokens_by_row(known, drafts, tree);
      ASSERT_TRUE(content::run_rows(session, paths, [&](std::size_t row) {
        return session.state(row, content::kStateLayer, content::kStateName);
      }));
      const std::uint64_t last = rng() % tree.nodes();
      ASSERT_TRUE(session.commit(*tree.path(last)));
      EXPECT_EQ(sequence.tokens(), paths[last]);
      EXPECT_EQ(content::wrong_bytes(sequence), "");
    }
  }
  cache->clear();
  EXPECT_EQ(cache->stats().used_bytes, 0U);
}

// Ragged trees of a batch, with a table, to every kind of end.
TEST(TokenTree, BatchesKeepThePathsThatWereAccepted) {
  const auto cache = make_cache();
  auto table = VerifyTable::create(cache->plan(), 8, 12).value();
  std::mt19937 rng(3);
  std::vector<Sequence> sequences;
  std::vector<Sequence*> handles;
  for (int i = 0; i < 5; ++i) {
    sequences.push_back(cache->open(random_tokens(rng, 1 + rng() % 12), {}).value());
    ASSERT_TRUE(content::complete(sequences.back(), sequences.back().tokens().size()));
  }
  for (Sequence& sequence : sequences) handles.push_back(&sequence);
  auto batch = Batch::create(handles).value();
  for (int turn = 0; turn < 60; ++turn) {
    for (Sequence& sequence : sequences) {
      if (sequence.tokens().size() == sequence.length()) {
        ASSERT_TRUE(sequence.extend(random_tokens(rng, 1)));
      }
    }
    std::vector<TokenTree> trees;
    std::vector<std::uint64_t> counts;
    std::vector<Tokens> paths;
    Tokens drafts, parents;
    std::vector<std::pair<std::size_t, std::uint64_t>> places;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      trees.push_back(TokenTree::create(random_parents(rng, 1 + rng() % 9)).value());
      counts.push_back(trees[i].nodes() - 1);
      const Tokens own = random_tokens(rng, counts[i]);
      drafts.insert(drafts.end(), own.begin(), own.end());
      parents.insert(parents.end(), trees[i].parents().begin(), trees[i].parents().end());
      const auto found = content::tokens_by_row(sequences[i].tokens(), own, trees[i]);
      paths.insert(paths.end(), found.begin(), found.end());
      for (std::uint64_t row = 0; row < found.size(); ++row) places.emplace_back(i, row);
    }
    auto session =
        batch.begin_verify(drafts, counts, {.parents = parents, .table = &table}).value();
    EXPECT_TRUE(table.is_staged());
    ASSERT_TRUE(content::run_rows(session, paths, [&](std::size_t row) {
      return session.state(places[row].first, places[row].second, content::kStateLayer,
                           content::kStateName);
    }));
    Tokens kept;
    std::vector<std::uint64_t> lengths;
    std::vector<Tokens> expected;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const std::uint64_t last = rng() % trees[i].nodes();
      const auto path = rng() % 5 == 0 ? Tokens() : *trees[i].path(last);
      kept.insert(kept.end(), path.begin(), path.end());
      lengths.push_back(path.size());
      const auto first = static_cast<std::size_t>(session.offsets()[i]);
      expected.push_back(path.empty() ? sequences[i].tokens() : paths[first + last]);
    }
    if (turn % 7 == 6) {
      ASSERT_TRUE(session.rollback());
    } else if (turn % 7 != 5) {
      ASSERT_TRUE(session.commit_paths(kept, lengths));
      for (std::size_t i = 0; i < sequences.size(); ++i) {
        EXPECT_EQ(sequences[i].tokens(), expected[i]);
      }
    }
    session = {};
    EXPECT_FALSE(table.is_staged());
    const PointerTable pointers = *table.pointers(content::kStateLayer, content::kStateName);
    EXPECT_EQ(std::accumulate(pointers.data, pointers.data + 12 * 8, std::uint64_t{0}), 0U);
    for (Sequence& sequence : sequences) EXPECT_EQ(content::wrong_bytes(sequence), "");
  }
  sequences.clear();
  cache->clear();
  EXPECT_EQ(cache->stats().used_bytes, 0U);
}

}  // namespace
}  // namespace kvcache
