// Reading the tree: how far a prompt is known, and how much of it needs no recomputation.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "prefix/common_prefix.h"
#include "prefix/radix_index.h"

namespace kvcache::prefix {

std::string RadixIndex::media_label(const MediaSpan& span) {
  return std::to_string(span.length) + ':' + span.digest;
}

std::string RadixIndex::media_edge(NodeId parent, std::int32_t token, std::string_view label) {
  std::string key(reinterpret_cast<const char*>(&parent), sizeof(parent));
  key.append(reinterpret_cast<const char*>(&token), sizeof(token));
  return key.append(label);
}

// The run that goes on from `parent` with `token`, or with a media item that begins there.
RadixIndex::NodeId RadixIndex::child_of(NodeId parent, std::int32_t token,
                                        const MediaSpan* media) const {
  if (media != nullptr) {
    const auto child = media_edges_.find(media_edge(parent, token, media_label(*media)));
    return child == media_edges_.end() ? kNoNode : child->second;
  }
  return edges_.find(parent, token);
}

// A run never goes past the start of a media item: what follows there depends on its content.
std::vector<RadixIndex::Step> RadixIndex::walk(NodeId root, std::span<const std::int32_t> tokens,
                                               std::span<const MediaSpan> media,
                                               bool living) const {
  std::vector<Step> path;
  NodeId id = root;
  std::uint64_t matched = 0;
  auto item = media.begin();
  while (matched < tokens.size()) {
    const bool at_item = item != media.end() && item->start == matched;
    id = child_of(id, tokens[matched], at_item ? &*item : nullptr);
    if (id == kNoNode || (living && is_over(id))) break;
    item += at_item;
    const std::uint64_t stop =
        item == media.end() ? tokens.size() : std::min<std::uint64_t>(item->start, tokens.size());
    const Node& node = nodes_[id];
    matched += common_prefix(node.tokens.data(), tokens.data() + matched,
                             std::min<std::uint64_t>(node.tokens.size(), stop - matched));
    path.push_back({id, matched});
    if (matched < node.end()) break;
  }
  return path;
}

// A hit inside a media item would leave half of it to be embedded.
std::uint64_t RadixIndex::outside_media(std::span<const MediaSpan> media, std::uint64_t position) {
  for (const MediaSpan& span : media) {
    if (span.start < position && position < span.start + span.length) return span.start;
  }
  return position;
}

// A deeper run's page of a shared block holds the shallower run's rows too, so it wins.
BlockTables RadixIndex::path_tables(const std::vector<Step>& path, std::uint64_t end) const {
  BlockTables tables(pools_.pages.size());
  for (std::size_t group = 0; group < tables.size(); ++group) {
    tables[group].assign(blocks_to(end), kNoItem);
    for (const Step& step : path) {
      const Node& node = nodes_[step.node];
      if (node.start >= end) break;
      const std::uint64_t first = block_of(node.start);
      const std::uint64_t stop = blocks_to(std::min(step.end, end));
      std::copy_n(node.pages[group].begin(), stop - first, tables[group].begin() + first);
    }
  }
  return tables;
}

// Whether some group misses a page that it needs at `end`; then the last block of one.
std::optional<std::uint64_t> RadixIndex::last_hole(const BlockTables& tables,
                                                   std::uint64_t end) const {
  std::optional<std::uint64_t> hole;
  for (std::size_t group = 0; group < tables.size(); ++group) {
    const Group& needs = plan_.groups()[group];
    if (is_whole(needs)) continue;
    const BlockRange live = needs.live_blocks(end, plan_.block_tokens());
    for (const BlockRange range :
         {BlockRange{0, needs.sink_blocks(end, plan_.block_tokens())}, live}) {
      for (std::uint64_t b = range.last; b-- > range.first;) {
        if (tables[group][b] != kNoItem) continue;
        hole = std::max(hole.value_or(b), b);
        break;
      }
    }
  }
  return hole;
}

// Largest n <= end for which every group has the pages that it needs.
std::uint64_t RadixIndex::window_limit(const std::vector<Step>& path, std::uint64_t end) const {
  if (!has_windows_) return end;
  BlockTables tables = path_tables(path, end);
  while (const auto hole = last_hole(tables, end)) {
    const std::uint64_t first = *hole * plan_.block_tokens();
    // A run that begins inside the block has its own page of it; a shallower run may have another.
    std::uint64_t shorter = first;
    for (const Step& step : path) {
      const std::uint64_t start = nodes_[step.node].start;
      if (start < end && block_of(start) == *hole) shorter = std::max(shorter, start);
    }
    end = shorter;
    if (end > first) tables = path_tables(path, end);
  }
  return end;
}

std::uint32_t RadixIndex::deepest_snapshot(const std::vector<Step>& path,
                                           std::uint64_t at_most) const {
  for (auto step = path.rbegin(); step != path.rend(); ++step) {
    const auto& held = nodes_[step->node].snapshots;
    for (auto index = held.rbegin(); index != held.rend(); ++index) {
      if (snapshots_[*index].position <= std::min(at_most, step->end)) return *index;
    }
  }
  return UINT32_MAX;
}

Match RadixIndex::match(const SpaceRef& space, std::span<const std::int32_t> tokens, bool touch,
                        std::uint64_t now_ms) {
  lapse();
  Match match;
  const NodeId root = root_of(space, false);
  if (root == kNoNode) return match;
  const std::vector<Step> path = walk(root, tokens, space.media, true);
  match.matched = path.empty() ? 0 : path.back().end;
  if (match.matched == 0) return match;

  // The last token of a prompt always runs: its logits are not stored.
  const std::uint64_t cap =
      outside_media(space.media, std::min<std::uint64_t>(match.matched, tokens.size() - 1));
  match.limit = match.matched < tokens.size() ? HitLimit::kTokens : HitLimit::kNone;
  const auto limited = [&](std::uint64_t end) {
    for (std::uint64_t next;; end = next) {
      next = window_limit(path, outside_media(space.media, end));
      if (next == end) return end;
    }
  };
  std::uint64_t usable = limited(cap);
  if (usable < cap) match.limit = HitLimit::kWindow;
  std::uint32_t snapshot = UINT32_MAX;
  if (plan_.has_fixed_state()) {
    const std::uint32_t nearest = deepest_snapshot(path, match.matched);
    if (nearest != UINT32_MAX) match.nearest_snapshot = snapshots_[nearest].position;
    for (std::uint64_t at_most = usable;;) {
      snapshot = deepest_snapshot(path, at_most);
      usable = snapshot == UINT32_MAX ? 0 : snapshots_[snapshot].position;
      if (usable < cap && match.limit != HitLimit::kWindow) match.limit = HitLimit::kSnapshot;
      if (snapshot == UINT32_MAX) break;
      const std::uint64_t limit = limited(usable);
      if (limit == usable) break;
      match.limit = HitLimit::kWindow;
      at_most = limit;
    }
    if (snapshot != UINT32_MAX) {
      match.snapshot = {usable, snapshots_[snapshot].item, snapshots_[snapshot].format};
    }
  }
  match.usable = usable;
  for (const Step& step : path) {
    const Node& node = nodes_[step.node];
    for (const std::uint32_t index : node.snapshots) {
      match.resident += snapshots_[index].position <= usable;
    }
    const bool parts = step.end == match.matched
                           ? match.matched < tokens.size() || node.children > 1
                           : node.children > 1;
    if (step.end > usable && parts) match.branches.push_back(step.end);
  }
  match.tables = path_tables(path, usable);
  if (touch) {
    const auto change = begin_change();
    ++clock_;
    if (policy_->learns()) policy_->arrive({now_ms, path.back().node, match.matched});
    for (const Step& step : path) {
      const Node& node = nodes_[step.node];
      // A run that the prompt leaves half-way is cut in two by insert(); until then its unused end
      // must not look used, and the pages that the hit takes are held anyway.
      if (node.start >= usable || step.end < node.end()) break;
      policy_->use(evict::run_unit(step.node), clock_);
      nodes_[step.node].used = clock_;
      lives_.use(step.node, now_);
    }
    if (snapshot != UINT32_MAX) policy_->use(evict::snapshot_unit(snapshot), clock_);
  }
  return match;
}

SnapshotRef RadixIndex::find_snapshot(const SpaceRef& space, std::span<const std::int32_t> tokens,
                                      std::uint64_t at_most) {
  const NodeId root = root_of(space, false);
  if (root == kNoNode || !plan_.has_fixed_state()) return {};
  const std::uint32_t index = deepest_snapshot(walk(root, tokens, space.media, true), at_most);
  if (index == UINT32_MAX) return {};
  const Snapshot& found = snapshots_[index];
  return {found.position, found.item, found.format};
}

}  // namespace kvcache::prefix
