// A cache through C: creation, sizes, what it reports.
#include <string>
#include <utility>
#include <vector>

#include "c_api/convert.h"
#include "c_api/handles.h"

using kvcache::Cache;
using kvcache::CacheOptions;
using kvcache::DiskTierOptions;
using kvcache::RemoteAddress;
using kvcache::RemoteTierOptions;
using kvcache::Result;
using kvcache::StateDecl;
using kvcache::StatePlan;
using kvcache::Status;
using kvcache::c_api::answer;
using kvcache::c_api::choose;
using kvcache::c_api::entry;
using kvcache::c_api::hand_over;
using kvcache::c_api::read_enum;
using kvcache::c_api::read_struct;
using kvcache::c_api::read_structs;
using kvcache::c_api::text_from;
using kvcache::c_api::write_struct;

namespace {

thread_local std::string plan_fingerprint;

Result<StateDecl> decl_from(const kvcache_state_decl* decl) {
  auto from = read_struct("declaration", decl);
  if (!from) return from.status();
  if (from->id == nullptr || from->component == nullptr || from->shape == nullptr) {
    return Status::invalid_argument("a declaration's id, component or shape is NULL");
  }
  StateDecl to;
  Status status = read_enum("dtype", from->dtype, KVCACHE_I8, &to.dtype);
  if (status) status = read_enum("state kind", from->kind, KVCACHE_PAGED_KV, &to.kind);
  if (status) status = read_enum("verify", from->verify, KVCACHE_CONV_STEPS, &to.verify);
  if (status) status = read_enum("gate", from->gate, KVCACHE_GATE_ELEMENT, &to.gate);
  if (!status) return status.prefixed(std::string(from->id) + ": ");
  to.id = from->id;
  to.layer = from->layer;
  to.component = from->component;
  to.shape.assign(from->shape, from->shape + from->shape_axes);
  to.row_scale_bytes = from->row_scale_bytes;
  to.window = from->window;
  to.chunked = from->chunked != 0;
  to.sinks = from->sinks;
  choose(from->record_tokens, &to.record_tokens);
  return to;
}

Status read_disk(const kvcache_disk_options* options, DiskTierOptions* to) {
  if (options == nullptr) return Status::ok();
  const auto from = read_struct("disk", options);
  if (!from) return from.status();
  if (from->path == nullptr) return Status::invalid_argument("disk.path is NULL");
  if (*from->path == '\0') return Status::invalid_argument("disk.path is empty");
  to->path = from->path;
  to->max_bytes = from->max_bytes;
  Status status = read_enum("disk.access", from->access, KVCACHE_TIER_WRITE_OR_READ, &to->access);
  if (!status) return status;
  if (from->durability != nullptr) {
    status =
        read_enum("disk.durability", *from->durability, KVCACHE_DURABILITY_RECORD, &to->durability);
    if (!status) return status;
  }
  choose(from->group_bytes, &to->group_bytes);
  choose(from->group_ms, &to->group_ms);
  choose(from->queue_bytes, &to->queue_bytes);
  to->wait_ms = from->wait_ms;
  choose(from->read_threads, &to->read_threads);
  to->at_open = from->only_prefetch == 0;
  return Status::ok();
}

Status read_tls(const kvcache_remote_tls* options, kvcache::RemoteTlsOptions* to) {
  if (options == nullptr) return Status::ok();
  const auto from = read_struct("remote.tls", options);
  if (!from) return from.status();
  *to = {.enabled = true,
         .ca_file = text_from(from->ca_file),
         .certificate = text_from(from->certificate),
         .key = text_from(from->key),
         .verify = from->no_verify == 0};
  return Status::ok();
}

Status read_remote(const kvcache_remote_options* options, RemoteTierOptions* to) {
  if (options == nullptr) return Status::ok();
  const auto from = read_struct("remote", options);
  if (!from) return from.status();
  if (from->addresses == nullptr && from->address_count > 0) {
    return Status::invalid_argument("remote.addresses is NULL");
  }
  to->addresses.reserve(from->address_count);
  for (std::size_t i = 0; i < from->address_count; ++i) {
    const kvcache_remote_address& address = from->addresses[i];
    if (address.port > UINT16_MAX) {
      return Status::invalid_argument("remote.addresses[", i, "].port is ", address.port,
                                      ", expected 1..", UINT16_MAX);
    }
    RemoteAddress& made = to->addresses.emplace_back();
    made.host = text_from(address.host);
    made.socket = text_from(address.socket);
    choose(static_cast<std::uint16_t>(address.port), &made.port);
  }
  if (to->is_none()) return Status::invalid_argument("remote.address_count is 0");
  Status status =
      read_enum("remote.topology", from->topology, KVCACHE_REMOTE_SENTINELS, &to->topology);
  if (!status) return status;
  to->service = text_from(from->service);
  to->sentinel_user = text_from(from->sentinel_user);
  to->sentinel_password = text_from(from->sentinel_password);
  to->user = text_from(from->user);
  to->password = text_from(from->password);
  if (from->key_prefix != nullptr) to->key_prefix = from->key_prefix;
  to->database = from->database;
  choose(from->ttl_ms, &to->ttl_ms);
  choose(from->deadline_ms, &to->deadline_ms);
  choose(from->queue_bytes, &to->queue_bytes);
  to->wait_ms = from->wait_ms;
  choose(from->read_threads, &to->read_threads);
  to->at_open = from->only_prefetch == 0;
  return read_tls(from->tls, &to->tls);
}

Result<CacheOptions> options_from(const kvcache_options& from) {
  CacheOptions to;
  if (from.policy != nullptr) to.policy = from.policy;
  to.backing = from.ledger == 0;
  to.capacity_blocks = from.capacity_blocks;
  to.max_memory_bytes = from.max_memory_bytes;
  to.weights = text_from(from.weights);
  choose(from.flops_per_token, &to.costs.flops_per_token);
  to.costs.flops_per_token_per_position = from.flops_per_token_per_position;
  choose(from.interval_tokens, &to.placement.interval_tokens);
  choose(from.snapshots_per_path, &to.placement.snapshots_per_path);
  to.event_capacity = from.event_capacity;
  if (from.pin_limit != nullptr) to.pin_limit = kvcache::c_api::share_from(*from.pin_limit);
  choose(from.ttl_ms, &to.ttl_ms);
  Status status =
      kvcache::c_api::read_memory(from.huge_pages, from.numa_node, from.lock_memory, &to.memory);
  to.memory.prefault_threads = from.prefault_threads;
  if (status) status = read_disk(from.disk, &to.disk);
  if (status) status = read_remote(from.remote, &to.remote);
  if (!status) return status;
  return to;
}

kvcache_stats stats_from(const kvcache::CacheStats& from) {
  return {.struct_size = sizeof(kvcache_stats),
          .budget_bytes = from.budget_bytes,
          .reserved_bytes = from.reserved_bytes,
          .committed_bytes = from.committed_bytes,
          .peak_bytes = from.peak_bytes,
          .used_bytes = from.used_bytes,
          .idle_bytes = from.idle_bytes,
          .max_bytes = from.max_bytes,
          .open_sequences = from.open_sequences,
          .epoch = from.epoch,
          .pages = from.pages,
          .slots = from.slots,
          .snapshots = from.snapshots,
          .lossy_snapshots = from.lossy_snapshots,
          .ring_snapshots = from.ring_snapshots,
          .indexed_blocks = from.indexed_blocks,
          .indexed_tokens = from.indexed_tokens,
          .indexed_snapshots = from.indexed_snapshots,
          .evicted_blocks = from.evicted_blocks,
          .evicted_snapshots = from.evicted_snapshots,
          .thinned_snapshots = from.thinned_snapshots,
          .erased_blocks = from.erased_blocks,
          .erased_snapshots = from.erased_snapshots,
          .dropped_blocks = from.dropped_blocks,
          .dropped_snapshots = from.dropped_snapshots,
          .expired_blocks = from.expired_blocks,
          .pins = from.pins,
          .pinned_pages = from.pinned_pages,
          .pinned_bytes = from.pinned_bytes,
          .lapsed_leases = from.lapsed_leases,
          .opens = from.opens,
          .hits = from.hits,
          .asked_tokens = from.asked_tokens,
          .cached_tokens = from.cached_tokens,
          .limited_by_none = from.limited_by_none,
          .limited_by_tokens = from.limited_by_tokens,
          .limited_by_snapshot = from.limited_by_snapshot,
          .limited_by_window = from.limited_by_window,
          .unknown_tokens = from.unknown_tokens,
          .lost_snapshot_tokens = from.lost_snapshot_tokens,
          .lost_window_tokens = from.lost_window_tokens,
          .waiting_events = from.waiting_events,
          .event_losses = from.event_losses,
          .hit_blocks = from.hit_blocks,
          .lru_hit_blocks = from.lru_hit_blocks};
}

}  // namespace

extern "C" {

kvcache_status kvcache_cache_create(const kvcache_state_decl* decls, size_t decl_count,
                                    const kvcache_options* options, kvcache_cache** out) {
  return entry({{"decls", decls}, {"options", options}, {"out", out}}, [&]() -> Status {
    auto from = read_struct("options", options);
    if (!from) return from.status();
    auto list = read_structs("declarations", decls, decl_count, decl_from);
    if (!list) return list.status();
    kvcache::PlanOptions sizes;
    sizes.memory_bytes = from->memory_bytes;
    choose(from->block_tokens, &sizes.block_tokens);
    choose(from->sequences, &sizes.sequences);
    sizes.ring_depth = from->ring_depth;
    sizes.rotated_keys = from->plain_keys == 0;
    sizes.stash_rows = from->stash_rows;
    auto plan = StatePlan::create(std::move(list).value(), sizes);
    if (!plan) return plan.status();
    const auto how = options_from(*from);
    if (!how) return how.status();
    return hand_over(Cache::create(std::move(plan).value(), *how), out);
  });
}

void kvcache_cache_destroy(kvcache_cache* cache) { delete cache; }

kvcache_status kvcache_cache_stats(const kvcache_cache* cache, kvcache_stats* out) {
  return entry({{"cache", cache}, {"out", out}}, [&] {
    const Status status = cache->cache->check_process();
    return status ? write_struct(out, stats_from(cache->cache->stats())) : status;
  });
}

kvcache_status kvcache_cache_plan(const kvcache_cache* cache, kvcache_plan* out) {
  return entry({{"cache", cache}, {"out", out}}, [&] {
    const StatePlan& plan = cache->cache->plan();
    plan_fingerprint = plan.fingerprint();
    return write_struct(out, {.struct_size = sizeof(kvcache_plan),
                              .block_tokens = plan.block_tokens(),
                              .block_bytes = plan.block_bytes(),
                              .slot_bytes = plan.slot_bytes(),
                              .stash_bytes = plan.stash().bytes,
                              .ring_bytes = plan.ring_bytes(),
                              .fingerprint = plan_fingerprint.c_str()});
  });
}

kvcache_status kvcache_cache_group_count(const kvcache_cache* cache, size_t* out) {
  return entry({{"cache", cache}, {"out", out}}, [&] {
    *out = cache->cache->plan().groups().size();
    return Status::ok();
  });
}

kvcache_status kvcache_cache_group_stats(const kvcache_cache* cache, size_t group,
                                         kvcache_group_stats* out) {
  return entry({{"cache", cache}, {"out", out}}, [&]() -> Status {
    if (Status status = cache->cache->check_process(); !status) return status;
    const std::vector<kvcache::Group>& groups = cache->cache->plan().groups();
    if (group >= groups.size()) {
      return Status::invalid_argument("group ", group, " of ", groups.size());
    }
    const kvcache::Group& plan = groups[group];
    const kvcache::CacheStats stats = cache->cache->stats();
    return write_struct(out, {.struct_size = sizeof(kvcache_group_stats),
                              .components = plan.components.size(),
                              .token_bytes = plan.token_bytes,
                              .page_bytes = plan.page_bytes,
                              .window = plan.window,
                              .record_tokens = plan.record_tokens,
                              .pages = stats.group_pages[group],
                              .window_pages_evicted = stats.window_pages_evicted[group]});
  });
}

kvcache_status kvcache_cache_sequence_bytes(const kvcache_cache* cache, uint64_t tokens,
                                            uint64_t chunk_tokens, uint64_t* out) {
  return entry({{"cache", cache}, {"out", out}}, [&] {
    return answer(cache->cache->plan().sequence_bytes(tokens, chunk_tokens), out);
  });
}

kvcache_status kvcache_cache_pages(const kvcache_cache* cache, int32_t layer, const char* component,
                                   kvcache_page_memory* out) {
  return entry({{"cache", cache}, {"component", component}, {"out", out}}, [&]() -> Status {
    const auto memory = cache->cache->pages(layer, component);
    if (!memory) return memory.status();
    const kvcache::PagedComponent& part = *memory->component;
    const std::uint64_t head_stride = part.width * kvcache::dtype_bytes(part.dtype);
    return write_struct(out, {.struct_size = sizeof(kvcache_page_memory),
                              .group = memory->group,
                              .dtype = static_cast<kvcache_dtype>(part.dtype),
                              .block_tokens = memory->block_tokens,
                              .heads = part.heads,
                              .width = part.width,
                              .pages = memory->pages,
                              .page_stride = memory->page_stride,
                              .token_stride = part.row_bytes(),
                              .head_stride = head_stride,
                              .rows = memory->rows,
                              .scales = memory->scales,
                              .scale_token_stride = part.scale_bytes(),
                              .scale_head_stride = part.row_scale_bytes});
  });
}

kvcache_status kvcache_cache_resize(kvcache_cache* cache, uint64_t memory_bytes) {
  return entry({{"cache", cache}}, [&] { return cache->cache->resize(memory_bytes); });
}

kvcache_status kvcache_cache_reserve(kvcache_cache* cache, uint64_t bytes,
                                     kvcache_reservation** out) {
  return entry({{"cache", cache}, {"out", out}},
               [&] { return hand_over(cache->cache->reserve(bytes), out); });
}

void kvcache_reservation_destroy(kvcache_reservation* reservation) { delete reservation; }

}  // extern "C"
