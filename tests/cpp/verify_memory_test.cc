// Memory runs out in the middle of a verify: the sequences are as before, or the verdict is in
// force. Nothing in between, and nothing is held on to.
#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <optional>

#include "content.h"
#include "failing_new.h"
#include "kvcache/verify_table.h"

namespace kvcache {
namespace {

using content::Tokens;

const Tokens kDrafts = {1, 2, 3, 1, 2, 3};
const std::vector<std::uint64_t> kCounts = {3, 1, 2};
const Tokens kParents = {-1, 0, 0, 2, -1, 0, -1, 0, 0};  // a tree of 4, of 2 and of 3
const Tokens kPaths = {0, 2, 3, 0, 0, 2};
const std::vector<std::uint64_t> kKept = {3, 1, 2};

class VerifyMemory : public testing::Test {
 protected:
  void SetUp() override {
    auto plan = StatePlan::create(content::decls(), {16 << 20, 4, 16, 0, true, 8});
    cache_ = Cache::create(std::move(plan).value(), {}).value();
    table_.emplace(VerifyTable::create(cache_->plan(), 4).value());
    carry_.emplace(CarryTable::create(cache_->plan(), 4).value());
    for (std::int32_t i = 0; i < 3; ++i) {
      Tokens prompt(static_cast<std::size_t>(5 + i), i);
      sequences_.push_back(cache_->open(prompt, {}).value());
      EXPECT_TRUE(content::complete(sequences_.back(), prompt.size()));
      EXPECT_TRUE(sequences_.back().publish());  // the block that the rows begin in is shared
      EXPECT_TRUE(sequences_.back().extend({{7}}));
    }
    std::vector<Sequence*> handles;
    for (Sequence& sequence : sequences_) handles.push_back(&sequence);
    batch_.emplace(Batch::create(handles).value());
  }

  // Everything is as SetUp() has left it; but for a page of its own in place of a shared one.
  void expect_unchanged(long at) {
    EXPECT_FALSE(table_->is_staged() || carry_->is_staged()) << at;
    EXPECT_EQ(cache_->stats().snapshots, 0U) << at;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      EXPECT_EQ(sequences_[i].length(), 5 + i) << at;
      EXPECT_EQ(sequences_[i].tokens().size(), 6 + i) << at;
      EXPECT_EQ(content::wrong_bytes(sequences_[i]), "") << at;
    }
  }

  Result<BatchVerifySession> begin() {
    return batch_->begin_verify(kDrafts, kCounts, {.parents = kParents, .table = &*table_});
  }

  void run(BatchVerifySession& session) {
    std::vector<Tokens> paths;
    std::vector<std::pair<std::size_t, std::uint64_t>> places;
    std::size_t first = 0, draft = 0;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      const auto parents = std::span(kParents).subspan(first, kCounts[i] + 1);
      const auto tree = TokenTree::create(parents).value();
      const auto found = content::tokens_by_row(
          sequences_[i].tokens(), std::span(kDrafts).subspan(draft, kCounts[i]), tree);
      paths.insert(paths.end(), found.begin(), found.end());
      for (std::uint64_t row = 0; row < found.size(); ++row) places.emplace_back(i, row);
      first += kCounts[i] + 1;
      draft += kCounts[i];
    }
    ASSERT_TRUE(content::run_rows(session, paths, [&](std::size_t row) {
      return session.state(places[row].first, places[row].second, content::kStateLayer,
                           content::kStateName);
    }));
  }

  std::unique_ptr<Cache> cache_;
  std::optional<VerifyTable> table_;
  std::optional<CarryTable> carry_;
  std::vector<Sequence> sequences_;
  std::optional<Batch> batch_;
};

// Lets the first, second, ... allocation of `call` fail until none is left that would. `call`
// returns whether it went well; `failed` looks at what it has left behind.
void fail_each(const std::function<bool()>& call, const std::function<void(long)>& failed) {
  for (long at = 0; at < 2000; ++at) {
    bool well = false;
    remaining = at;
    try {
      well = call();
    } catch (const std::bad_alloc&) {
    }
    const bool reached = remaining < 0;
    remaining = -1;
    if (!reached) {
      EXPECT_TRUE(well);
      EXPECT_GT(at, 0) << "it allocates nothing, so that nothing was tested";
      return;
    }
    if (well) return;
    failed(at);
    if (testing::Test::HasFailure()) return;
  }
  ADD_FAILURE() << "it never ended";
}

TEST_F(VerifyMemory, ABatchBeginsWholeOrNotAtAll) {
  std::optional<BatchVerifySession> session;
  fail_each(
      [&] {
        auto begun = begin();
        if (begun) session.emplace(std::move(begun).value());
        return begun.is_ok();
      },
      [&](long at) { expect_unchanged(at); });
  ASSERT_TRUE(session && session->is_open());
  run(*session);
  ASSERT_TRUE(session->rollback());
  expect_unchanged(-1);
}

TEST_F(VerifyMemory, ABatchByCarryBeginsWholeOrNotAtAll) {
  std::optional<BatchVerifySession> session;
  fail_each(
      [&] {
        auto begun = batch_->begin_verify(kDrafts, kCounts,
                                          {.parents = kParents,
                                           .table = &*table_,
                                           .strategy = VerifyStrategy::kCarry,
                                           .carry = &*carry_});
        if (begun) session.emplace(std::move(begun).value());
        return begun.is_ok();
      },
      [&](long at) { expect_unchanged(at); });
  ASSERT_TRUE(session && session->is_open());
  EXPECT_TRUE(table_->is_staged() && carry_->is_staged());
  ASSERT_TRUE(session->rollback());
  session.reset();
  expect_unchanged(-1);
  batch_.reset();
  sequences_.clear();
  cache_->clear();
  EXPECT_EQ(cache_->stats().used_bytes, 0U);
}

TEST_F(VerifyMemory, ABatchIsCommittedWholeOrNotAtAll) {
  auto session = begin().value();
  run(session);
  fail_each([&] { return session.commit_paths(kPaths, kKept).is_ok(); },
            [&](long at) {
              ASSERT_TRUE(session.is_open()) << at;
              for (std::size_t i = 0; i < sequences_.size(); ++i) {
                EXPECT_EQ(sequences_[i].length(), 5 + i) << at;
              }
            });
  EXPECT_FALSE(session.is_open());
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    EXPECT_EQ(sequences_[i].length(), 5 + i + kKept[i]);
    EXPECT_EQ(content::wrong_bytes(sequences_[i]), "");
  }
  EXPECT_EQ(cache_->stats().snapshots, 0U);
}

TEST_F(VerifyMemory, ASessionBeginsWholeOrNotAtAll) {
  const auto tree = TokenTree::create(std::span(kParents).first(4)).value();
  std::optional<VerifySession> session;
  fail_each(
      [&] {
        auto begun = sequences_[0].begin_verify(std::span(kDrafts).first(3), &tree);
        if (begun) session.emplace(std::move(begun).value());
        return begun.is_ok();
      },
      [&](long at) { expect_unchanged(at); });
  ASSERT_TRUE(session && session->is_open());
  session.reset();
  expect_unchanged(-1);
  sequences_.clear();
  cache_->clear();
  EXPECT_EQ(cache_->stats().used_bytes, 0U);
}

}  // namespace
}  // namespace kvcache
