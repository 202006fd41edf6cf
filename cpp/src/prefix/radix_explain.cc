// Why a prompt would hit as far as it does, and the memory of what has left that this takes. Keys
// of paths are made when something leaves, so that storing and finding cost nothing; a run's keys
// are kept while its blocks go one by one.
#include <algorithm>
#include <new>
#include <utility>

#include "prefix/radix_index.h"

namespace kvcache::prefix {

// ---- Remembering ------------------------------------------------------------------------------

// Of a run's tokens [begin, end), which lie in one block and may begin in the runs before.
std::uint64_t RadixIndex::link_key(NodeId id, std::uint64_t begin, std::uint64_t end,
                                   std::uint64_t before) const {
  const Node& node = nodes_[id];
  if (begin >= node.start) {
    const LabelAt item{0, node.label};
    const bool labelled = begin == node.start && !node.label.empty();
    return block_path_key(before, std::span(node.tokens).subspan(begin - node.start, end - begin),
                          {&item, labelled ? 1U : 0U});
  }
  std::vector<std::int32_t> tokens(end - begin);
  std::vector<LabelAt> items;
  for (NodeId at = id;; at = nodes_[at].parent) {
    const Node& part = nodes_[at];
    const std::uint64_t from = std::max(begin, part.start);
    const std::uint64_t stop = std::min(end, part.end());
    std::copy_n(part.tokens.data() + (from - part.start), stop - from,
                tokens.data() + (from - begin));
    if (part.start >= begin && !part.label.empty()) {
      items.push_back({part.start - begin, part.label});
    }
    if (part.start <= begin) break;
  }
  std::reverse(items.begin(), items.end());
  return block_path_key(before, tokens, items);
}

// Of the path through the last whole block at or before a run's end.
std::uint64_t RadixIndex::end_key(NodeId id) {
  std::vector<NodeId> unknown;
  for (NodeId at = id; nodes_[at].end_key == 0; at = nodes_[at].parent) {
    unknown.push_back(at);
    if (nodes_[at].is_root()) break;
  }
  for (; !unknown.empty(); unknown.pop_back()) {
    const NodeId at = unknown.back();
    Node& node = nodes_[at];
    if (node.is_root()) {
      node.end_key = root_key(node.label, generation_);
      continue;
    }
    std::uint64_t key = nodes_[node.parent].end_key;
    const std::uint64_t block = plan_.block_tokens();
    for (std::uint64_t b = block_of(node.start); b < block_of(node.end()); ++b) {
      key = link_key(at, b * block, (b + 1) * block, key);
    }
    node.end_key = key;
  }
  return nodes_[id].end_key;
}

// Of the path up to a position in a run, or at its end.
std::uint64_t RadixIndex::path_key(NodeId id, std::uint64_t position) {
  const Node& node = nodes_[id];
  const std::uint64_t block = plan_.block_tokens();
  const std::uint64_t first = block_of(node.start);
  const std::uint64_t whole = block_of(position);
  RunKeys& run = run_keys(id);
  std::vector<std::uint64_t>& keys = run.keys;
  if (std::exchange(run.id, id) != id) keys.clear();
  for (std::uint64_t b = first + keys.size(); b < whole; ++b) {
    const std::uint64_t before = keys.empty() ? end_key(node.parent) : keys.back();
    keys.push_back(link_key(id, b * block, (b + 1) * block, before));
  }
  const std::uint64_t before = whole > first ? keys[whole - first - 1] : end_key(node.parent);
  return whole * block == position ? before : link_key(id, whole * block, position, before);
}

// What does not fit in memory is not remembered, which costs an answer.
void RadixIndex::remember(NodeId id, std::uint64_t position, GhostKind kind,
                          std::size_t group) noexcept {
  if (reaping_) return;
  try {
    add_ghost(path_key(id, position), kind, group);
  } catch (const std::bad_alloc&) {
    return;
  }
}

void RadixIndex::add_ghost(std::uint64_t path, GhostKind kind, std::size_t group) noexcept {
  const bool quota = leaving_ == MissReason::kEvicted && for_quota_ != kNobody;
  ghosts_.add(Ghosts::key_of(path, kind, static_cast<std::uint32_t>(group)),
              quota ? MissReason::kQuota : leaving_);
  if (quota) ghosts_.add(Ghosts::key_of(path, GhostKind::kTenant, for_quota_), MissReason::kQuota);
}

// What is not stored, because a quota has room for `portion` only.
void RadixIndex::remember_refused(const Insertion& what, const Portion& portion) noexcept {
  const auto is_refused = [&](const SnapshotRef& ref) {
    return std::none_of(portion.snapshots.begin(), portion.snapshots.end(),
                        [&](const SnapshotRef& kept) { return kept.position == ref.position; });
  };
  std::uint64_t from = portion.end;
  for (const SnapshotRef& ref : what.snapshots) {
    if (is_refused(ref))
      from = std::min(from, ref.position - std::min<std::uint64_t>(ref.position, 1));
  }
  const std::uint64_t size = what.tokens.size();
  if (from == size) return;
  try {
    const auto keys = prompt_keys(what.space, what.tokens, from, generation_);
    for_quota_ = what.tenant;
    for (const SnapshotRef& ref : what.snapshots) {
      if (ref.position > from && ref.position <= size && is_refused(ref)) {
        add_ghost(keys[ref.position - from - 1], GhostKind::kSnapshot);
      }
    }
    for (std::uint64_t b = block_of(portion.end) + 1; b <= blocks_to(size); ++b) {
      const std::uint64_t end = std::min(b * plan_.block_tokens(), size);
      if (end > portion.end) add_ghost(keys[end - from - 1], GhostKind::kRun);
    }
  } catch (const std::bad_alloc&) {
  }
  for_quota_ = kNobody;
}

// Every block of a run that goes at once.
void RadixIndex::remember_run(NodeId id) noexcept {
  const Node& node = nodes_[id];
  const std::uint64_t block = plan_.block_tokens();
  remember(id, node.end(), GhostKind::kRun);
  for (std::uint64_t b = block_of(node.end() - 1); b * block > node.start; --b) {
    remember(id, b * block, GhostKind::kRun);
  }
}

// The run ends earlier now, at a whole block or its start.
void RadixIndex::cut_keys(NodeId id) {
  Node& node = nodes_[id];
  node.end_key = 0;
  RunKeys& run = run_keys(id);
  const std::uint64_t whole = block_of(node.end()) - block_of(node.start);
  if (run.id == id && run.keys.size() > whole) run.keys.resize(whole);
}

// ---- Explaining -------------------------------------------------------------------------------

// The window that a hit at `end` lacks.
std::optional<RadixIndex::WindowGap> RadixIndex::window_gap(const std::vector<Step>& path,
                                                            std::uint64_t end) const {
  const BlockTables tables = path_tables(path, end);
  const auto hole = last_hole(tables, end);
  if (!hole) return {};
  for (std::uint32_t group = 0; group < tables.size(); ++group) {
    const Group& needs = plan_.groups()[group];
    if (is_whole(needs) || tables[group][*hole] != kNoItem) continue;
    const BlockRange live = needs.live_blocks(end, plan_.block_tokens());
    const bool sink = *hole < needs.sink_blocks(end, plan_.block_tokens());
    if (sink || (*hole >= live.first && *hole < live.last)) return WindowGap{group, *hole};
  }
  return {};
}

Explanation RadixIndex::explain(const SpaceRef& space, std::span<const std::int32_t> tokens) {
  const Match match = this->match(space, tokens, false);
  Explanation said;
  said.tokens = tokens.size();
  said.matched_tokens = match.matched;
  said.cached_tokens = match.usable;
  said.nearest_snapshot = match.nearest_snapshot;
  said.limit = match.limit;
  if (match.snapshot.item != kNoItem) said.snapshot_format = match.snapshot.format;
  said.once_tokens = match.matched;
  const std::uint64_t cap =
      outside_media(space.media, std::min<std::uint64_t>(match.matched, tokens.size() - 1));
  said.position = match.limit == HitLimit::kTokens ? match.matched : cap;
  if (match.limit == HitLimit::kNone) said.reason = MissReason::kNone;
  if (match.limit != HitLimit::kWindow) return said;
  const std::vector<Step> path = walk(root_of(space, false), tokens, space.media, true);
  for (std::uint64_t end = cap; end > 0;) {
    if (const auto gap = window_gap(path, end)) {
      said.group = gap->group;
      said.position = gap->block * plan_.block_tokens();
      break;
    }
    if (!plan_.has_fixed_state()) break;
    const std::uint32_t index = deepest_snapshot(path, end < cap ? end - 1 : cap);
    end = index == UINT32_MAX ? 0 : snapshots_[index].position;
  }
  return said;
}

// Keys of a prompt's paths, at positions `from` + 1, `from` + 2, ... up to its end.
std::vector<std::uint64_t> RadixIndex::prompt_keys(const SpaceRef& space,
                                                   std::span<const std::int32_t> tokens,
                                                   std::uint64_t from,
                                                   std::uint64_t generation) const {
  std::vector<std::uint64_t> keys;
  keys.reserve(tokens.size() - from);
  std::uint64_t before = root_key(space.key, generation);
  auto item = space.media.begin();
  for (std::uint64_t begin = 0; begin < tokens.size(); begin += plan_.block_tokens()) {
    const std::uint64_t end = std::min<std::uint64_t>(begin + plan_.block_tokens(), tokens.size());
    RollingPathKey key(before);
    for (std::uint64_t stop = end > from ? std::max(begin, from) + 1 : end; stop <= end; ++stop) {
      for (; item != space.media.end() && item->start < stop; ++item) {
        key.add({item->start - begin, media_label(*item)});
      }
      before = key.of(tokens.subspan(begin, stop - begin));
      if (stop > from) keys.push_back(before);
    }
  }
  return keys;
}

// Whether what is missing has been there, by `keys` from the end of the hit on.
void RadixIndex::explain_loss(const SpaceRef& space, std::span<const std::int32_t> tokens,
                              std::span<const std::uint64_t> keys, Explanation& said) const {
  const auto ghost_at = [&](std::uint64_t position, GhostKind kind, std::uint32_t group = 0) {
    return ghosts_.find(Ghosts::key_of(keys[position - said.cached_tokens - 1], kind, group));
  };
  const auto found = [&](HitLimit limit, std::optional<MissReason> why, std::uint64_t position) {
    if (!why || said.limit != limit || said.reason != MissReason::kNeverStored) return;
    said.reason = *why;
    if (*why == MissReason::kQuota) said.quota = quota_of(keys[position - said.cached_tokens - 1]);
  };
  for (std::uint64_t p = said.matched_tokens + 1; p <= tokens.size(); ++p) {
    const auto why = ghost_at(p, GhostKind::kRun);
    if (why) said.once_tokens = p;
    found(HitLimit::kTokens, why, p);
  }
  if (const std::uint64_t stale = stale_match(space, tokens); stale > said.matched_tokens) {
    said.once_tokens = std::max(said.once_tokens, stale);
    found(HitLimit::kTokens, MissReason::kWeights, stale);
  }
  if (plan_.has_fixed_state()) {
    for (std::uint64_t p = said.matched_tokens; p > said.cached_tokens; --p) {
      const auto why = ghost_at(p, GhostKind::kSnapshot);
      if (!why) continue;
      said.lost_snapshot = std::max(said.lost_snapshot, p);
      found(HitLimit::kSnapshot, why, p);
    }
  }
  if (!said.group) return;
  const std::uint64_t stop = said.position + plan_.block_tokens();
  for (std::uint64_t p = std::max(said.position, said.cached_tokens) + 1;
       p <= std::min<std::uint64_t>(stop, tokens.size()); ++p) {
    found(HitLimit::kWindow, ghost_at(p, GhostKind::kWindow, *said.group), p);
  }
}

// Of the tenant whose quota had no room for the end of a path.
std::optional<TenantUsage> RadixIndex::quota_of(std::uint64_t path) const {
  for (const TenantId tenant : tenants_.limited()) {
    if (ghosts_.find(Ghosts::key_of(path, GhostKind::kTenant, tenant))) {
      return tenants_[tenant].usage;
    }
  }
  return {};
}

// How far a prompt is known to state of other weights that was not given back yet.
std::uint64_t RadixIndex::stale_match(const SpaceRef& space,
                                      std::span<const std::int32_t> tokens) const {
  std::uint64_t longest = 0;
  const auto look = [&](NodeId root) {
    const auto path = walk(root, tokens, space.media);
    if (!path.empty()) longest = std::max(longest, path.back().end);
  };
  const std::string key(space.key);
  for (const auto& roots : stale_roots_) {
    if (const auto root = roots.find(key); root != roots.end()) look(root->second);
  }
  if (!doomed_.empty() && nodes_[doomed_.front()].label == key) look(doomed_.front());
  return longest;
}

}  // namespace kvcache::prefix
