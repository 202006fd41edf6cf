// Pages of sliding groups inside a run: a hit needs only those before a position that can be
// resumed.
#include <algorithm>
#include <utility>

#include "prefix/radix_index.h"

namespace kvcache::prefix {

void RadixIndex::queue_windows(NodeId id) {
  if (std::exchange(nodes_[id].window_queued, true)) return;
  if (window_queue_.size() > 2 * nodes_.size()) {
    // Of runs that have gone, one entry each stays behind; every run that is here has one.
    std::erase_if(window_queue_, [this](NodeId queued) {
      return !std::exchange(nodes_[queued].window_queued, false);
    });
    for (const NodeId queued : window_queue_) nodes_[queued].window_queued = true;
    nodes_[id].window_queued = true;
  }
  window_queue_.push_back(id);
}

// Pages that no hit at a resumable position needs go before anything else does, some at a time.
bool RadixIndex::release_interior() {
  constexpr std::uint64_t kAtOnce = 32;
  while (!window_queue_.empty()) {
    const NodeId id = window_queue_.front();
    // A run that has gone since, or whose number is another's now, is no harm.
    if (nodes_[id].window_queued && release_interior(id, kAtOnce)) return true;
    nodes_[id].window_queued = false;
    window_queue_.pop_front();
  }
  return false;
}

// Positions of a run, or past it, whose windows may reach into it, ascending.
std::vector<std::uint64_t> RadixIndex::resume_points(NodeId id) const {
  const Node& node = nodes_[id];
  std::vector<std::uint64_t> points;
  for (const std::uint32_t index : node.snapshots) points.push_back(snapshots_[index].position);
  // What lies below needs no more of this run than a hit at its end would.
  if (node.children > 0 || !plan_.has_fixed_state()) points.push_back(node.end());
  // The same prompt again runs its last token.
  if (node.children == 0 && !plan_.has_fixed_state()) points.push_back(node.end() - 1);
  std::sort(points.begin(), points.end());
  return points;
}

// A page of a sliding group goes, alone of its block.
void RadixIndex::leave_window(NodeId id, std::size_t group, std::uint64_t index) {
  const Node& node = nodes_[id];
  const std::uint64_t end = (block_of(node.start) + index + 1) * plan_.block_tokens();
  remember(id, std::min(end, node.end()), GhostKind::kWindow, group);
  ++removals_.window_pages[group];
  if (events_) tell_removed(id, group, index);
}

bool RadixIndex::release_interior(NodeId id, std::uint64_t most) {
  Node& node = nodes_[id];
  const std::vector<std::uint64_t> points = resume_points(id);
  const std::uint64_t block = plan_.block_tokens();
  const std::uint64_t first = block_of(node.start);
  std::uint64_t released = 0;
  for (std::size_t group = 0; group < pools_.pages.size(); ++group) {
    const Group& needs = plan_.groups()[group];
    if (!needs.forgets()) continue;
    const std::uint64_t sinks = needs.dead_blocks(UINT64_MAX, block).first;
    auto& pages = node.pages[group];
    auto point = points.begin();
    for (std::size_t i = 0; i < pages.size() && released < most; ++i) {
      const std::uint64_t at = first + i;
      while (point != points.end() && *point <= at * block) ++point;
      // The nearest point reaches back furthest.
      const bool needed =
          at < sinks || (point != points.end() && at >= needs.live_blocks(*point, block).first);
      if (needed || pages[i] == kNoItem || is_held(group, pages[i])) continue;
      leave_window(id, group, i);
      drop_page(group, pages[i]);
      pages[i] = kNoItem;
      ++released;
    }
  }
  return released > 0;
}

// Above a tail that a sequence holds lie pages its window has passed. Only the index holds those:
// they go when nothing else can, and leave holes.
bool RadixIndex::release_windows(NodeId leaf) {
  bool released = false;
  for (NodeId id = leaf; !nodes_[id].is_root(); id = nodes_[id].parent) {
    for (std::size_t group = 0; group < pools_.pages.size(); ++group) {
      if (!plan_.groups()[group].forgets()) continue;
      auto& pages = nodes_[id].pages[group];
      for (std::size_t i = 0; i < pages.size(); ++i) {
        ItemId& page = pages[i];
        if (page == kNoItem || is_held(group, page)) continue;
        leave_window(id, group, i);
        drop_page(group, page);
        page = kNoItem;
        released = true;
      }
    }
  }
  return released;
}

}  // namespace kvcache::prefix
