// One segment of a disk tier: records are appended to it, found in it and read from it. A record is
// there once its header is, which is written last; its bytes are checked whenever they are read.
// Thread safety: read() is thread-safe, also beside the one thread that uses the rest.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"
#include "persist/segment_format.h"
#include "persist/system.h"

namespace kvcache::persist {

class Segment {
 public:
  using Found = std::function<void(const RecordHeader&)>;

  // A new, empty one. kIoError: the system refused; nothing is left behind if it lets us.
  static Result<std::shared_ptr<Segment>> create(System& system, int directory,
                                                 const std::string& path,
                                                 const SegmentHeader& header);
  // One that is there; reads its footer, or walks its headers when it has none. kCorruption: no
  // regular file, a link, or not this segment of this tier. kUnsupported: of another version.
  static Result<std::shared_ptr<Segment>> open(System& system, int directory,
                                               const std::string& path, const TierId& tier,
                                               std::uint64_t number, bool writable,
                                               const Found& found);
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  std::uint64_t number() const { return header_.number; }
  std::uint32_t alignment() const { return header_.alignment; }
  bool is_sealed() const { return sealed_; }
  // Bytes that are no record, behind the last one: a write that was cut off, or damage.
  bool has_torn_tail() const { return torn_; }
  std::uint64_t records_end() const { return end_; }
  // Thread-safe.
  std::uint64_t file_bytes() const { return file_bytes_.load(std::memory_order_relaxed); }
  const std::string& path() const { return path_; }

  // Finds what another process has appended since. kIoError: the system refused.
  Status refresh(const Found& found);

  // Fills in where the record is and its checksums; `owner` says whose it is. kIoError: the system
  // refused, and the record is not there; the segment takes no more.
  Status append(RecordHeader& record, std::span<const std::int32_t> tokens,
                std::span<const iovec> payload, std::string_view owner);
  Status sync();
  // Cuts off what is no record and appends the footer. `records` are all of them, in order.
  Status seal(std::span<const RecordHeader> records);

  // What there is, in order, from the footer where there is one. kCorruption: it cannot be told.
  Status list(const Found& found) const;
  // Makes zeros of the records at `chosen` in `records`, which are all of them in order, and is
  // told so in `records`. kIoError: some may be there still.
  Status erase(std::span<const std::size_t> chosen, std::span<RecordHeader> records);
  // The text whose digest the header has. kCorruption: it is another one.
  Result<std::string> read_owner(const RecordHeader& record) const;

  // The file's bytes [offset, offset + size). kCorruption: it ends before.
  Status read_bytes(std::uint64_t offset, std::span<std::byte> bytes) const;
  // Reads a record into `tokens` and `payload`, whose sizes are the record's. kCorruption: it is
  // not what its header says. kNotFound: it was erased.
  Status read(const RecordHeader& record, std::span<std::int32_t> tokens,
              std::span<const iovec> payload) const;

 private:
  Segment(System& system, std::string path, int file) : system_(system), path_(path), file_(file) {}

  Status write_all(const void* data, std::size_t bytes, std::uint64_t offset);
  Status read_all(void* data, std::size_t bytes, std::uint64_t offset) const;
  Status check_header(const TierId& tier, std::uint64_t number);
  bool read_footer(const Found& found);
  Status write_footer(std::span<const RecordHeader> records);
  bool read_entries(const SegmentTrailer& trailer, const Found& found) const;

  System& system_;
  const std::string path_;
  const int file_;
  SegmentHeader header_;
  std::uint64_t end_ = 0;                      // where the next record begins
  std::atomic<std::uint64_t> file_bytes_ = 0;  // of the file, as far as it is known
  bool sealed_ = false;
  SegmentTrailer trailer_;  // of a sealed one
  bool torn_ = false;
};

// Bytes of all pieces.
std::uint64_t total_bytes(std::span<const iovec> pieces);

}  // namespace kvcache::persist
