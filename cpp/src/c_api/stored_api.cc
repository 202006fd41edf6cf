// What is stored, through C: why a prompt hits, pins, tenants, what is dropped.
#include <optional>
#include <string>
#include <utility>

#include "c_api/convert.h"
#include "c_api/handles.h"

using kvcache::EraseFilter;
using kvcache::PinOptions;
using kvcache::Result;
using kvcache::Status;
using kvcache::c_api::answer;
using kvcache::c_api::entry;
using kvcache::c_api::hand_over;
using kvcache::c_api::optional_from;
using kvcache::c_api::read_struct;
using kvcache::c_api::some;
using kvcache::c_api::space_from;
using kvcache::c_api::text_from;
using kvcache::c_api::write_struct;

namespace {

thread_local std::string explained_tenant;

kvcache_explanation explanation_from(const kvcache::Explanation& from) {
  kvcache_explanation to = {.struct_size = sizeof(kvcache_explanation),
                            .tokens = from.tokens,
                            .matched_tokens = from.matched_tokens,
                            .cached_tokens = from.cached_tokens,
                            .nearest_snapshot = from.nearest_snapshot,
                            .limit = static_cast<kvcache_hit_limit>(from.limit),
                            .snapshot_format = -1,
                            .position = from.position,
                            .group = -1,
                            .reason = static_cast<kvcache_miss_reason>(from.reason),
                            .once_tokens = from.once_tokens,
                            .lost_snapshot = from.lost_snapshot,
                            .tenant = nullptr};
  if (from.snapshot_format) to.snapshot_format = static_cast<std::int32_t>(*from.snapshot_format);
  if (from.group) to.group = *from.group;
  if (from.quota) {
    explained_tenant = from.quota->name;
    to.tenant = explained_tenant.c_str();
  }
  return to;
}

Result<PinOptions> pin_options_from(const kvcache_pin_options* options) {
  const auto from = read_struct("options", options);
  if (!from) return from.status();
  return PinOptions{optional_from(from->lease_ms), optional_from(from->now_ms)};
}

Status read_name(const char* name, const kvcache_bytes* from, std::optional<std::string>* to) {
  if (from == nullptr) return Status::ok();
  auto bytes = kvcache::c_api::bytes_from(name, *from);
  if (!bytes) return bytes.status();
  *to = std::move(bytes).value();
  return Status::ok();
}

Result<EraseFilter> filter_from(const kvcache_erase_filter& from) {
  EraseFilter to;
  Status status = read_name("filter.name", from.name, &to.name);
  if (status) status = read_name("filter.adapter", from.adapter, &to.adapter);
  if (status) status = read_name("filter.salt", from.salt, &to.salt);
  if (!status) return status;
  auto media = kvcache::c_api::media_from(from.media, from.media_count);
  if (!media) return media.status().prefixed("filter: ");
  to.media = std::move(media).value();
  if (from.token_count > 0) {
    if (from.tokens == nullptr) return Status::invalid_argument("filter.tokens is NULL");
    to.tokens.assign(from.tokens, from.tokens + from.token_count);
  }
  if (from.tenant != nullptr) to.tenant = from.tenant;
  return to;
}

}  // namespace

extern "C" {

kvcache_status kvcache_cache_explain(const kvcache_cache* cache, const int32_t* tokens,
                                     size_t token_count, const kvcache_space* space,
                                     kvcache_explanation* out) {
  return entry({{"cache", cache}, some("tokens", tokens, token_count), {"out", out}},
               [&]() -> Status {
                 const auto in = space_from(space);
                 if (!in) return in.status();
                 const auto why = cache->cache->explain({tokens, token_count}, *in);
                 return why ? write_struct(out, explanation_from(*why)) : why.status();
               });
}

kvcache_status kvcache_cache_pin(kvcache_cache* cache, const int32_t* tokens, size_t token_count,
                                 const kvcache_space* space, const kvcache_pin_options* options,
                                 kvcache_pin** out) {
  return entry({{"cache", cache}, some("tokens", tokens, token_count), {"out", out}},
               [&]() -> Status {
                 const auto in = space_from(space);
                 if (!in) return in.status();
                 const auto how = pin_options_from(options);
                 if (!how) return how.status();
                 return hand_over(cache->cache->pin({tokens, token_count}, *in, *how), out);
               });
}

void kvcache_pin_destroy(kvcache_pin* pin) { delete pin; }

kvcache_status kvcache_pin_read(const kvcache_pin* pin, kvcache_pin_state* out) {
  return entry({{"pin", pin}, {"out", out}}, [&]() -> Status {
    if (Status status = pin->pin.check_process(); !status) return status;
    return write_struct(out, {.struct_size = sizeof(kvcache_pin_state),
                              .tokens = pin->pin.tokens(),
                              .expires_ms = pin->pin.expires_ms().value_or(UINT64_MAX),
                              .is_held = pin->pin.is_held()});
  });
}

kvcache_status kvcache_pin_renew(kvcache_pin* pin, const kvcache_pin_options* options) {
  return entry({{"pin", pin}}, [&] {
    const auto how = pin_options_from(options);
    return how ? pin->pin.renew(*how) : how.status();
  });
}

kvcache_status kvcache_cache_set_quota(kvcache_cache* cache, const char* tenant,
                                       const kvcache_share* quota) {
  return entry({{"cache", cache}, {"tenant", tenant}}, [&] {
    std::optional<kvcache::MemoryShare> share;
    if (quota != nullptr) share = kvcache::c_api::share_from(*quota);
    return cache->cache->set_quota(tenant, share);
  });
}

kvcache_status kvcache_cache_tenants(const kvcache_cache* cache, kvcache_tenants** out) {
  return entry({{"cache", cache}, {"out", out}}, [&]() -> Status {
    if (Status status = cache->cache->check_process(); !status) return status;
    *out = new kvcache_tenants{cache->cache->tenants()};
    return Status::ok();
  });
}

void kvcache_tenants_destroy(kvcache_tenants* tenants) { delete tenants; }

size_t kvcache_tenants_count(const kvcache_tenants* tenants) {
  return tenants == nullptr ? 0 : tenants->list.size();
}

kvcache_status kvcache_tenants_read(const kvcache_tenants* tenants, size_t index,
                                    kvcache_tenant_usage* out) {
  return entry({{"tenants", tenants}, {"out", out}}, [&]() -> Status {
    if (index >= tenants->list.size()) {
      return Status::invalid_argument("tenant ", index, " of ", tenants->list.size());
    }
    const kvcache::TenantUsage& usage = tenants->list[index];
    return write_struct(out, {.struct_size = sizeof(kvcache_tenant_usage),
                              .name = usage.name.c_str(),
                              .bytes = usage.bytes,
                              .blocks = usage.blocks,
                              .snapshots = usage.snapshots,
                              .quota_bytes = usage.quota_bytes.value_or(UINT64_MAX),
                              .evicted_blocks = usage.evicted_blocks,
                              .evicted_snapshots = usage.evicted_snapshots,
                              .refused_blocks = usage.refused_blocks});
  });
}

kvcache_status kvcache_cache_erase(kvcache_cache* cache, const kvcache_erase_filter* filter,
                                   uint64_t* out_blocks) {
  return entry({{"cache", cache}, {"filter", filter}, {"out_blocks", out_blocks}}, [&]() -> Status {
    const auto from = read_struct("filter", filter);
    if (!from) return from.status();
    const auto what = filter_from(*from);
    if (!what) return what.status();
    return answer(cache->cache->erase(*what), out_blocks);
  });
}

kvcache_status kvcache_cache_drop_expired(kvcache_cache* cache, uint64_t* out_blocks) {
  return entry({{"cache", cache}, {"out_blocks", out_blocks}}, [&]() -> Status {
    if (Status status = cache->cache->check_process(); !status) return status;
    *out_blocks = cache->cache->drop_expired();
    return Status::ok();
  });
}

kvcache_status kvcache_cache_clear(kvcache_cache* cache) {
  return entry({{"cache", cache}}, [&]() -> Status {
    if (Status status = cache->cache->check_process(); !status) return status;
    cache->cache->clear();
    return Status::ok();
  });
}

kvcache_status kvcache_cache_bump_epoch(kvcache_cache* cache, const char* weights) {
  return entry({{"cache", cache}}, [&]() -> Status {
    if (Status status = cache->cache->check_process(); !status) return status;
    cache->cache->bump_epoch(text_from(weights));
    return Status::ok();
  });
}

}  // extern "C"
