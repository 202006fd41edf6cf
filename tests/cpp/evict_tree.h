// A tree of runs like the index's, for tests of eviction policies.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "evict/policy.h"

namespace kvcache::evict {

inline constexpr std::uint64_t kBlock = 4;
inline constexpr Costs kCosts{kBlock, 64, 256, 1 << 12, 1.0, 0.01};
inline const Policy::MayGo kAny = [](Unit) { return true; };

// The part of an index that a policy sees. Node 0 is the root.
class Tree {
 public:
  explicit Tree(Policy& policy) : policy_(policy) {
    nodes_[0] = {};
    policy_.add_root(0, "");
  }

  RunId add(RunId parent, std::uint64_t tokens) {
    const RunId id = next_++;
    Node& node = nodes_[id];
    node.parent = parent;
    node.path = nodes_[parent].path;
    node.start = node.path.size();
    for (std::uint64_t i = 0; i < tokens; ++i) {
      node.path.push_back(static_cast<std::int32_t>(id * 1000 + i));
    }
    if (parent != 0 && nodes_[parent].children == 0) drop(run_unit(parent));
    ++nodes_[parent].children;
    policy_.add_run(id, parent, node.path, node.start, ++clock_);
    enter(run_unit(id));
    return id;
  }
  void use(RunId id) {
    ++clock_;
    policy_.arrive({clock_ * 1000, id, nodes_[id].path.size()});
    for (RunId at = id; at != 0; at = nodes_[at].parent) policy_.use(run_unit(at), clock_);
    const std::uint64_t end = nodes_[id].path.size();
    policy_.complete({clock_ * 1000, id, end, end, 0, 0});
  }
  void split(RunId id, std::uint64_t position) {
    const RunId upper = next_++;
    Node& lower = nodes_[id];
    Node above = lower;
    above.path.resize(position);
    above.children = 1;
    lower.start = position;
    lower.parent = upper;
    nodes_[upper] = above;
    for (auto& [snapshot, where] : snapshots_) {
      if (where.run == id && where.position <= position) where.run = upper;
    }
    policy_.split_run(upper, id, position);
  }
  SnapshotId snapshot(RunId id, std::uint64_t position) {
    const SnapshotId snapshot = next_++;
    snapshots_[snapshot] = {id, position};
    policy_.add_snapshot(snapshot, id, position, ++clock_);
    enter(snapshot_unit(snapshot));
    return snapshot;
  }
  void evict(Unit unit) {
    if (unit.kind == UnitKind::kSnapshot) return remove_snapshot(unit.id);
    Node& node = nodes_[unit.id];
    const std::uint64_t last = (node.path.size() - 1) / kBlock * kBlock;
    const std::uint64_t end = std::max(node.start, last);
    for (const SnapshotId snapshot : snapshots_below(unit.id, end)) remove_snapshot(snapshot);
    node.path.resize(end);
    if (end > node.start) return policy_.shrink_run(unit.id, end);
    drop(unit);
    policy_.shrink_run(unit.id, end);
    const RunId parent = node.parent;
    nodes_.erase(unit.id);
    if (--nodes_[parent].children == 0 && parent != 0) enter(run_unit(parent));
  }

  // Something happens that it does not concern.
  void tick() { ++clock_; }

  std::vector<RunId> runs() const {
    std::vector<RunId> ids;
    for (const auto& [id, node] : nodes_) {
      if (id != 0) ids.push_back(id);
    }
    return ids;
  }
  RunId parent(RunId id) const { return nodes_.at(id).parent; }
  std::uint64_t start(RunId id) const { return nodes_.at(id).start; }
  std::uint64_t end(RunId id) const { return nodes_.at(id).path.size(); }
  const std::set<Unit>& candidates() const { return candidates_; }

 private:
  struct Node {
    RunId parent = 0;
    std::uint64_t start = 0;
    std::vector<std::int32_t> path;
    int children = 0;
  };
  struct Where {
    RunId run;
    std::uint64_t position;
  };

  void enter(Unit unit) {
    candidates_.insert(unit);
    policy_.insert(unit);
  }
  void drop(Unit unit) {
    candidates_.erase(unit);
    policy_.erase(unit);
  }
  void remove_snapshot(SnapshotId id) {
    drop(snapshot_unit(id));
    policy_.remove_snapshot(id);
    snapshots_.erase(id);
  }
  std::vector<SnapshotId> snapshots_below(RunId run, std::uint64_t end) const {
    std::vector<SnapshotId> found;
    for (const auto& [id, where] : snapshots_) {
      if (where.run == run && where.position > end) found.push_back(id);
    }
    return found;
  }

  Policy& policy_;
  std::map<RunId, Node> nodes_;
  std::map<SnapshotId, Where> snapshots_;
  std::set<Unit> candidates_;
  std::uint32_t next_ = 1;
  std::uint64_t clock_ = 0;
};

// One of what an index may do, but for evicting: then false.
inline bool random_step(Tree& tree, std::mt19937& rng) {
  const auto runs = tree.runs();
  const RunId any = runs.empty() ? 0 : runs[rng() % runs.size()];
  const std::uint64_t length = any == 0 ? 0 : tree.end(any) - tree.start(any);
  switch (rng() % 6) {
    case 0:
      tree.add(any, 1 + rng() % 20);
      return true;
    case 1:
      if (any != 0) tree.use(any);
      return true;
    case 2:
      if (length > 1) tree.split(any, tree.start(any) + 1 + rng() % (length - 1));
      return true;
    case 3:
      if (any != 0) tree.snapshot(any, tree.start(any) + 1 + rng() % length);
      return true;
    default:
      return false;
  }
}

}  // namespace kvcache::evict
