// What the index tells routers. A block is announced with the run that holds its end: where that
// run is cut in two, the same blocks stay announced.
#include <new>
#include <utility>

#include "base/check.h"
#include "prefix/radix_index.h"

namespace kvcache::prefix {
namespace {

// The media item that a run's label names.
MediaSpan labelled(std::string_view label, std::uint64_t start) {
  const std::size_t colon = label.find(':');
  return {start, std::stoull(std::string(label.substr(0, colon))),
          std::string(label.substr(colon + 1))};
}

}  // namespace

void RadixIndex::record_events(std::uint64_t capacity) {
  events_ = std::make_unique<EventLog>(plan_.block_tokens(), capacity);
}

// Blocks [first, last) of a run, counted from its own first, in every group that has their pages.
void RadixIndex::tell_stored(EventLog& log, const NamedPath& path, NodeId id, std::uint64_t first,
                             std::uint64_t last) const {
  const Node& node = nodes_[id];
  const std::uint64_t base = block_of(node.start);
  for (std::uint32_t group = 0; group < node.pages.size(); ++group) {
    const auto& pages = node.pages[group];
    for (std::uint64_t i = first; i < last;) {
      if (pages[i] == kNoItem) {
        ++i;
        continue;
      }
      std::uint64_t stop = i;
      while (stop < last && pages[stop] != kNoItem) ++stop;
      log.stored(path, group, base + i, base + stop);
      i = stop;
    }
  }
}

// After an insert: what it has added to the runs of its path. Memory that runs out on the way costs
// events, which a consumer is told, and nothing else.
void RadixIndex::tell_inserted(const SpaceRef& space, std::span<const std::int32_t> tokens,
                               const std::vector<NodeId>& path, std::span<const Hole> filled,
                               const PathNames& names) {
  if (names.blocks.empty() && names.snapshots.empty()) return;
  const NamedPath named{space.key, space.media, tokens, names.blocks};
  auto hole = filled.begin();  // they are in the order of the path
  try {
    for (const NodeId id : path) {
      const Node& node = nodes_[id];
      const std::uint64_t base = block_of(node.start);
      const std::uint64_t whole = block_of(node.end());
      auto& run = events_->run(id);
      const std::uint64_t known = run.size();
      for (; hole != filled.end() && hole->node == id; ++hole) {
        if (hole->block - base >= known) continue;
        events_->stored(named, hole->group, hole->block, hole->block + 1);
      }
      if (base + known < whole) {
        const auto fresh = named.names.subspan(base + known, whole - base - known);
        run.insert(run.end(), fresh.begin(), fresh.end());
        tell_stored(*events_, named, id, known, whole - base);
      }
      for (const auto& [position, name] : names.snapshots) {
        for (const std::uint32_t index : node.snapshots) {
          if (snapshots_[index].position != position || snapshots_[index].item == kNoItem) continue;
          auto& told = events_->snapshot(index);
          if (told) continue;
          told = name;
          events_->stored_snapshot(named, snapshot_group(), position, name);
        }
      }
    }
  } catch (const std::bad_alloc&) {
    events_->lose();
  }
}

// A page of a run goes, or has gone: the block's index in the run.
void RadixIndex::tell_removed(NodeId id, std::size_t group, std::uint64_t index) noexcept {
  if (reaping_) return;
  try {
    const auto& names = events_->run(id);
    if (index < names.size()) events_->removed(static_cast<std::uint32_t>(group), names[index]);
  } catch (const std::bad_alloc&) {
    events_->lose();
  }
}

void RadixIndex::tell_run_removed(NodeId id) noexcept {
  const Node& node = nodes_[id];
  for (std::size_t group = 0; group < node.pages.size(); ++group) {
    for (std::uint64_t i = 0; i < node.pages[group].size(); ++i) {
      if (node.pages[group][i] != kNoItem) tell_removed(id, group, i);
    }
  }
  events_->cut_run(id, 0);
}

void RadixIndex::tell_snapshot_removed(std::uint32_t index) noexcept {
  try {
    const auto name = std::exchange(events_->snapshot(index), {});
    if (name && !reaping_) events_->removed(snapshot_group(), *name);
  } catch (const std::bad_alloc&) {
    events_->lose();
  }
}

void RadixIndex::tell_cleared() noexcept {
  try {
    events_->cleared();
  } catch (const std::bad_alloc&) {
    events_->lose();
  }
}

std::vector<LoggedEvent> RadixIndex::take_events() {
  return events_->lost() ? restate_events() : events_->take();
}

std::vector<LoggedEvent> RadixIndex::restate_events() {
  auto all = all_events();
  events_->restated();
  return all;
}

std::vector<LoggedEvent> RadixIndex::all_events() const {
  EventLog log(plan_.block_tokens(), UINT64_MAX);
  log.cleared();
  for (const auto& [key, root] : roots_) tell_space(log, key, root);
  return log.take();
}

// In the order of the tree, the path so far is what the run before has left of it.
void RadixIndex::tell_space(EventLog& log, std::string_view key, NodeId root) const {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint64_t> names;
  std::vector<MediaSpan> media;
  std::vector<NodeId> ahead;
  const auto push_children = [&](NodeId id) {
    for (NodeId child = nodes_[id].first_child; child != kNoNode; child = nodes_[child].next) {
      ahead.push_back(child);
    }
  };
  push_children(root);
  while (!ahead.empty()) {
    const NodeId id = ahead.back();
    ahead.pop_back();
    const Node& node = nodes_[id];
    if (names.size() < block_of(node.start)) continue;  // what leads here was never announced
    tokens.resize(node.start);
    names.resize(block_of(node.start));
    while (!media.empty() && media.back().start >= node.start) media.pop_back();
    if (!node.label.empty()) media.push_back(labelled(node.label, node.start));
    tokens.insert(tokens.end(), node.tokens.begin(), node.tokens.end());
    const auto& run = events_->run(id);
    names.insert(names.end(), run.begin(), run.end());
    const NamedPath path{key, media, tokens, names};
    tell_stored(log, path, id, 0, run.size());
    for (const std::uint32_t index : node.snapshots) {
      const auto name = events_->snapshot(index);
      const std::uint64_t position = snapshots_[index].position;
      const bool led_to = (position - 1) / plan_.block_tokens() <= names.size();
      if (name && led_to) log.stored_snapshot(path, snapshot_group(), position, *name);
    }
    push_children(id);
  }
}

}  // namespace kvcache::prefix
