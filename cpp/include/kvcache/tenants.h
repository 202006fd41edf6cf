// What is stored for each tenant, and how much may be. A tenant is what RequestHints::tenant names.
//
//   cache->set_quota("acme", MemoryShare{.fraction = 0.25});
//   auto sequence = cache->open(tokens, {}, {.hints = {.tenant = "acme"}});
//   cache->tenants();  // what acme has stored since
//
// Who stores a page or a snapshot first is charged for it, until it leaves the cache; others find
// and use it free of charge. Requests that name no tenant are charged to nobody.
// A quota is a limit, no reservation. What a tenant stores never makes it hold more: its own
// prefixes give way first, in the order of the cache's policy among them, and never those of
// others; what still does not fit is not stored, from the end of the prompt on. When the memory of
// the cache runs out, the policy chooses among all prefixes as if there were no quotas.
// Thread safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvcache {

// A tenant that has something stored, or a quota. Counters begin anew once it has had neither.
struct TenantUsage {
  std::string name;
  std::uint64_t bytes = 0;      // of the pages and snapshots that it is charged for
  std::uint64_t blocks = 0;     // of the prefixes that it has stored, as in indexed_blocks
  std::uint64_t snapshots = 0;  // that it is charged for
  std::optional<std::uint64_t> quota_bytes;
  // Given up by the policy, for the quota or for memory.
  std::uint64_t evicted_blocks = 0;
  std::uint64_t evicted_snapshots = 0;
  std::uint64_t refused_blocks = 0;  // not stored, because the quota had no room
};

}  // namespace kvcache
