#include "evict/history.h"

#include <algorithm>
#include <utility>

#include "evict/block_keys.h"

namespace kvcache::evict {

void RecordList::insert_before(History& history, RecordId id, RecordId next) {
  Links& own = history[id].*links_;
  Links& right = next == kNoRecord ? ends_ : history[next].*links_;
  own = {right.before, next};
  right.before = id;
  (own.before == kNoRecord ? ends_ : history[own.before].*links_).after = id;
}

void RecordList::remove(History& history, RecordId id) {
  Links& own = history[id].*links_;
  (own.before == kNoRecord ? ends_ : history[own.before].*links_).after = own.after;
  (own.after == kNoRecord ? ends_ : history[own.after].*links_).before = own.before;
  own = {};
}

RecordId History::allocate() {
  if (free_.empty()) {
    records_.grow_to(records_.size() + 1);
    return static_cast<RecordId>(records_.size() - 1);
  }
  const RecordId id = free_.back();
  free_.pop_back();
  return id;
}

// `next`: the ghost before which it is forgotten; kNoRecord: after all.
void History::enter_ghosts(RecordId id, RecordId next) {
  const Record& record = records_[id];
  ghosts_.insert_before(*this, id, next);
  ghost_bytes_ += bytes(record);
  if (record.keys.front() != 0) ghosts_by_key_[record.keys.front()] = id;
}

void History::leave_ghosts(RecordId id) {
  const Record& record = records_[id];
  ghosts_.remove(*this, id);
  ghost_bytes_ -= bytes(record);
  const auto found = ghosts_by_key_.find(record.keys.front());
  if (found != ghosts_by_key_.end() && found->second == id) ghosts_by_key_.erase(found);
}

RecordId History::add_root(std::uint64_t seed) {
  const RecordId id = allocate();
  Record& record = records_[id];
  record.keys = {seed};
  record.first_block = -1;
  record.stored = 1;
  record.root = true;
  return id;
}

RecordId History::add(RecordId parent, std::int64_t first_block,
                      std::span<const std::uint64_t> keys) {
  const RecordId id = allocate();
  Record& record = records_[id];
  record.keys.assign(keys.begin(), keys.end());
  record.first_block = first_block;
  record.parent = ref(parent);
  record.stored = record.blocks();
  return id;
}

RecordId History::find_ghost(std::uint64_t key, std::int64_t block) const {
  const auto found = ghosts_by_key_.find(key);
  if (found == ghosts_by_key_.end()) return kNoRecord;
  return records_[found->second].first_block == block ? found->second : kNoRecord;
}

RecordId History::split(RecordId id, std::uint32_t blocks) {
  const RecordId front_id = allocate();
  Record& front = records_[front_id];
  Record& rest = records_[id];
  const bool ghost = rest.stored == 0;
  // Both take the place of one, so that they are forgotten in turn.
  const RecordId next_ghost = rest.drawer.after;
  if (ghost) leave_ghosts(id);
  const std::uint32_t generation = front.generation;
  front = rest;
  front.generation = generation;
  front.keys = {rest.keys.begin(), rest.keys.begin() + blocks};
  front.last_child = ref(id);
  front.children = 1;
  front.drawer = front.timer = front.recency = {};
  front.listed = front.timed = false;
  front.stored = std::min(front.stored, blocks);
  front.shadow = std::min(front.shadow, blocks);
  if (const RecordId above = get(rest.parent); above != kNoRecord) {
    Record::Ref& last = records_[above].last_child;
    if (get(last) == id) last = ref(front_id);
  }
  rest.keys.erase(rest.keys.begin(), rest.keys.begin() + blocks);
  rest.keys.shrink_to_fit();
  rest.first_block += blocks;
  rest.parent = ref(front_id);
  rest.stored -= std::min(rest.stored, blocks);
  rest.shadow -= std::min(rest.shadow, blocks);
  if (ghost) enter_ghosts(front_id, next_ghost);
  if (rest.stored == 0) enter_ghosts(id, ghost ? next_ghost : kNoRecord);
  return front_id;
}

void History::store(RecordId id, std::uint32_t blocks) {
  Record& record = records_[id];
  if (record.stored == 0 && blocks > 0) {
    leave_ghosts(id);
  } else if (record.stored > 0 && blocks == 0) {
    enter_ghosts(id, kNoRecord);
  }
  record.stored = blocks;
}

void History::erase(RecordId id) {
  Record& record = records_[id];
  if (record.stored == 0) leave_ghosts(id);
  const std::uint32_t generation = record.generation + 1;
  record = Record();
  record.generation = generation;
  free_.push_back(id);
}

std::vector<std::uint64_t> History::keys(RecordId parent, std::span<const std::int32_t> path,
                                         std::uint64_t start) const {
  const std::uint64_t first = start / block_tokens_;
  // The record that holds the block before.
  RecordId above = parent;
  while (records_[above].first_block >= static_cast<std::int64_t>(first)) {
    above = records_[above].parent.id;  // stored, for what is below it is
  }
  const auto offset = static_cast<std::int64_t>(first) - 1 - records_[above].first_block;
  std::uint64_t key = records_[above].keys[static_cast<std::size_t>(offset)];
  std::vector<std::uint64_t> keys;
  keys.reserve((path.size() - 1) / block_tokens_ + 1 - first);
  for (std::uint64_t at = first * block_tokens_; at < path.size(); at += block_tokens_) {
    const std::uint64_t length = std::min<std::uint64_t>(block_tokens_, path.size() - at);
    key = block_key(key, path.subspan(at, length));
    if (key == 0) key = 1;
    keys.push_back(key);
  }
  return keys;
}

}  // namespace kvcache::evict
