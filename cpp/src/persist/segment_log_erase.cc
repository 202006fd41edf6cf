// Taking records out of the segments of a log.
#include <utility>

#include "persist/files.h"
#include "persist/segment_log.h"

namespace kvcache::persist {

Result<std::uint64_t> SegmentLog::erase(const TierErasure& erasure) {
  if (!is_writer()) {
    return Status::unsupported("disk tier: ", path_, " was opened only to read; its writer erases");
  }
  std::vector<Listed> segments;
  std::vector<std::uint64_t> unreadable;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, segment] : segments_) segments.push_back({segment, {}});
    for (const auto& [number, refused] : refused_) unreadable.push_back(number);
  }
  std::erase_if(segments, [&](Listed& listed) {
    const Status status =
        listed.segment->list([&](const RecordHeader& record) { listed.records.push_back(record); });
    if (!status) unreadable.push_back(listed.segment->number());
    return !status;
  });
  // What nobody can read may be anything.
  Status failed;
  for (const std::uint64_t number : unreadable) {
    if (Status status = remove_segment(number); !status) failed = status;
  }
  const auto chosen = choose_records(segments, erasure);
  std::uint64_t erased = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (chosen[i].empty()) continue;
    erased += chosen[i].size();
    forget_erased(segments[i], chosen[i]);
    if (segments[i].segment->erase(chosen[i], segments[i].records)) {
      if (segments[i].segment == active_) active_records_ = std::move(segments[i].records);
      continue;
    }
    if (Status status = remove_segment(segments[i].segment->number()); !status) failed = status;
  }
  const std::lock_guard lock(mutex_);
  stats_.erased_records += erased;
  if (!failed) return failed;
  return erased;
}

void SegmentLog::forget_erased(const Listed& listed, std::span<const std::size_t> chosen) {
  const std::lock_guard lock(mutex_);
  for (const std::size_t i : chosen) {
    const RecordHeader& header = listed.records[i];
    Records& records = header.kind == RecordKind::kRun ? runs_ : boundaries_;
    const auto at = records.find(header.key);
    // A record of the same key elsewhere is chosen as well.
    if (at == records.end() || at->second.record.header.segment != header.segment ||
        at->second.record.header.offset != header.offset) {
      continue;
    }
    if (header.kind == RecordKind::kBoundary) drop_link(header);
    records.erase(at);
  }
}

// With all it holds, the last one too.
Status SegmentLog::remove_segment(std::uint64_t number) {
  if (active_ && active_->number() == number) {
    active_ = nullptr;
    active_records_.clear();
    unsynced_ = 0;
  }
  {
    const std::lock_guard lock(mutex_);
    drop_records_of(number);
  }
  if (Status status = remove_file(number); !status) return status;
  const std::lock_guard lock(mutex_);
  segments_.erase(number);
  refused_.erase(number);
  const int synced = system_.sync(directory_);
  return synced < 0 ? os_error("synchronise", path_, -synced) : Status::ok();
}

}  // namespace kvcache::persist
