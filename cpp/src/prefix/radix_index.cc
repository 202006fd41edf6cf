#include "prefix/radix_index.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/checked.h"

namespace kvcache::prefix {

RadixIndex::RadixIndex(const StatePlan& plan, PoolMap pools, evict::PolicyMaker all,
                       evict::PolicyMaker of_tenant, std::uint32_t snapshots_per_path)
    : plan_(plan),
      pools_(std::move(pools)),
      make_policy_(std::move(all)),
      make_order_(std::move(of_tenant)),
      policy_(make_policy_()),
      spare_(make_policy_()),
      snapshots_per_path_(snapshots_per_path),
      has_windows_(std::any_of(plan.groups().begin(), plan.groups().end(),
                               [](const Group& group) { return !is_whole(group); })),
      ghosts_(std::min<std::uint64_t>(plan.options().memory_bytes / 256, 1 << 20)),
      pins_(pools_),
      tenants_(pools_.pages.size() + kSnapshotFormats) {
  removals_.window_pages.resize(plan.groups().size());
}

std::uint64_t RadixIndex::blocks_to(std::uint64_t end) const {
  return ceil_div(end, plan_.block_tokens());
}

// ---- Writing ----------------------------------------------------------------------------------

std::uint64_t RadixIndex::insert(const SpaceRef& space, std::span<const std::int32_t> tokens,
                                 const BlockTables& tables, std::span<const SnapshotRef> snapshots,
                                 const PathNames& names, std::uint64_t ttl, std::string_view tenant,
                                 bool whole) {
  if (tokens.empty()) return 0;
  // What other weights have computed is of no use to anybody.
  if (space.epoch != SpaceRef::kAnyEpoch && space.epoch != epoch_) return 0;
  const auto change = begin_change();
  return add_path({space, tokens, tables, snapshots, names, ttl, whole}, tenant);
}

std::uint64_t RadixIndex::add_path(Insertion what, std::string_view tenant) {
  ++clock_;
  reap(1);
  what.tenant = tenants_.enter(tenant);
  std::vector<NodeId> path = cut_path(what.space, what.tokens);
  for (const NodeId id : path) lives_.renew(id, what.ttl, now_);
  Portion portion;
  if (tenants_.is_limited(what.tenant) && !admit(path, what, portion)) {
    return path.empty() ? 0 : nodes_[path.back()].end();
  }
  // What was evicted for it may have been all of its space.
  NodeId parent = path.empty() ? root_of(what.space, true) : path.back();
  if (orders_ != nullptr && orders_->has(what.tenant)) {
    const NodeId root = path.empty() ? parent : nodes_[path.front()].parent;
    join_path(what.tenant, root, path, what.tokens);
  }
  std::vector<Hole> filled;
  if (what.fills && has_windows_) {
    for (const NodeId id : path) fill_holes(id, what, filled);
  }
  const std::size_t known = path.size();
  append(parent, what, path);
  for (std::size_t i = known; i < path.size(); ++i) {
    lives_.begin(path[i], nodes_[path[i]].start, what.ttl, now_);
  }
  for (const NodeId id : path) {
    policy_->use(evict::run_unit(id), clock_);
    nodes_[id].used = clock_;
  }
  for (const SnapshotRef& ref : what.snapshots) {
    for (const NodeId id : path) {
      if (ref.position > nodes_[id].start && ref.position <= nodes_[id].end()) {
        add_snapshot(id, ref, what.tenant);
      }
    }
  }
  thin_path(path);
  if (events_) tell_inserted(what.space, what.tokens, path, filled, what.names);
  if (has_windows_) {
    for (const NodeId id : path) queue_windows(id);
  }
  tenants_.settle(what.tenant);
  return what.tokens.size();
}

// The runs of a path that are known. A run that goes on in another way is cut where it does.
std::vector<RadixIndex::NodeId> RadixIndex::cut_path(const SpaceRef& space,
                                                     std::span<const std::int32_t> tokens) {
  std::vector<NodeId> path;
  const NodeId root = root_of(space, false);
  if (root == kNoNode) return path;
  for (const Step& step : walk(root, tokens, space.media)) {
    const bool goes_on = step.end < nodes_[step.node].end();
    path.push_back(goes_on ? split(step.node, step.end) : step.node);
  }
  return path;
}

// Adds what is not known yet: a run up to the next media item, then one that begins with each.
void RadixIndex::append(NodeId parent, const Insertion& what, std::vector<NodeId>& path) {
  const auto tokens = what.tokens;
  const auto media = what.space.media;
  std::uint64_t known = path.empty() ? 0 : nodes_[parent].end();
  auto item = media.begin();
  while (known < tokens.size()) {
    while (item != media.end() && item->start < known) ++item;
    const bool at_item = item != media.end() && item->start == known;
    const std::string label = at_item ? media_label(*item) : std::string();
    item += at_item;
    const std::uint64_t stop =
        item == media.end() ? tokens.size() : std::min<std::uint64_t>(item->start, tokens.size());
    const auto run = tokens.first(stop);
    if (at_item || path.empty() || !try_extend(parent, run, what)) {
      parent = add_child(parent, known, run, what, label);
      path.push_back(parent);
    }
    known = stop;
  }
}

// A path keeps the snapshots of greatest worth. Among equals, of those nobody asked for the one
// whose absence leaves the smallest gap goes, of others the shallowest.
void RadixIndex::thin_path(const std::vector<NodeId>& path) {
  if (snapshots_per_path_ == 0 || !plan_.has_fixed_state()) return;
  std::vector<std::uint32_t> held;
  for (const NodeId id : path) {
    held.insert(held.end(), nodes_[id].snapshots.begin(), nodes_[id].snapshots.end());
  }
  while (held.size() > snapshots_per_path_) {
    std::size_t worst = held.size();
    std::tuple<SnapshotKind, std::uint64_t> least{SnapshotKind::kSystem, UINT64_MAX};
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (pins_.holds_snapshot(held[i])) continue;
      const Snapshot& snapshot = snapshots_[held[i]];
      const Node& node = nodes_[snapshot.node];
      const bool parts = node.children > 1 && snapshot.position == node.end();
      const SnapshotKind kind =
          parts ? std::max(snapshot.kind, SnapshotKind::kBranch) : snapshot.kind;
      const std::uint64_t below = i == 0 ? 0 : snapshots_[held[i - 1]].position;
      const bool last = i + 1 == held.size();
      const std::uint64_t above = last ? UINT64_MAX : snapshots_[held[i + 1]].position;
      const std::uint64_t cost =
          kind == SnapshotKind::kInterval ? above - below : snapshot.position;
      if (std::tuple(kind, cost) >= least) continue;
      least = {kind, cost};
      worst = i;
    }
    if (worst == held.size()) return;  // the rest is pinned
    leaving_ = MissReason::kThinned;
    remove_snapshot(held[worst]);
    leaving_ = MissReason::kEvicted;
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(worst));
  }
}

RadixIndex::NodeId RadixIndex::root_of(const SpaceRef& space, bool create) {
  if (space.epoch != SpaceRef::kAnyEpoch && space.epoch != epoch_) return kNoNode;
  const auto found = roots_.find(std::string(space.key));
  if (found != roots_.end()) return found->second;
  if (!create) return kNoNode;
  const NodeId root = new_node();
  nodes_[root].label = space.key;
  policy_->add_root(root, space.key);
  roots_.emplace(space.key, root);
  return root;
}

void RadixIndex::set_edge(NodeId parent, NodeId child) {
  const Node& node = nodes_[child];
  if (node.label.empty()) {
    edges_.set(parent, node.tokens.front(), child);
  } else {
    media_edges_[media_edge(parent, node.tokens.front(), node.label)] = child;
  }
}

void RadixIndex::link(NodeId parent, NodeId child) {
  Node& above = nodes_[parent];
  Node& node = nodes_[child];
  node.parent = parent;
  node.previous = kNoNode;
  node.next = above.first_child;
  if (node.next != kNoNode) nodes_[node.next].previous = child;
  above.first_child = child;
  ++above.children;
}

void RadixIndex::unlink(NodeId child) {
  Node& node = nodes_[child];
  Node& above = nodes_[node.parent];
  if (node.previous != kNoNode) nodes_[node.previous].next = node.next;
  if (node.next != kNoNode) nodes_[node.next].previous = node.previous;
  if (above.first_child == child) above.first_child = node.next;
  --above.children;
}

RadixIndex::NodeId RadixIndex::new_node() {
  NodeId id;
  if (free_nodes_.empty()) {
    id = static_cast<NodeId>(nodes_.size());
    nodes_.grow_to(nodes_.size() + 1);
  } else {
    id = free_nodes_.back();
    free_nodes_.pop_back();
  }
  ++counts_.nodes;
  return id;
}

void RadixIndex::free_node(NodeId id) {
  if (!nodes_[id].is_root()) tenants_.remove_run(nodes_[id].tenant);
  nodes_[id] = Node();
  forget_keys(id);
  lives_.forget(id);
  if (events_) events_->cut_run(id, 0);
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

  if (events_) events_->reserve_split(upper_id, lower_skip);
  upper.start = lower.start;
  upper.tenant = lower.tenant;
  upper.used = lower.used;
  tenants_.add_run(upper.tenant);
  upper.label = std::exchange(lower.label, {});
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
  count_blocks(upper_id, static_cast<std::int64_t>(upper_blocks - lower_skip));
  while (!lower.snapshots.empty() && snapshots_[lower.snapshots.front()].position <= position) {
    snapshots_[lower.snapshots.front()].node = upper_id;
    upper.snapshots.push_back(lower.snapshots.front());
    lower.snapshots.erase(lower.snapshots.begin());
  }
  lower.tokens.erase(lower.tokens.begin(), lower.tokens.begin() + cut);
  lower.start = position;
  const NodeId parent = lower.parent;
  unlink(id);
  link(parent, upper_id);
  link(upper_id, id);
  set_edge(parent, upper_id);
  set_edge(upper_id, id);
  forget_keys(id);
  if (events_) events_->split_run(upper_id, id, lower_skip);
  policy_->split_run(upper_id, id, position);
  pins_.split(upper_id, id);
  lives_.split(upper_id, id, position);
  return upper_id;
}

// A leaf grows in place when the new run continues the very pages it ends with, is the same
// tenant's, and lives as long. Where a pin ends, a run ends.
bool RadixIndex::try_extend(NodeId id, std::span<const std::int32_t> tokens,
                            const Insertion& what) {
  const BlockTables& tables = what.tables;
  Node& node = nodes_[id];
  if (node.children != 0 || node.tenant != what.tenant || pins_.covers(id)) return false;
  if (lives_.ttl(id) != what.ttl) return false;
  const std::uint64_t first = block_of(node.start);
  const std::uint64_t old_blocks = blocks_to(node.end());
  if (node.end() % plan_.block_tokens() != 0) {
    for (std::size_t group = 0; group < tables.size(); ++group) {
      if (node.pages[group][old_blocks - 1 - first] != tables[group][old_blocks - 1]) return false;
    }
  }
  const auto rest = tokens.subspan(node.end());
  node.tokens.insert(node.tokens.end(), rest.begin(), rest.end());
  node.end_key = 0;
  const std::uint64_t new_blocks = blocks_to(node.end());
  for (std::size_t group = 0; group < tables.size(); ++group) {
    for (std::uint64_t b = old_blocks; b < new_blocks; ++b) {
      const ItemId page = tables[group][b];
      if (page != kNoItem) take_page(group, page, what.tenant);
      node.pages[group].push_back(page);
    }
  }
  counts_.tokens += rest.size();
  count_blocks(id, static_cast<std::int64_t>(new_blocks - old_blocks));
  policy_->grow_run(id, tokens);
  return true;
}

RadixIndex::NodeId RadixIndex::add_child(NodeId parent, std::uint64_t start,
                                         std::span<const std::int32_t> tokens,
                                         const Insertion& what, std::string label) {
  const BlockTables& tables = what.tables;
  const NodeId id = new_node();
  Node& node = nodes_[id];
  set_candidate(parent, false);
  const auto rest = tokens.subspan(start);
  node.start = start;
  node.tenant = what.tenant;
  tenants_.add_run(what.tenant);
  node.label = std::move(label);
  node.tokens.assign(rest.begin(), rest.end());
  link(parent, id);
  set_edge(parent, id);
  const std::uint64_t first = block_of(start);
  const std::uint64_t stop = blocks_to(node.end());
  for (std::size_t group = 0; group < tables.size(); ++group) {
    node.pages.emplace_back(tables[group].begin() + first, tables[group].begin() + stop);
    for (const ItemId page : node.pages[group]) {
      if (page != kNoItem) take_page(group, page, what.tenant);
    }
  }
  counts_.tokens += rest.size();
  count_blocks(id, static_cast<std::int64_t>(stop - first));
  policy_->add_run(id, parent, tokens, start, clock_);
  set_candidate(id, true);
  return id;
}

// Pages that a window had lost come back when a sequence computed them again.
void RadixIndex::fill_holes(NodeId id, const Insertion& what, std::vector<Hole>& filled) {
  const BlockTables& tables = what.tables;
  Node& node = nodes_[id];
  const std::uint64_t first = block_of(node.start);
  for (std::size_t group = 0; group < tables.size(); ++group) {
    if (is_whole(plan_.groups()[group])) continue;  // has none
    for (std::size_t i = 0; i < node.pages[group].size(); ++i) {
      ItemId& page = node.pages[group][i];
      if (page != kNoItem || tables[group][first + i] == kNoItem) continue;
      page = tables[group][first + i];
      take_page(group, page, what.tenant);
      if (events_) filled.push_back({id, static_cast<std::uint32_t>(group), first + i});
    }
  }
}

void RadixIndex::add_snapshot(NodeId id, const SnapshotRef& ref, TenantId tenant) {
  auto& held = nodes_[id].snapshots;
  const auto at = std::lower_bound(held.begin(), held.end(), ref.position,
                                   [this](std::uint32_t index, std::uint64_t position) {
                                     return snapshots_[index].position < position;
                                   });
  if (at != held.end() && snapshots_[*at].position == ref.position) {
    Snapshot& known = snapshots_[*at];
    known.kind = std::max(known.kind, static_cast<SnapshotKind>(ref.kind));
    if (ref.item == kNoItem) return;
    if (ref.format < known.format) {  // the more precise one takes its place
      if (pins_.holds_snapshot(*at)) {
        pins_.replace_snapshot(snapshot_bytes(*at), pools_.of(ref).item_bytes());
      }
      replace_snapshot(*at, ref, tenant);
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
  snapshots_[index] = {ref.position, ref.item, id, ref.format, static_cast<SnapshotKind>(ref.kind)};
  held.insert(at, index);
  if (ref.item == kNoItem) return;
  take_snapshot(ref, tenant);
  ++counts_.snapshots;
  policy_->add_snapshot(index, id, ref.position, clock_);
  policy_->insert(evict::snapshot_unit(index));
}

void RadixIndex::complete(const SpaceRef& space, std::span<const std::int32_t> tokens,
                          evict::Completion facts) noexcept {
  if (!policy_->learns() && parked_.empty()) return;
  try {
    const NodeId root = root_of(space, false);
    if (root == kNoNode) return;
    const std::vector<Step> path = walk(root, tokens, space.media);
    if (path.empty()) return;
    const auto change = begin_change();
    for (const Step& step : path) unpark(step.node);
    facts.deepest = path.back().node;
    facts.end = path.back().end;
    policy_->complete(facts);
  } catch (const std::bad_alloc&) {  // a request that nobody learns from
  }
}

// ---- Running out of memory --------------------------------------------------------------------

// What abandon() cannot do, because it takes memory.
void RadixIndex::prepare() {
  if (spare_ != nullptr) return;
  for (const TenantId tenant : tenants_.limited()) start_order(tenant);
  spare_ = make_policy_();
}

// Drops everything, whatever state it is in. Takes no memory, and nothing is read but the pools'
// own counts: of a change that was not finished anything else may be wrong.
void RadixIndex::abandon() noexcept {
  if (spare_ == nullptr) return;  // nothing has begun since the last time
  if (std::exchange(reaping_, false)) std::swap(counts_, stale_);
  leaving_ = MissReason::kEvicted;
  for_quota_ = kNobody;
  ++generation_;
  removals_.dropped_blocks += std::exchange(counts_.blocks, 0);
  removals_.dropped_snapshots += std::exchange(counts_.snapshots, 0);
  counts_.nodes = counts_.tokens = 0;
  stale_ = {};
  for (arena::Pool* pool : pools_.pages) pool->release_all_indexed();
  for (arena::Pool* pool : pools_.by_format) {
    if (pool != nullptr) pool->release_all_indexed();
  }
  nodes_.clear();
  free_nodes_.clear();
  snapshots_.clear();
  free_snapshots_.clear();
  edges_.clear();
  media_edges_.clear();
  roots_.clear();
  doomed_.clear();
  stale_roots_.clear();
  parked_.clear();
  window_queue_.clear();
  for (RunKeys& known : run_keys_) known.id = kNoNode;
  pins_.clear();
  lives_.clear();
  tenants_.forget_all();
  if (events_) events_->forget_all();
  orders_ = nullptr;
  policy_ = std::move(spare_);
}

}  // namespace kvcache::prefix
