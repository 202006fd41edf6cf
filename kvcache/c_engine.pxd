"""Declarations of kvcache/c_engine.h, engine rows, views: cimport them from ``kvcache.c``."""

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from kvcache.c_base cimport kvcache_dtype, kvcache_sequence, kvcache_status

cdef extern from "kvcache/c_engine.h" nogil:
    ctypedef struct kvcache_page_views:
        pass

    ctypedef struct kvcache_engine_tensor:
        size_t struct_size
        void* data
        kvcache_dtype dtype
        const char* layout
        const uint64_t* shape
        const ptrdiff_t* strides
        size_t axes

    ctypedef struct kvcache_engine_places:
        size_t struct_size
        const int32_t* block_table
        size_t block_count
        const int64_t* slot_mapping
        size_t slot_count

    kvcache_status kvcache_sequence_import_rows(
        kvcache_sequence* sequence, const int32_t* layers, size_t layer_count, uint64_t start,
        uint64_t stop, const kvcache_engine_tensor* tensors, size_t tensor_count,
        const kvcache_engine_places* places
    )
    kvcache_status kvcache_sequence_export_rows(
        const kvcache_sequence* sequence, const int32_t* layers, size_t layer_count, uint64_t start,
        uint64_t stop, const kvcache_engine_tensor* tensors, size_t tensor_count,
        const kvcache_engine_places* places
    )

    ctypedef struct kvcache_page_view:
        size_t struct_size
        size_t component
        uint64_t start
        uint64_t positions
        int32_t page
        kvcache_dtype dtype
        uint32_t heads
        uint32_t width
        const void* rows
        const void* scales
        uint64_t token_stride
        uint64_t head_stride
        uint64_t scale_token_stride
        uint64_t scale_head_stride

    kvcache_status kvcache_sequence_views(
        const kvcache_sequence* sequence, int32_t layer, uint64_t start, uint64_t stop,
        kvcache_page_views** out
    )
    void kvcache_page_views_destroy(kvcache_page_views* views)
    size_t kvcache_page_views_count(const kvcache_page_views* views)
    kvcache_status kvcache_page_views_read(
        const kvcache_page_views* views, size_t index, kvcache_page_view* out
    )
