// One policy over everything, and another of its kind over what each tenant with a quota has
// stored: among its own a tenant gives up what the policy would, and when memory runs out the
// choice is the one there would be without quotas.
// A tenant's instance knows the runs on the paths that the tenant has stored, whoever stored them
// first, so that they are whole; candidates are only the tenant's own.
// Thread safety: thread-compatible; the cache's lock guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "evict/policy.h"

namespace kvcache::evict {

using TenantId = std::uint32_t;
inline constexpr TenantId kNobody = 0;

// What the index knows of its units.
class UnitOwners {
 public:
  virtual ~UnitOwners() = default;
  virtual TenantId owner(Unit unit) const = 0;
  virtual std::optional<RunId> above(RunId run) const = 0;  // none: it is a root
  virtual std::uint64_t start(RunId run) const = 0;
  virtual std::uint64_t end(RunId run) const = 0;
};

class TenantPolicies final : public Policy {
 public:
  TenantPolicies(std::unique_ptr<Policy> all, const UnitOwners& units, PolicyMaker make) noexcept
      : all_(std::move(all)), units_(units), make_(std::move(make)) {}
  // The policy over everything, which can do without this one from now on.
  std::unique_ptr<Policy> take_all() { return std::move(all_); }

  // ---- Tenants with an instance ----
  void add(TenantId tenant) { orders_.try_emplace(tenant, Order{make_(), {}, {}}); }
  void remove(TenantId tenant) { orders_.erase(tenant); }
  bool empty() const { return orders_.empty(); }
  bool has(TenantId tenant) const { return orders_.contains(tenant); }
  // A path of the tenant's leads through these: told from the root down, more than once is no
  // error. `path`: the tokens up to the run's end.
  void join_root(TenantId tenant, RunId root, std::string_view space);
  void join(TenantId tenant, RunId run, std::span<const std::int32_t> path, std::uint64_t clock);
  // What the tenant had stored before it had an instance, on runs that have joined.
  void join_snapshot(TenantId tenant, SnapshotId snapshot, RunId run, std::uint64_t position,
                     std::uint64_t clock);
  void list(TenantId tenant, Unit unit) { orders_.at(tenant).policy->insert(unit); }
  // It is another tenant's from now on. `listed`: it was a candidate.
  void leave_snapshot(TenantId tenant, SnapshotId snapshot, bool listed);
  // victim() among the tenant's own.
  std::optional<Unit> victim_of(TenantId tenant, const MayGo& may_go) {
    return orders_.at(tenant).policy->victim(may_go);
  }
  // Everything is dropped; what is told of it from now on concerns no tenant.
  void forget_all();

  // ---- Policy ----
  std::string_view name() const override { return all_->name(); }
  void add_root(RunId root, std::string_view space) override;
  void add_run(RunId run, RunId parent, std::span<const std::int32_t> path, std::uint64_t start,
               std::uint64_t clock) override;
  void grow_run(RunId run, std::span<const std::int32_t> path) override;
  void split_run(RunId upper, RunId run, std::uint64_t position) override;
  void shrink_run(RunId run, std::uint64_t end) override;
  void add_snapshot(SnapshotId snapshot, RunId run, std::uint64_t position,
                    std::uint64_t clock) override;
  void remove_snapshot(SnapshotId snapshot) override;
  bool learns() const override { return all_->learns(); }
  void use(Unit unit, std::uint64_t clock) override;
  void arrive(const Arrival& arrival) override;
  void complete(const Completion& completion) override;
  Meter meter() const override { return all_->meter(); }
  void insert(Unit unit) override;
  void erase(Unit unit) override;
  std::optional<Unit> victim(const MayGo& may_go) override { return all_->victim(may_go); }
  std::size_t foresee(std::span<Unit> units) override { return all_->foresee(units); }

 private:
  // By number, which of the index's things an instance was told of.
  class Known {
   public:
    bool has(std::uint32_t id) const { return id < known_.size() && known_[id]; }
    void set(std::uint32_t id, bool known) {
      if (id >= known_.size()) {
        if (!known) return;
        known_.resize(id + std::size_t{1});
      }
      known_[id] = known;
    }

   private:
    std::vector<bool> known_;
  };
  struct Order {
    std::unique_ptr<Policy> policy;
    Known runs;
    Known snapshots;

    bool knows(Unit unit) const {
      return unit.kind == UnitKind::kRun ? runs.has(unit.id) : snapshots.has(unit.id);
    }
  };

  // The instance of a unit's owner, where it knows the unit.
  Order* of(Unit unit);
  void forget_run(RunId run);
  template <typename Tell>
  void tell_owners(RunId deepest, Tell&& tell);

  std::unique_ptr<Policy> all_;
  const UnitOwners& units_;
  const PolicyMaker make_;
  std::map<TenantId, Order> orders_;
};

}  // namespace kvcache::evict
