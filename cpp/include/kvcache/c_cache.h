/* A cache: creation, what it reports, and what its owner decides. Conventions: kvcache/c.h. */
#ifndef KVCACHE_C_CACHE_H
#define KVCACHE_C_CACHE_H

#include "kvcache/c_base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kvcache_state_kind KVCACHE_ENUM {
  KVCACHE_RECURRENT = 0,
  KVCACHE_PAGED_KV = 1
} kvcache_state_kind;

/* VerifyRule and Gate in kvcache/types.h: how a verify folds the inputs of rows into the state. */
typedef enum kvcache_verify_rule KVCACHE_ENUM {
  KVCACHE_NO_STEPS = 0,
  KVCACHE_H_STEPS = 1,
  KVCACHE_CONV_STEPS = 2
} kvcache_verify_rule;

typedef enum kvcache_gate KVCACHE_ENUM {
  KVCACHE_GATE_HEAD = 0,
  KVCACHE_GATE_CHANNEL = 1,
  KVCACHE_GATE_ELEMENT = 2
} kvcache_gate;

typedef enum kvcache_durability KVCACHE_ENUM {
  KVCACHE_DURABILITY_NONE = 0,
  KVCACHE_DURABILITY_GROUP = 1,
  KVCACHE_DURABILITY_RECORD = 2
} kvcache_durability;

typedef enum kvcache_tier_access KVCACHE_ENUM {
  KVCACHE_TIER_WRITE = 0,
  KVCACHE_TIER_READ = 1,
  KVCACHE_TIER_WRITE_OR_READ = 2
} kvcache_tier_access;

typedef struct kvcache_pin kvcache_pin;
typedef struct kvcache_tenants kvcache_tenants;
typedef struct kvcache_reservation kvcache_reservation;

/* One component of one layer; see StateDecl in kvcache/state_decl.h. */
typedef struct kvcache_state_decl {
  size_t struct_size; /* the same in all of an array */
  const char* id;
  int32_t layer;
  const char* component;
  kvcache_state_kind kind;
  kvcache_dtype dtype;
  const uint64_t* shape; /* [heads, width] of a position, or the tensor of a sequence */
  size_t shape_axes;
  uint32_t row_scale_bytes;
  uint32_t window;        /* 0: every position */
  uint32_t chunked;       /* not 0: the window starts anew at each multiple of its length */
  uint32_t sinks;         /* first positions that a sliding window keeps as well */
  uint32_t record_tokens; /* positions that one row stands for; 0 or 1: its own */
  kvcache_verify_rule verify;
  kvcache_gate gate;
} kvcache_state_decl;

/* So many bytes, where `bytes` is not NULL, else a fraction of the budget. */
typedef struct kvcache_share {
  double fraction;
  const uint64_t* bytes;
} kvcache_share;

/* A disk tier; see DiskTierOptions in kvcache/disk_tier.h. */
typedef struct kvcache_disk_options {
  size_t struct_size;
  const char* path;
  uint64_t max_bytes; /* of all files */
  kvcache_tier_access access;
  const kvcache_durability* durability; /* NULL: KVCACHE_DURABILITY_GROUP */
  uint64_t group_bytes;                 /* 0: 64 MiB */
  uint64_t group_ms;                    /* 0: 1000 */
  uint64_t queue_bytes;                 /* 0: 256 MiB */
  uint64_t wait_ms;
  uint32_t read_threads;  /* 0: 2 */
  uint32_t only_prefetch; /* not 0: kvcache_sequence_open() does not look here */
} kvcache_disk_options;

/* RemoteTlsOptions; the files are PEM. */
typedef struct kvcache_remote_tls {
  size_t struct_size;
  const char* ca_file;     /* authorities that may vouch for the server; NULL: the system's */
  const char* certificate; /* of this client, then its chain; NULL: none */
  const char* key;         /* NULL: in the same file */
  uint32_t no_verify;      /* not 0: whoever answers is taken for the server */
} kvcache_remote_tls;

/* RemoteTopology: one server, a cluster whose primaries share the keys, or sentinels that name one
 * primary at a time. */
typedef enum kvcache_remote_topology KVCACHE_ENUM {
  KVCACHE_REMOTE_SERVER = 0,
  KVCACHE_REMOTE_CLUSTER = 1,
  KVCACHE_REMOTE_SENTINELS = 2
} kvcache_remote_topology;

/* Where somebody listens: at a host and port, or at the path of a Unix socket. */
typedef struct kvcache_remote_address {
  const char* host;
  const char* socket;
  uint32_t port; /* 0: 6379 */
} kvcache_remote_address;

/* A Valkey or Redis server for many caches, or a cluster of them; see RemoteTierOptions in
 * kvcache/remote_tier.h. */
typedef struct kvcache_remote_options {
  size_t struct_size;
  const kvcache_remote_address* addresses; /* of the server, or of whom is asked for the others */
  size_t address_count;
  kvcache_remote_topology topology;
  uint32_t database;
  const char* service;       /* of sentinels: what they call the primary */
  const char* user;          /* NULL: the servers' default user */
  const char* password;      /* NULL: none is asked for */
  const char* sentinel_user; /* these two likewise */
  const char* sentinel_password;
  const char* key_prefix; /* NULL: "kvcache:" */
  const uint64_t* ttl_ms; /* after which the server drops it; NULL: a day; 0: never */
  uint64_t deadline_ms;   /* 0: 2000 */
  uint64_t queue_bytes;   /* 0: 256 MiB */
  uint64_t wait_ms;
  uint32_t read_threads;         /* 0: 2 */
  uint32_t only_prefetch;        /* not 0: kvcache_sequence_open() does not look here */
  const kvcache_remote_tls* tls; /* NULL: connections in the clear */
} kvcache_remote_options;

/* PlanOptions in kvcache/state_plan.h and CacheOptions in kvcache/cache.h. */
typedef struct kvcache_options {
  size_t struct_size;
  uint64_t memory_bytes; /* required */
  uint32_t block_tokens; /* 0: 16 */
  uint32_t sequences;    /* that may be open at once; 0: 64 */
  uint32_t ring_depth;   /* copies of its fixed-size state that a sequence may record */
  uint32_t stash_rows;   /* of the verify strategies "replay" and "carry" */
  uint32_t plain_keys;   /* not 0: keys are stored before rotation, so that they may be shifted */
  uint32_t ledger;       /* not 0: places, counts and evicts, but stores no bytes */
  const char* policy;    /* NULL: "price_list" */
  const char* weights;   /* their name, for files */
  uint64_t capacity_blocks;
  uint64_t max_memory_bytes; /* that kvcache_cache_resize() can reach; 0: the machine's */
  double flops_per_token;    /* 0: 1 */
  double flops_per_token_per_position;
  const uint64_t* interval_tokens;      /* between snapshots; NULL: 1024 */
  const uint32_t* snapshots_per_path;   /* NULL: 32 */
  uint64_t event_capacity;              /* 0: events are not recorded */
  const kvcache_share* pin_limit;       /* NULL: half of the budget */
  uint64_t ttl_ms;                      /* 0 or UINT64_MAX: for ever */
  const kvcache_huge_pages* huge_pages; /* NULL: KVCACHE_HUGE_PAGES_ADVISE */
  const int32_t* numa_node;             /* NULL or -1: where memory is first touched */
  uint32_t lock_memory;
  uint32_t prefault_threads;
  const kvcache_disk_options* disk;     /* NULL: no tier */
  const kvcache_remote_options* remote; /* NULL: no tier */
} kvcache_options;

/* CacheStats in kvcache/cache.h, but for what is counted by group. */
typedef struct kvcache_stats {
  size_t struct_size;
  uint64_t budget_bytes;
  uint64_t reserved_bytes;
  uint64_t committed_bytes;
  uint64_t peak_bytes;
  uint64_t used_bytes;
  uint64_t idle_bytes;
  uint64_t max_bytes;
  uint64_t open_sequences;
  uint64_t epoch;
  uint64_t pages;
  uint64_t slots;
  uint64_t snapshots;
  uint64_t lossy_snapshots;
  uint64_t ring_snapshots;
  uint64_t indexed_blocks;
  uint64_t indexed_tokens;
  uint64_t indexed_snapshots;
  uint64_t evicted_blocks;
  uint64_t evicted_snapshots;
  uint64_t thinned_snapshots;
  uint64_t erased_blocks;
  uint64_t erased_snapshots;
  uint64_t dropped_blocks;
  uint64_t dropped_snapshots;
  uint64_t expired_blocks;
  uint64_t pins;
  uint64_t pinned_pages;
  uint64_t pinned_bytes;
  uint64_t lapsed_leases;
  uint64_t opens;
  uint64_t hits;
  uint64_t asked_tokens;
  uint64_t cached_tokens;
  uint64_t limited_by_none;
  uint64_t limited_by_tokens;
  uint64_t limited_by_snapshot;
  uint64_t limited_by_window;
  uint64_t unknown_tokens;
  uint64_t lost_snapshot_tokens;
  uint64_t lost_window_tokens;
  uint64_t waiting_events;
  uint64_t event_losses;
  uint64_t hit_blocks;
  uint64_t lru_hit_blocks;
} kvcache_stats;

/* What the plan of a cache says for good; see StatePlan in kvcache/state_plan.h. */
typedef struct kvcache_plan {
  size_t struct_size;
  uint64_t block_tokens;
  uint64_t block_bytes; /* one block of every group */
  uint64_t slot_bytes;  /* all fixed-size state of one sequence; 0: the model has none */
  uint64_t stash_bytes; /* the carry stash of one */
  uint64_t ring_bytes;  /* the decode rings of all */
  /* What the stored bytes mean; files carry it. Valid until the calling thread's next
   * kvcache_cache_plan(). */
  const char* fingerprint;
} kvcache_plan;

/* Layers that share a block table. */
typedef struct kvcache_group_stats {
  size_t struct_size;
  uint64_t components;
  uint64_t token_bytes;
  uint64_t page_bytes;
  uint32_t window;
  uint32_t record_tokens;
  uint64_t pages; /* live */
  uint64_t window_pages_evicted;
} kvcache_group_stats;

/*
 * One component of one layer in every page of its group; see PageMemory in kvcache/pages.h. The row
 * of position p, head h: rows + table[p / block_tokens] * page_stride +
 * (p % block_tokens) * token_stride + h * head_stride; its scale likewise, by the scale strides.
 * The memory is valid until the cache is destroyed and its last sequence and batch are.
 */
typedef struct kvcache_page_memory {
  size_t struct_size;
  size_t group; /* whose block table addresses it */
  kvcache_dtype dtype;
  uint32_t block_tokens;
  uint32_t heads;
  uint32_t width;
  uint64_t pages;       /* numbers in a block table are below */
  uint64_t page_stride; /* bytes, as all strides here */
  uint64_t token_stride;
  uint64_t head_stride;
  void* rows;
  void* scales; /* NULL without */
  uint64_t scale_token_stride;
  uint64_t scale_head_stride;
} kvcache_page_memory;

KVCACHE_API kvcache_status kvcache_cache_create(const kvcache_state_decl* decls, size_t decl_count,
                                                const kvcache_options* options,
                                                kvcache_cache** out);
KVCACHE_API void kvcache_cache_destroy(kvcache_cache* cache);
KVCACHE_API kvcache_status kvcache_cache_stats(const kvcache_cache* cache, kvcache_stats* out);
KVCACHE_API kvcache_status kvcache_cache_plan(const kvcache_cache* cache, kvcache_plan* out);
KVCACHE_API kvcache_status kvcache_cache_group_count(const kvcache_cache* cache, size_t* out);
KVCACHE_API kvcache_status kvcache_cache_group_stats(const kvcache_cache* cache, size_t group,
                                                     kvcache_group_stats* out);
/* Most bytes that a sequence takes which shares nothing; see StatePlan::sequence_bytes(). */
KVCACHE_API kvcache_status kvcache_cache_sequence_bytes(const kvcache_cache* cache, uint64_t tokens,
                                                        uint64_t chunk_tokens, uint64_t* out);
/* A component by its name, such as "attention.keys". */
KVCACHE_API kvcache_status kvcache_cache_pages(const kvcache_cache* cache, int32_t layer,
                                               const char* component, kvcache_page_memory* out);
KVCACHE_API kvcache_status kvcache_cache_resize(kvcache_cache* cache, uint64_t memory_bytes);
/* Part of the budget for memory that lies elsewhere, given back by kvcache_reservation_destroy().
 */
KVCACHE_API kvcache_status kvcache_cache_reserve(kvcache_cache* cache, uint64_t bytes,
                                                 kvcache_reservation** out);
KVCACHE_API void kvcache_reservation_destroy(kvcache_reservation* reservation);

/* ---- Why a prompt hits as far as it does ---------------------------------------------------- */

typedef enum kvcache_hit_limit KVCACHE_ENUM {
  KVCACHE_LIMIT_NONE = 0,
  KVCACHE_LIMIT_TOKENS = 1,
  KVCACHE_LIMIT_SNAPSHOT = 2,
  KVCACHE_LIMIT_WINDOW = 3
} kvcache_hit_limit;

typedef enum kvcache_miss_reason KVCACHE_ENUM {
  KVCACHE_MISS_NONE = 0,
  KVCACHE_MISS_NEVER_STORED = 1,
  KVCACHE_MISS_EVICTED = 2,
  KVCACHE_MISS_ERASED = 3,
  KVCACHE_MISS_WEIGHTS = 4,
  KVCACHE_MISS_THINNED = 5,
  KVCACHE_MISS_EXPIRED = 6,
  KVCACHE_MISS_QUOTA = 7
} kvcache_miss_reason;

/* Explanation in kvcache/explanation.h. */
typedef struct kvcache_explanation {
  size_t struct_size;
  uint64_t tokens;
  uint64_t matched_tokens;
  uint64_t cached_tokens;
  uint64_t nearest_snapshot;
  kvcache_hit_limit limit;
  int32_t snapshot_format; /* a kvcache_snapshot_format, -1: none would be restored */
  uint64_t position;
  int64_t group; /* whose window it is; -1: no window */
  kvcache_miss_reason reason;
  uint64_t once_tokens;
  uint64_t lost_snapshot;
  /* Of KVCACHE_MISS_QUOTA: whose quota it was, while it has one, else NULL; kvcache_cache_tenants()
   * says more. Valid until the calling thread's next kvcache_cache_explain(). */
  const char* tenant;
} kvcache_explanation;

KVCACHE_API kvcache_status kvcache_cache_explain(const kvcache_cache* cache, const int32_t* tokens,
                                                 size_t token_count, const kvcache_space* space,
                                                 kvcache_explanation* out);

/* ---- Pins and leases: kvcache/lifetime.h ---------------------------------------------------- */

typedef struct kvcache_pin_options {
  size_t struct_size;
  const uint64_t* lease_ms; /* NULL: until it is destroyed */
  const uint64_t* now_ms;   /* NULL: a steady clock's */
} kvcache_pin_options;

typedef struct kvcache_pin_state {
  size_t struct_size;
  uint64_t tokens;
  uint64_t expires_ms; /* UINT64_MAX: never */
  uint32_t is_held;
} kvcache_pin_state;

KVCACHE_API kvcache_status kvcache_cache_pin(kvcache_cache* cache, const int32_t* tokens,
                                             size_t token_count, const kvcache_space* space,
                                             const kvcache_pin_options* options, kvcache_pin** out);
KVCACHE_API void kvcache_pin_destroy(kvcache_pin* pin); /* lets go */
KVCACHE_API kvcache_status kvcache_pin_read(const kvcache_pin* pin, kvcache_pin_state* out);
KVCACHE_API kvcache_status kvcache_pin_renew(kvcache_pin* pin, const kvcache_pin_options* options);

/* ---- Tenants and quotas: kvcache/tenants.h -------------------------------------------------- */

typedef struct kvcache_tenant_usage {
  size_t struct_size;
  const char* name; /* valid until the list is destroyed */
  uint64_t bytes;
  uint64_t blocks;
  uint64_t snapshots;
  uint64_t quota_bytes; /* UINT64_MAX: no quota */
  uint64_t evicted_blocks;
  uint64_t evicted_snapshots;
  uint64_t refused_blocks;
} kvcache_tenant_usage;

/* NULL: no limit. */
KVCACHE_API kvcache_status kvcache_cache_set_quota(kvcache_cache* cache, const char* tenant,
                                                   const kvcache_share* quota);
/* A list of what they have now, by name. */
KVCACHE_API kvcache_status kvcache_cache_tenants(const kvcache_cache* cache, kvcache_tenants** out);
KVCACHE_API void kvcache_tenants_destroy(kvcache_tenants* tenants);
KVCACHE_API size_t kvcache_tenants_count(const kvcache_tenants* tenants); /* NULL: 0 */
KVCACHE_API kvcache_status kvcache_tenants_read(const kvcache_tenants* tenants, size_t index,
                                                kvcache_tenant_usage* out);

/* ---- Dropping what is stored ---------------------------------------------------------------- */

/* EraseFilter in kvcache/cache.h: a field that is NULL agrees with everything. */
typedef struct kvcache_erase_filter {
  size_t struct_size;
  const kvcache_bytes* name;
  const kvcache_bytes* adapter;
  const kvcache_bytes* salt;
  const kvcache_media* media;
  size_t media_count;
  const int32_t* tokens;
  size_t token_count;
  const char* tenant;
} kvcache_erase_filter;

/* Blocks of memory that went, here and below. */
KVCACHE_API kvcache_status kvcache_cache_erase(kvcache_cache* cache,
                                               const kvcache_erase_filter* filter,
                                               uint64_t* out_blocks);
KVCACHE_API kvcache_status kvcache_cache_drop_expired(kvcache_cache* cache, uint64_t* out_blocks);
KVCACHE_API kvcache_status kvcache_cache_clear(kvcache_cache* cache);
/* Everything, because other weights compute other state; NULL: they have no name. */
KVCACHE_API kvcache_status kvcache_cache_bump_epoch(kvcache_cache* cache, const char* weights);

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_C_CACHE_H */
