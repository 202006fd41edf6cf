"""Declarations of kvcache/c_cache.h, a cache: cimport them from ``kvcache.c``."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from kvcache.c_base cimport (
    kvcache_bytes,
    kvcache_cache,
    kvcache_dtype,
    kvcache_huge_pages,
    kvcache_media,
    kvcache_space,
    kvcache_status,
)

cdef extern from "kvcache/c_cache.h" nogil:
    ctypedef enum kvcache_state_kind:
        KVCACHE_RECURRENT
        KVCACHE_PAGED_KV

    ctypedef enum kvcache_verify_rule:
        KVCACHE_NO_STEPS
        KVCACHE_H_STEPS
        KVCACHE_CONV_STEPS

    ctypedef enum kvcache_gate:
        KVCACHE_GATE_HEAD
        KVCACHE_GATE_CHANNEL
        KVCACHE_GATE_ELEMENT

    ctypedef enum kvcache_durability:
        KVCACHE_DURABILITY_NONE
        KVCACHE_DURABILITY_GROUP
        KVCACHE_DURABILITY_RECORD

    ctypedef enum kvcache_tier_access:
        KVCACHE_TIER_WRITE
        KVCACHE_TIER_READ
        KVCACHE_TIER_WRITE_OR_READ

    ctypedef struct kvcache_pin:
        pass

    ctypedef struct kvcache_tenants:
        pass

    ctypedef struct kvcache_reservation:
        pass

    ctypedef struct kvcache_state_decl:
        size_t struct_size
        const char* id
        int32_t layer
        const char* component
        kvcache_state_kind kind
        kvcache_dtype dtype
        const uint64_t* shape
        size_t shape_axes
        uint32_t row_scale_bytes
        uint32_t window
        uint32_t chunked
        uint32_t sinks
        uint32_t record_tokens
        kvcache_verify_rule verify
        kvcache_gate gate

    ctypedef struct kvcache_share:
        double fraction
        const uint64_t* bytes

    ctypedef struct kvcache_disk_options:
        size_t struct_size
        const char* path
        uint64_t max_bytes
        kvcache_tier_access access
        const kvcache_durability* durability
        uint64_t group_bytes
        uint64_t group_ms
        uint64_t queue_bytes
        uint64_t wait_ms
        uint32_t read_threads
        uint32_t only_prefetch

    ctypedef struct kvcache_remote_tls:
        size_t struct_size
        const char* ca_file
        const char* certificate
        const char* key
        uint32_t no_verify

    ctypedef enum kvcache_remote_topology:
        KVCACHE_REMOTE_SERVER
        KVCACHE_REMOTE_CLUSTER
        KVCACHE_REMOTE_SENTINELS

    ctypedef struct kvcache_remote_address:
        const char* host
        const char* socket
        uint32_t port

    ctypedef struct kvcache_remote_options:
        size_t struct_size
        const kvcache_remote_address* addresses
        size_t address_count
        kvcache_remote_topology topology
        uint32_t database
        const char* service
        const char* user
        const char* password
        const char* sentinel_user
        const char* sentinel_password
        const char* key_prefix
        const uint64_t* ttl_ms
        uint64_t deadline_ms
        uint64_t queue_bytes
        uint64_t wait_ms
        uint32_t read_threads
        uint32_t only_prefetch
        const kvcache_remote_tls* tls

    ctypedef struct kvcache_options:
        size_t struct_size
        uint64_t memory_bytes
        uint32_t block_tokens
        uint32_t sequences
        uint32_t ring_depth
        uint32_t stash_rows
        uint32_t plain_keys
        uint32_t ledger
        const char* policy
        const char* weights
        uint64_t capacity_blocks
        uint64_t max_memory_bytes
        double flops_per_token
        double flops_per_token_per_position
        const uint64_t* interval_tokens
        const uint32_t* snapshots_per_path
        uint64_t event_capacity
        const kvcache_share* pin_limit
        uint64_t ttl_ms
        const kvcache_huge_pages* huge_pages
        const int32_t* numa_node
        uint32_t lock_memory
        uint32_t prefault_threads
        const kvcache_disk_options* disk
        const kvcache_remote_options* remote

    ctypedef struct kvcache_stats:
        size_t struct_size
        uint64_t budget_bytes
        uint64_t reserved_bytes
        uint64_t committed_bytes
        uint64_t peak_bytes
        uint64_t used_bytes
        uint64_t idle_bytes
        uint64_t max_bytes
        uint64_t open_sequences
        uint64_t epoch
        uint64_t pages
        uint64_t slots
        uint64_t snapshots
        uint64_t lossy_snapshots
        uint64_t ring_snapshots
        uint64_t indexed_blocks
        uint64_t indexed_tokens
        uint64_t indexed_snapshots
        uint64_t evicted_blocks
        uint64_t evicted_snapshots
        uint64_t thinned_snapshots
        uint64_t erased_blocks
        uint64_t erased_snapshots
        uint64_t dropped_blocks
        uint64_t dropped_snapshots
        uint64_t expired_blocks
        uint64_t pins
        uint64_t pinned_pages
        uint64_t pinned_bytes
        uint64_t lapsed_leases
        uint64_t opens
        uint64_t hits
        uint64_t asked_tokens
        uint64_t cached_tokens
        uint64_t limited_by_none
        uint64_t limited_by_tokens
        uint64_t limited_by_snapshot
        uint64_t limited_by_window
        uint64_t unknown_tokens
        uint64_t lost_snapshot_tokens
        uint64_t lost_window_tokens
        uint64_t waiting_events
        uint64_t event_losses
        uint64_t hit_blocks
        uint64_t lru_hit_blocks

    ctypedef struct kvcache_plan:
        size_t struct_size
        uint64_t block_tokens
        uint64_t block_bytes
        uint64_t slot_bytes
        uint64_t stash_bytes
        uint64_t ring_bytes
        const char* fingerprint

    ctypedef struct kvcache_group_stats:
        size_t struct_size
        uint64_t components
        uint64_t token_bytes
        uint64_t page_bytes
        uint32_t window
        uint32_t record_tokens
        uint64_t pages
        uint64_t window_pages_evicted

    ctypedef struct kvcache_page_memory:
        size_t struct_size
        size_t group
        kvcache_dtype dtype
        uint32_t block_tokens
        uint32_t heads
        uint32_t width
        uint64_t pages
        uint64_t page_stride
        uint64_t token_stride
        uint64_t head_stride
        void* rows
        void* scales
        uint64_t scale_token_stride
        uint64_t scale_head_stride

    kvcache_status kvcache_cache_create(
        const kvcache_state_decl* decls, size_t decl_count, const kvcache_options* options,
        kvcache_cache** out
    )
    void kvcache_cache_destroy(kvcache_cache* cache)
    kvcache_status kvcache_cache_stats(const kvcache_cache* cache, kvcache_stats* out)
    kvcache_status kvcache_cache_plan(const kvcache_cache* cache, kvcache_plan* out)
    kvcache_status kvcache_cache_group_count(const kvcache_cache* cache, size_t* out)
    kvcache_status kvcache_cache_group_stats(
        const kvcache_cache* cache, size_t group, kvcache_group_stats* out
    )
    kvcache_status kvcache_cache_sequence_bytes(
        const kvcache_cache* cache, uint64_t tokens, uint64_t chunk_tokens, uint64_t* out
    )
    kvcache_status kvcache_cache_pages(
        const kvcache_cache* cache, int32_t layer, const char* component, kvcache_page_memory* out
    )
    kvcache_status kvcache_cache_resize(kvcache_cache* cache, uint64_t memory_bytes)
    kvcache_status kvcache_cache_reserve(
        kvcache_cache* cache, uint64_t bytes, kvcache_reservation** out
    )
    void kvcache_reservation_destroy(kvcache_reservation* reservation)

    ctypedef enum kvcache_hit_limit:
        KVCACHE_LIMIT_NONE
        KVCACHE_LIMIT_TOKENS
        KVCACHE_LIMIT_SNAPSHOT
        KVCACHE_LIMIT_WINDOW

    ctypedef enum kvcache_miss_reason:
        KVCACHE_MISS_NONE
        KVCACHE_MISS_NEVER_STORED
        KVCACHE_MISS_EVICTED
        KVCACHE_MISS_ERASED
        KVCACHE_MISS_WEIGHTS
        KVCACHE_MISS_THINNED
        KVCACHE_MISS_EXPIRED
        KVCACHE_MISS_QUOTA

    ctypedef struct kvcache_explanation:
        size_t struct_size
        uint64_t tokens
        uint64_t matched_tokens
        uint64_t cached_tokens
        uint64_t nearest_snapshot
        kvcache_hit_limit limit
        int32_t snapshot_format
        uint64_t position
        int64_t group
        kvcache_miss_reason reason
        uint64_t once_tokens
        uint64_t lost_snapshot
        const char* tenant

    kvcache_status kvcache_cache_explain(
        const kvcache_cache* cache, const int32_t* tokens, size_t token_count,
        const kvcache_space* space, kvcache_explanation* out
    )

    ctypedef struct kvcache_pin_options:
        size_t struct_size
        const uint64_t* lease_ms
        const uint64_t* now_ms

    ctypedef struct kvcache_pin_state:
        size_t struct_size
        uint64_t tokens
        uint64_t expires_ms
        uint32_t is_held

    kvcache_status kvcache_cache_pin(
        kvcache_cache* cache, const int32_t* tokens, size_t token_count, const kvcache_space* space,
        const kvcache_pin_options* options, kvcache_pin** out
    )
    void kvcache_pin_destroy(kvcache_pin* pin)
    kvcache_status kvcache_pin_read(const kvcache_pin* pin, kvcache_pin_state* out)
    kvcache_status kvcache_pin_renew(kvcache_pin* pin, const kvcache_pin_options* options)

    ctypedef struct kvcache_tenant_usage:
        size_t struct_size
        const char* name
        uint64_t bytes
        uint64_t blocks
        uint64_t snapshots
        uint64_t quota_bytes
        uint64_t evicted_blocks
        uint64_t evicted_snapshots
        uint64_t refused_blocks

    kvcache_status kvcache_cache_set_quota(
        kvcache_cache* cache, const char* tenant, const kvcache_share* quota
    )
    kvcache_status kvcache_cache_tenants(const kvcache_cache* cache, kvcache_tenants** out)
    void kvcache_tenants_destroy(kvcache_tenants* tenants)
    size_t kvcache_tenants_count(const kvcache_tenants* tenants)
    kvcache_status kvcache_tenants_read(
        const kvcache_tenants* tenants, size_t index, kvcache_tenant_usage* out
    )

    ctypedef struct kvcache_erase_filter:
        size_t struct_size
        const kvcache_bytes* name
        const kvcache_bytes* adapter
        const kvcache_bytes* salt
        const kvcache_media* media
        size_t media_count
        const int32_t* tokens
        size_t token_count
        const char* tenant

    kvcache_status kvcache_cache_erase(
        kvcache_cache* cache, const kvcache_erase_filter* filter, uint64_t* out_blocks
    )
    kvcache_status kvcache_cache_drop_expired(kvcache_cache* cache, uint64_t* out_blocks)
    kvcache_status kvcache_cache_clear(kvcache_cache* cache)
    kvcache_status kvcache_cache_bump_epoch(kvcache_cache* cache, const char* weights)
