#include "prefix/event_log.h"

#include <algorithm>
#include <utility>

namespace kvcache::prefix {
namespace {

// Items ascend and are apart: those that reach into [begin, end) lie side by side.
void add_media(CacheEvent& event, std::span<const MediaSpan> media, std::uint64_t begin,
               std::uint64_t end) {
  auto& known = event.media;
  if (!known.empty()) begin = std::max(begin, known.back().start + known.back().length);
  auto item = std::partition_point(media.begin(), media.end(), [=](const MediaSpan& each) {
    return each.start + each.length <= begin;
  });
  for (; item != media.end() && item->start < end; ++item) known.push_back(*item);
}

}  // namespace

std::vector<std::uint64_t>& EventLog::run(std::uint32_t id) {
  if (id >= runs_.size()) runs_.resize(id + 1);
  return runs_[id];
}

void EventLog::split_run(std::uint32_t upper, std::uint32_t lower,
                         std::uint64_t upper_blocks) noexcept {
  if (lower >= runs_.size()) return;
  auto& names = runs_[lower];
  const auto cut = names.begin() +
                   static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(upper_blocks, names.size()));
  runs_[upper].assign(names.begin(), cut);
  names.erase(names.begin(), cut);
}

void EventLog::cut_run(std::uint32_t id, std::uint64_t blocks) {
  if (id >= runs_.size()) return;
  auto& names = runs_[id];
  if (names.size() > blocks) names.resize(blocks);
  if (names.empty()) names.shrink_to_fit();
}

std::optional<std::uint64_t>& EventLog::snapshot(std::uint32_t index) {
  if (index >= snapshots_.size()) snapshots_.resize(index + 1);
  return snapshots_[index];
}

bool EventLog::make_room(std::uint64_t names) {
  if (lost_) return false;
  if (names > capacity_ - waiting_) {
    lose();
    return false;
  }
  waiting_ += names;
  return true;
}

void EventLog::stored(const NamedPath& path, std::uint32_t group, std::uint64_t first,
                      std::uint64_t last) {
  if (first == last || !make_room(last - first)) return;
  const std::uint64_t begin = first * block_tokens_;
  const std::uint64_t end = last * block_tokens_;
  const auto names = path.names.subspan(first, last - first);
  const auto tokens = path.tokens.subspan(begin, end - begin);
  const bool goes_on = first > 0 && !events_.empty() &&
                       events_.back().event.kind == EventKind::kStored &&
                       events_.back().event.group == group && *events_.back().key == path.key &&
                       events_.back().event.hashes.back() == path.names[first - 1];
  if (!goes_on) {
    LoggedEvent fresh{{}, shared(path.key)};
    fresh.event.kind = EventKind::kStored;
    fresh.event.group = group;
    fresh.event.start = begin;
    fresh.event.block_tokens = static_cast<std::uint32_t>(block_tokens_);
    if (first > 0) fresh.event.parent = path.names[first - 1];
    events_.push_back(std::move(fresh));
  }
  CacheEvent& event = events_.back().event;
  event.hashes.insert(event.hashes.end(), names.begin(), names.end());
  event.tokens.insert(event.tokens.end(), tokens.begin(), tokens.end());
  add_media(event, path.media, begin, end);
}

void EventLog::stored_snapshot(const NamedPath& path, std::uint32_t group, std::uint64_t position,
                               std::uint64_t name) {
  if (!make_room(1)) return;
  const std::uint64_t block = (position - 1) / block_tokens_;
  const std::uint64_t begin = block * block_tokens_;
  LoggedEvent fresh{{}, shared(path.key)};
  CacheEvent& event = fresh.event;
  event.kind = EventKind::kStored;
  event.group = group;
  event.hashes = {name};
  if (block > 0) event.parent = path.names[block - 1];
  event.start = begin;
  event.block_tokens = static_cast<std::uint32_t>(position - begin);
  const auto tokens = path.tokens.subspan(begin, position - begin);
  event.tokens.assign(tokens.begin(), tokens.end());
  add_media(event, path.media, begin, position);
  events_.push_back(std::move(fresh));
}

// Removals commute, so each group goes on with its own event as long as nothing else comes between.
void EventLog::removed(std::uint32_t group, std::uint64_t name) {
  if (!make_room(1)) return;
  for (auto logged = events_.rbegin(); logged != events_.rend(); ++logged) {
    if (logged->event.kind != EventKind::kRemoved) break;
    if (logged->event.group != group) continue;
    logged->event.hashes.push_back(name);
    return;
  }
  LoggedEvent fresh;
  fresh.event.kind = EventKind::kRemoved;
  fresh.event.group = group;
  fresh.event.hashes = {name};
  events_.push_back(std::move(fresh));
}

void EventLog::cleared() {
  restated();
  events_.emplace_back();
}

void EventLog::forget_all() noexcept {
  runs_.clear();
  snapshots_.clear();
  lose();
}

void EventLog::lose() noexcept {
  drop_waiting();
  losses_ += !std::exchange(lost_, true);
}

std::vector<LoggedEvent> EventLog::take() {
  auto taken = std::exchange(events_, {});
  drop_waiting();
  return taken;
}

void EventLog::restated() noexcept {
  drop_waiting();
  lost_ = false;
}

void EventLog::drop_waiting() noexcept {
  events_ = std::vector<LoggedEvent>();
  keys_.clear();
  waiting_ = 0;
}

const std::shared_ptr<const std::string>& EventLog::shared(std::string_view key) {
  const auto found = keys_.find(key);
  if (found != keys_.end()) return found->second;
  auto copy = std::make_shared<const std::string>(key);
  const std::string_view view = *copy;
  return keys_.emplace(view, std::move(copy)).first->second;
}

}  // namespace kvcache::prefix
