// The segments of one directory as a map from prefixes to records, under a cap on their bytes, or
// under what the disk has room for where that is less. The oldest segment goes first; records of it
// that were asked for are written again.
// Thread safety: thread-safe, but for append(), erase(), sync() and close(), which one thread
// calls. Nothing is read or written while the lock is held, but when a reader refreshes.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvcache/disk_tier.h"
#include "kvcache/status.h"
#include "persist/record_store.h"
#include "persist/segment.h"
#include "persist/segment_erase.h"
#include "persist/segment_format.h"
#include "persist/system.h"

namespace kvcache::persist {

struct LogOptions {
  TierAccess access = TierAccess::kWrite;
  std::uint64_t max_bytes = 0;
  std::uint64_t segment_bytes = 0;  // 0: a part of max_bytes
  std::uint32_t alignment = kAlignment;
  Durability durability = Durability::kNone;
  std::uint64_t group_bytes = 64 << 20;
};

struct LogStats {
  std::uint64_t segments = 0;
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;
  std::uint64_t written_records = 0;
  std::uint64_t written_bytes = 0;
  std::uint64_t syncs = 0;
  std::uint64_t evicted_segments = 0;
  std::uint64_t kept_records = 0;
  std::uint64_t erased_records = 0;
  std::uint64_t damaged_segments = 0;
  std::uint64_t torn_segments = 0;
  std::uint64_t damaged_records = 0;
  std::string last_error;
};

class SegmentLog final : public RecordStore {
 public:
  // Makes the directory when it is not there and may be written. kInvalidArgument: another process
  // writes it, or a cap too small for a segment. kNotFound: there is nothing to read. kCorruption:
  // it is no tier, or its marker is damaged; damaged segments are left out and counted.
  // kUnsupported: of another version. kIoError: the system refused.
  static Result<std::unique_ptr<SegmentLog>> open(System& system, const std::string& path,
                                                  const LogOptions& options);
  SegmentLog(const SegmentLog&) = delete;
  SegmentLog& operator=(const SegmentLog&) = delete;
  ~SegmentLog() override;

  bool is_writer() const override { return lock_ >= 0; }
  const std::string& path() const { return path_; }

  // Of each key, the position at which the run that ends there begins; kNowhere: there is none.
  std::vector<std::uint64_t> run_starts(std::span<const Digest> keys) const override;
  bool has_boundary(const Digest& key) const override;
  // After refresh().
  std::vector<std::uint64_t> look_up(std::span<const Digest> keys) override;
  // Of each key, the run that ends there.
  std::vector<std::optional<Located>> find_runs(std::span<const Digest> keys) override;
  // All that follow these parents.
  std::vector<Located> find_boundaries(std::span<const BoundaryPlace> places,
                                       const KeyAt& key_at) override;
  std::optional<Located> find(RecordKind kind, const Digest& key) const;
  // It was asked for: it outlives its segment once.
  void use(const Located& record) override;
  void read(std::span<RecordRead> reads) override;
  // It is damaged, or kNotFound: another process has erased it. It is not found any more.
  void forget(const Located& record, const Status& why) override;
  // A reader sees what the writer has done since. Costs little when it did nothing.
  void refresh();

  // `owner` says whose it is, for erase(). kOutOfCapacity: larger than the cap allows. kIoError:
  // the system refused; the record is not there, or not safe where each is to be.
  Status append(RecordHeader record, std::span<const std::int32_t> tokens,
                std::span<const iovec> payload, std::string_view owner = {}) override;
  // Takes records out of their files, for good and safe from a power cut. A segment that cannot be
  // read, or from which they cannot be taken, is removed whole. kIoError: that failed as well; what
  // is left is not found by this object. Returns how many there were.
  Result<std::uint64_t> erase(const TierErasure& erasure) override;
  // Makes durable what was appended. kIoError: some of it since the last call may not be; later
  // calls answer for what comes later.
  Status sync() override;
  bool has_unsynced() const override { return unsynced_ > 0; }
  // The same, and seals the last segment. append() begins another.
  Status close() override;

  // Removes segments that are not read, and the oldest ones beyond `max_bytes`, with all they hold.
  // kIoError: the system refused; what is removed stays so.
  Result<TierCollection> collect(std::uint64_t max_bytes);

  LogStats stats() const;

 private:
  struct Entry {
    Located record;
    bool used = false;
  };
  struct DigestHash {
    std::size_t operator()(const Digest& digest) const {
      std::size_t value = 0;
      std::memcpy(&value, digest.data(), sizeof(value));
      return value;
    }
  };
  using Records = std::unordered_map<Digest, Entry, DigestHash>;
  struct Refused {
    std::uint64_t bytes = 0;
  };

  SegmentLog(System& system, std::string path, int directory, const LogOptions& options);

  Status take_lock();
  Status read_marker();
  Status write_marker(std::span<const std::string> names);
  Status open_segments(std::span<const std::string> names);
  void open_segment(std::uint64_t number);
  std::uint64_t bytes_of_file(std::uint64_t number) const;
  void reopen_segments(std::span<const std::string> names);
  Status seal_left_over(const std::shared_ptr<Segment>& segment,
                        std::span<const RecordHeader> records);

  void add(const RecordHeader& record, const std::shared_ptr<Segment>& segment);
  void drop_link(const RecordHeader& boundary);
  void drop_records_of(std::uint64_t segment);
  std::uint64_t total_bytes_locked() const;

  Status append_record(RecordHeader record, std::span<const std::int32_t> tokens,
                       std::span<const iovec> payload, std::string_view owner);
  Status begin_segment();
  void abandon();
  void sync_now();
  void seal_active();
  Status make_room(std::uint64_t bytes);
  std::uint64_t free_bytes() const;
  Status evict_oldest();
  Status remove_file(std::uint64_t number);
  std::vector<Located> records_to_keep(std::uint64_t number) const;
  Status write_again(const Located& record);

  Result<std::uint64_t> erase_from(Listed& listed, std::span<const std::size_t> chosen);
  void forget_erased(const Listed& listed, std::span<const std::size_t> chosen);
  Status remove_segment(std::uint64_t number);

  System& system_;
  const std::string path_;
  const int directory_;
  LogOptions options_;
  int lock_ = -1;
  TierId id_{};

  mutable std::mutex mutex_;
  Records runs_;
  Records boundaries_;
  std::unordered_multimap<Digest, Digest, DigestHash> boundaries_by_parent_;
  std::map<std::uint64_t, std::shared_ptr<Segment>> segments_;
  std::map<std::uint64_t, Refused> refused_;  // segments that are not read
  std::uint64_t seen_ns_ = 0;                 // what the directory was when it was listed; 0: again
  LogStats stats_;

  // Of the writing thread.
  std::shared_ptr<Segment> active_;
  std::vector<RecordHeader> active_records_;
  std::uint64_t next_number_ = 0;
  std::uint64_t unsynced_ = 0;
  Status unsafe_;  // why what sync() shall answer for is not safe
};

// A tier's files in a directory, by ascending number; nothing else that may lie there.
std::vector<std::uint64_t> segment_numbers(std::span<const std::string> names);
// Opens the directory of a tier, which may be reached by a link. kNotFound: it is not there.
Result<int> open_tier_directory(System& system, const std::string& path);
// Its marker, read without following links. kCorruption, kUnsupported, or kNotFound: there is none.
Result<TierId> read_tier_marker(System& system, int directory, const std::string& path);

}  // namespace kvcache::persist
