// Quotas of tenants, as shares of the budget.
#include "kvcache/tenants.h"

#include "cache/cache_core.h"
#include "kvcache/cache.h"

namespace kvcache {

Status Cache::set_quota(const std::string& tenant, const std::optional<MemoryShare>& quota) {
  if (Status status = check_process(); !status) return status;
  if (tenant.empty()) return Status::invalid_argument("set_quota: a tenant needs a name");
  if (quota) {
    if (Status status = check_share(*quota, "quota"); !status) return status;
  }
  const std::lock_guard lock(core_->mutex);
  core_->tell_time({});
  std::optional<prefix::Quota> limit;
  if (quota) limit = {*quota, core_->bytes_of(*quota)};
  core_->index.set_quota(tenant, limit);
  return Status::ok();
}

std::vector<TenantUsage> Cache::tenants() const {
  if (!check_process()) return {};
  const std::lock_guard lock(core_->mutex);
  return core_->index.tenants().usage();
}

void CacheCore::follow_budget() {
  for (const prefix::TenantId id : index.tenants().limited()) {
    const prefix::Tenant& tenant = index.tenants()[id];
    if (tenant.share.bytes) continue;
    const MemoryShare share = tenant.share;
    const std::string name = tenant.usage.name;
    index.set_quota(name, prefix::Quota{share, bytes_of(share)});
  }
}

}  // namespace kvcache
