"""Declarations of kvcache/c_sequence.h, sequences and batches: cimport them from ``kvcache.c``."""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from kvcache.c_base cimport (
    kvcache_batch,
    kvcache_cache,
    kvcache_media,
    kvcache_rows,
    kvcache_sequence,
    kvcache_space,
    kvcache_status,
)

cdef extern from "kvcache/c_sequence.h" nogil:
    ctypedef enum kvcache_snapshot_format:
        KVCACHE_SNAPSHOT_EXACT
        KVCACHE_SNAPSHOT_F16
        KVCACHE_SNAPSHOT_INT8

    ctypedef enum kvcache_mark_kind:
        KVCACHE_MARK_OTHER
        KVCACHE_MARK_TURN
        KVCACHE_MARK_TOOLS
        KVCACHE_MARK_SYSTEM

    ctypedef struct kvcache_open_options:
        size_t struct_size
        const char* tenant
        const char* kind
        const double* expected_reuse
        const uint64_t* now_ms
        uint64_t ttl_ms

    ctypedef struct kvcache_close_options:
        size_t struct_size
        const uint64_t* output_tokens
        uint32_t session_closed
        const uint64_t* now_ms

    ctypedef struct kvcache_layer_rows:
        int32_t layer
        const kvcache_rows* components
        size_t component_count

    kvcache_status kvcache_sequence_open(
        kvcache_cache* cache, const int32_t* tokens, size_t token_count, const kvcache_space* space,
        const kvcache_open_options* options, kvcache_sequence** out
    )
    kvcache_status kvcache_sequence_close(
        kvcache_sequence* sequence, const kvcache_close_options* options
    )
    void kvcache_sequence_destroy(kvcache_sequence* sequence)
    uint64_t kvcache_sequence_cached_tokens(const kvcache_sequence* sequence)
    uint64_t kvcache_sequence_matched_tokens(const kvcache_sequence* sequence)
    uint64_t kvcache_sequence_length(const kvcache_sequence* sequence)
    kvcache_status kvcache_sequence_tokens(
        const kvcache_sequence* sequence, int32_t* out, size_t capacity, size_t* out_count
    )
    kvcache_status kvcache_sequence_extend(
        kvcache_sequence* sequence, const int32_t* tokens, size_t token_count,
        const kvcache_media* media, size_t media_count
    )
    kvcache_status kvcache_sequence_write(
        kvcache_sequence* sequence, int32_t layer, uint64_t start, const kvcache_rows* components,
        size_t component_count
    )
    kvcache_status kvcache_sequence_read(
        const kvcache_sequence* sequence, int32_t layer, uint64_t start,
        const kvcache_rows* components, size_t component_count
    )
    kvcache_status kvcache_sequence_write_layers(
        kvcache_sequence* sequence, uint64_t start, const kvcache_layer_rows* layers,
        size_t layer_count
    )
    kvcache_status kvcache_sequence_read_layers(
        const kvcache_sequence* sequence, uint64_t start, const kvcache_layer_rows* layers,
        size_t layer_count
    )
    kvcache_status kvcache_sequence_written(
        const kvcache_sequence* sequence, int32_t layer, uint64_t* out
    )
    kvcache_status kvcache_sequence_written_records(
        const kvcache_sequence* sequence, int32_t layer, const char* name, uint64_t* out
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
        size_t* out_count
    )
    kvcache_status kvcache_sequence_snapshot(
        kvcache_sequence* sequence, kvcache_snapshot_format format
    )
    kvcache_status kvcache_sequence_mark(
        kvcache_sequence* sequence, uint64_t position, kvcache_mark_kind kind
    )
    kvcache_status kvcache_sequence_prefill_stops(
        const kvcache_sequence* sequence, uint64_t* out, size_t capacity, size_t* out_count
    )
    kvcache_status kvcache_sequence_publish(kvcache_sequence* sequence)
    kvcache_status kvcache_sequence_fork(kvcache_sequence* sequence, kvcache_sequence** out)
    kvcache_status kvcache_sequence_truncate(kvcache_sequence* sequence, uint64_t position)
    kvcache_status kvcache_sequence_shift(kvcache_sequence* sequence, uint64_t keep, uint64_t drop)
    kvcache_status kvcache_sequence_record(kvcache_sequence* sequence)
    kvcache_status kvcache_sequence_rollback(kvcache_sequence* sequence, uint64_t position)
    kvcache_status kvcache_sequence_recorded(
        const kvcache_sequence* sequence, uint64_t* out, size_t capacity, size_t* out_count
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
    kvcache_status kvcache_batch_copy_block_table(
        const kvcache_batch* batch, size_t group, int32_t* out, size_t columns, size_t count
    )
