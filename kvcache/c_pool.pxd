"""Declarations of kvcache/c_pool.h, page pools: cimport them from ``kvcache.c``."""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from kvcache.c_base cimport kvcache_huge_pages, kvcache_status

cdef extern from "kvcache/c_pool.h" nogil:
    ctypedef struct kvcache_pool:
        pass

    ctypedef struct kvcache_block_pin:
        pass

    ctypedef struct kvcache_pool_options:
        size_t struct_size
        uint64_t blocks
        uint64_t block_bytes
        const kvcache_huge_pages* huge_pages
        const int32_t* numa_node
        uint64_t prefault_threads
        uint32_t lock_memory
        uint32_t ledger

    ctypedef struct kvcache_block_memory:
        size_t struct_size
        void* data
        uint64_t blocks
        uint64_t stride
        uint64_t bytes
        uint64_t settled

    ctypedef struct kvcache_block_stats:
        size_t struct_size
        uint64_t blocks
        uint64_t live_blocks
        uint64_t free_blocks
        uint64_t block_bytes
        uint64_t metadata_bytes

    kvcache_status kvcache_pool_create(const kvcache_pool_options* options, kvcache_pool** out)
    void kvcache_pool_destroy(kvcache_pool* pool)
    kvcache_status kvcache_pool_allocate(kvcache_pool* pool, int32_t* out, size_t count)
    kvcache_status kvcache_pool_retain(kvcache_pool* pool, const int32_t* ids, size_t count)
    kvcache_status kvcache_pool_free(kvcache_pool* pool, const int32_t* ids, size_t count)
    kvcache_status kvcache_pool_refs(const kvcache_pool* pool, int32_t id, uint32_t* out)
    kvcache_status kvcache_pool_data(const kvcache_pool* pool, int32_t id, void** out)
    kvcache_status kvcache_pool_pin(
        kvcache_pool* pool, int32_t id, kvcache_block_pin** out, void** out_data
    )
    void kvcache_block_pin_destroy(kvcache_block_pin* pin)
    kvcache_status kvcache_pool_memory(const kvcache_pool* pool, kvcache_block_memory* out)
    kvcache_status kvcache_pool_stats(const kvcache_pool* pool, kvcache_block_stats* out)
