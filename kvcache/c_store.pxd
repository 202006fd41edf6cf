"""Declarations of kvcache/c_store.h, files, tiers, events: cimport them from ``kvcache.c``."""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from kvcache.c_base cimport kvcache_cache, kvcache_media, kvcache_space, kvcache_status

cdef extern from "kvcache/c_store.h" nogil:
    ctypedef struct kvcache_events:
        pass

    ctypedef struct kvcache_save_options:
        size_t struct_size
        uint32_t replace
        uint32_t not_durable

    ctypedef struct kvcache_load_options:
        size_t struct_size
        uint64_t ttl_ms
        const char* tenant
        uint32_t convert
        uint32_t read_threads

    kvcache_status kvcache_cache_save(
        kvcache_cache* cache, const char* path, const int32_t* tokens, size_t token_count,
        const kvcache_space* space, const kvcache_save_options* options, uint64_t* out_positions
    )
    kvcache_status kvcache_cache_load(
        kvcache_cache* cache, const char* path, const kvcache_space* space,
        const kvcache_load_options* options, uint64_t* out_positions
    )

    ctypedef struct kvcache_disk_stats:
        size_t struct_size
        uint32_t is_writer
        uint64_t segments
        uint64_t records
        uint64_t bytes
        uint64_t max_bytes
        uint64_t queued_bytes
        uint64_t written_records
        uint64_t written_bytes
        uint64_t syncs
        uint64_t dropped_records
        uint64_t skipped_snapshots
        uint64_t evicted_segments
        uint64_t kept_records
        uint64_t erased_records
        uint64_t fetches
        uint64_t fetched_tokens
        uint64_t read_records
        uint64_t read_bytes
        uint64_t damaged_segments
        uint64_t torn_segments
        uint64_t damaged_records
        uint64_t read_errors
        uint64_t write_errors
        uint64_t no_room
        const char* last_error

    ctypedef struct kvcache_prefetch_options:
        size_t struct_size
        uint64_t ttl_ms
        const char* tenant

    kvcache_status kvcache_cache_prefetch(
        kvcache_cache* cache, const int32_t* tokens, size_t token_count, const kvcache_space* space,
        const kvcache_prefetch_options* options, uint64_t* out_positions
    )
    kvcache_status kvcache_cache_flush_disk(kvcache_cache* cache, const uint64_t* wait_ms)
    kvcache_status kvcache_cache_disk_stats(const kvcache_cache* cache, kvcache_disk_stats* out)

    ctypedef struct kvcache_remote_stats:
        size_t struct_size
        uint64_t is_suspended
        uint64_t servers
        uint64_t connects
        uint64_t redirections
        uint64_t lookups
        uint64_t round_trips
        uint64_t present_records
        uint64_t missing_records
        uint64_t queued_bytes
        uint64_t written_records
        uint64_t written_bytes
        uint64_t dropped_records
        uint64_t skipped_snapshots
        uint64_t erased_records
        uint64_t fetches
        uint64_t fetched_tokens
        uint64_t read_records
        uint64_t read_bytes
        uint64_t damaged_records
        uint64_t read_errors
        uint64_t write_errors
        uint64_t no_room
        uint64_t failures
        uint64_t timeouts
        uint64_t refused_operations
        const char* last_error

    kvcache_status kvcache_cache_flush_remote(kvcache_cache* cache, const uint64_t* wait_ms)
    kvcache_status kvcache_cache_remote_stats(const kvcache_cache* cache, kvcache_remote_stats* out)

    ctypedef enum kvcache_event_kind:
        KVCACHE_EVENT_STORED
        KVCACHE_EVENT_REMOVED
        KVCACHE_EVENT_CLEARED

    ctypedef struct kvcache_event:
        size_t struct_size
        kvcache_event_kind kind
        uint32_t group
        const uint64_t* hashes
        size_t hash_count
        const uint64_t* parent
        uint64_t start
        uint32_t block_tokens
        const int32_t* tokens
        size_t token_count
        const kvcache_media* media
        size_t media_count
        const kvcache_space* space

    kvcache_status kvcache_cache_take_events(kvcache_cache* cache, kvcache_events** out)
    kvcache_status kvcache_cache_events_snapshot(kvcache_cache* cache, kvcache_events** out)
    kvcache_status kvcache_cache_lose_events(kvcache_cache* cache)
    void kvcache_events_destroy(kvcache_events* events)
    size_t kvcache_events_count(const kvcache_events* events)
    kvcache_status kvcache_events_read(
        const kvcache_events* events, size_t index, kvcache_event* out
    )
