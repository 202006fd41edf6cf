// What is on a server and how it is found; records as a whole are moved by remote_record.cc.
#include "remote/remote_store.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/checked.h"

namespace kvcache::remote {
namespace {

using persist::BoundaryPlace;
using persist::Digest;
using persist::kRecordHeaderBytes;
using persist::Located;
using persist::RecordHeader;
using persist::RecordKind;

// Runs are shorter than so many blocks: where so many have none, none behind them is of use.
constexpr std::size_t kLongestGap = 64;
constexpr std::size_t kMostAtOnce = 1024;
constexpr std::size_t kMostKnown = 1 << 17;
constexpr std::size_t kMostHeads = 1 << 13;
constexpr std::chrono::minutes kTrusted{5};

std::string hex(const Digest& digest) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text;
  text.reserve(2 * digest.size());
  for (const std::uint8_t byte : digest) {
    text += kHex[byte >> 4];
    text += kHex[byte & 15];
  }
  return text;
}

// The head of the record that was asked for, or none: damaged, or another one.
std::optional<RecordHeader> head_of(const Reply& reply, RecordKind kind, const Digest& key,
                                    const Digest& parent) {
  if (reply.kind != Reply::Kind::kBulk || reply.text.size() != kRecordHeaderBytes) return {};
  persist::RecordHeaderBytes bytes;
  std::memcpy(bytes.data(), reply.text.data(), bytes.size());
  const auto header = persist::decode_record(bytes, 0, 0);
  const bool right = header && header->kind == kind && header->key == key &&
                     (kind == RecordKind::kRun || header->parent == parent);
  return right ? header : std::nullopt;
}

}  // namespace

RemoteStore::RemoteStore(const RemoteTierOptions& options, std::uint64_t part_bytes,
                         std::shared_ptr<const TlsContext> tls)
    : options_(options),
      part_bytes_(part_bytes),
      servers_(options, std::move(tls)),
      known_since_(std::chrono::steady_clock::now()) {}

// The braces say which part of a name chooses the node of a cluster: a run and the boundaries that
// continue it are on the same one.
std::string RemoteStore::name_of(const Asked& asked, std::uint64_t part) const {
  const bool is_run = asked.kind == RecordKind::kRun;
  std::string name = options_.key_prefix + "1:{" + hex(is_run ? asked.key : asked.parent) + "}";
  name += is_run ? "r" : "b" + hex(asked.key);
  return name + "." + std::to_string(part);
}

std::string RemoteStore::name_of(const RecordHeader& record, std::uint64_t part) const {
  return name_of(Asked{record.kind, record.key, record.parent}, part);
}

std::uint64_t RemoteStore::parts_of(const RecordHeader& record) const {
  return ceil_div(kRecordHeaderBytes + record.tokens * sizeof(std::int32_t) + record.owner_bytes +
                      record.payload_bytes,
                  part_bytes_);
}

// ---- What is known ----------------------------------------------------------------------------

// Locked. A server that was left may come back empty, and drops what it likes.
void RemoteStore::trust_for_a_while() {
  const auto now = std::chrono::steady_clock::now();
  const std::uint64_t losses = servers_.stats().losses;
  const bool full = runs_.size() > kMostKnown || boundaries_.size() > kMostKnown;
  if (heads_.size() > kMostHeads) heads_.clear();
  if (losses == losses_ && !full && now - known_since_ < kTrusted) return;
  losses_ = losses;
  forget_all();
}

// Locked.
void RemoteStore::forget_all() {
  known_since_ = std::chrono::steady_clock::now();
  runs_.clear();
  boundaries_.clear();
  heads_.clear();
}

// Locked.
void RemoteStore::remember(const RecordHeader& record) {
  if (record.kind == RecordKind::kRun) {
    runs_[record.key] = record.first;
  } else {
    boundaries_.insert(record.key);
  }
}

void RemoteStore::note(const Status& status) {
  const std::lock_guard lock(mutex_);
  stats_.last_error = status.message();
}

std::vector<std::uint64_t> RemoteStore::run_starts(std::span<const Digest> keys) const {
  std::vector<std::uint64_t> starts(keys.size(), kNowhere);
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (const auto at = runs_.find(keys[i]); at != runs_.end()) starts[i] = at->second;
  }
  return starts;
}

bool RemoteStore::has_boundary(const Digest& key) const {
  const std::lock_guard lock(mutex_);
  return boundaries_.contains(key);
}

StoreStats RemoteStore::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

// ---- Finding ----------------------------------------------------------------------------------

// Of each record that is asked for, its header. All are asked for at once; what is there and is
// none of them is damaged, and removed. False: nobody has answered.
bool RemoteStore::find_heads(std::span<const Asked> asked, const Deadline& deadline, Heads& heads) {
  heads.assign(asked.size(), std::nullopt);
  std::vector<std::string> names;
  for (const Asked& each : asked) names.push_back(name_of(each, 0));
  std::vector<std::string> damaged;
  std::vector<bool> refused(asked.size(), false);
  const std::string last = std::to_string(kRecordHeaderBytes - 1);
  Questions questions;
  questions.keys.assign(names.begin(), names.end());
  questions.ask = [&](std::size_t i, Commands& commands) {
    commands.add({"GETRANGE", names[i], "0", last});
  };
  questions.take = [&](std::size_t i, RespClient& client) {
    Reply reply;
    if (Status come = client.receive({}, reply, deadline); !come) return come;
    refused[i] = reply.is_error() && !reply.text.starts_with("WRONGTYPE");
    if (refused[i]) return Status::io_error("the server says: ", printable(reply.text));
    heads[i] = head_of(reply, asked[i].kind, asked[i].key, asked[i].parent);
    if (heads[i] && parts_of(*heads[i]) > kMostParts) heads[i].reset();
    const bool absent = reply.kind == Reply::Kind::kBulk && reply.text.empty();
    if (!heads[i] && !absent) damaged.push_back(names[i]);
    return Status::ok();
  };
  const std::vector<Status> statuses = servers_.ask(questions, deadline);
  const auto failed =
      std::find_if(statuses.begin(), statuses.end(), [](const Status& each) { return !each; });
  const bool answered = std::any_of(statuses.begin(), statuses.end(),
                                    [](const Status& each) { return each.is_ok(); });
  {
    const std::lock_guard lock(mutex_);
    ++stats_.round_trips;
    stats_.server_errors += std::find(refused.begin(), refused.end(), true) != refused.end();
    if (failed != statuses.end()) stats_.last_error = failed->message();
    if (!damaged.empty()) {
      stats_.damaged_records += damaged.size();
      stats_.last_error = damaged.front() + ": no record of this tier, removed";
    }
  }
  if (!damaged.empty()) remove(damaged);
  return answered;
}

void RemoteStore::remove(std::span<const std::string> names) {
  const Deadline end = deadline();
  Questions questions;
  questions.keys.assign(names.begin(), names.end());
  questions.ask = [&](std::size_t i, Commands& commands) { commands.add({"UNLINK", names[i]}); };
  questions.take = [&](std::size_t, RespClient& client) {
    Reply reply;
    Status come = client.receive({}, reply, end);
    if (!come || !reply.is_error()) return come;
    return Status::io_error("UNLINK: ", printable(reply.text));
  };
  for (const Status& status : servers_.ask(questions, end)) {
    if (!status) note(status);
  }
}

std::vector<std::uint64_t> RemoteStore::look_up(std::span<const Digest> keys) {
  std::vector<std::uint64_t> starts(keys.size(), kNowhere);
  const Deadline end = deadline();
  {
    const std::lock_guard lock(mutex_);
    trust_for_a_while();
    ++stats_.lookups;
  }
  std::size_t size = kLongestGap;
  for (std::size_t first = 0; first < keys.size(); first += size, size = kMostAtOnce) {
    if (end.has_passed()) break;
    const auto now = keys.subspan(first, std::min(size, keys.size() - first));
    std::vector<Asked> asked;
    for (const Digest& key : now) asked.push_back({RecordKind::kRun, key, {}});
    Heads heads;
    if (!find_heads(asked, end, heads)) break;
    const std::lock_guard lock(mutex_);
    // Where one has gone, others may have, which are not asked for.
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (!heads[i] && runs_.contains(now[i])) forget_all();
    }
    std::size_t gap = 0;
    for (std::size_t i = 0; i < now.size(); ++i) {
      ++gap;
      if (!heads[i]) continue;
      gap = 0;
      starts[first + i] = heads[i]->first;
      heads_[now[i]] = *heads[i];
      remember(*heads[i]);
    }
    if (gap >= kLongestGap) break;
  }
  return starts;
}

std::vector<std::optional<Located>> RemoteStore::find_runs(std::span<const Digest> keys) {
  std::vector<std::optional<Located>> found(keys.size());
  std::vector<Asked> asked;
  std::vector<std::size_t> places;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto at = heads_.find(keys[i]);
      if (at != heads_.end()) {
        found[i] = Located{at->second, nullptr};
        continue;
      }
      asked.push_back({RecordKind::kRun, keys[i], {}});
      places.push_back(i);
    }
  }
  Heads heads;
  if (asked.empty() || !find_heads(asked, deadline(), heads)) return found;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (heads[i]) found[places[i]] = Located{*heads[i], nullptr};
  }
  return found;
}

std::vector<Located> RemoteStore::find_boundaries(std::span<const BoundaryPlace> places,
                                                  const KeyAt& key_at) {
  std::vector<Located> found;
  std::vector<Asked> asked;
  for (const BoundaryPlace& place : places) {
    for (std::uint64_t position = place.first; position <= place.last; ++position) {
      asked.push_back({RecordKind::kBoundary, key_at(position), place.parent});
    }
  }
  Heads heads;
  if (asked.empty() || !find_heads(asked, deadline(), heads)) return found;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (!heads[i] && boundaries_.contains(asked[i].key)) forget_all();
  }
  for (const auto& head : heads) {
    if (!head) continue;
    remember(*head);
    found.push_back({*head, nullptr});
  }
  return found;
}

void RemoteStore::forget(const Located& record, const Status& why) {
  const RecordHeader& header = record.header;
  {
    const std::lock_guard lock(mutex_);
    forget_all();
    const bool gone = why.code() == StatusCode::kNotFound;
    ++(gone ? stats_.missing_records : stats_.damaged_records);
    if (!gone) stats_.last_error = why.message();
  }
  // What is left of it only keeps others from writing it again.
  std::vector<std::string> names;
  for (std::uint64_t part = 0; part < parts_of(header); ++part) {
    names.push_back(name_of(header, part));
  }
  remove(names);
}

}  // namespace kvcache::remote
