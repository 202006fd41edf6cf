// Who is charged for what the index holds: the tenant that stored a page or a snapshot first, from
// the index's first reference to its last. Runs know by themselves who made them.
// Thread safety: thread-compatible; the cache's lock guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "arena/pool.h"
#include "evict/tenant_policies.h"
#include "kvcache/lifetime.h"
#include "kvcache/tenants.h"

namespace kvcache::prefix {

using evict::kNobody;
using evict::TenantId;

// A limit in bytes, and the share of the budget that it was said as.
struct Quota {
  MemoryShare share;
  std::uint64_t bytes = 0;
};

struct Tenant {
  TenantUsage usage;       // quota_bytes: while there is one
  MemoryShare share;       // of the quota
  std::uint64_t runs = 0;  // those and items keep its number, of what was dropped too
  std::uint64_t items = 0;

  bool is_over() const { return usage.quota_bytes && usage.bytes > *usage.quota_bytes; }
};

class TenantTable {
 public:
  // `pools`: how many kinds of items there are, numbered from 0 on.
  explicit TenantTable(std::size_t pools) : owners_(pools) {}

  // Whether nobody is charged for anything, which is so until a tenant is named.
  bool empty() const { return numbers_.empty(); }
  // kNobody: it has nothing stored and no quota.
  TenantId find(std::string_view name) const;
  // The same, or a number for it; nobody's for no name. settle() gives one back that came to
  // nothing.
  TenantId enter(std::string_view name);
  void settle(TenantId tenant);
  Tenant& operator[](TenantId tenant) { return tenants_[tenant]; }
  const Tenant& operator[](TenantId tenant) const { return tenants_[tenant]; }

  void set_quota(TenantId tenant, const std::optional<Quota>& quota);
  bool is_limited(TenantId tenant) const { return tenants_[tenant].usage.quota_bytes.has_value(); }

  TenantId owner(std::size_t pool, arena::ItemId item) const {
    const auto& owners = owners_[pool];
    const auto at = static_cast<std::size_t>(item);
    return at < owners.size() ? owners[at] : kNobody;
  }
  // The index's first reference to an item. REQUIRES: nobody is charged for it.
  void charge(std::size_t pool, arena::ItemId item, TenantId tenant, std::uint64_t bytes);
  // The last one has gone, or it is nobody's from now on. `dropped`: drop_all() has taken its bytes
  // off before.
  void discharge(std::size_t pool, arena::ItemId item, std::uint64_t bytes, bool dropped = false);

  // A run of the tenant's is there, or has gone.
  void add_run(TenantId tenant) { ++tenants_[tenant].runs; }
  void remove_run(TenantId tenant) {
    --tenants_[tenant].runs;
    if (tenant != kNobody) settle(tenant);
  }

  // Nothing of what is charged is stored any more, though its memory comes back later.
  void drop_all();
  // The same, and no item or run keeps a tenant's number; quotas stay.
  void forget_all() noexcept;

  // By name.
  std::vector<TenantUsage> usage() const;
  // Those with a quota.
  std::vector<TenantId> limited() const;

 private:
  std::vector<Tenant> tenants_ = std::vector<Tenant>(1);  // by number; the first is nobody
  std::vector<TenantId> free_;
  std::unordered_map<std::string, TenantId> numbers_;
  std::vector<std::vector<TenantId>> owners_;  // by pool and item, as far as any is charged
};

}  // namespace kvcache::prefix
