// Records taken out of a log: by owner and by the tokens of their path. What is erased is found by
// nobody and is in no file, whatever fails on the way; the rest stays.
#include "persist/segment_erase.h"

#include <gtest/gtest.h>

#include <set>

#include "persist/tier_check.h"
#include "tier_files.h"

namespace kvcache::persist {
namespace {

using namespace files;

constexpr std::uint64_t kRecords = 40;

LogOptions options() {
  LogOptions options = small_options();
  options.segment_bytes = 1 << 10;
  return options;
}

std::unique_ptr<SegmentLog> open_log(const std::string& path, System& system = System::real()) {
  auto log = SegmentLog::open(system, path, options());
  EXPECT_TRUE(log.is_ok()) << log.status().message();
  return log ? std::move(log).value() : nullptr;
}

TierErasure of_owner(const std::string& owner) {
  const auto is_it = [=](std::string_view text) { return text == owner; };
  return {is_it, [](std::string_view) { return true; }};
}

// Records of `owner 1` are numbers 1, 5, 9 ...
bool is_chosen(std::uint64_t number) { return number % 4 == 1; }

// By its key and its parent's, which stand together in a header and nowhere else. That the rest of
// an erased record is zero, check_tier() looks after.
bool is_in_files(const std::string& path, const Sample& sample) {
  char names[64];
  std::copy(sample.header.key.begin(), sample.header.key.end(), names);
  std::copy(sample.header.parent.begin(), sample.header.parent.end(), names + 32);
  for (const std::string& file : segment_files(path)) {
    const Bytes bytes = read_file(file);
    const auto at = std::search(bytes.begin(), bytes.end(), std::begin(names), std::end(names));
    if (at != bytes.end()) return true;
  }
  return false;
}

void expect_erased(const SegmentLog& log, bool rest) {
  for (std::uint64_t i = 0; i < kRecords; ++i) {
    const Outcome outcome = look_up(log, i);
    EXPECT_TRUE(!is_chosen(i) || outcome == Outcome::kAbsent) << i;
    EXPECT_TRUE(is_chosen(i) || !rest || outcome == Outcome::kEqual) << i;
    EXPECT_NE(outcome, Outcome::kWrong) << i;
  }
}

TEST(SegmentErase, ByOwnerNothingIsLeftAndTheRestStays) {
  const Directory directory;
  {
    const auto log = open_log(directory.tier());
    for (std::uint64_t i = 0; i < kRecords; ++i) ASSERT_TRUE(Sample(i).append_to(*log).is_ok());
    const auto erased = log->erase(of_owner("owner 1"));
    ASSERT_TRUE(erased.is_ok()) << erased.status().message();
    EXPECT_EQ(*erased, kRecords / 4);
    EXPECT_EQ(log->stats().erased_records, kRecords / 4);
    EXPECT_EQ(log->stats().records, kRecords - kRecords / 4);
    expect_erased(*log, true);
    EXPECT_EQ(log->erase(of_owner("owner 1")).value(), 0U);
    // The segment that is open still takes records.
    ASSERT_TRUE(Sample(kRecords).append_to(*log).is_ok());
    EXPECT_EQ(look_up(*log, kRecords), Outcome::kEqual);
  }
  for (std::uint64_t i = 0; i < kRecords; ++i) {
    EXPECT_EQ(is_in_files(directory.tier(), Sample(i)), !is_chosen(i)) << i;
  }
  const auto report = check_tier(System::real(), directory.tier(), true);
  ASSERT_TRUE(report.is_ok());
  EXPECT_TRUE(report->problems.empty()) << report->problems.front();
  std::uint64_t erased = 0;
  for (const SegmentReport& segment : report->segments) erased += segment.erased;
  EXPECT_EQ(erased, kRecords / 4);
  const auto log = open_log(directory.tier());
  expect_erased(*log, true);
  ASSERT_TRUE(Sample(1).append_to(*log).is_ok());
  EXPECT_EQ(look_up(*log, 1), Outcome::kEqual) << "it may come back";
}

TEST(SegmentErase, AReaderMissesWhatTheWriterErased) {
  const Directory directory;
  const auto writer = open_log(directory.tier());
  for (std::uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(Sample(i).append_to(*writer).is_ok());
  LogOptions reading = options();
  reading.access = TierAccess::kRead;
  auto reader = SegmentLog::open(System::real(), directory.tier(), reading);
  ASSERT_TRUE(reader.is_ok());
  EXPECT_EQ((*reader)->erase(of_owner("owner 1")).status().code(), StatusCode::kUnsupported);
  ASSERT_TRUE(writer->erase(of_owner("owner 1")).is_ok());
  const auto found = (*reader)->find(RecordKind::kRun, digest_of(1));
  ASSERT_TRUE(found.has_value());
  std::vector<std::int32_t> tokens(found->header.tokens);
  std::vector<std::byte> payload(found->header.payload_bytes);
  const iovec piece{payload.data(), payload.size()};
  const Status status = found->read(tokens, {&piece, 1});
  EXPECT_EQ(status.code(), StatusCode::kNotFound) << status.message();
  (*reader)->forget(*found, status);
  EXPECT_FALSE((*reader)->find(RecordKind::kRun, digest_of(1)));
  EXPECT_EQ((*reader)->stats().damaged_records, 0U);
  EXPECT_EQ(look_up(**reader, 4), Outcome::kEqual);
}

// A segment that cannot be read may hold anything.
TEST(SegmentErase, WhatCannotBeReadGoes) {
  const Directory directory;
  {
    const auto log = open_log(directory.tier());
    for (std::uint64_t i = 0; i < kRecords; ++i) ASSERT_TRUE(Sample(i).append_to(*log).is_ok());
  }
  const auto files = segment_files(directory.tier());
  put_byte(files[1], 9, 'x');
  const auto log = open_log(directory.tier());
  ASSERT_EQ(log->stats().damaged_segments, 1U);
  ASSERT_TRUE(log->erase(of_owner("owner 1")).is_ok());
  EXPECT_FALSE(fs::exists(files[1]));
  EXPECT_TRUE(fs::exists(files[0]));
  expect_erased(*log, false);
}

// Whatever the system refuses: what erase() says it has erased is nowhere, and otherwise this log
// finds it no more.
TEST(SegmentErase, AnyCallMayFailOnceOrForGood) {
  std::uint64_t failures = 0;
  std::uint64_t successes = 0;
  for (const bool for_good : {false, true}) {
    for (std::uint64_t call = 0;; ++call) {
      const Directory directory;
      FaultySystem system;
      const auto log = open_log(directory.tier(), system);
      for (std::uint64_t i = 0; i < kRecords; ++i) ASSERT_TRUE(Sample(i).append_to(*log).is_ok());
      const std::uint64_t before = system.calls;
      system.fail_at = before + call;
      system.fail_after = for_good;
      const auto erased = log->erase(of_owner("owner 1"));
      const bool reached = system.calls > system.fail_at;
      system.fail_at = UINT64_MAX;
      expect_erased(*log, false);
      failures += !erased.is_ok();
      successes += erased.is_ok();
      if (erased) {
        for (std::uint64_t i = 0; i < kRecords; ++i) {
          EXPECT_FALSE(is_chosen(i) && is_in_files(directory.tier(), Sample(i))) << call;
        }
        EXPECT_TRUE(log->close().is_ok());
        const auto report = check_tier(System::real(), directory.tier(), true);
        ASSERT_TRUE(report.is_ok());
        EXPECT_TRUE(report->problems.empty()) << call << ": " << report->problems.front();
      }
      if (HasFailure() || !reached) break;
    }
  }
  EXPECT_GT(failures, 20U);
  EXPECT_GT(successes, 20U);
}

// Once erase() has returned, no power cut brings anything back; before, nothing wrong is served.
TEST(SegmentErase, PowerMayFailAtAnyCall) {
  using Shape = PowerCutSystem::Shape;
  std::uint64_t done = 0;
  for (const Shape shape : {Shape::kLost, Shape::kZeroed, Shape::kHalf, Shape::kOutOfOrder}) {
    for (std::uint64_t call = 0;; ++call) {
      const Directory directory;
      PowerCutSystem system;
      auto log = open_log(directory.tier(), system);
      for (std::uint64_t i = 0; i < kRecords; ++i) ASSERT_TRUE(Sample(i).append_to(*log).is_ok());
      ASSERT_TRUE(log->sync().is_ok());
      system.cut_at = system.calls + call;
      const bool erased = log->erase(of_owner("owner 1")).is_ok();
      system.cut_at = std::min(system.cut_at, system.calls);
      log.reset();
      system.cut(directory.tier(), shape);
      const auto after = open_log(directory.tier());
      ASSERT_NE(after, nullptr);
      for (std::uint64_t i = 0; i < kRecords; ++i) {
        const Outcome outcome = look_up(*after, i);
        ASSERT_NE(outcome, Outcome::kWrong) << call << ", record " << i;
        ASSERT_TRUE(!erased || !is_chosen(i) || outcome == Outcome::kAbsent) << call << ' ' << i;
      }
      // It can be asked for again.
      ASSERT_TRUE(after->erase(of_owner("owner 1")).is_ok()) << call;
      expect_erased(*after, false);
      if (HasFailure()) return;
      done += erased;
      if (erased) break;
    }
  }
  EXPECT_EQ(done, 4U);
}

// ---- By tokens --------------------------------------------------------------------------------

using Tokens = std::vector<std::int32_t>;

// Paths of runs of three tokens and boundaries behind them, in one space.
class Tree {
 public:
  // The key of the path of these tokens.
  static Digest key(const Tokens& path) {
    Sha256 sha;
    sha.update("tree", 4);
    sha.update(path.data(), path.size() * sizeof(std::int32_t));
    return sha.finish();
  }
  void run(Tokens path, const std::string& owner = "a") {
    append(RecordKind::kRun, path, path.size() - 3, owner);
  }
  void boundary(Tokens path, const std::string& owner = "a") {
    append(RecordKind::kBoundary, path, path.size() / 3 * 3, owner);
  }
  bool has_run(const Tokens& path) const {
    return log_->find(RecordKind::kRun, key(path)).has_value();
  }
  bool has_boundary(const Tokens& path) const {
    return log_->find(RecordKind::kBoundary, key(path)).has_value();
  }
  std::uint64_t erase(const Tokens& tokens, const std::string& space = "a",
                      const std::string& tenant = "") {
    TierErasure erasure;
    erasure.space = [=](std::string_view owner) { return owner.substr(0, 1) == space; };
    erasure.tenant = [=](std::string_view owner) {
      return tenant.empty() || owner.substr(1) == tenant;
    };
    erasure.tokens = tokens;
    const auto erased = log_->erase(erasure);
    EXPECT_TRUE(erased.is_ok());
    return erased.value();
  }

 private:
  void append(RecordKind kind, const Tokens& path, std::size_t first, const std::string& owner) {
    RecordHeader header;
    header.kind = kind;
    header.first = first;
    header.key = key(path);
    const auto from = path.begin() + static_cast<std::ptrdiff_t>(first);
    header.parent = key(Tokens(path.begin(), from));
    const Tokens tokens(from, path.end());
    std::byte byte{7};
    const iovec piece{&byte, 1};
    ASSERT_TRUE(log_->append(header, tokens, {&piece, 1}, owner).is_ok());
  }

  const Directory directory_;
  const std::unique_ptr<SegmentLog> log_ = open_log(directory_.tier());
};

TEST(SegmentErase, APathGoesWithWhatLedOnlyToIt) {
  Tree tree;
  tree.run({1, 2, 3});
  tree.run({1, 2, 3, 4, 5, 6});
  tree.boundary({1, 2, 3, 4, 5, 6, 7});
  tree.run({9, 9, 9});
  EXPECT_EQ(tree.erase({1, 2, 3, 4, 5, 6, 7}), 3U);
  EXPECT_FALSE(tree.has_run({1, 2, 3}));
  EXPECT_TRUE(tree.has_run({9, 9, 9}));
}

TEST(SegmentErase, WhatOthersShareStays) {
  Tree tree;
  tree.run({1, 2, 3});
  tree.boundary({1, 2, 3});
  tree.boundary({1, 2, 3, 4});     // others have this beginning
  tree.boundary({1, 2, 3, 4, 5});  // others do not
  tree.run({1, 2, 3, 4, 5, 6});
  tree.run({1, 2, 3, 4, 5, 6, 1, 1, 1});
  tree.boundary({1, 2, 3, 4, 5, 6, 1, 1, 1});
  tree.run({1, 2, 3, 4, 8, 8});
  tree.boundary({1, 2, 3, 4, 8, 8});
  EXPECT_EQ(tree.erase({1, 2, 3, 4, 5, 6}), 4U);
  EXPECT_TRUE(tree.has_run({1, 2, 3}));
  EXPECT_TRUE(tree.has_boundary({1, 2, 3}));
  EXPECT_TRUE(tree.has_boundary({1, 2, 3, 4}));
  EXPECT_FALSE(tree.has_boundary({1, 2, 3, 4, 5}));
  EXPECT_FALSE(tree.has_run({1, 2, 3, 4, 5, 6}));
  EXPECT_FALSE(tree.has_run({1, 2, 3, 4, 5, 6, 1, 1, 1}));
  EXPECT_TRUE(tree.has_run({1, 2, 3, 4, 8, 8}));
  EXPECT_TRUE(tree.has_boundary({1, 2, 3, 4, 8, 8}));
}

TEST(SegmentErase, TokensMayEndInsideARun) {
  Tree tree;
  tree.run({1, 2, 3});
  tree.run({1, 2, 4});
  tree.run({1, 5, 5});
  EXPECT_EQ(tree.erase({1, 2}), 2U);
  EXPECT_TRUE(tree.has_run({1, 5, 5}));
  EXPECT_EQ(tree.erase({7}), 0U);
  EXPECT_EQ(tree.erase({1, 5, 5, 5}), 1U) << "it led nowhere else";
}

TEST(SegmentErase, WhatNoRunLeadsToGoes) {
  Tree tree;
  tree.run({1, 2, 3, 4, 5, 6});  // without its parent
  tree.run({9, 9, 9});
  EXPECT_EQ(tree.erase({5}), 1U);
  EXPECT_TRUE(tree.has_run({9, 9, 9}));
}

// All prompts of a space begin at the same root, whose boundaries are decided once.
TEST(SegmentErase, AsManyPromptsAsThereAreGo) {
  const Directory directory;
  LogOptions roomy;
  roomy.max_bytes = 64 << 20;
  roomy.alignment = kSmallAlignment;
  roomy.durability = Durability::kNone;
  auto log = SegmentLog::open(System::real(), directory.tier(), roomy);
  ASSERT_TRUE(log.is_ok());
  for (std::uint64_t i = 0; i < 6000; ++i) {
    Sample sample(i, 8);
    sample.header.kind = i % 2 == 0 ? RecordKind::kRun : RecordKind::kBoundary;
    sample.header.parent = digest_of(1 << 20);
    sample.header.first = 0;
    sample.owner = "me";
    sample.tokens = {static_cast<std::int32_t>(i)};
    ASSERT_TRUE(sample.append_to(**log).is_ok());
  }
  TierErasure erasure = of_owner("me");
  erasure.tokens = {17, 18};
  EXPECT_EQ(*(*log)->erase(erasure), 1U) << "the boundary of 17, the path's first token";
  EXPECT_EQ(*(*log)->erase(of_owner("me")), 5999U);
}

TEST(SegmentErase, OtherSpacesAndTenantsKeepTheirs) {
  Tree tree;
  tree.run({1, 2, 3}, "ax");
  tree.run({1, 2, 3, 4, 4, 4}, "ay");
  tree.run({5, 5, 5}, "b");
  EXPECT_EQ(tree.erase({5, 5, 5}), 0U);
  EXPECT_EQ(tree.erase({1}, "a", "y"), 1U);
  EXPECT_TRUE(tree.has_run({1, 2, 3}));
  EXPECT_EQ(tree.erase({}, "b"), 1U);
  EXPECT_EQ(tree.erase({}, "a"), 1U);
}

}  // namespace
}  // namespace kvcache::persist
