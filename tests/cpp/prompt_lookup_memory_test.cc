// The process runs out of memory in the middle of a batch of proposals: all of them are in flight,
// or none.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "failing_new.h"
#include "kvcache/prompt_lookup.h"

namespace kvcache {
namespace {

using Tokens = std::span<const std::int32_t>;

struct Batch {
  static constexpr std::size_t kSize = 3;
  std::vector<std::int32_t> history = {5, 6, 7, 8, 9, 1, 5, 6, 7};
  std::vector<std::unique_ptr<PromptLookupIndex>> owned;
  std::vector<PromptLookupIndex*> indexes;
  std::array<Tokens, kSize> histories;
  std::array<std::uint64_t, kSize> most = {2, 1, 2};
  std::vector<std::int32_t> drafts;
  std::array<std::uint64_t, kSize> counts = {};

  Batch() {
    for (std::size_t i = 0; i < kSize; ++i) {
      owned.push_back(PromptLookupIndex::create({}).value());
      indexes.push_back(owned.back().get());
      histories[i] = history;
    }
  }
  Status propose() {
    return PromptLookupIndex::propose_batch(indexes, histories, most, drafts, counts);
  }
  std::vector<std::uint64_t> in_flight() const {
    std::vector<std::uint64_t> found;
    for (const PromptLookupIndex* index : indexes) found.push_back(index->in_flight());
    return found;
  }
};

const std::vector<std::uint64_t> kNone = {0, 0, 0};

TEST(PromptLookupMemory, ABatchProposesWholeOrNotAtAll) {
  long failures = 0;
  for (;; ++failures) {
    ASSERT_LT(failures, 1000);
    Batch batch;  // a fresh one: its tables have to grow
    bool well = false;
    remaining = failures;
    try {
      well = batch.propose().is_ok();
    } catch (const std::bad_alloc&) {
    }
    const bool reached = remaining < 0;
    remaining = -1;
    if (!reached) {
      EXPECT_TRUE(well);
      EXPECT_EQ(batch.in_flight(), (std::vector<std::uint64_t>{2, 1, 2}));
      EXPECT_EQ(batch.drafts, (std::vector<std::int32_t>{8, 9, 8, 8, 9}));
      break;
    }
    if (!well) {
      ASSERT_EQ(batch.in_flight(), kNone) << failures;
    }
  }
  EXPECT_GT(failures, 5);
}

TEST(PromptLookupMemory, ABatchIsSettledWholeOrNotAtAll) {
  Batch batch;
  ASSERT_TRUE(batch.propose());
  const std::array<std::uint64_t, Batch::kSize> accepted = {2, 0, 1};
  long failures = 0;
  for (bool reached = true; reached; ++failures) {
    ASSERT_LT(failures, 1000);
    bool well = false;
    remaining = failures;
    try {
      well = PromptLookupIndex::settle_batch(batch.indexes, accepted).is_ok();
    } catch (const std::bad_alloc&) {
    }
    reached = remaining < 0;
    remaining = -1;
    if (!well) {
      ASSERT_EQ(batch.in_flight(), (std::vector<std::uint64_t>{2, 1, 2})) << failures;
    }
  }
  EXPECT_GT(failures, 2);
  EXPECT_EQ(batch.in_flight(), kNone);
  EXPECT_EQ(batch.indexes[0]->window(), 4U);
  EXPECT_EQ(batch.indexes[2]->window(), 1U);
}

TEST(PromptLookupBatch, WhatIsRefusedChangesNothing) {
  Batch batch;
  batch.indexes[2] = batch.indexes[0];
  EXPECT_EQ(batch.propose().message(), "propose: indexes 0 and 2 are the same");
  batch.indexes[2] = nullptr;
  EXPECT_EQ(batch.propose().message(), "propose: index 2 is none");
  batch.indexes.pop_back();
  EXPECT_EQ(batch.propose().message(), "propose: 2 indexes, but 3 numbers");
  batch.indexes.push_back(batch.owned[2].get());
  ASSERT_TRUE(batch.owned[1]->propose(batch.history, std::span(batch.drafts = {0, 0})));
  EXPECT_EQ(batch.propose().message(),
            "index 1: propose: 2 drafts are in flight; settle() or abandon() them first");
  EXPECT_EQ(batch.in_flight(), (std::vector<std::uint64_t>{0, 2, 0}));
  EXPECT_TRUE(batch.drafts.empty());
  const std::array<std::uint64_t, Batch::kSize> accepted = {0, 3, 0};
  EXPECT_EQ(PromptLookupIndex::settle_batch(batch.indexes, accepted).message(),
            "index 1: settle: 3 accepted of 2 drafts in flight");
  EXPECT_EQ(batch.in_flight(), (std::vector<std::uint64_t>{0, 2, 0}));
}

}  // namespace
}  // namespace kvcache
