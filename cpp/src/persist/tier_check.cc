#include "persist/tier_check.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <span>

#include "base/crc32c.h"
#include "persist/files.h"
#include "persist/segment.h"
#include "persist/segment_log.h"

namespace kvcache::persist {
namespace {

constexpr std::size_t kChunkBytes = 64 << 10;

// Reads a segment from its beginning to its end and says what is wrong.
class SegmentCheck {
 public:
  SegmentCheck(const Segment& segment, std::vector<std::string>& problems)
      : segment_(segment), problems_(problems), buffer_(kChunkBytes) {}

  void run(std::span<const RecordHeader> records) {
    expect_zero(kSegmentHeaderBytes, segment_.alignment(), "behind the header of the segment");
    for (const RecordHeader& record : records) {
      if (record.kind == RecordKind::kErased) {
        check_erased(record);
      } else {
        check(record);
      }
    }
  }
  // Whether anything but zeros lies from `begin` to the end of the file.
  bool has_rest(std::uint64_t begin) { return !is_zero(begin, segment_.file_bytes()); }

 private:
  void check(const RecordHeader& record) {
    std::vector<std::int32_t> tokens(
        std::min(record.tokens, (segment_.file_bytes() - record.offset) / sizeof(std::int32_t)));
    RecordHeader front = record;
    // The payload is read in pieces of a buffer, so that its size is nobody's claim.
    std::uint32_t crc = 0;
    const std::uint64_t end = record.payload_end(segment_.alignment());
    RecordHeaderBytes header;
    if (!read(record.offset, header)) return;
    if (header != encode(front)) report("the header of the record at byte ", record.offset);
    if (!read(record.tokens_offset(), std::as_writable_bytes(std::span(tokens)))) return;
    if (crc32c(0, tokens.data(), tokens.size() * sizeof(std::int32_t)) != record.tokens_crc) {
      report("the tokens of the record at byte ", record.offset);
    }
    for (std::uint64_t at = record.payload_offset(segment_.alignment()); at < end;) {
      const std::size_t count = std::min<std::uint64_t>(buffer_.size(), end - at);
      if (!read(at, std::span(buffer_).first(count))) return;
      crc = crc32c(crc, buffer_.data(), count);
      at += count;
    }
    if (crc != record.payload_crc) report("the payload of the record at byte ", record.offset);
    if (const auto owner = segment_.read_owner(record); !owner) {
      problems_.push_back(owner.status().message());
    }
    expect_zero(record.owner_offset() + record.owner_bytes,
                record.payload_offset(segment_.alignment()), "before a payload");
    // The last record of a segment without a footer may end before its padding does.
    const std::uint64_t next =
        std::min(record.next_offset(segment_.alignment()), segment_.file_bytes());
    expect_zero(end, std::max(end, next), "behind a payload");
  }

  void check_erased(const RecordHeader& record) {
    RecordHeaderBytes header;
    if (!read(record.offset, header)) return;
    if (header != encode(record)) report("the header of the record at byte ", record.offset);
    expect_zero(record.tokens_offset(),
                std::min(record.next_offset(segment_.alignment()), segment_.file_bytes()),
                "of an erased record");
  }

  void report(const char* what, std::uint64_t at) {
    problems_.push_back(segment_.path() + ": " + what + std::to_string(at) + " is damaged");
  }
  bool read(std::uint64_t offset, std::span<std::byte> bytes) {
    const Status status = segment_.read_bytes(offset, bytes);
    if (!status) problems_.push_back(status.message());
    return status.is_ok();
  }
  bool read(std::uint64_t offset, RecordHeaderBytes& bytes) {
    return read(offset, std::span<std::byte>(bytes));
  }
  bool is_zero(std::uint64_t begin, std::uint64_t end) {
    while (begin < end) {
      const std::size_t count = std::min<std::uint64_t>(buffer_.size(), end - begin);
      const std::span<std::byte> bytes = std::span(buffer_).first(count);
      if (!read(begin, bytes)) return true;
      if (std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{}; })) {
        return false;
      }
      begin += count;
    }
    return true;
  }
  void expect_zero(std::uint64_t begin, std::uint64_t end, const char* where) {
    if (is_zero(begin, end)) return;
    problems_.push_back(segment_.path() + ": bytes " + std::to_string(begin) + ".." +
                        std::to_string(end) + ' ' + where + " are not zero");
  }

  const Segment& segment_;
  std::vector<std::string>& problems_;
  std::vector<std::byte> buffer_;
};

void check_segment(System& system, int directory, const std::string& path, const TierId& id,
                   std::uint64_t number, bool deep, TierReport& report) {
  std::vector<RecordHeader> records;
  const auto segment =
      Segment::open(system, directory, path + '/' + segment_name(number), id, number, false,
                    [&](const RecordHeader& record) { records.push_back(record); });
  if (!segment) {
    report.problems.push_back(segment.status().message());
    return;
  }
  SegmentReport found;
  found.file = segment_name(number);
  found.bytes = (*segment)->file_bytes();
  found.sealed = (*segment)->is_sealed();
  for (const RecordHeader& record : records) {
    if (record.kind == RecordKind::kErased) {
      ++found.erased;
      continue;
    }
    ++(record.kind == RecordKind::kRun ? found.runs : found.boundaries);
    found.tokens += record.tokens;
    found.payload_bytes += record.payload_bytes;
  }
  SegmentCheck check(**segment, report.problems);
  if (deep) check.run(records);
  found.unfinished = (*segment)->has_torn_tail() ||
                     (deep && !found.sealed && check.has_rest((*segment)->records_end()));
  report.segments.push_back(found);
}

// Whether a process holds the writer's lock. The lock is taken for a moment to find out.
bool is_locked(System& system, int directory) {
  const int file = system.open_at(directory, kTierLock, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
  if (file < 0) return false;
  const bool locked = system.lock(file) == -EWOULDBLOCK;
  if (!locked) unlock(file);
  ::close(file);
  return locked;
}

}  // namespace

Result<TierReport> check_tier(System& system, const std::string& path, bool deep) {
  const auto directory = open_tier_directory(system, path);
  if (!directory) return directory.status();
  const std::shared_ptr<const int> closer(&*directory, [](const int* file) { ::close(*file); });
  TierReport report;
  const auto id = read_tier_marker(system, *directory, path);
  if (!id) return id.status();
  report.version = kSegmentVersion;
  report.id = tier_id_text(*id);
  report.has_writer = is_locked(system, *directory);
  std::vector<std::string> names;
  if (const int failed = system.list(*directory, names); failed < 0) {
    return os_error("list", path, -failed);
  }
  for (const std::uint64_t number : segment_numbers(names)) {
    check_segment(system, *directory, path, *id, number, deep, report);
  }
  for (const std::string& name : names) {
    constexpr std::string_view kOurs[] = {kTierMarker,   kMarkerDraft, kTierLock,
                                          kSegmentDraft, ".",          ".."};
    const bool ours = segment_number(name) ||
                      std::find(std::begin(kOurs), std::end(kOurs), name) != std::end(kOurs);
    if (!ours) report.others.push_back(name);
  }
  std::sort(report.others.begin(), report.others.end());
  return report;
}

}  // namespace kvcache::persist

namespace kvcache {

using persist::SegmentLog;
using persist::System;

Result<TierReport> check_disk_tier(const std::string& path, bool deep) {
  return persist::check_tier(System::real(), path, deep);
}

Result<TierCollection> collect_disk_tier(const std::string& path,
                                         std::optional<std::uint64_t> max_bytes) {
  // Opening to write makes a tier where none is.
  if (const auto report = persist::check_tier(System::real(), path, false); !report) {
    return report.status();
  }
  persist::LogOptions options;
  options.max_bytes = persist::kMaxSegmentBytes;
  options.durability = Durability::kGroup;
  const auto log = SegmentLog::open(System::real(), path, options);
  if (!log) return log.status();
  return (*log)->collect(max_bytes.value_or(UINT64_MAX));
}

}  // namespace kvcache
