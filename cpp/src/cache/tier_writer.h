// The queue in front of a tier and the one thread that empties it into the tier's store.
// Thread safety: thread-safe. The thread ends with the object, after it has written what waits.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arena/pool.h"
#include "kvcache/disk_tier.h"
#include "kvcache/tier_stats.h"
#include "persist/record_store.h"

namespace kvcache {

// A record that waits, and what must stay in memory until it is written.
struct TierJob {
  persist::RecordHeader header;
  std::string owner;
  std::vector<std::int32_t> tokens;
  std::vector<iovec> payload;
  std::vector<std::pair<std::size_t, arena::ItemId>> pages;  // group and page
  std::vector<std::vector<std::byte>> copies;                // of pages that are not full
  arena::ItemId snapshot = arena::kNoItem;
  std::uint64_t bytes = 0;
  struct Erasing* erasing = nullptr;  // instead of a record
};
using TierJobs = std::list<TierJob>;  // queued without taking memory

struct QueueOptions {
  // What may wait to be written. More is dropped, after `wait_ms`.
  std::uint64_t queue_bytes = 256 << 20;
  std::uint64_t wait_ms = 0;
  std::optional<std::uint64_t> sync_ms = {};  // after which what was written is made durable
  std::uint64_t longest_pause_ms = 60'000;    // after a failure
  std::optional<std::uint64_t> end_ms = {};   // what waits longer at the end is not written
};

QueueOptions queue_options(const DiskTierOptions& options);

class TierWriter {
 public:
  // `release` gives back what a job holds; it is called without any lock of this class.
  using Release = std::function<void(const TierJob&)>;

  // kOutOfCapacity: the system has no thread.
  static Result<std::unique_ptr<TierWriter>> start(persist::RecordStore& store,
                                                   const QueueOptions& options, Release release);
  TierWriter(const TierWriter&) = delete;
  TierWriter& operator=(const TierWriter&) = delete;
  ~TierWriter();

  // Room in the queue for these, maybe after waiting for it; they count as waiting from then on,
  // though submit() is yet to come. False: there is none, and they are counted as dropped.
  bool reserve(const TierJobs& jobs);
  // What reserve() had room for. Holds its pages.
  void submit(TierJobs jobs) noexcept;
  // The first positions of runs that wait, by key, over those of the store.
  void add_waiting(std::span<const persist::Digest> keys, std::vector<std::uint64_t>& starts) const;
  bool is_boundary_waiting(const persist::Digest& key) const;

  // Until what was submitted is written and safe. kIoError: some of it is not. kOutOfCapacity: not
  // within `wait_ms`; it goes on.
  Status flush(std::optional<std::uint64_t> wait_ms);

  // Erases, behind what waits already; returns how many records. As RecordStore::erase().
  Result<std::uint64_t> erase(const persist::TierErasure& erasure);

  // Adds its counters.
  void count(TierStats& stats) const;

 private:
  TierWriter(persist::RecordStore& store, const QueueOptions& options, Release release);
  void run();
  bool is_suspended() const;  // locked
  bool gives_up() const;      // locked
  void erase_now(const TierJob& job);
  void write(const TierJob& job);
  void sync_when_due(bool now);
  void announce(const TierJob& job);           // locked
  void withdraw(const TierJob& job) noexcept;  // locked
  void suspend(const Status& why) noexcept;    // locked

  using Time = std::chrono::steady_clock::time_point;
  struct DigestHash {
    std::size_t operator()(const persist::Digest& digest) const {
      std::size_t value = 0;
      std::memcpy(&value, digest.data(), sizeof(value));
      return value;
    }
  };

  persist::RecordStore& store_;
  const QueueOptions options_;
  const Release release_;

  mutable std::mutex mutex_;
  std::condition_variable work_;  // for the thread
  std::condition_variable done_;  // for those who wait for it
  TierJobs queue_;
  std::unordered_map<persist::Digest, std::uint64_t, DigestHash> runs_;  // that wait
  std::set<persist::Digest> boundaries_;                                 // likewise
  std::uint64_t queued_bytes_ = 0;
  std::uint64_t submitted_ = 0;
  std::uint64_t finished_ = 0;
  std::uint64_t flush_to_ = 0;  // flushes that were asked for, and those that are done
  std::uint64_t flushed_ = 0;
  Status flush_status_;
  Status failure_;  // since the last flush
  bool stopping_ = false;
  Time stopped_at_ = {};
  Time suspended_until_ = {};
  std::uint64_t pause_ms_ = 0;
  std::uint64_t dropped_records_ = 0;
  std::uint64_t write_errors_ = 0;
  std::string last_error_;
  Time unsynced_since_ = {};  // the thread's
  std::thread thread_;
};

}  // namespace kvcache
