// Who is charged for what, and quotas: what a tenant stores makes room among the tenant's own.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "prefix/radix_index.h"

namespace kvcache::prefix {

// ---- Charges ------------------------------------------------------------------------------------

TenantId RadixIndex::owner(evict::Unit unit) const {
  if (unit.kind == evict::UnitKind::kRun) return nodes_[unit.id].tenant;
  const Snapshot& snapshot = snapshots_[unit.id];
  if (snapshot.item == kNoItem) return kNobody;
  return tenants_.owner(pool_of(snapshot.format), snapshot.item);
}

std::optional<evict::RunId> RadixIndex::above(evict::RunId run) const {
  if (nodes_[run].is_root()) return std::nullopt;
  return nodes_[run].parent;
}

// The first reference of a run.
void RadixIndex::charge_page(std::size_t group, ItemId page, TenantId tenant) {
  const arena::Pool& pool = *pools_.pages[group];
  if (pool.indexed(page) == 0) tenants_.charge(group, page, tenant, pool.item_bytes());
}

// The last one.
void RadixIndex::discharge_page(std::size_t group, ItemId page) {
  const arena::Pool& pool = *pools_.pages[group];
  if (pool.indexed(page) == 1) tenants_.discharge(group, page, pool.item_bytes(), reaping_);
}

void RadixIndex::take_snapshot(const SnapshotRef& ref, TenantId tenant) {
  arena::Pool& pool = pools_.of(ref);
  if (tenant != kNobody && pool.indexed(ref.item) == 0) {
    tenants_.charge(pool_of(ref.format), ref.item, tenant, pool.item_bytes());
    ++tenants_[tenant].usage.snapshots;
  }
  pool.retain_indexed(ref.item);
}

void RadixIndex::drop_snapshot(SnapshotFormat format, ItemId item) {
  arena::Pool& pool = pools_.of(format);
  const TenantId tenant = tenants_.owner(pool_of(format), item);
  if (tenant != kNobody && pool.indexed(item) == 1) {
    if (!reaping_) --tenants_[tenant].usage.snapshots;
    tenants_.discharge(pool_of(format), item, pool.item_bytes(), reaping_);
  }
  pool.release_indexed(item);
}

// A more precise snapshot of the same position takes the place of the one with this number.
void RadixIndex::replace_snapshot(std::uint32_t index, const SnapshotRef& ref, TenantId tenant) {
  Snapshot& known = snapshots_[index];
  const TenantId before = owner(evict::snapshot_unit(index));
  const bool listed = !pins_.holds_snapshot(index);
  if (orders_ != nullptr && before != tenant) orders_->leave_snapshot(before, index, listed);
  take_snapshot(ref, tenant);
  drop_snapshot(known.format, known.item);
  known.item = ref.item;
  known.format = ref.format;
  if (orders_ == nullptr || before == tenant || !orders_->has(tenant)) return;
  orders_->join_snapshot(tenant, index, known.node, known.position, clock_);
  if (listed) orders_->list(tenant, evict::snapshot_unit(index));
}

void RadixIndex::count_blocks(NodeId id, std::int64_t blocks) {
  counts_.blocks += static_cast<std::uint64_t>(blocks);
  const TenantId tenant = nodes_[id].tenant;
  if (tenant != kNobody && !reaping_) {
    tenants_[tenant].usage.blocks += static_cast<std::uint64_t>(blocks);
  }
}

// ---- A tenant's own order -----------------------------------------------------------------------

void RadixIndex::set_quota(std::string_view tenant, const std::optional<Quota>& quota) {
  const auto change = begin_change();
  const TenantId id = quota ? tenants_.enter(tenant) : tenants_.find(tenant);
  if (id == kNobody) return;
  if (!quota) {
    tenants_.set_quota(id, quota);
    if (orders_ == nullptr) return;
    orders_->remove(id);
    if (!orders_->empty()) return;
    policy_ = std::exchange(orders_, nullptr)->take_all();
    return;
  }
  if (orders_ == nullptr || !orders_->has(id)) {
    start_order(id);
    if (tenants_[id].items > 0 || tenants_[id].runs > 0) describe(id);
  }
  tenants_.set_quota(id, quota);
  trim(id);
}

void RadixIndex::start_order(TenantId tenant) {
  if (orders_ == nullptr) {
    auto make = make_order_;  // all that can fail comes before the policy is given away
    orders_ = new evict::TenantPolicies(std::move(policy_), *this, std::move(make));
    policy_.reset(orders_);
  }
  orders_->add(tenant);
}

void RadixIndex::join_path(TenantId tenant, NodeId root, const std::vector<NodeId>& path,
                           std::span<const std::int32_t> tokens) {
  orders_->join_root(tenant, root, nodes_[root].label);
  for (const NodeId id : path) {
    orders_->join(tenant, id, tokens.first(nodes_[id].end()), nodes_[id].used);
  }
}

// What a tenant had stored before it had a quota; how often it was used is not known any more.
void RadixIndex::describe(TenantId tenant) {
  for (const auto& [key, root] : roots_) describe_space(tenant, root);
}

void RadixIndex::describe_space(TenantId tenant, NodeId root) {
  std::vector<std::int32_t> tokens;
  std::vector<NodeId> path;
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
    tokens.resize(node.start);
    tokens.insert(tokens.end(), node.tokens.begin(), node.tokens.end());
    while (!path.empty() && nodes_[path.back()].end() > node.start) path.pop_back();
    path.push_back(id);
    push_children(id);
    std::vector<std::uint32_t> snapshots;
    std::copy_if(node.snapshots.begin(), node.snapshots.end(), std::back_inserter(snapshots),
                 [&](std::uint32_t index) { return owner(evict::snapshot_unit(index)) == tenant; });
    if (node.tenant != tenant && snapshots.empty()) continue;
    join_path(tenant, root, path, tokens);
    if (node.tenant == tenant && node.candidate && !parked_.contains(id)) {
      orders_->list(tenant, evict::run_unit(id));
    }
    for (const std::uint32_t index : snapshots) {
      orders_->join_snapshot(tenant, index, id, snapshots_[index].position, node.used);
      if (!pins_.holds_snapshot(index)) orders_->list(tenant, evict::snapshot_unit(index));
    }
  }
}

// Whether the last block of a run takes state along that others are charged for.
bool RadixIndex::frees_others(NodeId id, TenantId tenant) const {
  const Node& node = nodes_[id];
  for (std::size_t group = 0; group < node.pages.size(); ++group) {
    const ItemId page = node.pages[group].back();
    if (page == kNoItem || tenants_.owner(group, page) == tenant) continue;
    if (pools_.pages[group]->indexed(page) == 1) return true;
  }
  const std::uint64_t end = block_of(node.end() - 1) * plan_.block_tokens();
  return std::any_of(node.snapshots.rbegin(), node.snapshots.rend(), [&](std::uint32_t index) {
    const Snapshot& snapshot = snapshots_[index];
    return snapshot.position > end && snapshot.item != kNoItem &&
           owner(evict::snapshot_unit(index)) != tenant;
  });
}

// What nobody finds goes first, whoever stored it.
bool RadixIndex::evict_one_of(TenantId tenant, NodeId kept) {
  lapse();
  if (stale_roots_.empty() && doomed_.empty() && (expire_one() || release_interior())) return true;
  auto victim = find_victim(tenant, kept);
  if (!victim && unpark_released()) victim = find_victim(tenant, kept);
  if (!victim) return false;
  for_quota_ = tenant;
  evict_unit(*victim);
  for_quota_ = kNobody;
  return true;
}

void RadixIndex::trim(TenantId tenant) {
  while (tenants_[tenant].is_over() && evict_one_of(tenant, kNoNode)) {
  }
}

void RadixIndex::trim(std::string_view tenant) noexcept {
  try {
    const TenantId id = tenants_.find(tenant);
    if (id == kNobody || !tenants_[id].is_over()) return;
    const auto change = begin_change();
    trim(id);
  } catch (const std::bad_alloc&) {  // what is beyond the quota goes later, or has gone
  }
}

// ---- What a quota lets in -----------------------------------------------------------------------

std::uint64_t RadixIndex::bytes_on(const std::vector<NodeId>& path, TenantId tenant) const {
  std::uint64_t bytes = 0;
  for (const NodeId id : path) {
    for (std::size_t group = 0; group < nodes_[id].pages.size(); ++group) {
      for (const ItemId page : nodes_[id].pages[group]) {
        if (page == kNoItem || tenants_.owner(group, page) != tenant) continue;
        bytes += pools_.pages[group]->item_bytes();
      }
    }
  }
  return bytes;
}

bool RadixIndex::has_room(const SpaceRef& space, std::span<const std::int32_t> tokens,
                          std::string_view tenant) const {
  const TenantId id = tenants_.find(tenant);
  if (id == kNobody || !tenants_.is_limited(id)) return true;
  std::uint64_t taken = 0;
  std::uint64_t block = 0;  // what every block adds
  for (std::size_t group = 0; group < pools_.pages.size(); ++group) {
    if (is_whole(plan_.groups()[group])) block += pools_.pages[group]->item_bytes();
  }
  const auto root = roots_.find(std::string(space.key));
  if (root != roots_.end()) {
    for (const Step& step : walk(root->second, tokens, space.media)) {
      const Node& node = nodes_[step.node];
      const std::uint64_t blocks = blocks_to(step.end) - block_of(node.start);
      for (std::size_t group = 0; group < node.pages.size(); ++group) {
        for (std::uint64_t i = 0; i < blocks && i < node.pages[group].size(); ++i) {
          const ItemId page = node.pages[group][i];
          if (page == kNoItem || tenants_.owner(group, page) != id) continue;
          taken += pools_.pages[group]->item_bytes();
        }
      }
    }
  }
  const std::uint64_t quota = *tenants_[id].usage.quota_bytes;
  return quota > taken && quota - taken >= block;
}

// Bytes that it adds; those of one that it takes the place of count no less.
std::uint64_t RadixIndex::snapshot_cost(const std::vector<NodeId>& path,
                                        const SnapshotRef& ref) const {
  if (ref.item == kNoItem || pools_.of(ref).indexed(ref.item) > 0) return 0;
  for (const NodeId id : path) {
    for (const std::uint32_t index : nodes_[id].snapshots) {
      const Snapshot& known = snapshots_[index];
      if (known.position == ref.position && known.item != kNoItem && known.format <= ref.format) {
        return 0;
      }
    }
  }
  return pools_.of(ref).item_bytes();
}

// Bytes that a block's pages add.
std::uint64_t RadixIndex::block_cost(const BlockTables& tables, std::uint64_t block) const {
  std::uint64_t bytes = 0;
  for (std::size_t group = 0; group < tables.size(); ++group) {
    bytes += page_cost(tables, group, block);
  }
  return bytes;
}

std::uint64_t RadixIndex::page_cost(const BlockTables& tables, std::size_t group,
                                    std::uint64_t block) const {
  const ItemId page = tables[group][block];
  const arena::Pool& pool = *pools_.pages[group];
  return page != kNoItem && pool.indexed(page) == 0 ? pool.item_bytes() : 0;
}

// Bytes that filling the holes of a path adds.
std::uint64_t RadixIndex::hole_cost(const std::vector<NodeId>& path,
                                    const BlockTables& tables) const {
  std::uint64_t bytes = 0;
  for (const NodeId id : path) {
    const Node& node = nodes_[id];
    for (std::size_t group = 0; group < node.pages.size(); ++group) {
      for (std::size_t i = 0; i < node.pages[group].size(); ++i) {
        if (node.pages[group][i] != kNoItem) continue;
        bytes += page_cost(tables, group, block_of(node.start) + i);
      }
    }
  }
  return bytes;
}

// As much as there is room for, from the front on. State of fixed size is of use at its snapshots
// only, so a part of a path ends at one; of several, the deepest count most.
RadixIndex::Portion RadixIndex::portion_of(const std::vector<NodeId>& path, const Insertion& what,
                                           std::uint64_t room) const {
  const std::uint64_t known = path.empty() ? 0 : nodes_[path.back()].end();
  const std::uint64_t size = what.tokens.size();
  const std::uint64_t first = block_of(known);
  Portion portion;
  portion.end = known;
  const std::uint64_t holes = hole_cost(path, what.tables);
  portion.fills = holes <= room;
  if (!portion.fills) return portion;
  portion.bytes = holes;

  std::vector<std::uint64_t> pages(1);  // bytes of so many blocks from the first new one on
  for (std::uint64_t block = first; block < blocks_to(size); ++block) {
    pages.push_back(pages.back() + block_cost(what.tables, block));
  }
  std::vector<SnapshotRef> snapshots(what.snapshots.begin(), what.snapshots.end());
  std::stable_sort(
      snapshots.begin(), snapshots.end(),
      [](const SnapshotRef& a, const SnapshotRef& b) { return a.position > b.position; });
  const auto fits = [&](std::uint64_t end) {
    const auto deepest = std::find_if(snapshots.begin(), snapshots.end(),
                                      [&](const SnapshotRef& ref) { return ref.position <= end; });
    const bool counts = deepest != snapshots.end() && deepest->position > known;
    const std::uint64_t bytes = counts ? snapshot_cost(path, *deepest) : 0;
    return portion.bytes + pages[blocks_to(end) - first] + bytes <= room;
  };
  if (size > known && fits(size)) {
    portion.end = size;
  } else if (plan_.has_fixed_state()) {
    const auto fitting = std::find_if(
        snapshots.begin(), snapshots.end(),
        [&](const SnapshotRef& ref) { return ref.position > known && fits(ref.position); });
    if (fitting != snapshots.end()) portion.end = fitting->position;
  } else {
    const auto within = std::upper_bound(pages.begin(), pages.end(), room - portion.bytes);
    const auto blocks = static_cast<std::uint64_t>(within - pages.begin()) - 1;
    if (blocks > 0) portion.end = std::min(size, (first + blocks) * plan_.block_tokens());
  }
  if (portion.end > known) portion.bytes += pages[blocks_to(portion.end) - first];
  for (const SnapshotRef& ref : snapshots) {
    const std::uint64_t bytes = snapshot_cost(path, ref);
    if (ref.position > portion.end || bytes > room - portion.bytes) continue;
    portion.bytes += bytes;
    portion.snapshots.push_back(ref);
  }
  portion.complete = portion.end == size && portion.snapshots.size() == snapshots.size();
  return portion;
}

// Cuts an insertion down to what its tenant's quota has room for, once what of the tenant's own may
// go has gone; the path that it continues stays. False: nothing is to be added.
bool RadixIndex::admit(const std::vector<NodeId>& path, Insertion& what, Portion& portion) {
  const Tenant& tenant = tenants_[what.tenant];
  const std::uint64_t quota = *tenant.usage.quota_bytes;
  const auto left = [&](std::uint64_t taken) { return quota - std::min(quota, taken); };
  const NodeId last = path.empty() ? kNoNode : path.back();
  const std::uint64_t size = what.tokens.size();
  for (bool more = true;;) {
    portion = portion_of(path, what, left(more ? bytes_on(path, what.tenant) : tenant.usage.bytes));
    if (what.whole && !portion.complete) {
      remember_refused(what, {});
      return false;
    }
    if (portion.bytes <= left(tenant.usage.bytes) || !more) break;
    // A victim may have been a snapshot that was not to be stored again.
    while (more && portion.bytes > left(tenant.usage.bytes)) {
      more = evict_one_of(what.tenant, last);
    }
  }
  if (!portion.complete) remember_refused(what, portion);
  tenants_[what.tenant].usage.refused_blocks += blocks_to(size) - blocks_to(portion.end);
  what.tokens = what.tokens.first(portion.end);
  what.snapshots = portion.snapshots;
  what.fills = portion.fills;
  return portion.end > 0;
}

// ---- Erasing ------------------------------------------------------------------------------------

std::uint64_t RadixIndex::erase_tenant(std::string_view tenant,
                                       const std::function<bool(std::string_view)>& chosen) {
  const auto change = begin_change();
  reap(SIZE_MAX);
  const std::uint64_t before = counts_.blocks;
  std::vector<NodeId> roots;
  for (const auto& [key, root] : roots_) {
    if (chosen(key)) roots.push_back(root);
  }
  for (const NodeId root : roots) {
    const TenantId id = tenants_.find(tenant);
    if (id == kNobody) break;
    erase_units(root, id);
    settle(root);
  }
  removals_.erased_blocks += before - counts_.blocks;
  return before - counts_.blocks;
}

std::uint64_t RadixIndex::erase_tenant(std::string_view tenant, const SpaceRef& space,
                                       std::span<const std::int32_t> tokens) {
  const auto change = begin_change();
  reap(SIZE_MAX);
  const TenantId id = tenants_.find(tenant);
  const NodeId root = root_of(space, false);
  if (id == kNobody || root == kNoNode || tokens.empty()) return 0;
  const std::vector<Step> path = walk(root, tokens, space.media);
  if (path.empty() || path.back().end < tokens.size()) return 0;
  const std::uint64_t before = counts_.blocks;
  tenants_.add_run(id);  // so that it keeps its number
  NodeId above = nodes_[path.back().node].parent;
  erase_units(path.back().node, id);
  while (!nodes_[above].is_root() && is_end_of(above, id)) {
    const NodeId next = nodes_[above].parent;
    erase_run(above, id);
    above = next;
  }
  settle(above);
  tenants_.remove_run(id);
  removals_.erased_blocks += before - counts_.blocks;
  return before - counts_.blocks;
}

// A subtree from its leaves up.
void RadixIndex::erase_units(NodeId top, TenantId tenant) {
  tenants_.add_run(tenant);
  std::vector<std::pair<NodeId, bool>> ahead{{top, false}};
  while (!ahead.empty()) {
    const auto [id, entered] = ahead.back();
    if (!entered) {
      ahead.back().second = true;
      for (NodeId child = nodes_[id].first_child; child != kNoNode; child = nodes_[child].next) {
        ahead.emplace_back(child, false);
      }
      continue;
    }
    ahead.pop_back();
    if (nodes_[id].is_root() || erase_run(id, tenant)) continue;
    if (nodes_[id].children == 0) set_candidate(id, true);
  }
  tenants_.remove_run(tenant);
}

// Whether a run is all a tenant's and nothing continues it.
bool RadixIndex::is_end_of(NodeId id, TenantId tenant) const {
  const Node& node = nodes_[id];
  return node.tenant == tenant && node.children == 0 &&
         std::all_of(node.snapshots.begin(), node.snapshots.end(), [&](std::uint32_t index) {
           return snapshots_[index].item == kNoItem || owner(evict::snapshot_unit(index)) == tenant;
         });
}

// Of one run: the run with all it holds, or else what the tenant is charged for in it. True: the
// run has gone.
bool RadixIndex::erase_run(NodeId id, TenantId tenant) {
  const bool goes = is_end_of(id, tenant);
  leaving_ = MissReason::kErased;
  if (goes) {
    remove_leaf(id);
  } else {
    for (const std::uint32_t index : std::vector(nodes_[id].snapshots)) {
      if (owner(evict::snapshot_unit(index)) != tenant) continue;
      for (const PinId pin : pins_.holding(index)) end_pin(pin);
      remove_snapshot(index);
    }
  }
  leaving_ = MissReason::kEvicted;
  if (!goes) disown(id, tenant);
  return goes;
}

void RadixIndex::disown(NodeId id, TenantId tenant) {
  Node& node = nodes_[id];
  for (std::size_t group = 0; group < node.pages.size(); ++group) {
    for (const ItemId page : node.pages[group]) {
      if (page == kNoItem || tenants_.owner(group, page) != tenant) continue;
      tenants_.discharge(group, page, pools_.pages[group]->item_bytes());
    }
  }
  if (node.tenant != tenant) return;
  const bool listed = node.candidate && !parked_.contains(id);
  if (listed) policy_->erase(evict::run_unit(id));
  tenants_[tenant].usage.blocks -= blocks_to(node.end()) - block_of(node.start);
  node.tenant = kNobody;
  tenants_.add_run(kNobody);
  tenants_.remove_run(tenant);
  if (listed) policy_->insert(evict::run_unit(id));
}

}  // namespace kvcache::prefix
