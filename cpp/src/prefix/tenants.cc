#include "prefix/tenants.h"

#include <algorithm>
#include <utility>

namespace kvcache::prefix {

TenantId TenantTable::find(std::string_view name) const {
  if (numbers_.empty()) return kNobody;
  const auto found = numbers_.find(std::string(name));
  return found == numbers_.end() ? kNobody : found->second;
}

TenantId TenantTable::enter(std::string_view name) {
  if (name.empty()) return kNobody;
  if (const TenantId known = find(name); known != kNobody) return known;
  Tenant fresh;
  fresh.usage.name = name;
  if (free_.empty()) {
    free_.reserve(tenants_.size() + 1);  // so that giving numbers back cannot fail
    tenants_.emplace_back();
    free_.push_back(static_cast<TenantId>(tenants_.size() - 1));
  }
  const TenantId number = free_.back();
  numbers_.emplace(name, number);
  free_.pop_back();
  tenants_[number] = std::move(fresh);
  return number;
}

void TenantTable::settle(TenantId tenant) {
  Tenant& known = tenants_[tenant];
  const bool needed = known.runs > 0 || known.items > 0 || known.usage.quota_bytes;
  if (tenant == kNobody || needed || known.usage.name.empty()) return;
  numbers_.erase(known.usage.name);
  known = Tenant();
  free_.push_back(tenant);
}

void TenantTable::set_quota(TenantId tenant, const std::optional<Quota>& quota) {
  Tenant& known = tenants_[tenant];
  known.usage.quota_bytes.reset();
  if (!quota) return settle(tenant);
  known.usage.quota_bytes = quota->bytes;
  known.share = quota->share;
}

void TenantTable::charge(std::size_t pool, arena::ItemId item, TenantId tenant,
                         std::uint64_t bytes) {
  auto& owners = owners_[pool];
  const auto at = static_cast<std::size_t>(item);
  if (at >= owners.size()) owners.resize(at + 1);
  owners[at] = tenant;
  ++tenants_[tenant].items;
  tenants_[tenant].usage.bytes += bytes;
}

void TenantTable::discharge(std::size_t pool, arena::ItemId item, std::uint64_t bytes,
                            bool dropped) {
  const TenantId tenant = owner(pool, item);
  if (tenant == kNobody) return;
  owners_[pool][static_cast<std::size_t>(item)] = kNobody;
  --tenants_[tenant].items;
  if (!dropped) tenants_[tenant].usage.bytes -= bytes;
  settle(tenant);
}

void TenantTable::drop_all() {
  for (Tenant& tenant : tenants_) {
    tenant.usage.bytes = 0;
    tenant.usage.blocks = 0;
    tenant.usage.snapshots = 0;
  }
}

void TenantTable::forget_all() noexcept {
  drop_all();
  for (std::vector<TenantId>& owners : owners_) owners.clear();
  for (TenantId tenant = 0; tenant < tenants_.size(); ++tenant) {
    tenants_[tenant].runs = 0;
    tenants_[tenant].items = 0;
    settle(tenant);
  }
}

std::vector<TenantUsage> TenantTable::usage() const {
  std::vector<TenantUsage> all;
  for (const Tenant& tenant : tenants_) {
    const TenantUsage& usage = tenant.usage;
    const bool stores = usage.bytes + usage.blocks + usage.snapshots > 0;
    if (!usage.name.empty() && (stores || usage.quota_bytes)) all.push_back(usage);
  }
  std::sort(all.begin(), all.end(),
            [](const TenantUsage& a, const TenantUsage& b) { return a.name < b.name; });
  return all;
}

std::vector<TenantId> TenantTable::limited() const {
  std::vector<TenantId> found;
  for (TenantId tenant = 1; tenant < tenants_.size(); ++tenant) {
    if (is_limited(tenant)) found.push_back(tenant);
  }
  return found;
}

}  // namespace kvcache::prefix
