"""Declarations of kvcache/c_draft.h, hidden rows and drafts: cimport them from ``kvcache.c``."""

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int32_t, uint64_t

from kvcache.c_base cimport kvcache_cache, kvcache_dtype, kvcache_sequence, kvcache_status

cdef extern from "kvcache/c_draft.h" nogil:
    ctypedef struct kvcache_hidden_capture:
        pass

    ctypedef struct kvcache_hidden_bands:
        pass

    ctypedef struct kvcache_accept_stash:
        pass

    ctypedef struct kvcache_drafts:
        pass

    ctypedef struct kvcache_hidden_rows:
        const void* data
        kvcache_dtype dtype
        uint64_t rows
        uint64_t width
        ptrdiff_t row_stride

    ctypedef struct kvcache_hidden_options:
        size_t struct_size
        uint64_t rows
        uint64_t width
        const kvcache_dtype* dtype
        kvcache_cache* cache

    ctypedef struct kvcache_capture_state:
        size_t struct_size
        uint64_t captured
        uint64_t position
        uint64_t bytes

    kvcache_status kvcache_hidden_capture_create(
        const kvcache_hidden_options* options, kvcache_hidden_capture** out
    )
    void kvcache_hidden_capture_destroy(kvcache_hidden_capture* capture)
    kvcache_status kvcache_hidden_capture_begin(
        kvcache_hidden_capture* capture, const kvcache_sequence* sequence
    )
    kvcache_status kvcache_hidden_capture_write(
        kvcache_hidden_capture* capture, uint64_t position, const kvcache_hidden_rows* rows,
        uint64_t* out_kept
    )
    kvcache_status kvcache_hidden_capture_rows(
        const kvcache_hidden_capture* capture, kvcache_hidden_rows* out
    )
    kvcache_status kvcache_hidden_capture_consume(kvcache_hidden_capture* capture)
    kvcache_status kvcache_hidden_capture_release(kvcache_hidden_capture* capture)
    kvcache_status kvcache_hidden_capture_read(
        const kvcache_hidden_capture* capture, kvcache_capture_state* out
    )
    kvcache_status kvcache_hidden_bands_create(
        const kvcache_hidden_options* options, uint64_t bands, kvcache_hidden_bands** out
    )
    void kvcache_hidden_bands_destroy(kvcache_hidden_bands* bands)
    kvcache_status kvcache_hidden_bands_store(
        kvcache_hidden_bands* bands, kvcache_sequence* const * sequences, size_t sequence_count,
        const kvcache_hidden_rows* hidden, const int32_t* offsets
    )
    kvcache_status kvcache_hidden_bands_accepted(
        const kvcache_hidden_bands* bands, uint64_t band, kvcache_hidden_rows* out
    )
    kvcache_status kvcache_accept_stash_create(
        const kvcache_hidden_options* options, uint64_t catch_up, kvcache_accept_stash** out
    )
    void kvcache_accept_stash_destroy(kvcache_accept_stash* stash)
    kvcache_status kvcache_accept_stash_store(
        kvcache_accept_stash* stash, kvcache_sequence* const * sequences, size_t sequence_count,
        const kvcache_hidden_rows* hidden, const uint64_t* rows, const uint64_t* catch_up,
        size_t catch_up_count, const uint64_t* catch_counts
    )
    kvcache_status kvcache_accept_stash_rows(
        const kvcache_accept_stash* stash, uint64_t count, kvcache_hidden_rows* out
    )
    kvcache_status kvcache_accept_stash_row(
        const kvcache_accept_stash* stash, uint64_t index, kvcache_hidden_rows* out
    )
    kvcache_status kvcache_accept_stash_catch_up(
        const kvcache_accept_stash* stash, uint64_t index, kvcache_hidden_rows* out
    )
    kvcache_status kvcache_drafts_create(uint64_t slots, uint64_t positions, kvcache_drafts** out)
    void kvcache_drafts_destroy(kvcache_drafts* drafts)
    kvcache_status kvcache_drafts_put(
        kvcache_drafts* drafts, const kvcache_sequence* sequence, const int32_t* tokens,
        size_t token_count, const float* confidences
    )
    kvcache_status kvcache_drafts_take(
        kvcache_drafts* drafts, const kvcache_sequence* sequence, int32_t* out,
        float* out_confidences, size_t capacity, size_t* out_count, size_t* out_confidence_count
    )
    kvcache_status kvcache_drafts_put_back(kvcache_drafts* drafts, const kvcache_sequence* sequence)
    kvcache_status kvcache_drafts_clear(kvcache_drafts* drafts, const kvcache_sequence* sequence)
    kvcache_status kvcache_drafts_pending(
        const kvcache_drafts* drafts, const kvcache_sequence* sequence, uint64_t* out
    )
