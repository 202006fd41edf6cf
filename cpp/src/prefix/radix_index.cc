#include "prefix/radix_index.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/checked.h"

namespace kvcache::prefix {

RadixIndex::RadixIndex(const StatePlan& plan, PoolMap pools, std::unique_ptr<evict::Policy> policy)
    : plan_(plan), pools_(std::move(pools)), policy_(std::move(policy)) {}

std::uint64_t RadixIndex::blocks_to(std::uint64_t end) const {
  return ceil_div(end, plan_.block_tokens());
}

// ---- Reading ----------------------------------------------------------------------------------

std::vector<RadixIndex::Step> RadixIndex::walk(NodeId root,
                                               std::span<const std::int32_t> tokens) const {
  std::vector<Step> path;
  NodeId id = root;
  std::uint64_t matched = 0;
  while (matched < tokens.size()) {
    const auto child = edges_.find(edge(id, tokens[matched]));
    if (child == edges_.end()) break;
    id = child->second;
    const Node& node = nodes_[id];
    const std::size_t comparable = std::min(node.tokens.size(), tokens.size() - matched);
    const auto run = node.tokens.begin();
    const auto differs = std::mismatch(run, run + comparable, tokens.begin() + matched).first;
    matched += static_cast<std::uint64_t>(differs - run);
    path.push_back({id, matched});
    if (matched < node.end()) break;
  }
  return path;
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

Match RadixIndex::match(std::string_view space, std::span<const std::int32_t> tokens, bool touch,
                        std::uint64_t now_ms) {
  Match match;
  const NodeId root = root_of(space, false);
  if (root == kNoNode) return match;
  const std::vector<Step> path = walk(root, tokens);
  match.matched = path.empty() ? 0 : path.back().end;
  if (match.matched == 0) return match;

  // The last token of a prompt always runs: its logits are not stored.
  const std::uint64_t cap = std::min<std::uint64_t>(match.matched, tokens.size() - 1);
  match.limit = match.matched < tokens.size() ? HitLimit::kTokens : HitLimit::kNone;
  std::uint64_t usable = window_limit(path, cap);
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
      const std::uint64_t limit = window_limit(path, usable);
      if (limit == usable) break;
      match.limit = HitLimit::kWindow;
      at_most = limit;
    }
    if (snapshot != UINT32_MAX) {
      match.snapshot = {usable, snapshots_[snapshot].item, snapshots_[snapshot].format};
    }
  }
  match.usable = usable;
  match.tables = path_tables(path, usable);
  if (touch) {
    ++clock_;
    if (policy_->learns()) policy_->arrive({now_ms, path.back().node, match.matched});
    for (const Step& step : path) {
      const Node& node = nodes_[step.node];
      // A run that the prompt leaves half-way is cut in two by insert(); until then its unused end
      // must not look used, and the pages that the hit takes are held anyway.
      if (node.start >= usable || step.end < node.end()) break;
      policy_->use(evict::run_unit(step.node), clock_);
    }
    if (snapshot != UINT32_MAX) policy_->use(evict::snapshot_unit(snapshot), clock_);
  }
  return match;
}

SnapshotRef RadixIndex::find_snapshot(std::string_view space, std::span<const std::int32_t> tokens,
                                      std::uint64_t at_most) {
  const NodeId root = root_of(space, false);
  if (root == kNoNode || !plan_.has_fixed_state()) return {};
  const std::uint32_t index = deepest_snapshot(walk(root, tokens), at_most);
  if (index == UINT32_MAX) return {};
  const Snapshot& found = snapshots_[index];
  return {found.position, found.item, found.format};
}

// ---- Writing ----------------------------------------------------------------------------------

void RadixIndex::insert(std::string_view space, std::span<const std::int32_t> tokens,
                        const BlockTables& tables, std::span<const SnapshotRef> snapshots) {
  if (tokens.empty()) return;
  ++clock_;
  NodeId parent = root_of(space, true);
  std::vector<NodeId> path;
  for (const Step& step : walk(parent, tokens)) {
    NodeId id = step.node;
    if (step.end < nodes_[id].end()) id = split(id, step.end);
    fill_holes(id, tables);
    path.push_back(id);
    parent = id;
  }
  const std::uint64_t known = path.empty() ? 0 : nodes_[parent].end();
  if (known < tokens.size()) {
    if (path.empty() || !try_extend(parent, tokens, tables)) {
      path.push_back(add_child(parent, known, tokens, tables));
    }
  }
  for (const NodeId id : path) policy_->use(evict::run_unit(id), clock_);
  for (const SnapshotRef& ref : snapshots) {
    for (const NodeId id : path) {
      if (ref.position > nodes_[id].start && ref.position <= nodes_[id].end()) {
        add_snapshot(id, ref);
      }
    }
  }
}

RadixIndex::NodeId RadixIndex::root_of(std::string_view space, bool create) {
  const auto found = roots_.find(std::string(space));
  if (found != roots_.end()) return found->second;
  if (!create) return kNoNode;
  const NodeId root = new_node();
  nodes_[root].space = space;
  policy_->add_root(root, space);
  roots_.emplace(space, root);
  return root;
}

RadixIndex::NodeId RadixIndex::new_node() {
  NodeId id;
  if (free_nodes_.empty()) {
    id = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
  } else {
    id = free_nodes_.back();
    free_nodes_.pop_back();
  }
  ++counts_.nodes;
  return id;
}

void RadixIndex::free_node(NodeId id) {
  nodes_[id] = Node();
  free_nodes_.push_back(id);
  --counts_.nodes;
}

// Cuts a run in two at `position` and returns the upper part. The lower one keeps its id, so its
// children stay as they are. A block that both parts need is shared by both.
RadixIndex::NodeId RadixIndex::split(NodeId id, std::uint64_t position) {
  const NodeId upper_id = new_node();
  Node& lower = nodes_[id];
  Node& upper = nodes_[upper_id];
  KVCACHE_CHECK(position > lower.start && position < lower.end());
  const auto cut = static_cast<std::ptrdiff_t>(position - lower.start);
  const std::uint64_t first = block_of(lower.start);
  const std::uint64_t upper_blocks = blocks_to(position) - first;
  const std::uint64_t lower_skip = block_of(position) - first;

  upper.parent = lower.parent;
  upper.children = 1;
  upper.start = lower.start;
  upper.tokens.assign(lower.tokens.begin(), lower.tokens.begin() + cut);
  upper.pages.resize(lower.pages.size());
  for (std::size_t group = 0; group < lower.pages.size(); ++group) {
    auto& pages = lower.pages[group];
    upper.pages[group].assign(pages.begin(), pages.begin() + upper_blocks);
    if (upper_blocks > lower_skip && pages[lower_skip] != kNoItem) {
      pools_.pages[group]->retain_indexed(pages[lower_skip]);
    }
    pages.erase(pages.begin(), pages.begin() + lower_skip);
  }
  counts_.blocks += upper_blocks - lower_skip;
  while (!lower.snapshots.empty() && snapshots_[lower.snapshots.front()].position <= position) {
    snapshots_[lower.snapshots.front()].node = upper_id;
    upper.snapshots.push_back(lower.snapshots.front());
    lower.snapshots.erase(lower.snapshots.begin());
  }
  lower.tokens.erase(lower.tokens.begin(), lower.tokens.begin() + cut);
  lower.start = position;
  lower.parent = upper_id;
  edges_[edge(upper.parent, upper.tokens.front())] = upper_id;
  edges_[edge(upper_id, lower.tokens.front())] = id;
  policy_->split_run(upper_id, id, position);
  return upper_id;
}

// A leaf grows in place when the new run continues the very pages it ends with.
bool RadixIndex::try_extend(NodeId id, std::span<const std::int32_t> tokens,
                            const BlockTables& tables) {
  Node& node = nodes_[id];
  if (node.children != 0) return false;
  const std::uint64_t first = block_of(node.start);
  const std::uint64_t old_blocks = blocks_to(node.end());
  if (node.end() % plan_.block_tokens() != 0) {
    for (std::size_t group = 0; group < tables.size(); ++group) {
      if (node.pages[group][old_blocks - 1 - first] != tables[group][old_blocks - 1]) return false;
    }
  }
  const auto rest = tokens.subspan(node.end());
  node.tokens.insert(node.tokens.end(), rest.begin(), rest.end());
  const std::uint64_t new_blocks = blocks_to(node.end());
  for (std::size_t group = 0; group < tables.size(); ++group) {
    for (std::uint64_t b = old_blocks; b < new_blocks; ++b) {
      const ItemId page = tables[group][b];
      if (page != kNoItem) pools_.pages[group]->retain_indexed(page);
      node.pages[group].push_back(page);
    }
  }
  counts_.tokens += rest.size();
  counts_.blocks += new_blocks - old_blocks;
  policy_->grow_run(id, tokens);
  return true;
}

RadixIndex::NodeId RadixIndex::add_child(NodeId parent, std::uint64_t start,
                                         std::span<const std::int32_t> tokens,
                                         const BlockTables& tables) {
  const NodeId id = new_node();
  Node& node = nodes_[id];
  if (is_candidate(nodes_[parent])) policy_->erase(evict::run_unit(parent));
  ++nodes_[parent].children;
  const auto rest = tokens.subspan(start);
  edges_[edge(parent, rest.front())] = id;
  node.parent = parent;
  node.start = start;
  node.tokens.assign(rest.begin(), rest.end());
  const std::uint64_t first = block_of(start);
  const std::uint64_t stop = blocks_to(node.end());
  for (std::size_t group = 0; group < tables.size(); ++group) {
    node.pages.emplace_back(tables[group].begin() + first, tables[group].begin() + stop);
    for (const ItemId page : node.pages[group]) {
      if (page != kNoItem) pools_.pages[group]->retain_indexed(page);
    }
  }
  counts_.tokens += rest.size();
  counts_.blocks += stop - first;
  policy_->add_run(id, parent, tokens, start, clock_);
  policy_->insert(evict::run_unit(id));
  return id;
}

// Pages that a window had lost come back when a sequence computed them again.
void RadixIndex::fill_holes(NodeId id, const BlockTables& tables) {
  Node& node = nodes_[id];
  const std::uint64_t first = block_of(node.start);
  for (std::size_t group = 0; group < tables.size(); ++group) {
    for (std::size_t i = 0; i < node.pages[group].size(); ++i) {
      ItemId& page = node.pages[group][i];
      if (page != kNoItem || tables[group][first + i] == kNoItem) continue;
      page = tables[group][first + i];
      pools_.pages[group]->retain_indexed(page);
    }
  }
}

void RadixIndex::add_snapshot(NodeId id, const SnapshotRef& ref) {
  auto& held = nodes_[id].snapshots;
  const auto at = std::lower_bound(held.begin(), held.end(), ref.position,
                                   [this](std::uint32_t index, std::uint64_t position) {
                                     return snapshots_[index].position < position;
                                   });
  if (at != held.end() && snapshots_[*at].position == ref.position) {
    Snapshot& known = snapshots_[*at];
    if (ref.format < known.format) {  // the more precise one takes its place
      pools_.of(ref).retain_indexed(ref.item);
      pools_.of(known.format).release_indexed(known.item);
      known.item = ref.item;
      known.format = ref.format;
    }
    policy_->use(evict::snapshot_unit(*at), clock_);
    return;
  }
  std::uint32_t index;
  if (free_snapshots_.empty()) {
    index = static_cast<std::uint32_t>(snapshots_.size());
    snapshots_.emplace_back();
  } else {
    index = free_snapshots_.back();
    free_snapshots_.pop_back();
  }
  snapshots_[index] = {ref.position, ref.item, id, ref.format};
  pools_.of(ref).retain_indexed(ref.item);
  held.insert(at, index);
  ++counts_.snapshots;
  policy_->add_snapshot(index, id, ref.position, clock_);
  policy_->insert(evict::snapshot_unit(index));
}

void RadixIndex::complete(std::string_view space, std::span<const std::int32_t> tokens,
                          evict::Completion facts) {
  if (!policy_->learns()) return;
  const NodeId root = root_of(space, false);
  if (root == kNoNode) return;
  const std::vector<Step> path = walk(root, tokens);
  if (path.empty()) return;
  facts.deepest = path.back().node;
  facts.end = path.back().end;
  policy_->complete(facts);
}

// ---- Eviction ---------------------------------------------------------------------------------

// Evicting a block whose every page a sequence holds would free nothing.
bool RadixIndex::tail_in_use(NodeId id) const {
  const Node& node = nodes_[id];
  bool held = false;
  for (std::size_t group = 0; group < node.pages.size(); ++group) {
    const ItemId page = node.pages[group].back();
    if (page == kNoItem) continue;
    if (!pools_.pages[group]->in_use(page)) return false;
    held = true;
  }
  return held;
}

bool RadixIndex::evict_one() {
  // What open sequences hold would free nothing.
  std::vector<NodeId> held;
  const auto victim = policy_->victim([&](evict::Unit unit) {
    if (unit.kind == evict::UnitKind::kSnapshot) {
      const Snapshot& snapshot = snapshots_[unit.id];
      return !pools_.of(snapshot.format).in_use(snapshot.item);
    }
    if (!tail_in_use(unit.id)) return true;
    held.push_back(unit.id);
    return false;
  });
  if (!victim) {
    bool released = false;
    for (const NodeId leaf : held) released = release_windows(leaf) || released;
    return released;
  }
  evict_unit(*victim);
  return true;
}

void RadixIndex::evict_unit(evict::Unit unit) {
  if (unit.kind == evict::UnitKind::kRun) {
    evict_tail(unit.id);
  } else {
    remove_snapshot(unit.id, true);
  }
}

// Above a tail that a sequence holds lie pages its window has passed. Only the index holds those:
// they go when nothing else can, and leave holes.
bool RadixIndex::release_windows(NodeId leaf) {
  bool released = false;
  for (NodeId id = leaf; !nodes_[id].is_root(); id = nodes_[id].parent) {
    for (std::size_t group = 0; group < pools_.pages.size(); ++group) {
      if (!plan_.groups()[group].forgets()) continue;
      for (ItemId& page : nodes_[id].pages[group]) {
        if (page == kNoItem || pools_.pages[group]->in_use(page)) continue;
        pools_.pages[group]->release_indexed(page);
        page = kNoItem;
        released = true;
      }
    }
  }
  return released;
}

void RadixIndex::remove_snapshot(std::uint32_t index, bool evicted) {
  Snapshot& snapshot = snapshots_[index];
  policy_->erase(evict::snapshot_unit(index));
  policy_->remove_snapshot(index);
  std::erase(nodes_[snapshot.node].snapshots, index);
  pools_.of(snapshot.format).release_indexed(snapshot.item);
  snapshot = Snapshot();
  free_snapshots_.push_back(index);
  --counts_.snapshots;
  if (evicted) ++counts_.evicted_snapshots;
}

// Takes the last block off a leaf run; the run goes with its first block, and a parent without
// children becomes a candidate in its place.
void RadixIndex::evict_tail(NodeId id) {
  const std::uint64_t start = nodes_[id].start;
  drop_last_block(id);
  ++counts_.evicted_blocks;
  const bool gone = nodes_[id].tokens.empty();
  if (gone) policy_->erase(evict::run_unit(id));
  policy_->shrink_run(id, gone ? start : nodes_[id].end());
  if (gone) detach(id);
}

void RadixIndex::drop_last_block(NodeId id) {
  Node& node = nodes_[id];
  const std::uint64_t last = block_of(node.end() - 1);
  const std::uint64_t new_end = std::max<std::uint64_t>(node.start, last * plan_.block_tokens());
  // State past the remaining positions can never be used again.
  while (!node.snapshots.empty() && snapshots_[node.snapshots.back()].position > new_end) {
    remove_snapshot(node.snapshots.back(), true);
  }
  for (std::size_t group = 0; group < node.pages.size(); ++group) {
    const ItemId page = node.pages[group].back();
    if (page != kNoItem) pools_.pages[group]->release_indexed(page);
    node.pages[group].pop_back();
  }
  counts_.tokens -= node.end() - new_end;
  --counts_.blocks;
  // The edge is keyed by the first token, which is needed once more when the run is gone.
  if (new_end == node.start) edges_.erase(edge(node.parent, node.tokens.front()));
  node.tokens.resize(new_end - node.start);
}

// Removes an empty leaf from its parent, and a root that lost its last child.
void RadixIndex::detach(NodeId id) {
  const NodeId parent = nodes_[id].parent;
  free_node(id);
  Node& above = nodes_[parent];
  if (--above.children > 0) return;
  if (!above.is_root()) {
    policy_->insert(evict::run_unit(parent));
    return;
  }
  roots_.erase(above.space);
  free_node(parent);
}

void RadixIndex::clear() {
  const IndexCounts before = counts_;
  while (const auto unit = policy_->victim([](evict::Unit) { return true; })) evict_unit(*unit);
  policy_->clear();
  counts_.evicted_blocks = before.evicted_blocks;
  counts_.evicted_snapshots = before.evicted_snapshots;
}

}  // namespace kvcache::prefix
