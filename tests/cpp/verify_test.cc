#include "kvcache/verify.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "kvcache/cache.h"

namespace kvcache {
namespace {

constexpr std::size_t kWidth = 4;
constexpr std::uint64_t kMemory = 1 << 20;

std::unique_ptr<Cache> make_cache(std::uint32_t window = 0, bool recurrent = true,
                                  std::uint64_t memory = kMemory) {
  std::vector<StateDecl> decls = {{.id = "k",
                                   .layer = 0,
                                   .component = "attention.keys",
                                   .kind = StateKind::kPagedKv,
                                   .dtype = DType::kI8,
                                   .shape = {1, kWidth},
                                   .row_scale_bytes = 4,
                                   .window = window}};
  if (recurrent) {
    decls.push_back({.id = "h",
                     .layer = 1,
                     .component = "state.recurrent",
                     .kind = StateKind::kRecurrent,
                     .dtype = DType::kF32,
                     .shape = {3}});
  }
  auto plan = StatePlan::create(std::move(decls), {.memory_bytes = memory, .block_tokens = 4});
  EXPECT_TRUE(plan.is_ok()) << plan.status().message();
  auto cache = Cache::create(std::move(plan).value(), {});
  EXPECT_TRUE(cache.is_ok()) << cache.status().message();
  return std::move(cache).value();
}

// Row of a position: the same token gives other elements elsewhere.
std::vector<float> rows_of(std::span<const std::int32_t> tokens, std::uint64_t start) {
  std::vector<float> rows;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    for (std::size_t j = 0; j < kWidth; ++j) {
      rows.push_back(static_cast<float>(tokens[i] + 1) / static_cast<float>(start + i + j + 2));
    }
  }
  return rows;
}

codec::RowsView view_of(const std::vector<float>& rows) {
  constexpr auto kStride = static_cast<std::ptrdiff_t>(kWidth * sizeof(float));
  return {rows.data(), DType::kF32, rows.size() / kWidth, 1, kWidth, kStride, kStride};
}

std::vector<float> read_rows(const Sequence& sequence, std::uint64_t start, std::uint64_t stop) {
  constexpr auto kStride = static_cast<std::ptrdiff_t>(kWidth * sizeof(float));
  std::vector<float> rows((stop - start) * kWidth);
  const codec::MutableRowsView view{rows.data(), DType::kF32, stop - start, 1,
                                    kWidth,      kStride,     kStride};
  const Status status = sequence.read(0, start, {&view, 1});
  EXPECT_TRUE(status.is_ok()) << status.message();
  return rows;
}

// The fold of the stand-in model: its state depends on every token and on their order.
void fold(float* state, std::int32_t token) {
  for (int i = 0; i < 3; ++i) state[i] = state[i] * 0.5F + static_cast<float>(token * (i + 1));
}

float* floats(const StateView& view) { return reinterpret_cast<float*>(view.data); }

std::vector<float> state_of(const Sequence& sequence) {
  auto view = sequence.state(1, "state.recurrent");
  EXPECT_TRUE(view.is_ok()) << view.status().message();
  return {floats(*view), floats(*view) + 3};
}

// Runs what is known and has not run, without speculation.
Status run(Sequence& sequence, bool recurrent = true) {
  const std::vector<std::int32_t> tokens = sequence.tokens();
  const std::uint64_t start = sequence.length();
  const std::span<const std::int32_t> fresh = std::span(tokens).subspan(start);
  const std::vector<float> rows = rows_of(fresh, start);
  const codec::RowsView view = view_of(rows);
  if (Status status = sequence.write(0, start, {&view, 1}); !status) return status;
  if (recurrent) {
    auto state = sequence.state(1, "state.recurrent");
    if (!state) return state.status();
    for (const std::int32_t token : fresh) fold(floats(*state), token);
  }
  return sequence.advance(fresh.size());
}

Status run(VerifySession& session, bool recurrent = true) {
  const std::vector<float> rows = rows_of(session.tokens(), session.start());
  const codec::RowsView view = view_of(rows);
  if (Status status = session.write(0, {&view, 1}); !status) return status;
  for (std::uint64_t row = 0; recurrent && row < session.rows(); ++row) {
    auto state = session.state(row, 1, "state.recurrent");
    if (!state) return state.status();
    fold(floats(*state), session.tokens()[row]);
  }
  return Status::ok();
}

Sequence open_at(Cache& cache, std::vector<std::int32_t> tokens, bool recurrent = true) {
  auto sequence = cache.open(tokens, {});
  EXPECT_TRUE(sequence.is_ok()) << sequence.status().message();
  EXPECT_TRUE(run(*sequence, recurrent).is_ok());
  return std::move(sequence).value();
}

const std::vector<std::int32_t> kPrompt = {3, 1, 4, 1, 5, 9};

class VerifyTest : public testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Accepted, VerifyTest, testing::Range(std::uint64_t{1}, std::uint64_t{7}));

TEST_P(VerifyTest, CommitEqualsSequentialDecoding) {
  const std::vector<std::int32_t> tail = {2, 6, 5, 3, 5, 8};
  const auto cache = make_cache();
  Sequence plain = open_at(*cache, kPrompt);
  ASSERT_TRUE(plain.extend(std::span(tail).first(GetParam())).is_ok());
  ASSERT_TRUE(run(plain).is_ok());

  Sequence sequence = open_at(*cache, kPrompt);
  ASSERT_TRUE(sequence.extend(std::span(tail).first(1)).is_ok());
  auto session = sequence.begin_verify(std::span(tail).subspan(1));
  ASSERT_TRUE(session.is_ok()) << session.status().message();
  EXPECT_EQ(session->rows(), 6U);
  EXPECT_EQ(session->start(), kPrompt.size());
  ASSERT_TRUE(run(*session).is_ok());
  const auto length = session->commit(GetParam());
  ASSERT_TRUE(length.is_ok()) << length.status().message();
  EXPECT_EQ(*length, plain.length());
  EXPECT_EQ(sequence.tokens(), plain.tokens());
  EXPECT_EQ(state_of(sequence), state_of(plain));
  EXPECT_EQ(read_rows(sequence, 0, *length), read_rows(plain, 0, *length));
  EXPECT_EQ(*sequence.written(0), *length);
  EXPECT_FALSE(session->is_open());
  // What was rejected is gone: the next rows take its place.
  ASSERT_TRUE(plain.extend(std::span(tail).first(2)).is_ok());
  ASSERT_TRUE(sequence.extend(std::span(tail).first(2)).is_ok());
  ASSERT_TRUE(run(plain).is_ok());
  ASSERT_TRUE(run(sequence).is_ok());
  EXPECT_EQ(read_rows(sequence, 0, *length + 2), read_rows(plain, 0, *length + 2));
  EXPECT_EQ(state_of(sequence), state_of(plain));
}

TEST(Verify, EndingOtherwiseLeavesEverythingAsItWas) {
  const auto cache = make_cache(3);
  Sequence sequence = open_at(*cache, kPrompt);
  ASSERT_TRUE(sequence.extend(std::vector{2}).is_ok());
  const CacheStats before = cache->stats();
  const auto state = state_of(sequence);
  const std::uint64_t end = kPrompt.size();
  const auto rows = read_rows(sequence, end - 2, end);  // what the next query sees
  const auto unchanged = [&] {
    EXPECT_EQ(sequence.length(), kPrompt.size());
    EXPECT_EQ(sequence.tokens().size(), kPrompt.size() + 1);
    EXPECT_EQ(state_of(sequence), state);
    EXPECT_EQ(read_rows(sequence, end - 2, end), rows);
    EXPECT_EQ(cache->stats().used_bytes, before.used_bytes);
  };
  const std::vector<std::int32_t> drafts(9, 7);
  {
    auto session = sequence.begin_verify(drafts);
    ASSERT_TRUE(session.is_ok() && run(*session).is_ok());
    EXPECT_GT(cache->stats().used_bytes, before.used_bytes);
    ASSERT_TRUE(session->rollback().is_ok());
    unchanged();
  }
  {
    auto dropped = sequence.begin_verify(drafts);
    ASSERT_TRUE(dropped.is_ok() && run(*dropped).is_ok());
  }
  unchanged();
  auto first = sequence.begin_verify(drafts);
  ASSERT_TRUE(first.is_ok());
  VerifySession moved = std::move(*first);
  EXPECT_TRUE(moved.is_open());
  EXPECT_FALSE(first->is_open());  // NOLINT(bugprone-use-after-move): it says so
  moved = VerifySession();
  unchanged();
}

TEST(Verify, AStateThatWasNeverFilledIsNeverAdopted) {
  const auto cache = make_cache();
  Sequence sequence = open_at(*cache, kPrompt);
  ASSERT_TRUE(sequence.extend(std::vector{2}).is_ok());
  const auto before = state_of(sequence);
  auto session = sequence.begin_verify(std::vector{1, 1});
  ASSERT_TRUE(session.is_ok());
  const std::vector<float> rows = rows_of(session->tokens(), session->start());
  const codec::RowsView view = view_of(rows);
  ASSERT_TRUE(session->write(0, {&view, 1}).is_ok());
  {
    auto last = session->state(2, 1, "state.recurrent");
    ASSERT_TRUE(last.is_ok());
    EXPECT_EQ(std::vector<float>(floats(*last), floats(*last) + 3), before);
  }
  const auto refused = session->commit(1);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("'state.recurrent' of layer 1 after row 0"),
            std::string::npos)
      << refused.status().message();
  EXPECT_TRUE(session->is_open());
  ASSERT_TRUE(session->rollback().is_ok());
  EXPECT_EQ(state_of(sequence), before);
}

TEST(Verify, RowsFollowOneAnotherUntouchedByEarlierOwners) {
  const auto cache = make_cache();
  {
    Sequence other = open_at(*cache, {8, 8, 8});
    ASSERT_TRUE(other.extend(std::vector{8}).is_ok());
    auto session = other.begin_verify(std::vector{8, 8, 8});
    ASSERT_TRUE(session.is_ok() && run(*session).is_ok());
  }
  Sequence sequence = open_at(*cache, kPrompt);
  ASSERT_TRUE(sequence.extend(std::vector{2}).is_ok());
  const auto live = state_of(sequence);
  auto session = sequence.begin_verify(std::vector{1, 1, 1});
  ASSERT_TRUE(session.is_ok());
  for (std::uint64_t row = 0; row < 4; ++row) {
    auto state = session->state(row, 1, "state.recurrent");
    ASSERT_TRUE(state.is_ok());
    EXPECT_EQ(floats(*state)[0], live[0] + static_cast<float>(row));
    floats(*state)[0] += 1;
    auto again = session->state(row, 1, "state.recurrent");
    ASSERT_TRUE(again.is_ok());
    EXPECT_EQ(floats(*again), floats(*state));  // taken once, the same tensor from then on
    EXPECT_EQ(floats(*again)[0], live[0] + static_cast<float>(row + 1));
  }
}

TEST(Verify, OutOfCapacityChangesNothing) {
  for (const bool recurrent : {true, false}) {
    const auto cache = make_cache(0, recurrent, 192 << 10);
    Sequence sequence = open_at(*cache, kPrompt, recurrent);
    ASSERT_TRUE(sequence.extend(std::vector{2}).is_ok());
    const CacheStats before = cache->stats();
    const auto refused = sequence.begin_verify(std::vector<std::int32_t>(1 << 16, 1));
    ASSERT_FALSE(refused.is_ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kOutOfCapacity);
    EXPECT_EQ(cache->stats().used_bytes, before.used_bytes);
    EXPECT_EQ(cache->stats().pages, before.pages);
    auto session = sequence.begin_verify({});
    ASSERT_TRUE(session.is_ok()) << session.status().message();
    ASSERT_TRUE(run(*session, recurrent).is_ok());
    EXPECT_TRUE(session->commit(1).is_ok());
  }
}

TEST(Verify, AClosedSequenceEndsItsSession) {
  auto cache = make_cache();
  Sequence sequence = open_at(*cache, kPrompt);
  ASSERT_TRUE(sequence.extend(std::vector{2}).is_ok());
  auto session = sequence.begin_verify(std::vector{1});
  ASSERT_TRUE(session.is_ok());
  auto kept = session->state(0, 1, "state.recurrent");
  ASSERT_TRUE(kept.is_ok());
  sequence.close();
  EXPECT_FALSE(session->is_open());
  EXPECT_EQ(session->commit(1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(session->rollback().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->stats().snapshots, 1U);  // pinned by the view
  cache.reset();
  floats(*kept)[0] = 1;  // still mapped
}

TEST(Verify, WindowsAreTrimmedAfterTheVerdict) {
  const auto cache = make_cache(3);
  Sequence sequence = open_at(*cache, kPrompt);
  for (std::int32_t round = 0; round < 50; ++round) {
    ASSERT_TRUE(sequence.extend(std::vector{round}).is_ok());
    auto session = sequence.begin_verify(std::vector{1, 2, 3, 4, 5});
    ASSERT_TRUE(session.is_ok() && run(*session).is_ok());
    ASSERT_TRUE(session->commit(1 + static_cast<std::uint64_t>(round) % 6).is_ok());
    EXPECT_LE(cache->stats().pages, 4U);  // 2 rows before start, 6 from it on
    const std::uint64_t end = sequence.length();
    EXPECT_EQ(read_rows(sequence, end - 2, end).size(), 2 * kWidth);
  }
}

TEST(Verify, SessionsOfDifferentSequencesRunSideBySide) {
  const auto cache = make_cache(8);
  std::atomic<int> failures = 0;
  const auto decode = [&](std::int32_t seed) {
    Sequence sequence = open_at(*cache, {seed, 2, 3});
    Sequence plain = open_at(*cache, {seed, 2, 3});
    for (std::int32_t round = 0; round < 60; ++round) {
      const std::vector<std::int32_t> next = {seed + round, round, round + 1, round + 2};
      if (!sequence.extend(std::span(next).first(1))) ++failures;
      auto session = sequence.begin_verify(std::span(next).subspan(1));
      if (!session || !run(*session)) return void(++failures);
      const auto accepted = static_cast<std::uint64_t>(round % 5);
      if (accepted == 0) {
        if (!session->rollback() || !run(sequence)) ++failures;
      } else if (!session->commit(accepted)) {
        ++failures;
      }
      const std::uint64_t kept = std::max<std::uint64_t>(accepted, 1);
      if (!plain.extend(std::span(next).first(kept)) || !run(plain)) ++failures;
      if (state_of(sequence) != state_of(plain)) ++failures;
      const std::uint64_t stop = plain.length();
      if (read_rows(sequence, stop - 3, stop) != read_rows(plain, stop - 3, stop)) ++failures;
      if (round % 16 == 0 && (!sequence.snapshot() || !sequence.publish())) ++failures;
    }
  };
  std::vector<std::thread> threads;
  for (std::int32_t seed = 0; seed < 4; ++seed) threads.emplace_back(decode, 100 * seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  cache->clear();
  EXPECT_EQ(cache->stats().used_bytes, 0U);
}

}  // namespace
}  // namespace kvcache
