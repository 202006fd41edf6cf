// A writer of a segment log that is killed by SIGKILL at every call it makes that changes the disk:
// before the call, and with half of what it writes written. Whoever opens the directory then finds
// every record that was appended, byte for byte, and nothing that is none.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <csignal>
#include <new>
#include <set>

#include "persist/tier_check.h"
#include "tier_files.h"

namespace kvcache::persist {
namespace {

using namespace files;

constexpr std::uint64_t kRecords = 22;

// What a writer has told by the time it is killed; in memory that both processes see.
struct Told {
  std::uint64_t calls = 0;
  bool appended[kRecords] = {};
  bool erasing = false;
  bool erased = false;
  char last_call[16] = {};
};

class SharedTold {
 public:
  SharedTold()
      : memory_(mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                     0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    new (memory_) Told;
  }
  SharedTold(const SharedTold&) = delete;
  SharedTold& operator=(const SharedTold&) = delete;
  ~SharedTold() { munmap(memory_, sizeof(Told)); }
  Told* operator->() { return static_cast<Told*>(memory_); }

 private:
  void* memory_;
};

class KilledSystem : public System {
 public:
  KilledSystem(Told& told, std::uint64_t kill_at, bool half)
      : told_(told), kill_at_(kill_at), half_(half) {}

  int open_at(int directory, const char* name, int flags, unsigned mode) override {
    if ((flags & O_CREAT) != 0) point("create");
    return System::open_at(directory, name, flags, mode);
  }
  int make_directory(const char* path, unsigned mode) override {
    point("mkdir");
    return System::make_directory(path, mode);
  }
  std::int64_t write_at(int file, const iovec* pieces, int count, std::uint64_t offset) override {
    if (half_ && told_.calls == kill_at_) {
      const iovec half{pieces->iov_base, pieces->iov_len / 2};
      System::write_at(file, &half, 1, offset);
    }
    point("write");
    return System::write_at(file, pieces, count, offset);
  }
  int sync(int file) override {
    point("fsync");
    return System::sync(file);
  }
  int clear(int file, std::uint64_t offset, std::uint64_t bytes) override {
    if (half_ && told_.calls == kill_at_) System::real().clear(file, offset, bytes / 2);
    point("clear");
    return System::clear(file, offset, bytes);
  }
  int truncate(int file, std::uint64_t bytes) override {
    point("truncate");
    return System::truncate(file, bytes);
  }
  int rename_at(int directory, const char* from, const char* to) override {
    point("rename");
    return System::rename_at(directory, from, to);
  }
  int remove_at(int directory, const char* name) override {
    point("unlink");
    return System::remove_at(directory, name);
  }

 private:
  void point(const char* name) {
    std::snprintf(told_.last_call, sizeof(told_.last_call), "%s", name);
    if (told_.calls++ == kill_at_) raise(SIGKILL);
  }

  Told& told_;
  const std::uint64_t kill_at_;
  const bool half_;
};

constexpr std::uint64_t kErased = 21;

bool is_erased(std::uint64_t number) { return Sample(number).owner == Sample(kErased).owner; }

// Segments fill and are sealed, groups are synchronised, a small cap evicts; an owner's records are
// erased, the log is closed.
void work(Told& told, System& system, const std::string& path, const LogOptions& options) {
  const auto log = SegmentLog::open(system, path, options);
  if (!log) _exit(3);
  for (std::uint64_t i = 0; i < kRecords; ++i) {
    if (!Sample(i).append_to(**log)) _exit(4);
    told.appended[i] = true;
    if (i == 4) (*log)->use(Located{Sample(0).header, nullptr});
    if (i % 11 == 10 && !(*log)->sync()) _exit(5);
  }
  told.erasing = true;
  const auto is_it = [](std::string_view owner) { return owner == Sample(kErased).owner; };
  if (!(*log)->erase({is_it, [](std::string_view) { return true; }})) _exit(6);
  told.erased = true;
  if (!(*log)->close()) _exit(7);
}

// Whether the writer was killed; otherwise it has come to its end.
bool kill_one(SharedTold& told, std::uint64_t kill_at, bool half, const std::string& path,
              const LogOptions& options) {
  const pid_t child = fork();
  if (child == 0) {
    KilledSystem system(*told.operator->(), kill_at, half);
    work(*told.operator->(), system, path, options);
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  EXPECT_TRUE(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << status;
  return killed;
}

// With a small cap the oldest records have gone; otherwise all that were appended are there.
void expect_whole(SharedTold& told, const std::string& path, const LogOptions& options, bool all) {
  const auto log = SegmentLog::open(System::real(), path, options);
  ASSERT_TRUE(log.is_ok()) << log.status().message();
  for (std::uint64_t i = 0; i < kRecords; ++i) {
    const Outcome outcome = look_up(**log, i);
    if (told->erasing && is_erased(i)) {
      ASSERT_NE(outcome, Outcome::kWrong) << "record " << i;
      ASSERT_TRUE(!told->erased || outcome == Outcome::kAbsent) << "record " << i;
      continue;
    }
    ASSERT_TRUE(outcome == Outcome::kAbsent || outcome == Outcome::kEqual) << "record " << i;
    if (all && told->appended[i]) {
      ASSERT_EQ(outcome, Outcome::kEqual) << "record " << i;
    }
  }
  ASSERT_TRUE(Sample(kRecords).append_to(**log).is_ok());
  ASSERT_EQ(look_up(**log, kRecords), Outcome::kEqual);
  ASSERT_TRUE((*log)->close().is_ok());
  const auto report = check_tier(System::real(), path, true);
  ASSERT_TRUE(report.is_ok()) << report.status().message();
  // A record that was being erased is damaged until it is.
  const bool half_erased = told->erasing && !told->erased;
  EXPECT_TRUE(half_erased || report->problems.empty()) << report->problems[0];
}

class KilledWriter : public testing::TestWithParam<bool> {};

TEST_P(KilledWriter, LeavesEveryRecordThatItAppended) {
  LogOptions roomy = small_options();
  roomy.segment_bytes = 1 << 10;
  LogOptions evicting = roomy;
  evicting.max_bytes = 8 << 10;
  for (const LogOptions& options : {roomy, evicting}) {
    std::set<std::string> points;
    std::uint64_t call = 0;
    for (;; ++call) {
      const Directory directory;
      SharedTold told;
      if (!kill_one(told, call, GetParam(), directory.tier(), options)) break;
      points.insert(told->last_call);
      SCOPED_TRACE("killed at call " + std::to_string(call) + ", " + told->last_call);
      expect_whole(told, directory.tier(), options, options.max_bytes == roomy.max_bytes);
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(call, 60U);
    std::set<std::string> want = {"clear",  "create",   "fsync", "mkdir",
                                  "rename", "truncate", "write"};
    if (options.max_bytes != roomy.max_bytes) want.insert("unlink");
    EXPECT_EQ(points, want) << "a kind of call is not reached";
  }
}

INSTANTIATE_TEST_SUITE_P(BeforeAndHalfWay, KilledWriter, testing::Bool());

}  // namespace
}  // namespace kvcache::persist
