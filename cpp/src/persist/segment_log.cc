// Opening a directory of segments, finding records in it, and following its writer.
#include "persist/segment_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <random>
#include <utility>

#include "base/checked.h"
#include "persist/files.h"

namespace kvcache::persist {
namespace {

constexpr std::uint64_t kMaxMarkerBytes = 256;
constexpr std::uint64_t kMostSegmentBytes = 256 << 20;

// Closes a descriptor on the way out.
struct Descriptor {
  explicit Descriptor(int value) : file(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (file >= 0) ::close(file);
  }
  int file;
};

// Whether a change now would show in a directory's time, which file systems tell in ticks of up to
// two seconds.
bool is_settled(std::uint64_t changed_ns) {
  constexpr std::uint64_t kTickNs = 2'000'000'000;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  return changed_ns + kTickNs < static_cast<std::uint64_t>(ns);
}

TierId new_tier_id() {
  std::random_device random;
  TierId id;
  for (std::uint8_t& byte : id) byte = static_cast<std::uint8_t>(random());
  return id;
}

}  // namespace

std::vector<std::uint64_t> segment_numbers(std::span<const std::string> names) {
  std::vector<std::uint64_t> numbers;
  for (const std::string& name : names) {
    if (const auto number = segment_number(name)) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

Result<int> open_tier_directory(System& system, const std::string& path) {
  if (path.empty() || path.find('\0') != path.npos) {
    return Status::invalid_argument("disk tier: '", path, "' names no directory");
  }
  const int directory = system.open_at(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY, 0);
  if (directory == -ENOENT) return Status::not_found("no disk tier at ", path);
  if (directory == -ENOTDIR) return Status::corruption(path, ": no directory");
  if (directory < 0) return os_error("open", path, -directory);
  return directory;
}

Result<TierId> read_tier_marker(System& system, int directory, const std::string& path) {
  const std::string name = path + '/' + kTierMarker;
  const Descriptor marker(
      system.open_at(directory, kTierMarker, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0));
  if (marker.file == -ENOENT) return Status::not_found("no disk tier at ", path);
  if (marker.file == -ELOOP) return Status::corruption(name, ": a symbolic link is not followed");
  if (marker.file < 0) return os_error("open", name, -marker.file);
  FileFacts facts;
  if (const int failed = system.facts(marker.file, facts); failed < 0) {
    return os_error("stat", name, -failed);
  }
  if (!facts.is_regular) return Status::corruption(name, ": no regular file");
  if (facts.bytes > kMaxMarkerBytes) {
    return Status::corruption(name, ": ", facts.bytes, " bytes, at most ", kMaxMarkerBytes,
                              " are accepted");
  }
  std::string text(facts.bytes, '\0');
  for (std::size_t at = 0; at < text.size();) {
    const iovec piece{text.data() + at, text.size() - at};
    const std::int64_t got = system.read_at(marker.file, &piece, 1, at);
    if (got < 0) return os_error("read", name, static_cast<int>(-got));
    if (got == 0) return Status::corruption(name, ": cut off at byte ", at);
    at += static_cast<std::size_t>(got);
  }
  return parse_tier_marker(text, name);
}

// ---- Opening ----------------------------------------------------------------------------------

SegmentLog::SegmentLog(System& system, std::string path, int directory, const LogOptions& options)
    : system_(system), path_(std::move(path)), directory_(directory), options_(options) {}

SegmentLog::~SegmentLog() {
  if (lock_ >= 0) {
    unlock(lock_);
    ::close(lock_);
  }
  ::close(directory_);
}

Result<std::unique_ptr<SegmentLog>> SegmentLog::open(System& system, const std::string& path,
                                                     const LogOptions& options) {
  const bool may_write = options.access != TierAccess::kRead;
  if (may_write && options.max_bytes < 64 * std::uint64_t{options.alignment}) {
    return Status::invalid_argument("disk tier: max_bytes must be at least ",
                                    64 * std::uint64_t{options.alignment}, ", got ",
                                    options.max_bytes);
  }
  if (may_write && !path.empty() && path.find('\0') == path.npos) {
    const int made = system.make_directory(path.c_str(), 0777);
    if (made < 0 && made != -EEXIST) return os_error("create", path, -made);
  }
  const auto directory = open_tier_directory(system, path);
  if (!directory) return directory.status();
  std::unique_ptr<SegmentLog> log(new SegmentLog(system, path, *directory, options));
  log->options_.max_bytes = std::min(options.max_bytes, kMaxSegmentBytes);
  if (may_write) {
    if (Status status = log->take_lock(); !status) return status;
  }
  std::vector<std::string> names;
  if (const int failed = system.list(*directory, names); failed < 0) {
    return os_error("list", path, -failed);
  }
  Status status = log->read_marker();
  if (status.code() == StatusCode::kNotFound && log->is_writer()) status = log->write_marker(names);
  if (!status) return status;
  if (status = log->open_segments(names); !status) return status;
  if (options.segment_bytes == 0) {
    const std::uint64_t room =
        std::min(log->options_.max_bytes, log->total_bytes_locked() + log->free_bytes());
    const std::uint64_t part = round_up(room / 8 + 1, options.alignment);
    log->options_.segment_bytes = std::min(part, kMostSegmentBytes);
  }
  return log;
}

Status SegmentLog::take_lock() {
  const std::string name = path_ + '/' + kTierLock;
  Descriptor file(
      system_.open_at(directory_, kTierLock, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0666));
  if (file.file == -ELOOP) return Status::corruption(name, ": a symbolic link is not followed");
  const bool may_read = options_.access == TierAccess::kWriteOrRead;
  if (file.file < 0) {
    const bool refused = file.file == -EACCES || file.file == -EROFS;
    return may_read && refused ? Status::ok() : os_error("open", name, -file.file);
  }
  if (const int failed = system_.lock(file.file); failed < 0) {
    if (failed != -EWOULDBLOCK) return os_error("lock", name, -failed);
    if (may_read) return Status::ok();
    return Status::invalid_argument(
        "disk tier: ", path_, " is written by another process or cache; open it only to read");
  }
  lock_ = std::exchange(file.file, -1);
  return Status::ok();
}

Status SegmentLog::read_marker() {
  const auto id = read_tier_marker(system_, directory_, path_);
  if (!id) return id.status();
  id_ = *id;
  return Status::ok();
}

Status SegmentLog::write_marker(std::span<const std::string> names) {
  const std::string name = path_ + '/' + kTierMarker;
  if (!segment_numbers(names).empty()) {
    return Status::corruption(name, ": missing, but there are segments");
  }
  id_ = new_tier_id();
  const std::string text = tier_marker(id_);
  const Descriptor draft(
      system_.open_at(directory_, kMarkerDraft, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0666));
  if (draft.file < 0) return os_error("create", path_ + '/' + kMarkerDraft, -draft.file);
  for (std::size_t at = 0; at < text.size();) {
    const iovec piece{const_cast<char*>(text.data()) + at, text.size() - at};
    const std::int64_t put = system_.write_at(draft.file, &piece, 1, at);
    if (put <= 0) return os_error("write", name, put == 0 ? EIO : static_cast<int>(-put));
    at += static_cast<std::size_t>(put);
  }
  int failed = system_.sync(draft.file);
  if (failed == 0) failed = system_.rename_at(directory_, kMarkerDraft, kTierMarker);
  if (failed == 0) failed = system_.sync(directory_);
  return failed < 0 ? os_error("write", name, -failed) : Status::ok();
}

Status SegmentLog::open_segments(std::span<const std::string> names) {
  for (const std::uint64_t number : segment_numbers(names)) {
    open_segment(number);
    next_number_ = std::max(next_number_, number + 1);
  }
  return Status::ok();
}

// Locked, or before anybody else knows the log.
void SegmentLog::open_segment(std::uint64_t number) {
  std::vector<RecordHeader> records;
  auto opened =
      Segment::open(system_, directory_, path_ + '/' + segment_name(number), id_, number,
                    is_writer(), [&](const RecordHeader& record) { records.push_back(record); });
  if (!opened) {
    ++stats_.damaged_segments;
    stats_.last_error = opened.status().message();
    refused_[number] = {bytes_of_file(number)};
    return;
  }
  const std::shared_ptr<Segment>& segment = *opened;
  stats_.torn_segments += segment->has_torn_tail();
  if (is_writer() && !segment->is_sealed()) {
    // Without a footer it is walked again the next time, and nothing is lost.
    if (Status status = seal_left_over(segment, records); !status) {
      stats_.last_error = status.message();
    }
  }
  segments_[number] = segment;
  for (const RecordHeader& record : records) add(record, segment);
}

// Of what is there under a segment's name and is none.
std::uint64_t SegmentLog::bytes_of_file(std::uint64_t number) const {
  const Descriptor file(system_.open_at(directory_, segment_name(number).c_str(),
                                        O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0));
  FileFacts facts;
  const bool known = file.file >= 0 && system_.facts(file.file, facts) == 0;
  return known && facts.is_regular ? facts.bytes : 0;
}

// What a process that was killed has left.
Status SegmentLog::seal_left_over(const std::shared_ptr<Segment>& segment,
                                  std::span<const RecordHeader> records) {
  if (Status status = segment->seal(records); !status) return status;
  return options_.durability == Durability::kNone ? Status::ok() : segment->sync();
}

void SegmentLog::add(const RecordHeader& record, const std::shared_ptr<Segment>& segment) {
  if (record.kind == RecordKind::kErased) return;
  Records& records = record.kind == RecordKind::kRun ? runs_ : boundaries_;
  const auto [at, fresh] = records.try_emplace(record.key, Entry{{record, segment}, false});
  if (record.kind == RecordKind::kBoundary) {
    if (!fresh) drop_link(at->second.record.header);
    boundaries_by_parent_.emplace(record.parent, record.key);
  }
  if (!fresh) at->second = Entry{{record, segment}, false};
}

// ---- Finding ----------------------------------------------------------------------------------

std::vector<std::uint64_t> SegmentLog::run_starts(std::span<const Digest> keys) const {
  std::vector<std::uint64_t> starts(keys.size(), kNowhere);
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (const auto at = runs_.find(keys[i]); at != runs_.end()) {
      starts[i] = at->second.record.header.first;
    }
  }
  return starts;
}

bool SegmentLog::has_boundary(const Digest& key) const {
  return find(RecordKind::kBoundary, key).has_value();
}

std::vector<std::uint64_t> SegmentLog::look_up(std::span<const Digest> keys) {
  refresh();
  return run_starts(keys);
}

std::vector<std::optional<Located>> SegmentLog::find_runs(std::span<const Digest> keys) {
  std::vector<std::optional<Located>> found(keys.size());
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (const auto at = runs_.find(keys[i]); at != runs_.end()) found[i] = at->second.record;
  }
  return found;
}

std::vector<Located> SegmentLog::find_boundaries(std::span<const BoundaryPlace> places,
                                                 const KeyAt& /*key_at*/) {
  std::vector<Located> found;
  const std::lock_guard lock(mutex_);
  for (const BoundaryPlace& place : places) {
    const auto [first, last] = boundaries_by_parent_.equal_range(place.parent);
    for (auto at = first; at != last; ++at) found.push_back(boundaries_.at(at->second).record);
  }
  return found;
}

std::optional<Located> SegmentLog::find(RecordKind kind, const Digest& key) const {
  const std::lock_guard lock(mutex_);
  const Records& records = kind == RecordKind::kRun ? runs_ : boundaries_;
  const auto at = records.find(key);
  return at == records.end() ? std::nullopt : std::optional(at->second.record);
}

void SegmentLog::use(const Located& record) {
  const std::lock_guard lock(mutex_);
  Records& records = record.header.kind == RecordKind::kRun ? runs_ : boundaries_;
  const auto at = records.find(record.header.key);
  if (at != records.end()) at->second.used = true;
}

void SegmentLog::read(std::span<RecordRead> reads) {
  for (RecordRead& each : reads) each.status = each.record->read(each.tokens, each.payload);
}

void SegmentLog::forget(const Located& record, const Status& why) {
  const std::lock_guard lock(mutex_);
  Records& records = record.header.kind == RecordKind::kRun ? runs_ : boundaries_;
  const auto at = records.find(record.header.key);
  // Another thread may have forgotten it, and a new one may be there.
  const bool same = at != records.end() && at->second.record.segment == record.segment &&
                    at->second.record.header.offset == record.header.offset;
  if (!same) return;
  if (why.code() == StatusCode::kCorruption) {
    ++stats_.damaged_records;
    stats_.last_error = why.message();
  }
  if (record.header.kind == RecordKind::kBoundary) drop_link(record.header);
  records.erase(at);
}

// Locked.
void SegmentLog::drop_link(const RecordHeader& boundary) {
  const auto [first, last] = boundaries_by_parent_.equal_range(boundary.parent);
  for (auto link = first; link != last; ++link) {
    if (link->second != boundary.key) continue;
    boundaries_by_parent_.erase(link);
    return;
  }
}

// Locked.
void SegmentLog::drop_records_of(std::uint64_t segment) {
  const auto is_its = [&](const auto& entry) {
    return entry.second.record.header.segment == segment;
  };
  std::erase_if(runs_, is_its);
  std::erase_if(boundaries_by_parent_,
                [&](const auto& link) { return is_its(*boundaries_.find(link.second)); });
  std::erase_if(boundaries_, is_its);
}

void SegmentLog::refresh() {
  if (is_writer()) return;
  const std::lock_guard lock(mutex_);
  FileFacts facts;
  if (system_.facts(directory_, facts) < 0) return;
  for (auto& [number, segment] : segments_) {
    if (segment->is_sealed()) continue;
    const std::shared_ptr<Segment>& its = segment;
    const Status status = segment->refresh([&](const RecordHeader& record) { add(record, its); });
    if (!status) stats_.last_error = status.message();
  }
  if (facts.changed_ns == seen_ns_) return;
  std::vector<std::string> names;
  if (system_.list(directory_, names) < 0) return;
  seen_ns_ = is_settled(facts.changed_ns) ? facts.changed_ns : 0;
  reopen_segments(names);
}

// Locked.
void SegmentLog::reopen_segments(std::span<const std::string> names) {
  const std::vector<std::uint64_t> numbers = segment_numbers(names);
  for (auto at = segments_.begin(); at != segments_.end();) {
    if (std::binary_search(numbers.begin(), numbers.end(), at->first)) {
      ++at;
      continue;
    }
    drop_records_of(at->first);
    at = segments_.erase(at);
  }
  for (const std::uint64_t number : numbers) {
    if (!segments_.contains(number) && !refused_.contains(number)) open_segment(number);
  }
}

LogStats SegmentLog::stats() const {
  const std::lock_guard lock(mutex_);
  LogStats stats = stats_;
  stats.segments = segments_.size();
  stats.records = runs_.size() + boundaries_.size();
  stats.bytes = total_bytes_locked();
  return stats;
}

std::uint64_t SegmentLog::total_bytes_locked() const {
  std::uint64_t bytes = 0;
  for (const auto& [number, segment] : segments_) bytes += segment->file_bytes();
  for (const auto& [number, refused] : refused_) bytes += refused.bytes;
  return bytes;
}

}  // namespace kvcache::persist
