// Hidden rows, pending drafts and reservations: lifetimes, and threads that use them at once.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "kvcache/accept_stash.h"
#include "kvcache/cache.h"
#include "kvcache/draft_tokens.h"
#include "kvcache/hidden_capture.h"
#include "kvcache/verify.h"

namespace kvcache {
namespace {

constexpr std::uint64_t kWidth = 3;

std::unique_ptr<Cache> make_cache() {
  StateDecl keys;
  keys.id = "keys";
  keys.layer = 0;
  keys.component = "attention.keys";
  keys.shape = {1, 8};
  auto plan = StatePlan::create({keys}, {.memory_bytes = 4 << 20, .sequences = 32});
  EXPECT_TRUE(plan.is_ok()) << plan.status().message();
  auto cache = Cache::create(std::move(plan).value(), {.backing = false});
  EXPECT_TRUE(cache.is_ok()) << cache.status().message();
  return std::move(cache).value();
}

Sequence make_sequence(Cache& cache) {
  auto sequence = cache.open(std::array<std::int32_t, 2>{1, 2}, {});
  EXPECT_TRUE(sequence.is_ok()) << sequence.status().message();
  EXPECT_TRUE(sequence->advance(1).is_ok());
  return std::move(sequence).value();
}

HiddenView view_of(const std::vector<float>& rows) {
  return {.data = rows.data(),
          .dtype = DType::kF32,
          .rows = rows.size() / kWidth,
          .width = kWidth,
          .row_stride = kWidth * sizeof(float),
          .owner = nullptr};
}

std::vector<float> rows_of(std::uint64_t rows, float value) {
  return std::vector<float>(rows * kWidth, value);
}

float first_of(const HiddenView& view) { return *static_cast<const float*>(view.data); }

const HiddenRowsOptions kRows{.rows = 4, .width = kWidth, .dtype = DType::kF32};

TEST(AcceptStash, ARowEndsWithTheNextVerifyOfItsSequenceOnly) {
  const auto cache = make_cache();
  Sequence first = make_sequence(*cache);
  Sequence second = make_sequence(*cache);
  const auto stash = *AcceptStash::create({kRows, 0});
  const std::vector<float> hidden = {1, 1, 1, 2, 2, 2};
  const std::array<const Sequence*, 2> both = {&first, &second};
  const std::array<std::uint64_t, 2> rows = {1, 0};
  ASSERT_TRUE(stash->store(both, view_of(hidden), rows).is_ok());
  EXPECT_EQ(first_of(*stash->row(0)), 2.0F);
  EXPECT_EQ(first_of(*stash->row(1)), 1.0F);
  {
    const auto session = first.begin_verify(std::array<std::int32_t, 1>{5});
    ASSERT_TRUE(session.is_ok());
    EXPECT_EQ(stash->row(0).status().message(),
              "row: stash row 0 ended when the next verify of its sequence began");
  }
  EXPECT_EQ(stash->rows(2).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(first_of(*stash->row(1)), 1.0F);
  second.close();
  EXPECT_EQ(stash->row(1).status().message(),
            "row: stash row 1 ended when its sequence was closed");
}

TEST(HiddenBands, TheRowsThatCommitKept) {
  const auto cache = make_cache();
  Sequence sequence = make_sequence(*cache);
  const auto bands = *HiddenBands::create(1, kRows);
  const std::array<const Sequence*, 1> one = {&sequence};
  auto session = sequence.begin_verify(std::array<std::int32_t, 3>{5, 6, 7});
  ASSERT_TRUE(session.is_ok());
  ASSERT_TRUE(
      bands->store(one, view_of(rows_of(5, 3)), std::array<std::uint64_t, 2>{1, 5}).is_ok());
  EXPECT_FALSE(bands->accepted(0).is_ok());
  ASSERT_TRUE(session->commit(3).is_ok());
  EXPECT_EQ(bands->accepted(0)->rows, 3U);
  EXPECT_EQ(bands->accepted(1).status().code(), StatusCode::kInvalidArgument);
}

TEST(Reservation, MovesAndGivesBackOnce) {
  const auto cache = make_cache();
  auto made = cache->reserve(1 << 20);
  ASSERT_TRUE(made.is_ok()) << made.status().message();
  Reservation kept = std::move(made).value();
  Reservation other = std::move(kept);
  EXPECT_EQ(kept.bytes(), 0U);  // NOLINT: what a moved one says
  EXPECT_EQ(other.bytes(), 1U << 20);
  EXPECT_EQ(cache->stats().reserved_bytes, 1U << 20);
  other = Reservation();
  EXPECT_EQ(cache->stats().reserved_bytes, 0U);
  EXPECT_EQ(cache->reserve(~0ULL).status().code(), StatusCode::kOutOfCapacity);
}

// Three sequences that all threads share, one stash, one capture, one table of drafts, one budget.
class Shared {
 public:
  void work(unsigned seed) {
    std::mt19937 rng(seed);
    for (int round = 0; round < 400; ++round) step(rng);
  }
  ~Shared() { EXPECT_EQ(cache_->stats().reserved_bytes, 0U); }

 private:
  void step(std::mt19937& rng) {
    Sequence& sequence = sequences_[rng() % sequences_.size()];
    const std::array<const Sequence*, 1> one = {&sequence};
    const HiddenView hidden = view_of(hidden_);
    switch (rng() % 8) {
      case 0:
        static_cast<void>(stash_->store(one, hidden, std::array<std::uint64_t, 1>{rng() % 4}));
        break;
      case 1:
        if (const auto rows = stash_->rows(1)) {
          EXPECT_EQ(rows->rows, 1U);
        }
        break;
      case 2:
        if (auto session = sequence.begin_verify(std::array<std::int32_t, 1>{7})) {
          static_cast<void>(bands_->store(one, hidden, std::array<std::uint64_t, 2>{0, 2}));
          static_cast<void>(rng() % 2 == 0 ? session->rollback() : session->commit(1).status());
          static_cast<void>(sequence.extend(std::array<std::int32_t, 1>{3}));
        }
        break;
      case 3:
        static_cast<void>(bands_->accepted(0));
        break;
      case 4:
        static_cast<void>(drafts_->put(sequence, std::array<std::int32_t, 2>{1, 2}));
        break;
      case 5:
        if (const auto taken = drafts_->take(sequence)) {
          EXPECT_TRUE(taken->tokens.empty() || taken->tokens.size() == 2);
          static_cast<void>(drafts_->put_back(sequence));
        }
        break;
      case 6:
        if (capture_->begin(sequence)) {
          static_cast<void>(capture_->write(sequence.length(), hidden));
          static_cast<void>(capture_->rows());
          EXPECT_TRUE(capture_->release().is_ok());
        }
        break;
      default:
        if (const auto held = cache_->reserve(1 << (rng() % 20))) {
          EXPECT_GT(held->bytes(), 0U);
        }
    }
  }

  const std::unique_ptr<Cache> cache_ = make_cache();
  std::array<Sequence, 3> sequences_ = {make_sequence(*cache_), make_sequence(*cache_),
                                        make_sequence(*cache_)};
  const std::vector<float> hidden_ = rows_of(4, 1);
  const std::unique_ptr<AcceptStash> stash_ = *AcceptStash::create({kRows, 0});
  const std::unique_ptr<HiddenCapture> capture_ = *HiddenCapture::create(kRows);
  const std::unique_ptr<HiddenBands> bands_ = *HiddenBands::create(1, kRows);
  const std::unique_ptr<DraftTokens> drafts_ = *DraftTokens::create(2, 4);
};

TEST(Drafting, ThreadsShareSequencesAndWhatIsKeptOfThem) {
  Shared shared;
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&shared, seed] { shared.work(seed); });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace kvcache
