/* Blocks of equal size by id, counted by references, for a server that keeps its own block tables;
 * see kvcache/page_pool.h. Conventions: kvcache/c.h. */
#ifndef KVCACHE_C_POOL_H
#define KVCACHE_C_POOL_H

#include "kvcache/c_base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvcache_pool kvcache_pool;
typedef struct kvcache_block_pin kvcache_block_pin;

/* PagePoolOptions, and MemoryOptions in kvcache/memory_options.h. */
typedef struct kvcache_pool_options {
  size_t struct_size;
  uint64_t blocks;                      /* required, this one and the next */
  uint64_t block_bytes;                 /* of one */
  const kvcache_huge_pages* huge_pages; /* NULL: KVCACHE_HUGE_PAGES_ADVISE */
  const int32_t* numa_node;             /* NULL or -1: where memory is first touched */
  uint64_t prefault_threads;
  uint32_t lock_memory;
  uint32_t ledger; /* not 0: hands out ids and stores nothing */
} kvcache_pool_options;

/* Where blocks lie: block `id` begins at data + id * stride. Valid until the pool is destroyed. */
typedef struct kvcache_block_memory {
  size_t struct_size;
  void* data;
  uint64_t blocks;
  uint64_t stride;
  uint64_t bytes;   /* from the first block to the end of the last */
  uint64_t settled; /* not 0: all of it was touched at creation and may be registered */
} kvcache_block_memory;

typedef struct kvcache_block_stats {
  size_t struct_size;
  uint64_t blocks; /* in all */
  uint64_t live_blocks;
  uint64_t free_blocks;
  uint64_t block_bytes;
  uint64_t metadata_bytes;
} kvcache_block_stats;

KVCACHE_API kvcache_status kvcache_pool_create(const kvcache_pool_options* options,
                                               kvcache_pool** out);
KVCACHE_API void kvcache_pool_destroy(kvcache_pool* pool); /* pinned blocks stay memory */
/* So many ids, ascending, with one reference each, or none: the free ones of lowest id. */
KVCACHE_API kvcache_status kvcache_pool_allocate(kvcache_pool* pool, int32_t* out, size_t count);
/* One reference more to each, and one less; a block without any is free. */
KVCACHE_API kvcache_status kvcache_pool_retain(kvcache_pool* pool, const int32_t* ids,
                                               size_t count);
KVCACHE_API kvcache_status kvcache_pool_free(kvcache_pool* pool, const int32_t* ids, size_t count);
/* 0: the block is free. */
KVCACHE_API kvcache_status kvcache_pool_refs(const kvcache_pool* pool, int32_t id, uint32_t* out);
/* First byte of a live block; valid while it lives. */
KVCACHE_API kvcache_status kvcache_pool_data(const kvcache_pool* pool, int32_t id, void** out);
/* The same with a reference that kvcache_pool_free() cannot take: valid until the pin is
 * destroyed, also past the pool. */
KVCACHE_API kvcache_status kvcache_pool_pin(kvcache_pool* pool, int32_t id, kvcache_block_pin** out,
                                            void** out_data);
KVCACHE_API void kvcache_block_pin_destroy(kvcache_block_pin* pin);
KVCACHE_API kvcache_status kvcache_pool_memory(const kvcache_pool* pool, kvcache_block_memory* out);
KVCACHE_API kvcache_status kvcache_pool_stats(const kvcache_pool* pool, kvcache_block_stats* out);

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_C_POOL_H */
