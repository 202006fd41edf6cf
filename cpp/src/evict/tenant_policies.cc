#include "evict/tenant_policies.h"

#include <algorithm>

namespace kvcache::evict {

// ---- Who is told what ---------------------------------------------------------------------------

TenantPolicies::Order* TenantPolicies::of(Unit unit) {
  const auto found = orders_.find(units_.owner(unit));
  return found != orders_.end() && found->second.knows(unit) ? &found->second : nullptr;
}

// The number is another's now.
void TenantPolicies::forget_run(RunId run) {
  for (auto& [tenant, order] : orders_) order.runs.set(run, false);
}

// Calls `tell(policy, run)` for everyone who owns a run of the path to `deepest`, with the deepest
// of them.
template <typename Tell>
void TenantPolicies::tell_owners(RunId deepest, Tell&& tell) {
  std::vector<TenantId> told;
  for (std::optional<RunId> run = deepest; run; run = units_.above(*run)) {
    const TenantId owner = units_.owner(run_unit(*run));
    if (owner == kNobody || std::find(told.begin(), told.end(), owner) != told.end()) continue;
    const auto order = orders_.find(owner);
    if (order == orders_.end() || !order->second.runs.has(*run)) continue;
    told.push_back(owner);
    tell(*order->second.policy, *run);
  }
}

void TenantPolicies::join_root(TenantId tenant, RunId root, std::string_view space) {
  Order& order = orders_.at(tenant);
  if (order.runs.has(root)) return;
  order.policy->add_root(root, space);
  order.runs.set(root, true);
}

void TenantPolicies::join(TenantId tenant, RunId run, std::span<const std::int32_t> path,
                          std::uint64_t clock) {
  Order& order = orders_.at(tenant);
  if (order.runs.has(run)) return;
  order.policy->add_run(run, *units_.above(run), path, units_.start(run), clock);
  order.runs.set(run, true);
}

void TenantPolicies::join_snapshot(TenantId tenant, SnapshotId snapshot, RunId run,
                                   std::uint64_t position, std::uint64_t clock) {
  Order& order = orders_.at(tenant);
  order.policy->add_snapshot(snapshot, run, position, clock);
  order.snapshots.set(snapshot, true);
}

void TenantPolicies::leave_snapshot(TenantId tenant, SnapshotId snapshot, bool listed) {
  const auto found = orders_.find(tenant);
  if (found == orders_.end() || !found->second.snapshots.has(snapshot)) return;
  Order& order = found->second;
  if (listed) order.policy->erase(snapshot_unit(snapshot));
  order.policy->remove_snapshot(snapshot);
  order.snapshots.set(snapshot, false);
}

void TenantPolicies::forget_all() {
  for (auto& [tenant, order] : orders_) order = {make_(), {}, {}};
}

// ---- Policy -------------------------------------------------------------------------------------

void TenantPolicies::add_root(RunId root, std::string_view space) {
  all_->add_root(root, space);
  forget_run(root);
}

void TenantPolicies::add_run(RunId run, RunId parent, std::span<const std::int32_t> path,
                             std::uint64_t start, std::uint64_t clock) {
  all_->add_run(run, parent, path, start, clock);
  forget_run(run);
  const auto order = orders_.find(units_.owner(run_unit(run)));
  if (order == orders_.end()) return;
  order->second.policy->add_run(run, parent, path, start, clock);
  order->second.runs.set(run, true);
}

void TenantPolicies::grow_run(RunId run, std::span<const std::int32_t> path) {
  all_->grow_run(run, path);
  for (auto& [tenant, order] : orders_) {
    if (order.runs.has(run)) order.policy->grow_run(run, path);
  }
}

void TenantPolicies::split_run(RunId upper, RunId run, std::uint64_t position) {
  all_->split_run(upper, run, position);
  for (auto& [tenant, order] : orders_) {
    const bool known = order.runs.has(run);
    if (known) order.policy->split_run(upper, run, position);
    order.runs.set(upper, known);
  }
}

void TenantPolicies::shrink_run(RunId run, std::uint64_t end) {
  all_->shrink_run(run, end);
  const bool gone = end == units_.start(run);
  for (auto& [tenant, order] : orders_) {
    if (!order.runs.has(run)) continue;
    order.policy->shrink_run(run, end);
    if (gone) order.runs.set(run, false);
  }
}

void TenantPolicies::add_snapshot(SnapshotId snapshot, RunId run, std::uint64_t position,
                                  std::uint64_t clock) {
  all_->add_snapshot(snapshot, run, position, clock);
  const auto order = orders_.find(units_.owner(snapshot_unit(snapshot)));
  if (order == orders_.end() || !order->second.runs.has(run)) return;
  order->second.policy->add_snapshot(snapshot, run, position, clock);
  order->second.snapshots.set(snapshot, true);
}

void TenantPolicies::remove_snapshot(SnapshotId snapshot) {
  all_->remove_snapshot(snapshot);
  for (auto& [tenant, order] : orders_) {
    if (!order.snapshots.has(snapshot)) continue;
    order.policy->remove_snapshot(snapshot);
    order.snapshots.set(snapshot, false);
  }
}

void TenantPolicies::use(Unit unit, std::uint64_t clock) {
  all_->use(unit, clock);
  if (Order* order = of(unit)) order->policy->use(unit, clock);
}

void TenantPolicies::arrive(const Arrival& arrival) {
  all_->arrive(arrival);
  tell_owners(arrival.deepest, [&](Policy& policy, RunId run) {
    policy.arrive({arrival.now_ms, run, std::min(arrival.resident, units_.end(run))});
  });
}

void TenantPolicies::complete(const Completion& completion) {
  all_->complete(completion);
  tell_owners(completion.deepest, [&](Policy& policy, RunId run) {
    Completion part = completion;
    part.deepest = run;
    part.end = std::min(completion.end, units_.end(run));
    policy.complete(part);
  });
}

void TenantPolicies::insert(Unit unit) {
  all_->insert(unit);
  if (Order* order = of(unit)) order->policy->insert(unit);
}

void TenantPolicies::erase(Unit unit) {
  all_->erase(unit);
  if (Order* order = of(unit)) order->policy->erase(unit);
}

}  // namespace kvcache::evict
