// A segment log whose system fails at every call it makes, once or for good, moves a few bytes at a
// time, or loses its power at every call: nothing wrong is ever served, and what was promised is
// there.
#include <gtest/gtest.h>

#include <set>

#include "persist/tier_check.h"
#include "tier_files.h"

namespace kvcache::persist {
namespace {

using namespace files;

constexpr std::uint64_t kRecords = 22;

struct Done {
  std::set<std::uint64_t> appended;  // by the log's word
  std::set<std::uint64_t> synced;
  std::uint64_t failures = 0;
};

// What was appended from `first` on is safe by the log's word.
void promise(Done& done, const Status& status, std::uint64_t first) {
  if (!status) {
    ++done.failures;
    return;
  }
  done.synced.insert(done.appended.lower_bound(first), done.appended.end());
}

// Segments fill and are sealed, the cap evicts some, groups are synchronised. Whatever fails, the
// log goes on.
Done work(System& system, const std::string& path, const LogOptions& options) {
  Done done;
  const auto log = SegmentLog::open(system, path, options);
  if (!log) {
    ++done.failures;
    return done;
  }
  for (std::uint64_t i = 0; i < kRecords; ++i) {
    if (Sample(i).append_to(**log)) {
      done.appended.insert(i);
      EXPECT_NE(look_up(**log, i), Outcome::kAbsent) << i;
      if (options.durability == Durability::kRecord) done.synced.insert(i);
    } else {
      ++done.failures;
    }
    if (i == 4) (*log)->use(Located{Sample(0).header, nullptr});
    if (i % 11 != 10) continue;
    promise(done, (*log)->sync(), i - 10);
  }
  promise(done, (*log)->close(), kRecords - kRecords % 11);
  for (std::uint64_t i = 0; i < kRecords; ++i) {
    EXPECT_NE(look_up(**log, i), Outcome::kWrong) << i;
  }
  return done;
}

LogOptions evicting() {
  LogOptions options = small_options();
  options.max_bytes = 8 << 10;
  options.segment_bytes = 1 << 10;
  return options;
}

LogOptions roomy() {
  LogOptions options = small_options();
  options.segment_bytes = 1 << 10;
  return options;
}

std::unique_ptr<SegmentLog> reopen(const std::string& path, const LogOptions& options) {
  auto log = SegmentLog::open(System::real(), path, options);
  EXPECT_TRUE(log.is_ok()) << log.status().message();
  return log ? std::move(log).value() : nullptr;
}

// After a failure of the system alone nothing is torn: what the log said it has is there.
void expect_all(const std::string& path, const LogOptions& options, const Done& done,
                const std::string& what) {
  const auto log = reopen(path, options);
  ASSERT_NE(log, nullptr) << what;
  for (std::uint64_t i = 0; i < kRecords; ++i) {
    const Outcome outcome = look_up(*log, i);
    ASSERT_TRUE(outcome == Outcome::kAbsent || outcome == Outcome::kEqual) << what << ' ' << i;
    if (options.max_bytes == roomy().max_bytes && done.appended.contains(i)) {
      ASSERT_EQ(outcome, Outcome::kEqual) << what << ", record " << i;
    }
  }
  ASSERT_TRUE(Sample(kRecords).append_to(*log).is_ok()) << what;
  ASSERT_EQ(look_up(*log, kRecords), Outcome::kEqual) << what;
}

class Faults : public testing::TestWithParam<bool> {};

TEST_P(Faults, AnyCallMayFailOnceOrForGood) {
  for (const LogOptions& options : {roomy(), evicting()}) {
    std::uint64_t failing = 0;
    for (std::uint64_t call = 0;; ++call) {
      const Directory directory;
      FaultySystem system;
      system.fail_at = call;
      system.fail_after = GetParam();
      system.error = call % 2 == 0 ? ENOSPC : EIO;
      const Done done = work(system, directory.tier(), options);
      failing += done.failures > 0;
      if (system.calls <= call) break;
      expect_all(directory.tier(), options, done, "call " + std::to_string(call));
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(failing, 40U) << "the faults do not reach the log";
  }
}

INSTANTIATE_TEST_SUITE_P(OnceAndForGood, Faults, testing::Bool());

TEST(Faults, ShortReadsAndWritesAreContinued) {
  for (const std::size_t most : {1, 7, 64}) {
    const Directory directory;
    FaultySystem system;
    system.most_bytes = most;
    const Done done = work(system, directory.tier(), roomy());
    EXPECT_EQ(done.failures, 0U);
    EXPECT_EQ(done.appended.size(), kRecords);
    expect_all(directory.tier(), roomy(), done, "short calls");
    const auto report = check_tier(System::real(), directory.tier(), true);
    ASSERT_TRUE(report.is_ok());
    EXPECT_TRUE(report->problems.empty()) << report->problems.front();
  }
}

// What was synchronised is there, whole; of the rest nothing wrong is served.
TEST(Faults, PowerMayFailAtAnyCall) {
  using Shape = PowerCutSystem::Shape;
  for (const Durability durability : {Durability::kNone, Durability::kGroup, Durability::kRecord}) {
    LogOptions options = roomy();
    options.durability = durability;
    std::uint64_t promised = 0;
    for (std::uint64_t call = 0;; ++call) {
      bool reached = false;
      for (const Shape shape : {Shape::kLost, Shape::kZeroed, Shape::kHalf, Shape::kOutOfOrder}) {
        const Directory directory;
        PowerCutSystem system;
        system.cut_at = call;
        const Done done = work(system, directory.tier(), options);
        reached |= system.calls > call;
        if (!fs::exists(directory.tier())) continue;
        system.cut(directory.tier(), shape);
        const auto log = SegmentLog::open(System::real(), directory.tier(), options);
        ASSERT_TRUE(log.is_ok()) << call << ": " << log.status().message();
        for (std::uint64_t i = 0; i < kRecords; ++i) {
          const Outcome outcome = look_up(**log, i);
          ASSERT_NE(outcome, Outcome::kWrong) << call << ", record " << i;
          if (durability == Durability::kNone || !done.synced.contains(i)) continue;
          ++promised;
          ASSERT_EQ(outcome, Outcome::kEqual) << call << ", record " << i;
        }
        ASSERT_TRUE(Sample(kRecords).append_to(**log).is_ok()) << call;
      }
      if (!reached) break;
    }
    EXPECT_TRUE(durability == Durability::kNone || promised > 1000) << promised;
  }
}

// The cap holds although the oldest segment cannot be removed: writing stops, reading goes on.
TEST(Faults, ASegmentThatCannotBeRemovedStopsWritingAndNothingElse) {
  class Stuck : public System {
   public:
    int remove_at(int, const char*) override { return -EROFS; }
  };
  const Directory directory;
  Stuck system;
  const LogOptions options = evicting();
  const auto log = SegmentLog::open(system, directory.tier(), options);
  ASSERT_TRUE(log.is_ok());
  std::uint64_t last = 0;
  while (Sample(last).append_to(**log)) ++last;
  EXPECT_EQ(Sample(last).append_to(**log).code(), StatusCode::kIoError);
  EXPECT_LE((*log)->stats().bytes, options.max_bytes);
  for (std::uint64_t i = 0; i < last; ++i) EXPECT_EQ(look_up(**log, i), Outcome::kEqual) << i;
}

TEST(Faults, ADirectoryThatVanishesIsAnErrorAndNoCrash) {
  const Directory directory;
  const auto log = reopen(directory.tier(), roomy());
  ASSERT_TRUE(Sample(0).append_to(*log).is_ok());
  fs::remove_all(directory.tier());
  std::uint64_t failures = 0;
  for (std::uint64_t i = 1; i < 60; ++i) failures += !Sample(i).append_to(*log);
  EXPECT_GT(failures, 0U);
  EXPECT_EQ(look_up(*log, 0), Outcome::kEqual) << "it is still open";
}

}  // namespace
}  // namespace kvcache::persist
