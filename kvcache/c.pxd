"""The C face of kvcache for Cython: ``from kvcache.c cimport kvcache_cache_create``.

kvcache/c.h says what each call does. An extension is compiled with the package's ``include`` folder
and linked with ``lib/libkvcache.a`` and the C++ runtime; both lie in the package.
"""

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int32_t, uint32_t, uint64_t

cdef extern from "kvcache/c.h" nogil:
    ctypedef enum kvcache_status:
        KVCACHE_OK
        KVCACHE_INVALID_ARGUMENT
        KVCACHE_NOT_FOUND
        KVCACHE_OUT_OF_CAPACITY
        KVCACHE_CORRUPTION
        KVCACHE_UNSUPPORTED
        KVCACHE_IO_ERROR
        KVCACHE_NON_FINITE
        KVCACHE_INTERNAL

    ctypedef enum kvcache_dtype:
        KVCACHE_F32
        KVCACHE_U32
        KVCACHE_I32
        KVCACHE_F16
        KVCACHE_BF16
        KVCACHE_U64
        KVCACHE_U8
        KVCACHE_FP8
        KVCACHE_I8

    ctypedef enum kvcache_state_kind:
        KVCACHE_RECURRENT
        KVCACHE_PAGED_KV

    ctypedef struct kvcache_cache:
        pass

    ctypedef struct kvcache_sequence:
        pass

    ctypedef struct kvcache_batch:
        pass

    ctypedef struct kvcache_state_decl:
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

    ctypedef struct kvcache_options:
        uint64_t memory_bytes
        uint32_t block_tokens
        uint32_t sequences
        const char* policy
        uint32_t ring_depth

    ctypedef struct kvcache_rows:
        void* data
        kvcache_dtype dtype
        size_t tokens
        size_t heads
        size_t width
        ptrdiff_t token_stride
        ptrdiff_t head_stride

    ctypedef struct kvcache_stats:
        uint64_t budget_bytes
        uint64_t committed_bytes
        uint64_t peak_bytes
        uint64_t used_bytes
        uint64_t open_sequences
        uint64_t indexed_blocks
        uint64_t indexed_snapshots
        uint64_t evicted_blocks
        uint64_t evicted_snapshots

    ctypedef struct kvcache_page_memory:
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

    const char* kvcache_version()
    const char* kvcache_last_error()
    const char* kvcache_status_name(kvcache_status status)
    kvcache_status kvcache_cache_create(
        const kvcache_state_decl* decls, size_t decl_count, const kvcache_options* options,
        kvcache_cache** out
    )
    void kvcache_cache_destroy(kvcache_cache* cache)
    kvcache_status kvcache_cache_stats(const kvcache_cache* cache, kvcache_stats* out)
    kvcache_status kvcache_sequence_open(
        kvcache_cache* cache, const int32_t* tokens, size_t token_count, const void* space,
        size_t space_bytes, kvcache_sequence** out
    )
    void kvcache_sequence_close(kvcache_sequence* sequence)
    uint64_t kvcache_sequence_cached_tokens(const kvcache_sequence* sequence)
    uint64_t kvcache_sequence_length(const kvcache_sequence* sequence)
    kvcache_status kvcache_sequence_extend(
        kvcache_sequence* sequence, const int32_t* tokens, size_t token_count
    )
    kvcache_status kvcache_sequence_write(
        kvcache_sequence* sequence, int32_t layer, uint64_t start, const kvcache_rows* components,
        size_t component_count
    )
    kvcache_status kvcache_sequence_read(
        const kvcache_sequence* sequence, int32_t layer, uint64_t start,
        const kvcache_rows* components, size_t component_count
    )
    kvcache_status kvcache_sequence_write_records(
        kvcache_sequence* sequence, int32_t layer, const char* name, uint64_t first,
        const kvcache_rows* rows
    )
    kvcache_status kvcache_sequence_read_records(
        const kvcache_sequence* sequence, int32_t layer, const char* name, uint64_t first,
        const kvcache_rows* rows
    )
    kvcache_status kvcache_sequence_state(
        const kvcache_sequence* sequence, int32_t layer, const char* name, void** out_data,
        uint64_t* out_bytes
    )
    kvcache_status kvcache_sequence_advance(kvcache_sequence* sequence, uint64_t positions)
    kvcache_status kvcache_sequence_prepare(kvcache_sequence* sequence, uint64_t positions)
    kvcache_status kvcache_sequence_advance_in_place(kvcache_sequence* sequence, uint64_t positions)
    kvcache_status kvcache_sequence_block_table(
        const kvcache_sequence* sequence, size_t group, int32_t* out, size_t capacity,
        size_t* out_blocks
    )
    kvcache_status kvcache_sequence_snapshot(kvcache_sequence* sequence)
    kvcache_status kvcache_sequence_publish(kvcache_sequence* sequence)
    kvcache_status kvcache_sequence_fork(kvcache_sequence* sequence, kvcache_sequence** out)
    kvcache_status kvcache_sequence_truncate(kvcache_sequence* sequence, uint64_t position)
    kvcache_status kvcache_sequence_record(kvcache_sequence* sequence)
    kvcache_status kvcache_sequence_rollback(kvcache_sequence* sequence, uint64_t position)
    kvcache_status kvcache_cache_pages(
        const kvcache_cache* cache, int32_t layer, const char* component,
        kvcache_page_memory* out
    )
    kvcache_status kvcache_batch_create(
        kvcache_sequence* const * sequences, size_t count, kvcache_batch** out
    )
    void kvcache_batch_destroy(kvcache_batch* batch)
    kvcache_status kvcache_batch_lengths(const kvcache_batch* batch, uint64_t* out)
    kvcache_status kvcache_batch_extend(
        kvcache_batch* batch, const int32_t* tokens, size_t token_count, const uint64_t* counts
    )
    kvcache_status kvcache_batch_prepare(kvcache_batch* batch, const uint64_t* counts)
    kvcache_status kvcache_batch_write(
        kvcache_batch* batch, int32_t layer, const uint64_t* starts, const uint64_t* counts,
        const kvcache_rows* components, size_t component_count
    )
    kvcache_status kvcache_batch_read(
        const kvcache_batch* batch, int32_t layer, const uint64_t* starts, const uint64_t* counts,
        const kvcache_rows* components, size_t component_count
    )
    kvcache_status kvcache_batch_advance(kvcache_batch* batch, const uint64_t* counts)
    kvcache_status kvcache_batch_advance_in_place(kvcache_batch* batch, const uint64_t* counts)
    kvcache_status kvcache_batch_block_table(
        kvcache_batch* batch, size_t group, const int32_t** out, size_t* out_columns
    )
