#include "cache/tier_writer.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <system_error>

namespace kvcache {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// After a failure nothing is written for a while, each time twice as long.
constexpr std::uint64_t kFirstPauseMs = 250;

// Short enough to take none itself.
Status no_memory() { return Status::out_of_capacity("no memory"); }

// What the store answers. On a thread of ours nobody else would catch what it throws.
template <typename Call>
auto guarded(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
}

milliseconds wait_of(std::uint64_t ms) {
  constexpr std::uint64_t kYear = 365ULL * 24 * 3600 * 1000;
  return milliseconds(std::min(ms, kYear));
}

}  // namespace

// What a caller waits for.
struct Erasing {
  const persist::TierErasure& erasure;
  std::optional<Result<std::uint64_t>> done = {};
};

QueueOptions queue_options(const DiskTierOptions& options) {
  QueueOptions queue;
  queue.queue_bytes = options.queue_bytes;
  queue.wait_ms = options.wait_ms;
  if (options.durability == Durability::kGroup) queue.sync_ms = options.group_ms;
  return queue;
}

TierWriter::TierWriter(persist::RecordStore& store, const QueueOptions& options, Release release)
    : store_(store), options_(options), release_(std::move(release)) {}

Result<std::unique_ptr<TierWriter>> TierWriter::start(persist::RecordStore& store,
                                                      const QueueOptions& options,
                                                      Release release) {
  std::unique_ptr<TierWriter> writer(new TierWriter(store, options, std::move(release)));
  try {
    writer->thread_ = std::thread([raw = writer.get()] { raw->run(); });
  } catch (const std::system_error& error) {
    return Status::out_of_capacity("tier: no thread to write with: ", error.what());
  }
  return writer;
}

TierWriter::~TierWriter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stopped_at_ = steady_clock::now();
  }
  work_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool TierWriter::is_suspended() const { return steady_clock::now() < suspended_until_; }

bool TierWriter::gives_up() const {
  return stopping_ && options_.end_ms &&
         steady_clock::now() >= stopped_at_ + wait_of(*options_.end_ms);
}

bool TierWriter::reserve(const TierJobs& jobs) {
  std::uint64_t bytes = 0;
  for (const TierJob& job : jobs) bytes += job.bytes;
  std::unique_lock lock(mutex_);
  const auto fits = [&] {
    return queued_bytes_ == 0 ||
           (bytes <= options_.queue_bytes && queued_bytes_ <= options_.queue_bytes - bytes);
  };
  bool room = !is_suspended() && fits();
  if (!room && !is_suspended() && options_.wait_ms > 0) {
    room =
        done_.wait_for(lock, wait_of(options_.wait_ms), [&] { return is_suspended() || fits(); });
    room = room && !is_suspended();
  }
  if (!room) {
    dropped_records_ += jobs.size();
    return false;
  }
  try {
    for (const TierJob& job : jobs) announce(job);
  } catch (...) {
    for (const TierJob& job : jobs) withdraw(job);
    throw;
  }
  queued_bytes_ += bytes;
  return true;
}

void TierWriter::announce(const TierJob& job) {
  if (job.header.kind == persist::RecordKind::kRun) {
    runs_[job.header.key] = job.header.first;
  } else {
    boundaries_.insert(job.header.key);
  }
}

void TierWriter::withdraw(const TierJob& job) noexcept {
  if (job.header.kind == persist::RecordKind::kRun) {
    runs_.erase(job.header.key);
  } else {
    boundaries_.erase(job.header.key);
  }
}

void TierWriter::submit(TierJobs jobs) noexcept {
  {
    const std::lock_guard lock(mutex_);
    submitted_ += jobs.size();
    queue_.splice(queue_.end(), jobs);
  }
  work_.notify_one();
}

void TierWriter::add_waiting(std::span<const persist::Digest> keys,
                             std::vector<std::uint64_t>& starts) const {
  const std::lock_guard lock(mutex_);
  if (runs_.empty()) return;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (const auto at = runs_.find(keys[i]); at != runs_.end()) starts[i] = at->second;
  }
}

bool TierWriter::is_boundary_waiting(const persist::Digest& key) const {
  const std::lock_guard lock(mutex_);
  return boundaries_.contains(key);
}

Status TierWriter::flush(std::optional<std::uint64_t> wait_ms) {
  std::unique_lock lock(mutex_);
  const std::uint64_t ticket = ++flush_to_;
  work_.notify_one();
  const auto done = [&] { return flushed_ >= ticket; };
  if (!wait_ms) {
    done_.wait(lock, done);
  } else if (!done_.wait_for(lock, wait_of(*wait_ms), done)) {
    return Status::out_of_capacity("flush: ", submitted_ - finished_, " records of ", queued_bytes_,
                                   " bytes wait after ", *wait_ms, " ms");
  }
  return flush_status_;
}

Result<std::uint64_t> TierWriter::erase(const persist::TierErasure& erasure) {
  Erasing erasing{erasure};
  TierJob job;
  job.erasing = &erasing;
  std::unique_lock lock(mutex_);
  queue_.push_back(std::move(job));
  ++submitted_;
  work_.notify_one();
  done_.wait(lock, [&] { return erasing.done.has_value(); });
  return std::move(*erasing.done);
}

void TierWriter::erase_now(const TierJob& job) {
  auto done = guarded([&] { return store_.erase(job.erasing->erasure); });
  const std::lock_guard lock(mutex_);
  if (!done) suspend(done.status());
  job.erasing->done = std::move(done);
  ++finished_;
  done_.notify_all();
}

void TierWriter::count(TierStats& stats) const {
  const std::lock_guard lock(mutex_);
  stats.queued_bytes = queued_bytes_;
  stats.dropped_records += dropped_records_;
  stats.write_errors += write_errors_;
  if (!last_error_.empty()) stats.last_error = last_error_;
}

// ---- The thread -------------------------------------------------------------------------------

void TierWriter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto wakes = [&] { return stopping_ || !queue_.empty() || flush_to_ > flushed_; };
    if (options_.sync_ms && store_.has_unsynced()) {
      work_.wait_until(lock, unsynced_since_ + wait_of(*options_.sync_ms), wakes);
    } else {
      work_.wait(lock, wakes);
    }
    if (!queue_.empty()) {
      TierJobs next;
      next.splice(next.end(), queue_, queue_.begin());
      const TierJob& job = next.front();
      lock.unlock();
      job.erasing != nullptr ? erase_now(job) : write(job);
      next.clear();
      lock.lock();
      continue;
    }
    const std::uint64_t target = flush_to_;
    const bool asked = target > flushed_;
    const bool stop = stopping_;
    lock.unlock();
    if (stop) {
      const Status ignored =
          guarded([&] { return store_.close(); });  // what is not safe is known by its checksums
      return;
    }
    sync_when_due(asked);
    lock.lock();
    if (!asked) continue;
    flush_status_ = std::exchange(failure_, Status::ok());
    flushed_ = target;
    done_.notify_all();
  }
}

void TierWriter::write(const TierJob& job) {
  Status status;
  bool dropped = false;
  {
    const std::lock_guard lock(mutex_);
    dropped = is_suspended() || gives_up();
  }
  if (!dropped) {
    if (!store_.has_unsynced()) unsynced_since_ = steady_clock::now();
    status = guarded([&] { return store_.append(job.header, job.tokens, job.payload, job.owner); });
  }
  release_(job);
  sync_when_due(false);
  const std::lock_guard lock(mutex_);
  withdraw(job);
  dropped_records_ += dropped;
  if (!status) suspend(status);
  if (status && !dropped) pause_ms_ = 0;
  queued_bytes_ -= job.bytes;
  ++finished_;
  done_.notify_all();
}

void TierWriter::sync_when_due(bool now) {
  const bool due = options_.sync_ms && store_.has_unsynced() &&
                   steady_clock::now() >= unsynced_since_ + wait_of(*options_.sync_ms);
  if (!now && !due) return;
  if (Status status = guarded([&] { return store_.sync(); }); !status) {
    const std::lock_guard lock(mutex_);
    suspend(status);
  }
}

void TierWriter::suspend(const Status& why) noexcept {
  ++write_errors_;
  try {
    last_error_ = why.message();
    failure_ = why;
  } catch (const std::bad_alloc&) {
    failure_ = no_memory();
  }
  if (why.code() == StatusCode::kOutOfCapacity || store_.has_others()) return;  // this record alone
  pause_ms_ = std::clamp(pause_ms_ * 2, kFirstPauseMs, options_.longest_pause_ms);
  suspended_until_ = steady_clock::now() + milliseconds(pause_ms_);
}

}  // namespace kvcache
