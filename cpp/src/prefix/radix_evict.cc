// What leaves the tree: one candidate at a time, a subtree, or everything at once.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/checked.h"
#include "base/prefetch.h"
#include "prefix/radix_index.h"

namespace kvcache::prefix {

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

bool RadixIndex::evict_one() noexcept {
  const bool holds = nodes_.size() > free_nodes_.size();
  try {
    const auto change = begin_change();
    return drop_one();
  } catch (const std::bad_alloc&) {
    return holds;
  }
}

bool RadixIndex::drop_one() {
  if (reap(1) > 0) return true;
  lapse();
  if (expire_one()) return true;
  if (release_interior()) return true;
  auto victim = find_victim();
  if (!victim && unpark_released()) victim = find_victim();
  if (victim) {
    evict_unit(*victim);
    return true;
  }
  if (!has_windows_) return false;
  bool released = false;
  for (const NodeId leaf : parked_) released = release_windows(leaf) || released;
  return released;
}

// What open sequences hold would free nothing. A run that was in the way stays out of the policy's
// sight until a request ends on it, so that every victim does not pass over it again.
// With a tenant: among its own, but for the run `kept` and what takes others' state along.
std::optional<evict::Unit> RadixIndex::find_victim(TenantId tenant, NodeId kept) {
  std::vector<NodeId> held;
  const auto may_go = [&](evict::Unit unit) {
    if (unit.kind == evict::UnitKind::kSnapshot) {
      const Snapshot& snapshot = snapshots_[unit.id];
      return !pools_.of(snapshot.format).in_use(snapshot.item);
    }
    if (unit.id == kept) return false;
    if (tail_in_use(unit.id)) {
      held.push_back(unit.id);
      return false;
    }
    return tenant == kNobody || !frees_others(unit.id, tenant);
  };
  const auto victim =
      tenant == kNobody ? policy_->victim(may_go) : orders_->victim_of(tenant, may_go);
  for (const NodeId id : held) {
    parked_.insert(id);
    policy_->erase(evict::run_unit(id));
  }
  // The policy foresees what follows its own victims, not those of a tenant.
  if (tenant == kNobody && victim && victim->kind == evict::UnitKind::kRun) {
    fetch_behind(victim->id);
  }
  return victim;
}

// Evicting goes through memory that is seldom near. When a run ends, what those behind it will need
// is asked for: of each one more than of the one behind it.
void RadixIndex::fetch_behind(NodeId victim) const {
  const Node& going = nodes_[victim];
  if (block_of(going.end() - 1) != block_of(going.start)) return;
  std::array<evict::Unit, 3> behind;
  const std::size_t known = policy_->foresee(behind);
  for (std::size_t i = 0; i < known; ++i) {
    if (behind[i].kind != evict::UnitKind::kRun) continue;
    const Node& node = nodes_[behind[i].id];
    if (i == 2) {
      base::prefetch(&node);
    } else if (i == 1) {
      base::prefetch(node.tokens.data());
      base::prefetch(node.pages.data());
      for (const NodeId near : {node.parent, node.previous, node.next}) {
        if (near != kNoNode) base::prefetch(&nodes_[near]);
      }
    } else {
      edges_.prefetch(node.parent, node.tokens.front());
      for (const auto& pages : node.pages) base::prefetch(pages.data());
      // A block that begins in the run before is named after both.
      if (node.parent != kNoNode) base::prefetch(nodes_[node.parent].tokens.data());
    }
  }
}

void RadixIndex::unpark(NodeId id) {
  if (!parked_.contains(id)) return;
  policy_->insert(evict::run_unit(id));
  parked_.erase(id);
}

// Sequences may go without a word. Returns whether some run is no longer held.
bool RadixIndex::unpark_released() {
  std::vector<NodeId> released;
  for (const NodeId id : parked_) {
    if (!tail_in_use(id)) released.push_back(id);
  }
  for (const NodeId id : released) unpark(id);
  return !released.empty();
}

void RadixIndex::evict_unit(evict::Unit unit) {
  if (unit.kind == evict::UnitKind::kRun) {
    evict_tail(unit.id);
  } else {
    remove_snapshot(unit.id);
  }
}

void RadixIndex::remove_snapshot(std::uint32_t index) {
  Snapshot& snapshot = snapshots_[index];
  const bool has_item = snapshot.item != kNoItem;
  if (has_item) remember(snapshot.node, snapshot.position, GhostKind::kSnapshot);
  std::erase(nodes_[snapshot.node].snapshots, index);
  if (has_windows_) queue_windows(snapshot.node);
  if (has_item) {
    if (events_) tell_snapshot_removed(index);
    policy_->erase(evict::snapshot_unit(index));
    policy_->remove_snapshot(index);
    const TenantId tenant = owner(evict::snapshot_unit(index));
    if (tenant != kNobody && !reaping_) {
      tenants_[tenant].usage.evicted_snapshots += leaving_ == MissReason::kEvicted;
    }
    drop_snapshot(snapshot.format, snapshot.item);
    --counts_.snapshots;
    if (!reaping_) {
      removals_.thinned_snapshots += leaving_ == MissReason::kThinned;
      removals_.erased_snapshots += leaving_ == MissReason::kErased;
      counts_.evicted_snapshots += leaving_ == MissReason::kEvicted;
    }
  }
  snapshot = Snapshot();
  free_snapshots_.push_back(index);
}

// Takes the last block off a leaf run; the run goes with its first block, and a parent without
// children becomes a candidate in its place.
void RadixIndex::evict_tail(NodeId id) {
  const std::uint64_t start = nodes_[id].start;
  remember(id, nodes_[id].end(), GhostKind::kRun);
  drop_last_block(id);
  ++counts_.evicted_blocks;
  if (const TenantId tenant = nodes_[id].tenant; tenant != kNobody) {
    ++tenants_[tenant].usage.evicted_blocks;
  }
  const bool gone = nodes_[id].tokens.empty();
  if (gone) set_candidate(id, false);
  policy_->shrink_run(id, gone ? start : nodes_[id].end());
  if (gone) detach(id);
}

void RadixIndex::drop_last_block(NodeId id) {
  Node& node = nodes_[id];
  const std::uint64_t last = block_of(node.end() - 1);
  const std::uint64_t new_end = std::max<std::uint64_t>(node.start, last * plan_.block_tokens());
  // State past the remaining positions can never be used again.
  while (!node.snapshots.empty() && snapshots_[node.snapshots.back()].position > new_end) {
    remove_snapshot(node.snapshots.back());
  }
  for (std::size_t group = 0; group < node.pages.size(); ++group) {
    const ItemId page = node.pages[group].back();
    if (page != kNoItem) {
      if (events_) tell_removed(id, group, node.pages[group].size() - 1);
      drop_page(group, page);
    }
    node.pages[group].pop_back();
  }
  if (events_) events_->cut_run(id, last - block_of(node.start));
  counts_.tokens -= node.end() - new_end;
  count_blocks(id, -1);
  // The edge is keyed by the first token, which is needed once more when the run is gone.
  if (new_end == node.start) erase_edge(id);
  node.tokens.resize(new_end - node.start);
  cut_keys(id);
}

// A run where a pin ends is no candidate.
void RadixIndex::set_candidate(NodeId id, bool candidate) {
  candidate = candidate && !pins_.covers(id);
  Node& node = nodes_[id];
  if (node.is_root() || node.candidate == candidate) return;
  node.candidate = candidate;
  if (candidate) {
    policy_->insert(evict::run_unit(id));
  } else if (parked_.erase(id) == 0) {
    policy_->erase(evict::run_unit(id));
  }
}

void RadixIndex::erase_edge(NodeId id) {
  const Node& node = nodes_[id];
  if (node.label.empty()) {
    edges_.erase(node.parent, node.tokens.front());
  } else {
    media_edges_.erase(media_edge(node.parent, node.tokens.front(), node.label));
  }
}

// Removes an empty leaf from its parent, and a root that lost its last child.
void RadixIndex::detach(NodeId id) {
  const NodeId parent = nodes_[id].parent;
  unlink(id);
  free_node(id);
  settle(parent);
}

// What has lost a child is a leaf now, or a root that nobody needs.
void RadixIndex::settle(NodeId id) {
  Node& node = nodes_[id];
  if (node.children > 0) return;
  if (!node.is_root()) {
    set_candidate(id, true);
    return;
  }
  roots_.erase(node.label);
  free_node(id);
}

void RadixIndex::clear() noexcept {
  try {
    const auto change = begin_change();
    drop_all();
    reap(SIZE_MAX);
    window_queue_.clear();
  } catch (const std::bad_alloc&) {  // that has dropped it
  }
}

// ---- Many at once -----------------------------------------------------------------------------

void RadixIndex::bump_epoch() noexcept {
  ++epoch_;
  try {
    const auto change = begin_change();
    drop_all();
  } catch (const std::bad_alloc&) {  // that has dropped it
  }
}

// From here on nothing is found; what it holds is given back bit by bit.
void RadixIndex::drop_all() {
  if (events_) tell_cleared();
  ++generation_;
  if (roots_.empty()) return;
  removals_.dropped_blocks += counts_.blocks;
  removals_.dropped_snapshots += counts_.snapshots;
  while (const PinId id = pins_.any()) end_pin(id);
  stale_roots_.push_back(std::exchange(roots_, {}));
  stale_.nodes += std::exchange(counts_.nodes, 0);
  stale_.blocks += std::exchange(counts_.blocks, 0);
  stale_.tokens += std::exchange(counts_.tokens, 0);
  stale_.snapshots += std::exchange(counts_.snapshots, 0);
  tenants_.drop_all();
  if (orders_ != nullptr) orders_->forget_all();
}

std::size_t RadixIndex::reap(std::size_t most) {
  std::size_t reaped = 0;
  std::swap(counts_, stale_);
  reaping_ = true;
  while (reaped < most) {
    if (doomed_.empty()) {
      if (stale_roots_.empty()) break;
      auto& roots = stale_roots_.back();
      doomed_.push_back(roots.begin()->second);
      roots.erase(roots.begin());
      if (roots.empty()) stale_roots_.pop_back();
    }
    reaped += reap_one();
  }
  reaping_ = false;
  std::swap(counts_, stale_);
  return reaped;
}

// Gives back the next leaf of what is doomed. Returns 1 for a run or a root, 0 for a step down.
std::size_t RadixIndex::reap_one() {
  const NodeId id = doomed_.back();
  if (const NodeId child = nodes_[id].first_child; child != kNoNode) {
    doomed_.push_back(child);
    return 0;
  }
  doomed_.pop_back();
  remove_leaf(id);
  return 1;
}

// Drops a subtree now. What is stale has gone before.
void RadixIndex::erase_subtree(NodeId top) {
  reap(SIZE_MAX);
  const std::uint64_t before = counts_.blocks;
  leaving_ = MissReason::kErased;
  doomed_.push_back(top);
  while (!doomed_.empty()) reap_one();
  leaving_ = MissReason::kEvicted;
  removals_.erased_blocks += before - counts_.blocks;
}

// Takes a whole leaf, or a root without children, from the tree. Its parent is the caller's affair.
void RadixIndex::remove_leaf(NodeId id) {
  unpin_ending_at(id);
  Node& node = nodes_[id];
  if (!node.is_root() && !reaping_) remember_run(id);
  while (!node.snapshots.empty()) remove_snapshot(node.snapshots.back());
  if (events_) tell_run_removed(id);
  for (std::size_t group = 0; group < node.pages.size(); ++group) {
    for (const ItemId page : node.pages[group]) {
      if (page != kNoItem) drop_page(group, page);
    }
  }
  if (!node.is_root()) {
    counts_.tokens -= node.tokens.size();
    count_blocks(id, -static_cast<std::int64_t>(blocks_to(node.end()) - block_of(node.start)));
    set_candidate(id, false);
    policy_->shrink_run(id, node.start);
    erase_edge(id);
    unlink(id);
  }
  free_node(id);
}

std::uint64_t RadixIndex::erase_spaces(const std::function<bool(std::string_view)>& chosen) {
  const auto change = begin_change();
  const std::uint64_t before = counts_.blocks;
  for (auto root = roots_.begin(); root != roots_.end();) {
    if (!chosen(root->first)) {
      ++root;
      continue;
    }
    erase_subtree(root->second);
    root = roots_.erase(root);
  }
  return before - counts_.blocks;
}

std::uint64_t RadixIndex::erase_prefix(const SpaceRef& space,
                                       std::span<const std::int32_t> tokens) {
  const NodeId root = root_of(space, false);
  if (root == kNoNode || tokens.empty()) return 0;
  const std::vector<Step> path = walk(root, tokens, space.media);
  if (path.empty() || path.back().end < tokens.size()) return 0;
  const auto change = begin_change();
  const std::uint64_t before = counts_.blocks;
  // Up to where the path was shared with others, it led only here.
  NodeId top = path.back().node;
  while (!nodes_[nodes_[top].parent].is_root() && nodes_[nodes_[top].parent].children == 1) {
    top = nodes_[top].parent;
  }
  const NodeId above = nodes_[top].parent;
  erase_subtree(top);
  settle(above);
  return before - counts_.blocks;
}

}  // namespace kvcache::prefix
