// Media items, erasing and weight epochs, against a set of everything that was ever stored.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "prefix/radix_index.h"

namespace kvcache::prefix {
namespace {

constexpr std::uint32_t kBlock = 4;
using Path = std::vector<std::string>;  // what each position stands for

struct Prompt {
  std::vector<std::int32_t> tokens;
  std::vector<MediaSpan> media;

  Path path() const {
    Path path;
    for (const std::int32_t token : tokens) path.push_back(std::to_string(token));
    for (const MediaSpan& span : media) {
      for (std::uint64_t i = 0; i < span.length; ++i) {
        path[span.start + i] +=
            "@" + std::to_string(i) + "/" + std::to_string(span.length) + span.digest;
      }
    }
    return path;
  }
  SpaceRef space(std::uint64_t epoch) const { return {"s", media, epoch}; }
};

Prompt random_prompt(std::mt19937& rng, const std::vector<Prompt>& stored) {
  Prompt prompt = stored.empty() ? Prompt() : stored[rng() % stored.size()];
  prompt.tokens.resize(rng() % (prompt.tokens.size() + 1));
  std::erase_if(prompt.media, [&](const MediaSpan& span) {
    return span.start + span.length > prompt.tokens.size();
  });
  for (std::uint32_t parts = 1 + rng() % 3; parts > 0; --parts) {
    if (rng() % 3 == 0) {
      const std::uint64_t length = 1 + rng() % 3;
      prompt.media.push_back({prompt.tokens.size(), length, rng() % 2 == 0 ? "a" : "b"});
      prompt.tokens.insert(prompt.tokens.end(), length, 0);
    }
    for (std::uint32_t n = rng() % 4; n > 0; --n) {
      prompt.tokens.push_back(static_cast<std::int32_t>(rng() % 2));
    }
  }
  return prompt;
}

class Against {
 public:
  Against()
      : plan_(StatePlan::create({{.id = "k",
                                  .layer = 0,
                                  .component = "attention.keys",
                                  .kind = StateKind::kPagedKv,
                                  .shape = {1, 8}}},
                                {.memory_bytes = 64 << 20, .block_tokens = kBlock})
                  .value()),
        arena_(
            arena::Arena::create(plan_.options().memory_bytes, arena::pool_specs(plan_, 0), false)
                .value()),
        pools_(arena::map_pools(plan_, *arena_)),
        index_(plan_, pools_, evict::policy_maker("lru", {}), evict::policy_maker("lru", {})) {}

  void store(const Prompt& prompt, std::uint64_t epoch) {
    BlockTables tables(1);
    for (std::size_t at = 0; at < prompt.tokens.size(); at += kBlock) {
      tables[0].push_back(*pools_.pages[0]->allocate());
    }
    index_.insert(prompt.space(epoch), prompt.tokens, tables, {});
    for (const ItemId page : tables[0]) pools_.pages[0]->release(page);
    if (epoch != index_.epoch()) return;
    const Path path = prompt.path();
    for (std::size_t n = 1; n <= path.size(); ++n) {
      known_.insert(Path(path.begin(), path.begin() + static_cast<long>(n)));
    }
  }

  void check(const Prompt& prompt) {
    if (prompt.tokens.empty()) return;
    const Path path = prompt.path();
    std::uint64_t matched = 0;
    while (matched < path.size() &&
           known_.contains(Path(path.begin(), path.begin() + static_cast<long>(matched) + 1))) {
      ++matched;
    }
    std::uint64_t usable = std::min<std::uint64_t>(matched, path.size() - 1);
    for (const MediaSpan& span : prompt.media) {
      if (span.start < usable && usable < span.start + span.length) usable = span.start;
    }
    const Match match = index_.match(prompt.space(index_.epoch()), prompt.tokens, true);
    ASSERT_EQ(match.matched, matched);
    ASSERT_EQ(match.usable, usable);
    ASSERT_EQ(index_.counts().tokens, known_.size());
  }

  void erase(const Prompt& prompt) {
    Path path = prompt.path();
    const bool there = known_.contains(path);
    const std::uint64_t blocks = index_.erase_prefix(prompt.space(index_.epoch()), prompt.tokens);
    ASSERT_EQ(blocks > 0, there);
    if (!there) return;
    std::erase_if(known_, [&](const Path& other) {
      return other.size() >= path.size() && std::equal(path.begin(), path.end(), other.begin());
    });
    // What led only there.
    for (path.pop_back(); !path.empty(); path.pop_back()) {
      const auto next = known_.upper_bound(path);
      const bool continued = next != known_.end() && next->size() > path.size() &&
                             std::equal(path.begin(), path.end(), next->begin());
      if (continued) break;
      known_.erase(path);
    }
  }

  void change_weights() {
    index_.bump_epoch();
    known_.clear();
  }

  void expect_nothing_left() {
    index_.clear();
    EXPECT_EQ(arena_->used_bytes(), 0U);
    EXPECT_EQ(index_.counts().nodes, 0U);
    EXPECT_EQ(index_.counts().blocks, 0U);
  }

  std::uint64_t epoch() const { return index_.epoch(); }

 private:
  const StatePlan plan_;
  const std::unique_ptr<arena::Arena> arena_;
  const PoolMap pools_;
  RadixIndex index_;
  std::set<Path> known_;
};

TEST(RadixSpacesModel, MediaErasingAndEpochsAgreeWithASet) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 rng(seed);
    Against t;
    std::vector<Prompt> stored;
    for (int round = 0; round < 200; ++round) {
      const Prompt prompt = random_prompt(rng, stored);
      if (prompt.tokens.empty()) continue;
      const std::uint32_t what = rng() % 20;
      if (what < 8) {
        t.store(prompt, t.epoch());
        stored.push_back(prompt);
      } else if (what == 8) {
        ASSERT_NO_FATAL_FAILURE(t.erase(prompt));
      } else if (what == 9 && t.epoch() > 0) {
        t.store(prompt, t.epoch() - 1);
      } else if (what == 10 && round % 4 == 0) {
        t.change_weights();
      }
      ASSERT_NO_FATAL_FAILURE(t.check(random_prompt(rng, stored)))
          << "seed " << seed << " round " << round;
    }
    t.expect_nothing_left();
  }
}

}  // namespace
}  // namespace kvcache::prefix
