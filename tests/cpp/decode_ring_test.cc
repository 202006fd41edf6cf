// The decode ring: whose entry a record replaces, and what a rollback restores and refuses.
#include "sequence/decode_ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "kvcache/cache.h"
#include "kvcache/verify.h"

namespace kvcache {
namespace {

using sequence::DecodeRing;
using Positions = std::vector<std::uint64_t>;

// ---- Bookkeeping ------------------------------------------------------------------------------

class RingTest : public testing::Test, public arena::ItemSource {
 protected:
  Result<arena::ItemId> allocate(arena::Pool& pool) override { return pool.allocate(); }
  Status allocate_many(arena::Pool& pool, std::span<arena::ItemId> items) override {
    return pool.allocate_many(items);
  }

  // Room for 4 copies of 20 KB, each of which is a span of its own.
  std::unique_ptr<arena::Arena> arena_ =
      arena::Arena::create(4 * 40960, {{"decode ring", 40960, 0}}, true).value();
  arena::Pool& pool_ = arena_->pool(0);
};

TEST_F(RingTest, FindsExactlyWhatWasRecorded) {
  DecodeRing ring(&pool_, 3);
  EXPECT_EQ(ring.item_at(0), arena::kNoItem);
  const auto at_10 = ring.record(10, *this).value();
  const auto at_20 = ring.record(20, *this).value();
  EXPECT_NE(at_10, at_20);
  EXPECT_EQ(ring.item_at(10), at_10);
  EXPECT_EQ(ring.item_at(20), at_20);
  EXPECT_EQ(ring.item_at(15), arena::kNoItem);
  ring.clear();
  EXPECT_EQ(arena_->used_bytes(), 0U);
}

TEST_F(RingTest, AFullRingDropsTheOwnerOfTheNextSlotAndReusesItsMemory) {
  DecodeRing ring(&pool_, 3);
  const auto first = ring.record(10, *this).value();
  for (const std::uint64_t position : {20, 30}) ASSERT_TRUE(ring.record(position, *this));
  EXPECT_EQ(ring.record(40, *this).value(), first);
  EXPECT_EQ(ring.positions(), (Positions{20, 30, 40}));
  EXPECT_EQ(arena_->used_bytes(), 3 * 40960U);
  ring.clear();
}

TEST_F(RingTest, AfterATruncationTheSlotAfterTheNewestSurvivorIsNext) {
  DecodeRing ring(&pool_, 3);
  for (const std::uint64_t position : {10, 20, 30, 40}) ASSERT_TRUE(ring.record(position, *this));
  // 40 lies in slot 0, 20 in slot 1, 30 in slot 2.
  ring.truncate_after(25);
  EXPECT_EQ(ring.positions(), (Positions{20}));
  ASSERT_TRUE(ring.record(26, *this));  // slot 2
  ASSERT_TRUE(ring.record(27, *this));  // slot 0, which is free
  EXPECT_EQ(ring.positions(), (Positions{20, 26, 27}));
  ASSERT_TRUE(ring.record(28, *this));  // slot 1, which is 20's
  EXPECT_EQ(ring.positions(), (Positions{26, 27, 28}));
  ring.clear();
}

// The oldest entry is not the one that owns the slot: age would drop the wrong copy.
TEST_F(RingTest, OwnershipOfASlotDecidesAndNotAge) {
  DecodeRing ring(&pool_, 3);
  for (const std::uint64_t position : {30, 10, 20}) ASSERT_TRUE(ring.record(position, *this));
  ring.truncate_after(15);  // 10 in slot 1 stays; slot 2 is next
  const auto at_10 = ring.item_at(10);
  ASSERT_TRUE(ring.record(12, *this));
  ASSERT_TRUE(ring.record(14, *this));
  EXPECT_EQ(ring.item_at(10), at_10);
  ASSERT_TRUE(ring.record(16, *this));
  EXPECT_EQ(ring.positions(), (Positions{12, 14, 16}));
  ring.clear();
}

TEST_F(RingTest, TruncatedToNothingItStartsOver) {
  DecodeRing ring(&pool_, 2);
  for (const std::uint64_t position : {10, 20, 30}) ASSERT_TRUE(ring.record(position, *this));
  ring.truncate_after(5);
  EXPECT_TRUE(ring.positions().empty());
  EXPECT_EQ(arena_->used_bytes(), 0U);
  for (const std::uint64_t position : {6, 7}) ASSERT_TRUE(ring.record(position, *this));
  EXPECT_EQ(ring.positions(), (Positions{6, 7}));
  ring.clear();
}

TEST_F(RingTest, OfTwoRecordsAtOnePositionTheLaterCounts) {
  DecodeRing ring(&pool_, 2);
  ASSERT_TRUE(ring.record(10, *this));
  const auto again = ring.record(10, *this).value();
  EXPECT_EQ(ring.item_at(10), again);
  ring.clear();
}

TEST_F(RingTest, WithoutRoomNothingIsDropped) {
  DecodeRing hog(&pool_, 3);
  for (const std::uint64_t position : {1, 2, 3}) ASSERT_TRUE(hog.record(position, *this));
  DecodeRing ring(&pool_, 2);
  ASSERT_TRUE(ring.record(10, *this));
  EXPECT_EQ(ring.record(20, *this).status().code(), StatusCode::kOutOfCapacity);
  EXPECT_EQ(ring.positions(), (Positions{10}));
  hog.clear();
  ASSERT_TRUE(ring.record(20, *this));
  ASSERT_TRUE(ring.record(30, *this));  // takes over 10's memory: cannot run out
  EXPECT_EQ(ring.positions(), (Positions{20, 30}));
  ring.clear();
}

// ---- A sequence -------------------------------------------------------------------------------

constexpr std::uint64_t kState = 16;  // elements

StateDecl keys(std::uint32_t window = 0) {
  return {.id = "k",
          .layer = 0,
          .component = "attention.keys",
          .kind = StateKind::kPagedKv,
          .dtype = DType::kF16,
          .shape = {1, 8},
          .window = window};
}

StateDecl recurrent() {
  return {.id = "r",
          .layer = 1,
          .component = "state.recurrent",
          .kind = StateKind::kRecurrent,
          .dtype = DType::kF32,
          .shape = {kState}};
}

std::unique_ptr<Cache> make_cache(std::vector<StateDecl> decls, std::uint32_t depth,
                                  const CacheOptions& options = {}) {
  auto plan = StatePlan::create(std::move(decls), {1 << 20, 4, 4, depth});
  return Cache::create(std::move(plan).value(), options).value();
}

std::vector<std::int32_t> some_tokens(std::size_t count) {
  std::vector<std::int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 1);
  return tokens;
}

std::vector<float> row_of(std::uint64_t position) {
  return std::vector<float>(8, static_cast<float>(position) + 1);
}

void set_state(Sequence& sequence, float value) {
  const StateView view = sequence.state(1, "state.recurrent").value();
  for (std::uint64_t i = 0; i < kState; ++i) std::memcpy(view.data + 4 * i, &value, 4);
}

float state_of(const Sequence& sequence) {
  float value = 0;
  std::memcpy(&value, sequence.state(1, "state.recurrent").value().data, 4);
  return value;
}

// One position, whose row and state name it.
void step(Sequence& sequence) {
  const std::uint64_t position = sequence.length();
  std::vector<float> row = row_of(position);
  const codec::RowsView view = {row.data(), DType::kF32, 1, 1, 8, 32, 32};
  ASSERT_TRUE(sequence.write(0, position, {&view, 1}));
  ASSERT_TRUE(sequence.advance(1));
  if (sequence.state(1, "state.recurrent")) set_state(sequence, static_cast<float>(position + 1));
}

void step_to(Sequence& sequence, std::uint64_t position) {
  while (sequence.length() < position) step(sequence);
}

void expect_rows(const Sequence& sequence) {
  for (std::uint64_t position = 0; position < sequence.length(); ++position) {
    std::vector<float> row(8);
    const codec::MutableRowsView view = {row.data(), DType::kF32, 1, 1, 8, 32, 32};
    ASSERT_TRUE(sequence.read(0, position, {&view, 1}));
    EXPECT_EQ(row, row_of(position));
  }
}

TEST(DecodeRing, RollsRowsTokensAndStateBackToARecordedPosition) {
  const auto cache = make_cache({keys(), recurrent()}, 3);
  Sequence sequence = cache->open(some_tokens(20), {}).value();
  for (const std::uint64_t position : {3, 6, 9}) {
    step_to(sequence, position);
    EXPECT_EQ(sequence.record().value(), position);
  }
  step_to(sequence, 14);
  ASSERT_TRUE(sequence.rollback(6));
  EXPECT_EQ(sequence.length(), 6U);
  EXPECT_EQ(sequence.tokens(), some_tokens(6));
  EXPECT_EQ(state_of(sequence), 6.0F);
  EXPECT_EQ(sequence.recorded(), (Positions{3, 6}));
  expect_rows(sequence);
  // Another way forward, and back again to the same copy.
  ASSERT_TRUE(sequence.extend(some_tokens(3)));
  step_to(sequence, 9);
  expect_rows(sequence);
  ASSERT_TRUE(sequence.rollback(6));
  EXPECT_EQ(state_of(sequence), 6.0F);
}

TEST(DecodeRing, RestoresTheStateThatAFailedStepHasHalfChanged) {
  const auto cache = make_cache({keys(), recurrent()}, 1);
  Sequence sequence = cache->open(some_tokens(8), {}).value();
  step_to(sequence, 5);
  ASSERT_TRUE(sequence.record());
  set_state(sequence, -1);
  ASSERT_TRUE(sequence.rollback(5));
  EXPECT_EQ(state_of(sequence), 5.0F);
}

TEST(DecodeRing, DeclinesAndLeavesEverythingAsItWas) {
  const auto cache = make_cache({keys(6), recurrent()}, 2);
  Sequence sequence = cache->open(some_tokens(20), {}).value();
  step_to(sequence, 4);
  ASSERT_TRUE(sequence.record());
  step_to(sequence, 6);
  const auto expect_unchanged = [&](std::uint64_t length) {
    EXPECT_EQ(sequence.length(), length);
    EXPECT_EQ(state_of(sequence), static_cast<float>(length));
    EXPECT_EQ(sequence.tokens(), some_tokens(20));
    EXPECT_EQ(sequence.recorded(), (Positions{4}));
  };
  const Status beyond = sequence.rollback(7);
  EXPECT_EQ(beyond.code(), StatusCode::kInvalidArgument) << beyond.message();
  const Status missing = sequence.rollback(5);
  EXPECT_EQ(missing.code(), StatusCode::kUnsupported);
  EXPECT_NE(missing.message().find("the decode ring holds 4"), std::string::npos);
  EXPECT_EQ(sequence.rollback(UINT64_MAX).code(), StatusCode::kInvalidArgument);
  expect_unchanged(6);
  step_to(sequence, 19);  // the window of 6 has left position 4 behind
  const Status passed = sequence.rollback(4);
  EXPECT_EQ(passed.code(), StatusCode::kUnsupported);
  EXPECT_NE(passed.message().find("window"), std::string::npos);
  expect_unchanged(19);
}

TEST(DecodeRing, ADisabledRingDeclinesBeforeAnyCopy) {
  const auto cache = make_cache({keys(), recurrent()}, 0);
  Sequence sequence = cache->open(some_tokens(8), {}).value();
  step_to(sequence, 5);
  const auto recorded = sequence.record();
  EXPECT_EQ(recorded.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(recorded.status().message().find("ring_depth"), std::string::npos);
  EXPECT_EQ(sequence.rollback(5).code(), StatusCode::kUnsupported);
  EXPECT_EQ(sequence.length(), 5U);
}

TEST(DecodeRing, PureAttentionRollsBackToAnyPositionWithoutARing) {
  for (const std::uint32_t depth : {0U, 2U}) {
    const auto cache = make_cache({keys()}, depth);
    Sequence sequence = cache->open(some_tokens(12), {}).value();
    step_to(sequence, 11);
    EXPECT_EQ(sequence.record().value(), 11U);
    for (const std::uint64_t position : {10, 7, 3, 0}) {
      ASSERT_TRUE(sequence.rollback(position));
      EXPECT_EQ(sequence.length(), position);
      expect_rows(sequence);
    }
    EXPECT_EQ(cache->stats().ring_snapshots, 0U);
  }
}

TEST(DecodeRing, AForkStartsEmptyAndCannotHarmItsParentsRing) {
  const auto cache = make_cache({keys(), recurrent()}, 2);
  Sequence parent = cache->open(some_tokens(12), {}).value();
  step_to(parent, 5);
  ASSERT_TRUE(parent.record());
  step_to(parent, 7);
  Sequence child = parent.fork().value();
  EXPECT_TRUE(child.recorded().empty());
  EXPECT_EQ(child.rollback(5).code(), StatusCode::kUnsupported);
  ASSERT_TRUE(child.record());
  set_state(child, 99);
  ASSERT_TRUE(child.record());
  child.close();
  ASSERT_TRUE(parent.rollback(5));
  EXPECT_EQ(state_of(parent), 5.0F);
  expect_rows(parent);
}

TEST(DecodeRing, WaitsForAnOpenVerifyAndSurvivesItsEnd) {
  const auto cache = make_cache({keys(), recurrent()}, 2);
  Sequence sequence = cache->open(some_tokens(6), {}).value();
  step_to(sequence, 5);
  ASSERT_TRUE(sequence.record());
  VerifySession session = sequence.begin_verify(some_tokens(2)).value();
  EXPECT_EQ(sequence.record().status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(sequence.rollback(5).code(), StatusCode::kInvalidArgument);
  std::vector<float> rows(24, 6.0F);
  const codec::RowsView view = {rows.data(), DType::kF32, 3, 1, 8, 32, 32};
  ASSERT_TRUE(session.write(0, {&view, 1}));
  ASSERT_TRUE(session.state(0, 1, "state.recurrent"));
  ASSERT_TRUE(session.state(1, 1, "state.recurrent"));
  ASSERT_TRUE(session.commit(2));
  EXPECT_EQ(sequence.length(), 7U);
  ASSERT_TRUE(sequence.rollback(5));
  EXPECT_EQ(state_of(sequence), 5.0F);
  EXPECT_EQ(sequence.tokens(), some_tokens(5));
}

TEST(DecodeRing, TruncateDropsWhatLiesBeyond) {
  const auto cache = make_cache({keys(), recurrent()}, 4);
  Sequence sequence = cache->open(some_tokens(12), {}).value();
  step_to(sequence, 4);
  ASSERT_TRUE(sequence.snapshot());
  ASSERT_TRUE(sequence.record());
  step_to(sequence, 8);
  ASSERT_TRUE(sequence.record());
  ASSERT_TRUE(sequence.truncate(4));
  EXPECT_EQ(sequence.recorded(), (Positions{4}));
  EXPECT_EQ(cache->stats().ring_snapshots, 1U);
  ASSERT_TRUE(sequence.truncate(0));
  EXPECT_EQ(cache->stats().ring_snapshots, 0U);
}

TEST(DecodeRing, FullRingsTakeThePlannedBytesAndCloseGivesThemBack) {
  for (const bool backing : {true, false}) {
    const auto cache = make_cache({recurrent()}, 3, {.backing = backing});
    const StatePlan& plan = cache->plan();
    std::vector<Sequence> sequences;
    for (int i = 0; i < 4; ++i) {
      sequences.push_back(cache->open(some_tokens(8), {}).value());
      for (int record = 0; record < 5; ++record) {
        ASSERT_TRUE(sequences.back().advance(1));
        ASSERT_TRUE(sequences.back().record());
      }
    }
    EXPECT_EQ(plan.ring_bytes(), 3 * 4 * kState * 4);
    EXPECT_EQ(cache->stats().used_bytes, plan.ring_bytes() + 4 * plan.slot_bytes());
    EXPECT_EQ(cache->stats().ring_snapshots, 12U);
    ASSERT_TRUE(sequences[0].rollback(4));
    EXPECT_EQ(cache->stats().ring_snapshots, 11U);
    sequences.clear();
    EXPECT_EQ(cache->stats().used_bytes, 0U);
  }
}

TEST(DecodeRing, ItsDepthIsBoundedAndItsBytesFit64Bits) {
  EXPECT_EQ(StatePlan::create({recurrent()}, {1 << 20, 4, 4, 4097}).status().code(),
            StatusCode::kInvalidArgument);
  StateDecl vast = recurrent();
  vast.shape = {std::uint64_t{1} << 44};
  const auto plan = StatePlan::create({vast}, {1 << 20, 4, UINT32_MAX, 4096});
  EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(plan.status().message().find("ring_depth"), std::string::npos);
}

}  // namespace
}  // namespace kvcache
