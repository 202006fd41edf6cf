// A directory of segments as its callers see it: what is appended is found and read, across opening
// again, other readers and the cap.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>

#include "persist/tier_check.h"
#include "tier_files.h"

namespace kvcache::persist {
namespace {

using namespace files;

std::unique_ptr<SegmentLog> open_log(const std::string& path,
                                     const LogOptions& options = small_options()) {
  auto log = SegmentLog::open(System::real(), path, options);
  EXPECT_TRUE(log.is_ok()) << log.status().message();
  return log ? std::move(log).value() : nullptr;
}

LogOptions reading() {
  LogOptions options = small_options();
  options.access = TierAccess::kRead;
  return options;
}

TEST(SegmentFormat, HeadersReadBackAndAnyFlippedBitIsFound) {
  RecordHeader record = Sample(7).header;
  record.segment = 3;
  record.offset = 640;
  record.tokens = 5;
  record.payload_bytes = 77;
  record.payload_crc = 0x12345678;
  const RecordHeaderBytes bytes = encode(record);
  const auto read = decode_record(bytes, 3, 640);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(encode(*read), bytes);
  EXPECT_FALSE(decode_record(bytes, 2, 640).has_value()) << "of another segment";
  EXPECT_FALSE(decode_record(bytes, 3, 704).has_value()) << "moved";
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    RecordHeaderBytes flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_FALSE(decode_record(flipped, 3, 640).has_value()) << "bit " << bit;
  }
}

TEST(SegmentFormat, NamesAndMarkersAreStrict) {
  EXPECT_EQ(segment_name(0xabc), "segment-0000000000000abc.kvseg");
  EXPECT_EQ(segment_number("segment-0000000000000abc.kvseg"), 0xabcU);
  for (const char* name : {"segment-0000000000000ABC.kvseg", "segment-abc.kvseg", "segment-.kvseg",
                           "segment-0000000000000abc.kvseg~", "xsegment-000000000000abc.kvseg"}) {
    EXPECT_FALSE(segment_number(name).has_value()) << name;
  }
  const TierId id{1, 2, 0xff};
  EXPECT_EQ(*parse_tier_marker(tier_marker(id), "p"), id);
  const auto newer = parse_tier_marker("kvcache-disk-tier 2 0102", "p");
  EXPECT_EQ(newer.status().code(), StatusCode::kUnsupported);
  for (const std::string text :
       {"", "x", "kvcache-disk-tier ", "kvcache-disk-tier 1 01", "kvcache-disk-tier  1",
        "kvcache-disk-tier 99999999999999999999 00"}) {
    EXPECT_EQ(parse_tier_marker(text, "p").status().code(), StatusCode::kCorruption) << text;
  }
}

TEST(SegmentLog, WhatIsAppendedIsReadBackAtOnceAndAfterOpeningAgain) {
  for (const bool sealed : {true, false}) {
    const Directory directory;
    {
      const auto log = open_log(directory.tier());
      for (std::uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(Sample(i).append_to(*log).is_ok());
      for (std::uint64_t i = 0; i < 40; ++i) EXPECT_EQ(look_up(*log, i), Outcome::kEqual) << i;
      const Status status = sealed ? log->close() : Status::ok();
      ASSERT_TRUE(status.is_ok());
    }
    const auto log = open_log(directory.tier());
    EXPECT_EQ(log->stats().records, 40U);
    EXPECT_GT(log->stats().segments, 1U);
    EXPECT_EQ(log->stats().torn_segments, 0U);
    for (std::uint64_t i = 0; i < 40; ++i) EXPECT_EQ(look_up(*log, i), Outcome::kEqual) << i;
    EXPECT_EQ(look_up(*log, 40), Outcome::kAbsent);
    ASSERT_TRUE(Sample(40).append_to(*log).is_ok());
    EXPECT_EQ(look_up(*log, 40), Outcome::kEqual);
  }
}

TEST(SegmentLog, BoundariesAreFoundByThePrefixBeforeThem) {
  const Directory directory;
  const auto log = open_log(directory.tier());
  for (std::uint64_t i = 0; i < 9; ++i) ASSERT_TRUE(Sample(i).append_to(*log).is_ok());
  const auto find = [&] {
    const BoundaryPlace place{digest_of(4), 0, 0};
    return log->find_boundaries({&place, 1}, {});
  };
  const std::vector<Located> found = find();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].header.key, digest_of(5));
  log->forget(found[0], Status::corruption("for the test"));
  EXPECT_TRUE(find().empty());
  EXPECT_EQ(look_up(*log, 5), Outcome::kAbsent);
  EXPECT_EQ(log->stats().damaged_records, 1U);
  ASSERT_TRUE(Sample(5).append_to(*log).is_ok());
  EXPECT_EQ(find().size(), 1U);
}

// A digest cannot have two parents, but a file may say so.
TEST(SegmentLog, ABoundaryIsFoundBehindItsLatestParentAlone) {
  const auto behind = [](SegmentLog& log, std::uint64_t parent) {
    return log.find_boundaries({{{digest_of(parent), 0, 9}}}, {}).size();
  };
  for (const bool opened_again : {false, true}) {
    const Directory directory;
    auto log = open_log(directory.tier());
    Sample sample(2);
    for (const std::uint64_t parent : {70, 80}) {
      sample.header.parent = digest_of(parent);
      ASSERT_TRUE(sample.append_to(*log).is_ok());
    }
    if (opened_again) {
      ASSERT_TRUE(log->close().is_ok());
      log.reset();
      log = open_log(directory.tier());
    }
    EXPECT_EQ(behind(*log, 70), 0U);
    EXPECT_EQ(behind(*log, 80), 1U);
    log->forget(*log->find(RecordKind::kBoundary, sample.header.key), Status::corruption("test"));
    EXPECT_EQ(behind(*log, 70), 0U);
    EXPECT_EQ(behind(*log, 80), 0U);
    for (std::uint64_t i = 0; i < 300; ++i) ASSERT_TRUE(Sample(3 * i, 500).append_to(*log).is_ok());
    EXPECT_GT(log->stats().evicted_segments, 0U);
  }
}

// The child has the descriptor of the lock too, and may live on.
TEST(SegmentLog, AChildDoesNotHoldTheLockOfItsParent) {
  const Directory directory;
  auto log = open_log(directory.tier());
  std::array<int, 2> ends = {};
  ASSERT_EQ(pipe(ends.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    ::close(ends[1]);
    char byte = 0;
    _exit(::read(ends[0], &byte, 1) == 0 ? 0 : 1);  // until the parent has closed its end
  }
  ASSERT_GT(child, 0);
  log.reset();
  EXPECT_TRUE(SegmentLog::open(System::real(), directory.tier(), small_options()).is_ok());
  ::close(ends[1]);
  ::close(ends[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(SegmentLog, TheCapHoldsAndWhatIsAskedForStays) {
  const Directory directory;
  LogOptions options = small_options();
  options.max_bytes = 16 << 10;
  const auto log = open_log(directory.tier(), options);
  for (std::uint64_t i = 1; i < 400; ++i) {
    ASSERT_TRUE(Sample(i).append_to(*log).is_ok());
    ASSERT_LE(log->stats().bytes, options.max_bytes);
    log->use(*log->find(RecordKind::kRun, digest_of(1)));
    ASSERT_EQ(look_up(*log, 1), Outcome::kEqual) << "after " << i;
    ASSERT_EQ(look_up(*log, i), Outcome::kEqual);
  }
  std::uint64_t bytes = 0;
  for (const std::string& file : segment_files(directory.tier())) bytes += fs::file_size(file);
  EXPECT_LE(bytes, options.max_bytes);
  EXPECT_GT(log->stats().evicted_segments, 10U);
  EXPECT_GT(log->stats().kept_records, 10U);
  EXPECT_EQ(look_up(*log, 3), Outcome::kAbsent);
  EXPECT_EQ(Sample(0, 64 << 10).append_to(*log).code(), StatusCode::kOutOfCapacity);
  EXPECT_EQ(look_up(*log, 399), Outcome::kEqual);
}

// The disk is smaller than the cap, as when others fill it.
TEST(SegmentLog, AFullDiskIsACap) {
  class SmallDisk : public System {
   public:
    SmallDisk(std::string path, std::int64_t bytes) : path_(std::move(path)), bytes_(bytes) {}
    std::int64_t free_bytes(int) override {
      std::int64_t used = 0;
      for (const std::string& file : segment_files(path_)) {
        used += static_cast<std::int64_t>(fs::file_size(file));
      }
      return std::max<std::int64_t>(0, bytes_ - used);
    }
    std::int64_t write_at(int file, const iovec* pieces, int count, std::uint64_t at) override {
      const auto end = static_cast<std::int64_t>(at + pieces->iov_len);
      return end > bytes_ ? -ENOSPC : System::write_at(file, pieces, count, at);
    }

   private:
    const std::string path_;
    const std::int64_t bytes_;
  };
  const Directory directory;
  SmallDisk system(directory.tier(), 8 << 10);
  LogOptions options = small_options();
  options.segment_bytes = 2 << 10;
  const auto opened = SegmentLog::open(system, directory.tier(), options);
  ASSERT_TRUE(opened.is_ok());
  SegmentLog& log = **opened;
  for (std::uint64_t i = 1; i < 200; ++i) {
    ASSERT_TRUE(Sample(i).append_to(log).is_ok()) << i;
    ASSERT_LE(log.stats().bytes, 8U << 10);
    ASSERT_EQ(look_up(log, i), Outcome::kEqual);
    log.use(*log.find(RecordKind::kRun, digest_of(1)));
    ASSERT_EQ(look_up(log, 1), Outcome::kEqual) << "after " << i;
  }
  EXPECT_GT(log.stats().evicted_segments, 10U);
  EXPECT_EQ(Sample(0, 8 << 10).append_to(log).code(), StatusCode::kOutOfCapacity);
  EXPECT_EQ(look_up(log, 199), Outcome::kEqual) << "nothing goes for what does not fit";
  // Others take all of it: nothing can be written, and what is there is read as long as it is.
  SmallDisk full(directory.tier(), 0);
  const auto reopened = SegmentLog::open(full, directory.tier("other"), options);
  EXPECT_EQ(reopened.status().code(), StatusCode::kIoError);
}

TEST(SegmentLog, OneWritesAndOthersSeeWhatItDid) {
  const Directory directory;
  EXPECT_EQ(SegmentLog::open(System::real(), directory.tier(), reading()).status().code(),
            StatusCode::kNotFound);
  LogOptions options = small_options();
  options.max_bytes = 16 << 10;
  const auto writer = open_log(directory.tier(), options);
  ASSERT_TRUE(Sample(0).append_to(*writer).is_ok());
  const auto second = SegmentLog::open(System::real(), directory.tier(), options);
  EXPECT_EQ(second.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(second.status().message().find("another process"), std::string::npos);
  options.access = TierAccess::kWriteOrRead;
  const auto reader = open_log(directory.tier(), options);
  EXPECT_FALSE(reader->is_writer());
  EXPECT_EQ(look_up(*reader, 0), Outcome::kEqual);
  EXPECT_EQ(Sample(1).append_to(*reader).code(), StatusCode::kUnsupported);
  for (std::uint64_t i = 1; i < 300; ++i) {
    ASSERT_TRUE(Sample(i).append_to(*writer).is_ok());
    if (i % 7 != 0) continue;
    reader->refresh();
    for (std::uint64_t back = 0; back < std::min<std::uint64_t>(i, 5); ++back) {
      ASSERT_EQ(look_up(*reader, i - back), Outcome::kEqual) << i;
    }
    ASSERT_EQ(reader->stats().records, writer->stats().records);
    ASSERT_EQ(reader->stats().torn_segments, 0U);
  }
  EXPECT_EQ(look_up(*reader, 0), Outcome::kAbsent) << "evicted by the writer";
}

// Several changes of a directory may have one time, as coarse as the file system tells it.
TEST(SegmentLog, AReaderSeesChangesThatShareATime) {
  class CoarseSystem : public System {
   public:
    int facts(int file, FileFacts& found) override {
      const int failed = System::facts(file, found);
      found.changed_ns -= found.changed_ns % 1'000'000'000;
      return failed;
    }
  };
  const Directory directory;
  CoarseSystem system;
  const auto writer = open_log(directory.tier());
  ASSERT_TRUE(Sample(0).append_to(*writer).is_ok());
  const auto reader = SegmentLog::open(system, directory.tier(), reading());
  ASSERT_TRUE(reader.is_ok());
  for (std::uint64_t i = 1; i < 60; ++i) {
    ASSERT_TRUE(Sample(i, 1500).append_to(*writer).is_ok());
    (*reader)->refresh();
    ASSERT_EQ((*reader)->stats().records, writer->stats().records) << i;
  }
}

TEST(SegmentLog, ARecordThatIsHeldIsReadThoughItsSegmentIsGone) {
  const Directory directory;
  LogOptions options = small_options();
  options.max_bytes = 16 << 10;
  const auto log = open_log(directory.tier(), options);
  Sample first(1);
  ASSERT_TRUE(first.append_to(*log).is_ok());
  const Located held = *log->find(RecordKind::kRun, digest_of(1));
  for (std::uint64_t i = 2; i < 300; ++i) ASSERT_TRUE(Sample(i).append_to(*log).is_ok());
  EXPECT_EQ(look_up(*log, 1), Outcome::kAbsent);
  std::vector<std::int32_t> tokens(held.header.tokens);
  std::vector<std::byte> payload(held.header.payload_bytes);
  const iovec piece{payload.data(), payload.size()};
  ASSERT_TRUE(held.read(tokens, {&piece, 1}).is_ok());
  EXPECT_EQ(payload, first.payload);
}

// Files of this version, written when it was new. They are read for ever.
TEST(SegmentLog, GoldenFilesOfVersion1AreRead) {
  const std::string golden = KVCACHE_GOLDEN "/tier-v1";
  const auto log = open_log(golden, reading());
  ASSERT_NE(log, nullptr);
  for (std::uint64_t i = 0; i < 15; ++i) {
    const bool erased = i == 12 || i == 13;
    EXPECT_EQ(look_up(*log, i), erased ? Outcome::kAbsent : Outcome::kEqual) << i;
  }
  const auto report = check_tier(System::real(), golden, true);
  ASSERT_TRUE(report.is_ok());
  EXPECT_TRUE(report->problems.empty());
  std::uint64_t erased = 0;
  for (const SegmentReport& segment : report->segments) erased += segment.erased;
  EXPECT_EQ(erased, 2U);
  EXPECT_TRUE(report->segments.front().sealed);
  EXPECT_FALSE(report->segments.back().sealed);
}

// A change that keeps no rule of the format: another byte of a file, its length, or its name.
void expect_named(const std::string& path, const std::string& what) {
  const auto report = check_tier(System::real(), path, true);
  ASSERT_TRUE(report.is_ok()) << report.status().message();
  bool named = !report->problems.empty();
  for (const SegmentReport& segment : report->segments) named |= segment.unfinished;
  EXPECT_TRUE(named) << what << " was not found";
}

void expect_no_wrong_record(const std::string& path, std::uint64_t records,
                            const std::string& what) {
  const auto log = SegmentLog::open(System::real(), path, reading());
  if (!log) {
    EXPECT_EQ(log.status().code(), StatusCode::kCorruption) << what;
    return;
  }
  for (std::uint64_t i = 0; i < records; ++i) {
    EXPECT_NE(look_up(**log, i), Outcome::kWrong) << what << ", record " << i;
  }
}

class DamagedTier : public testing::Test {
 protected:
  static constexpr std::uint64_t kRecords = 24;

  void SetUp() override {
    const auto log = open_log(path_);
    for (std::uint64_t i = 0; i < kRecords; ++i) ASSERT_TRUE(Sample(i).append_to(*log).is_ok());
    ASSERT_TRUE(log->close().is_ok());
    files_ = segment_files(path_);
    ASSERT_GE(files_.size(), 2U);
    const auto report = check_tier(System::real(), path_, true);
    ASSERT_TRUE(report.is_ok());
    ASSERT_TRUE(report->problems.empty()) << report->problems.front();
  }

  const Directory directory_;
  const std::string path_ = directory_.tier();
  std::vector<std::string> files_;
};

TEST_F(DamagedTier, EveryFlippedByteIsFoundAndNoneIsServed) {
  const Bytes whole = read_file(files_[0]);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    put_byte(files_[0], at, static_cast<char>(whole[at] ^ (1 << at % 8)));
    const std::string what = "byte " + std::to_string(at);
    expect_named(path_, what);
    expect_no_wrong_record(path_, kRecords, what);
    put_byte(files_[0], at, whole[at]);
  }
}

TEST_F(DamagedTier, EveryTruncationIsFoundAndNoneIsServed) {
  const Bytes whole = read_file(files_[0]);
  for (std::size_t size = whole.size() - 1; size > 0; size -= std::min<std::size_t>(size, 7)) {
    fs::resize_file(files_[0], size);
    const std::string what = "length " + std::to_string(size);
    expect_no_wrong_record(path_, kRecords, what);
    const auto report = check_tier(System::real(), path_, true);
    ASSERT_TRUE(report.is_ok());
    EXPECT_TRUE(!report->problems.empty() || !report->segments[0].sealed) << what;
  }
}

TEST_F(DamagedTier, BytesBehindTheEndAreFound) {
  const Bytes whole = read_file(files_[0]);
  for (const char fill : {'\0', 'x'}) {
    for (const std::size_t more : {1, 64, 4096}) {
      Bytes longer = whole;
      longer.insert(longer.end(), more, fill);
      write_file(files_[0], longer);
      const std::string what = std::to_string(more) + " more bytes";
      expect_named(path_, what);
      expect_no_wrong_record(path_, kRecords, what);
    }
  }
}

TEST_F(DamagedTier, SwappedAndDuplicatedSegmentsAreRefused) {
  const Bytes first = read_file(files_[0]);
  const Bytes second = read_file(files_[1]);
  write_file(files_[0], second);
  write_file(files_[1], first);
  expect_named(path_, "swapped files");
  expect_no_wrong_record(path_, kRecords, "swapped files");
  write_file(files_[0], first);
  write_file(files_[1], second);
  write_file(path_ + '/' + segment_name(99), first);
  expect_named(path_, "a duplicate");
  expect_no_wrong_record(path_, kRecords, "a duplicate");
  const auto log = open_log(path_, reading());
  EXPECT_EQ(log->stats().damaged_segments, 1U);
  EXPECT_EQ(look_up(*log, 0), Outcome::kEqual);
  EXPECT_NE(log->stats().last_error.find("is segment 0 by its header"), std::string::npos)
      << log->stats().last_error;
}

TEST_F(DamagedTier, RecordsInAnotherOrderAreRefused) {
  const Bytes whole = read_file(files_[0]);
  const auto log = open_log(path_, reading());
  const auto a = *log->find(RecordKind::kRun, digest_of(0));
  const auto b = *log->find(RecordKind::kRun, digest_of(1));
  const auto at = [](std::uint64_t offset) { return static_cast<std::ptrdiff_t>(offset); };
  const auto begin_a = at(a.header.offset), end_a = at(a.header.next_offset(kSmallAlignment));
  const auto begin_b = at(b.header.offset), end_b = at(b.header.next_offset(kSmallAlignment));
  for (const bool twice : {false, true}) {
    Bytes changed(whole.begin(), whole.begin() + begin_a);
    changed.insert(changed.end(), whole.begin() + begin_b, whole.begin() + end_b);
    if (twice) changed.insert(changed.end(), whole.begin() + begin_b, whole.begin() + end_b);
    if (!twice) changed.insert(changed.end(), whole.begin() + begin_a, whole.begin() + end_a);
    changed.insert(changed.end(), whole.begin() + end_b, whole.end());
    write_file(files_[0], changed);
    expect_named(path_, twice ? "a record twice" : "another order");
    expect_no_wrong_record(path_, kRecords, "another order");
  }
}

TEST_F(DamagedTier, SegmentsOfAnotherTierAreRefused) {
  const std::string other = directory_.tier("other");
  {
    const auto log = open_log(other);
    for (std::uint64_t i = 50; i < 60; ++i) ASSERT_TRUE(Sample(i).append_to(*log).is_ok());
    ASSERT_TRUE(log->close().is_ok());
  }
  fs::copy_file(segment_files(other)[0], files_[0], fs::copy_options::overwrite_existing);
  expect_named(path_, "a segment of another tier");
  const auto log = open_log(path_, reading());
  EXPECT_EQ(log->stats().damaged_segments, 1U);
  EXPECT_EQ(look_up(*log, 50), Outcome::kAbsent);
}

TEST_F(DamagedTier, LinksPipesAndDirectoriesAreNotEntered) {
  const std::string outside = directory_.tier("outside");
  fs::copy_file(files_[0], outside);
  fs::remove(files_[0]);
  fs::create_symlink(outside, files_[0]);
  fs::create_directory(path_ + '/' + segment_name(77));
  ASSERT_EQ(mkfifo((path_ + '/' + segment_name(78)).c_str(), 0600), 0);
  const auto log = open_log(path_, reading());
  EXPECT_EQ(log->stats().damaged_segments, 3U);
  EXPECT_EQ(look_up(*log, 0), Outcome::kAbsent);
  const auto report = check_tier(System::real(), path_, true);
  EXPECT_EQ(report->problems.size(), 3U);
  fs::rename(path_ + "/TIER", path_ + "/elsewhere");
  fs::create_symlink("elsewhere", path_ + "/TIER");
  EXPECT_EQ(SegmentLog::open(System::real(), path_, reading()).status().code(),
            StatusCode::kCorruption);
}

TEST_F(DamagedTier, AMissingOrForeignMarkerIsRefused) {
  const Bytes marker = read_file(path_ + "/TIER");
  for (std::size_t at = 0; at < marker.size(); ++at) {
    Bytes changed = marker;
    changed[at] = changed[at] == '0' ? '1' : '0';
    write_file(path_ + "/TIER", changed);
    const auto log = SegmentLog::open(System::real(), path_, reading());
    // Another id is another tier: none of the segments is its.
    if (!log) continue;
    EXPECT_EQ((*log)->stats().segments, 0U) << at;
    EXPECT_EQ((*log)->stats().damaged_segments, files_.size()) << at;
  }
  fs::remove(path_ + "/TIER");
  EXPECT_EQ(SegmentLog::open(System::real(), path_, small_options()).status().code(),
            StatusCode::kCorruption);
  write_file(path_ + "/TIER", Bytes(1 << 20, 'x'));
  EXPECT_EQ(SegmentLog::open(System::real(), path_, reading()).status().code(),
            StatusCode::kCorruption);
}

// Numbers that are too large are refused before anything is allocated for them.
TEST_F(DamagedTier, HugeClaimsAreRefusedAtOnce) {
  const Bytes whole = read_file(files_[0]);
  Bytes file = whole;
  RecordHeader huge = Sample(0).header;
  huge.segment = 0;
  huge.offset = kSmallAlignment;
  for (const std::uint64_t bytes : {kMaxSegmentBytes - 1, std::uint64_t{1} << 40}) {
    huge.payload_bytes = bytes;
    const RecordHeaderBytes header = encode(huge);
    std::memcpy(file.data() + kSmallAlignment, header.data(), header.size());
    write_file(files_[0], Bytes(file.begin(), file.end() - 1));  // no footer: walked
    const auto log = open_log(path_, reading());
    EXPECT_EQ(look_up(*log, 0), Outcome::kAbsent);
    EXPECT_EQ(log->stats().torn_segments, 1U);
  }
  huge.payload_bytes = std::uint64_t{1} << 60;
  EXPECT_FALSE(decode_record(encode(huge), 0, kSmallAlignment).has_value());
  huge.payload_bytes = 1;
  huge.tokens = std::uint64_t{1} << 60;
  EXPECT_FALSE(decode_record(encode(huge), 0, kSmallAlignment).has_value());
  // A sparse file of 8 TiB whose trailer says it is full of records.
  SegmentTrailer trailer;
  trailer.records = (std::uint64_t{8} << 40) / kRecordHeaderBytes;
  trailer.entries_offset = kSmallAlignment;
  const TrailerBytes last = encode(trailer);
  write_file(files_[0], whole);
  fs::resize_file(files_[0], trailer.file_bytes());
  std::fstream sparse(files_[0], std::ios::binary | std::ios::in | std::ios::out);
  sparse.seekp(static_cast<std::streamoff>(trailer.file_bytes() - kTrailerBytes));
  sparse.write(reinterpret_cast<const char*>(last.data()), kTrailerBytes);
  sparse.close();
  const auto log = open_log(path_, reading());
  EXPECT_EQ(look_up(*log, 0), Outcome::kEqual) << "its headers are walked";
}

}  // namespace
}  // namespace kvcache::persist
