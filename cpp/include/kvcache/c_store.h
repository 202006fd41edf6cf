/* What outlives a process or leaves it: prompt caches on disk, the tiers, events for routers.
 * Conventions: kvcache/c.h. */
#ifndef KVCACHE_C_STORE_H
#define KVCACHE_C_STORE_H

#include "kvcache/c_base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvcache_events kvcache_events;

/* ---- Prompt caches: save() and load() in kvcache/cache.h ------------------------------------ */

typedef struct kvcache_save_options {
  size_t struct_size;
  uint32_t replace;     /* not 0: a prompt cache that is there already */
  uint32_t not_durable; /* not 0: does not wait for the disk; see SaveOptions::durable */
} kvcache_save_options;

typedef struct kvcache_load_options {
  size_t struct_size;
  uint64_t ttl_ms;       /* 0: the cache's; UINT64_MAX: for ever */
  const char* tenant;    /* who is charged for it */
  uint32_t convert;      /* not 0: rows that are stored in another format than the plan's */
  uint32_t read_threads; /* at most; 0: 2 */
} kvcache_load_options;

KVCACHE_API kvcache_status kvcache_cache_save(kvcache_cache* cache, const char* path,
                                              const int32_t* tokens, size_t token_count,
                                              const kvcache_space* space,
                                              const kvcache_save_options* options,
                                              uint64_t* out_positions);
KVCACHE_API kvcache_status kvcache_cache_load(kvcache_cache* cache, const char* path,
                                              const kvcache_space* space,
                                              const kvcache_load_options* options,
                                              uint64_t* out_positions);

/* ---- Disk tier: kvcache/disk_tier.h --------------------------------------------------------- */

typedef struct kvcache_disk_stats {
  size_t struct_size;
  uint32_t is_writer;
  uint64_t segments;
  uint64_t records;
  uint64_t bytes;
  uint64_t max_bytes;
  uint64_t queued_bytes;
  uint64_t written_records;
  uint64_t written_bytes;
  uint64_t syncs;
  uint64_t dropped_records;
  uint64_t skipped_snapshots;
  uint64_t evicted_segments;
  uint64_t kept_records;
  uint64_t erased_records;
  uint64_t fetches;
  uint64_t fetched_tokens;
  uint64_t read_records;
  uint64_t read_bytes;
  uint64_t damaged_segments;
  uint64_t torn_segments;
  uint64_t damaged_records;
  uint64_t read_errors;
  uint64_t write_errors;
  uint64_t no_room;
  /* "" while nothing went wrong; valid until the calling thread's next kvcache_cache_disk_stats().
   */
  const char* last_error;
} kvcache_disk_stats;

typedef struct kvcache_prefetch_options {
  size_t struct_size;
  uint64_t ttl_ms; /* these two as in kvcache_load_options */
  const char* tenant;
} kvcache_prefetch_options;

/* Positions that kvcache_sequence_open() would reuse afterwards. */
KVCACHE_API kvcache_status kvcache_cache_prefetch(kvcache_cache* cache, const int32_t* tokens,
                                                  size_t token_count, const kvcache_space* space,
                                                  const kvcache_prefetch_options* options,
                                                  uint64_t* out_positions);
/* NULL: waits as long as it takes. */
KVCACHE_API kvcache_status kvcache_cache_flush_disk(kvcache_cache* cache, const uint64_t* wait_ms);
KVCACHE_API kvcache_status kvcache_cache_disk_stats(const kvcache_cache* cache,
                                                    kvcache_disk_stats* out);

/* ---- Remote tier: kvcache/remote_tier.h; prefetch() looks here as well ---------------------- */

typedef struct kvcache_remote_stats {
  size_t struct_size;
  uint64_t is_suspended; /* not 0: a server is, after a failure, until it is tried again */
  uint64_t servers;
  uint64_t connects;
  uint64_t redirections;
  uint64_t lookups;
  uint64_t round_trips;
  uint64_t present_records;
  uint64_t missing_records;
  uint64_t queued_bytes;
  uint64_t written_records;
  uint64_t written_bytes;
  uint64_t dropped_records;
  uint64_t skipped_snapshots;
  uint64_t erased_records;
  uint64_t fetches;
  uint64_t fetched_tokens;
  uint64_t read_records;
  uint64_t read_bytes;
  uint64_t damaged_records;
  uint64_t read_errors;
  uint64_t write_errors;
  uint64_t no_room;
  uint64_t failures;
  uint64_t timeouts;
  uint64_t refused_operations;
  /* "" while nothing went wrong; valid until the calling thread's next
   * kvcache_cache_remote_stats(). */
  const char* last_error;
} kvcache_remote_stats;

/* NULL: waits as long as it takes. */
KVCACHE_API kvcache_status kvcache_cache_flush_remote(kvcache_cache* cache,
                                                      const uint64_t* wait_ms);
KVCACHE_API kvcache_status kvcache_cache_remote_stats(const kvcache_cache* cache,
                                                      kvcache_remote_stats* out);

/* ---- Events: kvcache/events.h --------------------------------------------------------------- */

typedef enum kvcache_event_kind KVCACHE_ENUM {
  KVCACHE_EVENT_STORED = 0,
  KVCACHE_EVENT_REMOVED = 1,
  KVCACHE_EVENT_CLEARED = 2
} kvcache_event_kind;

/* Pointers are valid until the list is destroyed. */
typedef struct kvcache_event {
  size_t struct_size;
  kvcache_event_kind kind;
  uint32_t group; /* one more than the last group: snapshots of the fixed-size state */
  const uint64_t* hashes;
  size_t hash_count;
  const uint64_t* parent; /* NULL: none */
  uint64_t start;
  uint32_t block_tokens;
  const int32_t* tokens;
  size_t token_count;
  const kvcache_media* media;
  size_t media_count;
  const kvcache_space* space; /* without media; NULL: nothing is stored */
} kvcache_event;

/* What has happened since the last call, as a list. */
KVCACHE_API kvcache_status kvcache_cache_take_events(kvcache_cache* cache, kvcache_events** out);
/* All there is, for a router that comes later. */
KVCACHE_API kvcache_status kvcache_cache_events_snapshot(kvcache_cache* cache,
                                                         kvcache_events** out);
KVCACHE_API kvcache_status kvcache_cache_lose_events(kvcache_cache* cache);
KVCACHE_API void kvcache_events_destroy(kvcache_events* events);
KVCACHE_API size_t kvcache_events_count(const kvcache_events* events); /* NULL: 0 */
KVCACHE_API kvcache_status kvcache_events_read(const kvcache_events* events, size_t index,
                                               kvcache_event* out);

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_C_STORE_H */
