// A cache with a disk tier, opened again and again: what was published is found and is the same to
// the byte, for models with and without windows and fixed-size state; what is damaged is a miss.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <new>
#include <random>
#include <thread>

#include "cache/tier_writer.h"
#include "served.h"
#include "tier_files.h"

namespace kvcache {
namespace {

using namespace served;
using persist::files::Directory;
namespace fs = std::filesystem;

TEST(DiskTier, ARestartFindsWhatWasPublished) {
  for (const Model& model : kModels) {
    for (const std::uint64_t length : {9, 16, 41, 150}) {
      const Directory directory;
      const Tokens tokens = prompt(length);
      EXPECT_EQ(serve(model, *make_cache(model, tier(directory.tier())), tokens), 0U);
      for (int restart = 0; restart < 2; ++restart) {
        const auto cache = make_cache(model, tier(directory.tier()));
        const std::uint64_t cached = serve(model, *cache, tokens);
        EXPECT_GE(cached, least_hit(length)) << length;
        EXPECT_TRUE(!model.state || cached == length - 1) << cached;
        const auto stats = cache->disk_stats();
        EXPECT_EQ(stats->fetches, 1U);
        EXPECT_EQ(stats->damaged_records, 0U);
        // A longer prompt goes on from there, a shorter one from further back.
        Tokens longer = tokens;
        for (int i = 0; i < 20; ++i) longer.push_back(i);
        EXPECT_GE(serve(model, *cache, longer), least_hit(length));
        ASSERT_TRUE(cache->flush_disk().is_ok());
      }
    }
  }
}

TEST(DiskTier, WhatMemoryEvictsComesBack) {
  for (const Model& model : kModels) {
    const Directory directory;
    const auto cache = make_cache(model, tier(directory.tier()), 40);
    for (int round = 0; round < 3; ++round) {
      for (std::int32_t seed = 0; seed < 12; ++seed) {
        const std::uint64_t cached = serve(model, *cache, prompt(60, seed));
        EXPECT_TRUE(round == 0 || cached >= least_hit(60)) << cached << " of " << seed;
        ASSERT_TRUE(cache->flush_disk().is_ok());
      }
    }
    EXPECT_EQ(cache->disk_stats()->dropped_records, 0U);
    const bool evicts = !model.layers.empty() && model.layers[0] == 0;
    EXPECT_TRUE(!evicts || cache->disk_stats()->fetches > 20);
  }
}

TEST(DiskTier, PathsShareWhatTheyHaveInCommon) {
  const Directory directory;
  const auto first = make_cache(kFull, tier(directory.tier()));
  Tokens a = prompt(200);
  serve(kFull, *first, a);
  ASSERT_TRUE(first->flush_disk().is_ok());
  const std::uint64_t bytes = first->disk_stats()->written_bytes;
  Tokens b = a;
  b.resize(160);
  for (int i = 0; i < 40; ++i) b.push_back(-i);
  serve(kFull, *first, b);
  ASSERT_TRUE(first->flush_disk().is_ok());
  const std::uint64_t both = first->disk_stats()->written_bytes;
  EXPECT_LE(both, bytes + bytes / 2);
  serve(kFull, *first, a);
  ASSERT_TRUE(first->flush_disk().is_ok());
  EXPECT_EQ(first->disk_stats()->written_bytes, both) << "written twice";
}

TEST(DiskTier, SpacesWeightsModelsAndMediaDoNotMeet) {
  const Directory directory;
  const Tokens tokens = prompt(40);
  PrefixSpace image;
  image.media = {{8, 4, "one"}};
  {
    const auto cache = make_cache(kHybrid, tier(directory.tier()), 0, "w1");
    serve(kHybrid, *cache, tokens, {.name = "n", .adapter = "a", .salt = "s"});
    serve(kHybrid, *cache, tokens, image);
  }
  const auto cache = make_cache(kHybrid, tier(directory.tier()), 0, "w1");
  const PrefixSpace others[] = {{"", "", ""}, {"n", "a", ""}, {"n", "", "s"}, {"na", "", "s"}};
  for (const PrefixSpace& other : others) {
    EXPECT_EQ(*cache->prefetch(tokens, other), 0U);
  }
  PrefixSpace another = image;
  another.media[0].digest = "two";
  EXPECT_LE(*cache->prefetch(tokens, another), 8U);
  EXPECT_EQ(*cache->prefetch(tokens, image), 39U);
  EXPECT_EQ(*cache->prefetch(tokens, {.name = "n", .adapter = "a", .salt = "s"}), 39U);
  // Other weights have other names; the same name again, or none, switches the tier off.
  cache->bump_epoch("w2");
  EXPECT_EQ(*cache->prefetch(tokens, image), 0U);
  cache->bump_epoch("w1");
  EXPECT_EQ(*cache->prefetch(tokens, image), 39U);
  cache->bump_epoch("w1");
  EXPECT_EQ(*cache->prefetch(tokens, image), 0U);
  EXPECT_NE(cache->disk_stats()->last_error.find("weights"), std::string::npos);
}

TEST(DiskTier, DamageIsAMissAndTheRestIsServed) {
  const Directory directory;
  const Tokens tokens = prompt(120);
  serve(kHybrid, *make_cache(kHybrid, tier(directory.tier())), tokens);
  const std::string file = persist::files::segment_files(directory.tier()).front();
  const auto whole = persist::files::read_file(file);
  std::uint64_t misses = 0;
  for (std::size_t at = persist::kAlignment; at < whole.size(); at += 509) {
    persist::files::put_byte(file, at, static_cast<char>(whole[at] ^ 4));
    {
      DiskTierOptions options = tier(directory.tier());
      options.access = TierAccess::kRead;
      const auto cache = make_cache(kHybrid, options);
      auto sequence = cache->open(tokens, {});
      ASSERT_TRUE(sequence.is_ok());
      misses += sequence->cached_tokens() < 119;
      expect_right(kHybrid, *sequence, "byte " + std::to_string(at));
      const bool noted = cache->disk_stats()->damaged_records > 0;
      if (sequence->cached_tokens() < 119 && !noted) {
        EXPECT_GT(cache->disk_stats()->torn_segments + cache->disk_stats()->damaged_segments, 0U);
      }
    }
    persist::files::put_byte(file, at, whole[at]);
  }
  EXPECT_GT(misses, 3U);
}

// A boundary that says to continue an earlier block than its own: what lies between is nowhere.
TEST(DiskTier, ABoundaryContinuesItsOwnBlockAlone) {
  const Directory directory;
  const Tokens tokens = prompt(60);
  serve(kHybrid, *make_cache(kHybrid, tier(directory.tier())), tokens);
  {
    persist::System& system = persist::System::real();
    persist::LogOptions options;
    options.max_bytes = 64 << 20;
    auto log = persist::SegmentLog::open(system, directory.tier(), options);
    ASSERT_TRUE(log.is_ok());
    const int opened = *persist::open_tier_directory(system, directory.tier());
    const auto id = persist::read_tier_marker(system, opened, directory.tier());
    const fs::path file = persist::files::segment_files(directory.tier()).at(0);
    std::vector<persist::RecordHeader> records;
    const auto segment = persist::Segment::open(
        system, opened, file, *id, *persist::segment_number(file.filename().string()), false,
        [&](const persist::RecordHeader& each) { records.push_back(each); });
    ::close(opened);
    ASSERT_TRUE(segment.is_ok());
    const auto middle = std::find_if(records.begin(), records.end(), [](const auto& each) {
      return each.kind == persist::RecordKind::kRun && each.first == 28;
    });
    const auto last = std::find_if(records.begin(), records.end(), [](const auto& each) {
      return each.kind == persist::RecordKind::kBoundary && each.end() == 59;
    });
    ASSERT_TRUE(middle != records.end() && last != records.end());
    std::vector<std::int32_t> own(last->tokens);
    std::vector<std::byte> payload(last->payload_bytes);
    const iovec piece{payload.data(), payload.size()};
    ASSERT_TRUE((*segment)->read(*last, own, {&piece, 1}).is_ok());
    const auto owner = (*segment)->read_owner(*last);
    persist::RecordHeader header = *last;
    header.first = 28;
    header.parent = middle->parent;
    ASSERT_TRUE(
        (*log)->append(header, std::span(tokens).subspan(28, 31), {&piece, 1}, *owner).is_ok());
  }
  const auto cache = make_cache(kHybrid, tier(directory.tier()));
  auto sequence = cache->open(tokens, {});
  ASSERT_TRUE(sequence.is_ok());
  EXPECT_NE(sequence->cached_tokens(), 59U);
  expect_right(kHybrid, *sequence, "a boundary of another block");
}

TEST(DiskTier, ReadersFollowTheWriter) {
  const Directory directory;
  const auto writer = make_cache(kHybrid, tier(directory.tier()));
  DiskTierOptions options = tier(directory.tier());
  auto plan = StatePlan::create(kHybrid.decls(), {.memory_bytes = 1 << 20, .block_tokens = kBlock});
  CacheOptions second;
  second.disk = options;
  const auto refused = Cache::create(*plan, second);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  options.access = TierAccess::kWriteOrRead;
  const auto reader = make_cache(kHybrid, options);
  EXPECT_FALSE(reader->disk_stats()->is_writer);
  for (std::int32_t seed = 0; seed < 5; ++seed) {
    serve(kHybrid, *writer, prompt(50, seed));
    ASSERT_TRUE(writer->flush_disk().is_ok());
    EXPECT_EQ(serve(kHybrid, *reader, prompt(50, seed)), 49U);
  }
  EXPECT_EQ(reader->disk_stats()->written_records, 0U);
}

// A system whose writes wait until they are let through.
class GatedSystem : public persist::System {
 public:
  std::int64_t write_at(int file, const iovec* pieces, int count, std::uint64_t offset) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
    return System::write_at(file, pieces, count, offset);
  }
  void set_open(bool open) {
    {
      const std::lock_guard lock(mutex_);
      open_ = open;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
};

auto open_log(persist::System& system, const Directory& directory) {
  persist::LogOptions options;
  options.max_bytes = 64 << 20;
  return persist::SegmentLog::open(system, directory.tier(), options);
}

TEST(DiskTier, AFullQueueDropsAndCounts) {
  const Directory directory;
  GatedSystem system;
  auto log = open_log(system, directory);
  ASSERT_TRUE(log.is_ok());
  DiskTierOptions options;
  options.queue_bytes = 100;
  int released = 0;
  auto writer =
      TierWriter::start(**log, queue_options(options), [&](const TierJob&) { ++released; });
  ASSERT_TRUE(writer.is_ok());
  system.set_open(false);
  const auto jobs = [](std::size_t count, std::uint64_t bytes) {
    TierJobs made(count);
    for (TierJob& job : made) job.bytes = bytes / count;
    return made;
  };
  EXPECT_TRUE((*writer)->reserve(jobs(1, 60)));
  (*writer)->submit(jobs(1, 60));
  EXPECT_FALSE((*writer)->reserve(jobs(3, 60)));
  EXPECT_TRUE((*writer)->reserve(jobs(1, 40))) << "it still fits";
  (*writer)->submit(jobs(1, 40));
  EXPECT_EQ((*writer)->flush(1).code(), StatusCode::kOutOfCapacity);
  DiskTierStats stats;
  (*writer)->count(stats);
  EXPECT_EQ(stats.dropped_records, 3U);
  EXPECT_EQ(stats.queued_bytes, 100U);
  system.set_open(true);
  EXPECT_TRUE((*writer)->flush({}).is_ok());
  EXPECT_EQ(released, 2);
  EXPECT_TRUE((*writer)->reserve(jobs(1, 1000))) << "more than the queue, alone";
}

// Nobody but the tier's own thread would hear of it.
TEST(DiskTier, AWriterWithoutMemoryLosesARecordAndGoesOn) {
  class System : public persist::System {
   public:
    std::atomic<bool> is_short = false;
    std::int64_t write_at(int file, const iovec* pieces, int count, std::uint64_t at) override {
      if (is_short) throw std::bad_alloc();
      return persist::System::write_at(file, pieces, count, at);
    }
    int sync(int file) override {
      if (is_short) throw std::bad_alloc();
      return persist::System::sync(file);
    }
  };
  const Directory directory;
  System system;
  auto log = open_log(system, directory);
  ASSERT_TRUE(log.is_ok());
  int released = 0;
  auto writer = TierWriter::start(**log, {}, [&](const TierJob&) { ++released; });
  ASSERT_TRUE(writer.is_ok());
  const auto submit = [&] {
    TierJob job;
    job.tokens = {1, 2, 3};
    job.header.key[0] = static_cast<std::uint8_t>(released);
    (*writer)->submit({job});
    return (*writer)->flush({});
  };
  EXPECT_TRUE(submit().is_ok());
  system.is_short = true;
  EXPECT_EQ(submit().code(), StatusCode::kOutOfCapacity);
  persist::TierErasure erasure;
  erasure.space = erasure.tenant = [](std::string_view) { return true; };
  EXPECT_EQ((*writer)->erase(erasure).status().code(), StatusCode::kOutOfCapacity);
  system.is_short = false;
  EXPECT_FALSE(submit().is_ok()) << "since the last flush, the erasure was not done";
  EXPECT_TRUE(submit().is_ok());
  EXPECT_EQ(released, 4);
}

// One publish() has more to store than the queue holds: it waits for its own, which are written.
TEST(DiskTier, WithTimeToWaitNothingIsDropped) {
  const Directory directory;
  DiskTierOptions options = tier(directory.tier());
  options.queue_bytes = 1;
  options.wait_ms = 60'000;
  const auto cache = make_cache(kHybrid, options);
  auto sequence = cache->open(prompt(60), {});
  ASSERT_TRUE(sequence.is_ok());
  for (const std::uint64_t stop : {20, 40, 59}) complete(kHybrid, *sequence, stop);
  ASSERT_TRUE(sequence->publish().is_ok());
  ASSERT_TRUE(cache->flush_disk().is_ok());
  EXPECT_EQ(cache->disk_stats()->dropped_records, 0U);
  EXPECT_EQ(*cache->prefetch(prompt(60), {}), 59U);
}

TEST(DiskTier, TheCacheGoesOnWhenTheDirectoryIsGone) {
  const Directory directory;
  DiskTierOptions options = tier(directory.tier());
  options.max_bytes = 1 << 20;  // small segments
  const auto cache = make_cache(kHybrid, options);
  serve(kHybrid, *cache, prompt(60));
  ASSERT_TRUE(cache->flush_disk().is_ok());
  fs::remove_all(directory.tier());
  bool failed = false;
  for (std::int32_t seed = 1; seed < 60; ++seed) {
    serve(kHybrid, *cache, prompt(60, seed));
    failed = failed || !cache->flush_disk();
  }
  EXPECT_TRUE(failed);
  const auto stats = cache->disk_stats();
  EXPECT_GT(stats->write_errors, 0U);
  EXPECT_NE(stats->last_error.find("segment-"), std::string::npos) << stats->last_error;
  EXPECT_EQ(serve(kHybrid, *cache, prompt(60, 59)), 59U) << "from memory";
}

TEST(DiskTier, WrongOptionsAndCallsAreRefused) {
  const Directory directory;
  auto plan = StatePlan::create(kFull.decls(), {.memory_bytes = 1 << 20, .block_tokens = kBlock});
  const auto refused = [&](const DiskTierOptions& disk, bool backing = true) {
    CacheOptions options;
    options.disk = disk;
    options.backing = backing;
    return Cache::create(*plan, options).status().code();
  };
  DiskTierOptions options = tier(directory.tier());
  options.max_bytes = 1000;
  EXPECT_EQ(refused(options), StatusCode::kInvalidArgument);
  options = tier(directory.tier());
  options.read_threads = 0;
  EXPECT_EQ(refused(options), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(tier(directory.tier() + "/deeper/down")), StatusCode::kIoError);
  options = tier(directory.tier("absent"));
  options.access = TierAccess::kRead;
  EXPECT_EQ(refused(options), StatusCode::kNotFound);
  EXPECT_EQ(refused(tier(directory.tier()), false), StatusCode::kUnsupported);
  persist::files::write_file(directory.tier("file"), {'x'});
  EXPECT_EQ(refused(tier(directory.tier("file"))), StatusCode::kCorruption);
  const auto cache = make_cache(kFull, {});
  EXPECT_EQ(cache->flush_disk().code(), StatusCode::kUnsupported);
  EXPECT_EQ(cache->disk_stats().status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(cache->prefetch(prompt(9), {}).status().code(), StatusCode::kUnsupported);
  const auto with = make_cache(kFull, tier(directory.tier("with")));
  EXPECT_EQ(with->prefetch({}, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(with->prefetch(prompt(9), {}, 0).status().code(), StatusCode::kInvalidArgument);
}

// KVCACHE_KILLS: how often a writer is killed.
TEST(DiskTier, AKilledWriterLeavesNothingWrong) {
  const char* text = std::getenv("KVCACHE_KILLS");
  const int kills = text == nullptr ? 20 : std::atoi(text);
  const Directory directories[2];
  std::mt19937 random(7);
  std::uint64_t found = 0;
  for (int kill_number = 0; kill_number < kills; ++kill_number) {
    // A small cap evicts what was flushed, a large one keeps it.
    const bool large = kill_number % 2 == 0;
    const Directory& directory = directories[large];
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      DiskTierOptions options = tier(directory.tier());
      options.max_bytes = large ? 32 << 20 : 1 << 20;
      options.group_bytes = 8 << 10;
      const auto cache = make_cache(kHybrid, options);
      for (std::int32_t seed = kill_number * 7;; ++seed) {
        serve(kHybrid, *cache, prompt(60, seed % 40));
        // What is flushed has to be there after the kill.
        if (cache->flush_disk()) {
          const std::int32_t done = seed % 40;
          if (write(ready[1], &done, sizeof(done)) < 0) _exit(2);
        }
      }
    }
    close(ready[1]);
    std::int32_t last = -1;
    ASSERT_EQ(read(ready[0], &last, sizeof(last)), static_cast<ssize_t>(sizeof(last)));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    while (read(ready[0], &last, sizeof(last)) > 0) {
    }
    close(ready[0]);
    DiskTierOptions options = tier(directory.tier());
    options.max_bytes = large ? 32 << 20 : 1 << 20;
    const auto cache = make_cache(kHybrid, options);
    ASSERT_NE(cache, nullptr);
    EXPECT_EQ(cache->disk_stats()->damaged_segments, 0U);
    for (std::int32_t seed = 0; seed < 40; ++seed) {
      auto sequence = cache->open(prompt(60, seed), {});
      ASSERT_TRUE(sequence.is_ok());
      expect_right(kHybrid, *sequence, "after kill " + std::to_string(kill_number));
      EXPECT_TRUE(!large || seed != last || sequence->cached_tokens() == 59) << "it was flushed";
      found += sequence->cached_tokens() > 0;
    }
    EXPECT_EQ(cache->disk_stats()->damaged_records, 0U);
  }
  EXPECT_GT(found, static_cast<std::uint64_t>(kills));
}

}  // namespace
}  // namespace kvcache
