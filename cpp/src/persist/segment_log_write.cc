// Appending to a directory of segments, and keeping it under its cap.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "persist/files.h"
#include "persist/segment_log.h"

namespace kvcache::persist {

Status SegmentLog::append(RecordHeader record, std::span<const std::int32_t> tokens,
                          std::span<const iovec> payload, std::string_view owner) {
  if (!is_writer()) {
    return Status::unsupported("disk tier: ", path_, " was opened only to read");
  }
  // The header and the footer of a segment of its own come on top.
  RecordHeader sized;
  sized.tokens = tokens.size();
  sized.payload_bytes = total_bytes(payload);
  if (owner.size() > kMaxOwnerBytes) {
    return Status::out_of_capacity("disk tier: the names of a space take ", owner.size(),
                                   " bytes, at most ", kMaxOwnerBytes, " are stored");
  }
  sized.owner_bytes = static_cast<std::uint32_t>(owner.size());
  const std::uint64_t bytes = sized.next_offset(options_.alignment);
  const std::uint64_t spare = options_.segment_bytes / 2;
  const std::uint64_t own = bytes + options_.alignment + kRecordHeaderBytes + kTrailerBytes;
  if (sized.payload_bytes >= kMaxSegmentBytes || own + spare > options_.max_bytes) {
    return Status::out_of_capacity("disk tier: a record of ", bytes, " bytes, the cap is ",
                                   options_.max_bytes, "; raise max_bytes");
  }
  if (active_ && !active_records_.empty() &&
      active_->records_end() + bytes > options_.segment_bytes) {
    seal_active();
  }
  if (Status status = make_room(bytes); !status) return status;
  if (Status status = append_record(record, tokens, payload, owner); !status) return status;
  if (options_.durability == Durability::kRecord) return sync();
  if (options_.durability == Durability::kGroup && unsynced_ >= options_.group_bytes) sync_now();
  return Status::ok();
}

Status SegmentLog::begin_segment() {
  const std::uint64_t number = next_number_++;
  auto created = Segment::create(system_, directory_, path_ + '/' + segment_name(number),
                                 {id_, number, options_.alignment});
  if (!created) return created.status();
  active_ = std::move(created).value();
  active_records_.clear();
  const std::lock_guard lock(mutex_);
  segments_[number] = active_;
  return Status::ok();
}

Status SegmentLog::append_record(RecordHeader record, std::span<const std::int32_t> tokens,
                                 std::span<const iovec> payload, std::string_view owner) {
  if (!active_) {
    if (Status status = begin_segment(); !status) return status;
  }
  if (Status status = active_->append(record, tokens, payload, owner); !status) {
    abandon();
    return status;
  }
  active_records_.push_back(record);
  const std::uint64_t bytes = record.next_offset(options_.alignment) - record.offset;
  unsynced_ += bytes;
  const std::lock_guard lock(mutex_);
  add(record, active_);
  ++stats_.written_records;
  stats_.written_bytes += bytes;
  return Status::ok();
}

// The segment takes no more. What it holds is sealed if the system lets us; otherwise it is walked
// by whoever opens the directory next.
void SegmentLog::abandon() {
  const std::shared_ptr<Segment> segment = std::exchange(active_, nullptr);
  const Status ignored = segment->seal(active_records_);
  active_records_.clear();
  if (std::exchange(unsynced_, 0) == 0 || options_.durability == Durability::kNone) return;
  if (Status status = segment->sync(); !status) unsafe_ = status;
}

void SegmentLog::sync_now() {
  if (!active_ || unsynced_ == 0) return;
  unsynced_ = 0;
  if (Status status = active_->sync(); !status) {
    // The system may have given up these bytes, whatever a second call says. Reading checks them.
    unsafe_ = status;
    abandon();
    return;
  }
  const std::lock_guard lock(mutex_);
  ++stats_.syncs;
}

Status SegmentLog::sync() {
  sync_now();
  return std::exchange(unsafe_, Status::ok());
}

// Without a footer a segment is walked; so sealing is an attempt.
void SegmentLog::seal_active() {
  const bool durable = options_.durability != Durability::kNone;
  if (durable) sync_now();
  if (!active_) return;
  const std::shared_ptr<Segment> segment = std::exchange(active_, nullptr);
  unsynced_ = 0;
  Status status = segment->seal(active_records_);
  active_records_.clear();
  if (status && durable) status = segment->sync();
  if (status) return;
  const std::lock_guard lock(mutex_);
  stats_.last_error = status.message();
}

Status SegmentLog::close() {
  seal_active();
  return std::exchange(unsafe_, Status::ok());
}

// ---- The cap ----------------------------------------------------------------------------------

// Of the disk; what it does not tell is no limit.
std::uint64_t SegmentLog::free_bytes() const {
  const std::int64_t free = system_.free_bytes(directory_);
  return free < 0 ? kMaxSegmentBytes : static_cast<std::uint64_t>(free);
}

// Half a segment stays free, of the cap and of the disk, for what an eviction writes again before
// it frees anything.
Status SegmentLog::make_room(std::uint64_t bytes) {
  const std::uint64_t more = bytes + options_.alignment + 2 * kRecordHeaderBytes + kTrailerBytes +
                             active_records_.size() * kRecordHeaderBytes;
  const std::uint64_t spare = options_.segment_bytes / 2;
  const std::uint64_t limit = options_.max_bytes - spare;
  for (;;) {
    bool fits = false;
    bool only_active = false;
    const std::uint64_t free = free_bytes();
    {
      const std::lock_guard lock(mutex_);
      const std::uint64_t total = total_bytes_locked();
      fits = total + more <= limit && more + spare <= free;
      if (more + spare > total + free) {
        return Status::out_of_capacity("disk tier: a record of ", bytes, " bytes; the disk has ",
                                       free, " left, the tier ", total);
      }
      only_active = active_ && segments_.size() == 1 && refused_.empty();
    }
    if (fits) return Status::ok();
    if (only_active) seal_active();
    if (Status status = evict_oldest(); !status) return status;
  }
}

Status SegmentLog::remove_file(std::uint64_t number) {
  const std::string name = segment_name(number);
  const int failed = system_.remove_at(directory_, name.c_str());
  if (failed < 0 && failed != -ENOENT) return os_error("remove", path_ + '/' + name, -failed);
  return Status::ok();
}

Status SegmentLog::evict_oldest() {
  std::uint64_t number = 0;
  bool refused = false;
  {
    const std::lock_guard lock(mutex_);
    refused = !refused_.empty();
    if (!refused && segments_.empty()) {
      return Status::out_of_capacity("disk tier: max_bytes leave no room for a record");
    }
    number = refused ? refused_.begin()->first : segments_.begin()->first;
  }
  if (!refused) {
    // A record that cannot be written again goes with its segment.
    for (const Located& record : records_to_keep(number)) {
      if (Status status = write_again(record); !status) break;
    }
  }
  if (Status status = remove_file(number); !status) return status;
  const std::lock_guard lock(mutex_);
  refused_.erase(number);
  if (refused) return Status::ok();
  drop_records_of(number);
  segments_.erase(number);
  ++stats_.evicted_segments;
  return Status::ok();
}

Result<TierCollection> SegmentLog::collect(std::uint64_t max_bytes) {
  TierCollection done;
  seal_active();
  for (;;) {
    std::uint64_t number = 0;
    std::uint64_t bytes = 0;
    {
      const std::lock_guard lock(mutex_);
      done.kept_bytes = total_bytes_locked();
      if (!refused_.empty()) {
        number = refused_.begin()->first;
        bytes = refused_.begin()->second.bytes;
      } else if (!segments_.empty() && done.kept_bytes > max_bytes) {
        number = segments_.begin()->first;
        bytes = segments_.begin()->second->file_bytes();
      } else {
        return done;
      }
    }
    if (Status status = remove_file(number); !status) return status;
    const std::lock_guard lock(mutex_);
    if (refused_.erase(number) == 0) {
      drop_records_of(number);
      segments_.erase(number);
    }
    ++done.removed_segments;
    done.removed_bytes += bytes;
  }
}

// What was asked for since it was written, up to half a segment, in its order: what comes first is
// what the rest continues.
std::vector<Located> SegmentLog::records_to_keep(std::uint64_t number) const {
  std::vector<Located> kept;
  {
    const std::lock_guard lock(mutex_);
    for (const Records* records : {&runs_, &boundaries_}) {
      for (const auto& [key, entry] : *records) {
        if (entry.used && entry.record.header.segment == number) kept.push_back(entry.record);
      }
    }
  }
  std::sort(kept.begin(), kept.end(),
            [](const Located& a, const Located& b) { return a.header.offset < b.header.offset; });
  std::uint64_t room = std::min(options_.segment_bytes / 2, free_bytes());
  room -= std::min(room, std::uint64_t{2} * options_.alignment);
  std::size_t count = 0;
  for (; count < kept.size(); ++count) {
    const RecordHeader& header = kept[count].header;
    const std::uint64_t bytes =
        header.next_offset(kept[count].segment->alignment()) - header.offset + kRecordHeaderBytes;
    if (bytes > room) break;
    room -= bytes;
  }
  kept.resize(count);
  return kept;
}

Status SegmentLog::write_again(const Located& record) {
  std::vector<std::int32_t> tokens(record.header.tokens);
  std::vector<std::byte> bytes(record.header.payload_bytes);
  const iovec piece{bytes.data(), bytes.size()};
  if (Status status = record.read(tokens, {&piece, 1}); !status) {
    forget(record, status);
    return Status::ok();
  }
  const auto owner = record.segment->read_owner(record.header);
  if (!owner) {
    forget(record, owner.status());
    return Status::ok();
  }
  if (Status status = append_record(record.header, tokens, {&piece, 1}, *owner); !status) {
    return status;
  }
  const std::lock_guard lock(mutex_);
  ++stats_.kept_records;
  return Status::ok();
}

}  // namespace kvcache::persist
