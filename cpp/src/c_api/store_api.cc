// Files, tiers and events through C.
#include <string>
#include <utility>

#include "c_api/convert.h"
#include "c_api/handles.h"

using kvcache::Result;
using kvcache::Status;
using kvcache::c_api::answer;
using kvcache::c_api::entry;
using kvcache::c_api::optional_from;
using kvcache::c_api::read_struct;
using kvcache::c_api::some;
using kvcache::c_api::space_from;
using kvcache::c_api::text_from;
using kvcache::c_api::ttl_from;
using kvcache::c_api::write_struct;

namespace {

thread_local std::string disk_error;
thread_local std::string remote_error;

// As C reads them: the pointers of kvcache_event lead into the list.
Status hand_over_events(Result<std::vector<kvcache::CacheEvent>>&& made, kvcache_events** out) {
  if (!made) return made.status();
  auto events = std::make_unique<kvcache_events>();
  events->list = std::move(made).value();
  for (const kvcache::CacheEvent& event : events->list) {
    events->media.push_back(kvcache::c_api::to_media(event.media));
    events->spaces.push_back(event.space ? kvcache::c_api::to_space(*event.space)
                                         : kvcache_space{});
  }
  *out = events.release();
  return Status::ok();
}

}  // namespace

extern "C" {

kvcache_status kvcache_cache_save(kvcache_cache* cache, const char* path, const int32_t* tokens,
                                  size_t token_count, const kvcache_space* space,
                                  const kvcache_save_options* options, uint64_t* out_positions) {
  return entry({{"cache", cache},
                {"path", path},
                some("tokens", tokens, token_count),
                {"out_positions", out_positions}},
               [&]() -> Status {
                 const auto in = space_from(space);
                 if (!in) return in.status();
                 const auto from = read_struct("options", options);
                 if (!from) return from.status();
                 const kvcache::SaveOptions how = {.replace = from->replace != 0,
                                                   .durable = from->not_durable == 0};
                 return answer(cache->cache->save(path, {tokens, token_count}, *in, how),
                               out_positions);
               });
}

kvcache_status kvcache_cache_load(kvcache_cache* cache, const char* path,
                                  const kvcache_space* space, const kvcache_load_options* options,
                                  uint64_t* out_positions) {
  return entry({{"cache", cache}, {"path", path}, {"out_positions", out_positions}},
               [&]() -> Status {
                 const auto in = space_from(space);
                 if (!in) return in.status();
                 const auto from = read_struct("options", options);
                 if (!from) return from.status();
                 kvcache::LoadOptions how = {.ttl_ms = ttl_from(from->ttl_ms),
                                             .tenant = text_from(from->tenant),
                                             .convert = from->convert != 0};
                 if (from->read_threads != 0) how.read_threads = from->read_threads;
                 return answer(cache->cache->load(path, *in, how), out_positions);
               });
}

kvcache_status kvcache_cache_prefetch(kvcache_cache* cache, const int32_t* tokens,
                                      size_t token_count, const kvcache_space* space,
                                      const kvcache_prefetch_options* options,
                                      uint64_t* out_positions) {
  return entry(
      {{"cache", cache}, some("tokens", tokens, token_count), {"out_positions", out_positions}},
      [&]() -> Status {
        const auto in = space_from(space);
        if (!in) return in.status();
        const auto from = read_struct("options", options);
        if (!from) return from.status();
        return answer(cache->cache->prefetch({tokens, token_count}, *in, ttl_from(from->ttl_ms),
                                             text_from(from->tenant)),
                      out_positions);
      });
}

kvcache_status kvcache_cache_flush_disk(kvcache_cache* cache, const uint64_t* wait_ms) {
  return entry({{"cache", cache}},
               [&] { return cache->cache->flush_disk(optional_from(wait_ms)); });
}

kvcache_status kvcache_cache_disk_stats(const kvcache_cache* cache, kvcache_disk_stats* out) {
  return entry({{"cache", cache}, {"out", out}}, [&]() -> Status {
    const auto stats = cache->cache->disk_stats();
    if (!stats) return stats.status();
    disk_error = stats->last_error;
    return write_struct(out, {.struct_size = sizeof(kvcache_disk_stats),
                              .is_writer = stats->is_writer,
                              .segments = stats->segments,
                              .records = stats->records,
                              .bytes = stats->bytes,
                              .max_bytes = stats->max_bytes,
                              .queued_bytes = stats->queued_bytes,
                              .written_records = stats->written_records,
                              .written_bytes = stats->written_bytes,
                              .syncs = stats->syncs,
                              .dropped_records = stats->dropped_records,
                              .skipped_snapshots = stats->skipped_snapshots,
                              .evicted_segments = stats->evicted_segments,
                              .kept_records = stats->kept_records,
                              .erased_records = stats->erased_records,
                              .fetches = stats->fetches,
                              .fetched_tokens = stats->fetched_tokens,
                              .read_records = stats->read_records,
                              .read_bytes = stats->read_bytes,
                              .damaged_segments = stats->damaged_segments,
                              .torn_segments = stats->torn_segments,
                              .damaged_records = stats->damaged_records,
                              .read_errors = stats->read_errors,
                              .write_errors = stats->write_errors,
                              .no_room = stats->no_room,
                              .last_error = disk_error.c_str()});
  });
}

kvcache_status kvcache_cache_flush_remote(kvcache_cache* cache, const uint64_t* wait_ms) {
  return entry({{"cache", cache}},
               [&] { return cache->cache->flush_remote(optional_from(wait_ms)); });
}

kvcache_status kvcache_cache_remote_stats(const kvcache_cache* cache, kvcache_remote_stats* out) {
  return entry({{"cache", cache}, {"out", out}}, [&]() -> Status {
    const auto stats = cache->cache->remote_stats();
    if (!stats) return stats.status();
    remote_error = stats->last_error;
    return write_struct(out, {.struct_size = sizeof(kvcache_remote_stats),
                              .is_suspended = stats->is_suspended,
                              .servers = stats->servers,
                              .connects = stats->connects,
                              .redirections = stats->redirections,
                              .lookups = stats->lookups,
                              .round_trips = stats->round_trips,
                              .present_records = stats->present_records,
                              .missing_records = stats->missing_records,
                              .queued_bytes = stats->queued_bytes,
                              .written_records = stats->written_records,
                              .written_bytes = stats->written_bytes,
                              .dropped_records = stats->dropped_records,
                              .skipped_snapshots = stats->skipped_snapshots,
                              .erased_records = stats->erased_records,
                              .fetches = stats->fetches,
                              .fetched_tokens = stats->fetched_tokens,
                              .read_records = stats->read_records,
                              .read_bytes = stats->read_bytes,
                              .damaged_records = stats->damaged_records,
                              .read_errors = stats->read_errors,
                              .write_errors = stats->write_errors,
                              .no_room = stats->no_room,
                              .failures = stats->failures,
                              .timeouts = stats->timeouts,
                              .refused_operations = stats->refused_operations,
                              .last_error = remote_error.c_str()});
  });
}

kvcache_status kvcache_cache_take_events(kvcache_cache* cache, kvcache_events** out) {
  return entry({{"cache", cache}, {"out", out}}, [&]() -> Status {
    try {
      return hand_over_events(cache->cache->take_events(), out);
    } catch (...) {  // no memory for them: they will not reach the routers
      static_cast<void>(cache->cache->lose_events());
      throw;
    }
  });
}

kvcache_status kvcache_cache_events_snapshot(kvcache_cache* cache, kvcache_events** out) {
  return entry({{"cache", cache}, {"out", out}},
               [&] { return hand_over_events(cache->cache->events_snapshot(), out); });
}

kvcache_status kvcache_cache_lose_events(kvcache_cache* cache) {
  return entry({{"cache", cache}}, [&] { return cache->cache->lose_events(); });
}

void kvcache_events_destroy(kvcache_events* events) { delete events; }

size_t kvcache_events_count(const kvcache_events* events) {
  return events == nullptr ? 0 : events->list.size();
}

kvcache_status kvcache_events_read(const kvcache_events* events, size_t index, kvcache_event* out) {
  return entry({{"events", events}, {"out", out}}, [&]() -> Status {
    if (index >= events->list.size()) {
      return Status::invalid_argument("event ", index, " of ", events->list.size());
    }
    const kvcache::CacheEvent& event = events->list[index];
    return write_struct(out, {.struct_size = sizeof(kvcache_event),
                              .kind = static_cast<kvcache_event_kind>(event.kind),
                              .group = event.group,
                              .hashes = event.hashes.data(),
                              .hash_count = event.hashes.size(),
                              .parent = event.parent ? &*event.parent : nullptr,
                              .start = event.start,
                              .block_tokens = event.block_tokens,
                              .tokens = event.tokens.data(),
                              .token_count = event.tokens.size(),
                              .media = events->media[index].data(),
                              .media_count = events->media[index].size(),
                              .space = event.space ? &events->spaces[index] : nullptr});
  });
}

}  // extern "C"
